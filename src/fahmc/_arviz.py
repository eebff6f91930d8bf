"""ArviZ without its greeting: 0.x announces 1.0 to whoever imports it, once a day, and our users did not import it."""

import warnings

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", r"\s*ArviZ is undergoing a major refactor", FutureWarning)
    import arviz

__all__ = ["arviz"]
