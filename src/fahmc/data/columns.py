"""Which columns a study takes from every client's table, and how: the one list of these settings.

`Sites` and the section [data] of a configuration inherit them. Nothing here needs pandas, which `import fahmc` spares.
"""

# Annotations are not left as strings: Pydantic before 2.10 would look up their names where a class inherits them.
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fahmc.errors import DataError


@dataclass(frozen=True)
class Columns:
    """What a study takes from every client's table, the same at all of them."""

    outcome: str | None = None
    """Column to predict. Text with two levels needs ``outcome_positive``; text with more becomes classes 0, 1, ... in
    alphabetical order; numbers stay. Without an outcome, npz arrays go as they are."""
    features: Sequence[str] | None = None
    """Columns to predict from; by default all but the outcome. Numbers stay numbers. Text becomes one 0/1 column for
    each level but the alphabetically first."""
    outcome_positive: str | None = None
    """The level of the outcome that counts as 1."""
    categorical: Sequence[str] = ()
    """Features whose numbers are codes, to be treated as text."""
    missing: Literal["error", "drop"] = "error"
    """What to do with a row that lacks a value: refuse it, or drop it and count it."""
    standardize: bool = True
    """Centre and scale features that are numbers other than 0/1, by the mean and sd over all clients' rows."""

    def __post_init__(self):
        if isinstance(self.features, str) or isinstance(self.categorical, str):
            raise DataError("features and categorical are lists of column names; put a single name into a list.")
        if self.outcome is None and (self.features is not None or self.categorical or self.outcome_positive):
            raise DataError(
                f"{type(self).__name__} names features without an outcome; name the outcome column as well."
            )
        if self.missing not in ("error", "drop"):
            raise DataError(f"missing = {self.missing!r} is not known; choose 'error' or 'drop'.")
        object.__setattr__(self, "features", None if self.features is None else tuple(self.features))
        object.__setattr__(self, "categorical", tuple(self.categorical))

    @property
    def named_outcome(self) -> str:
        """The outcome, where there must be one."""
        if self.outcome is None:
            raise DataError("no outcome is named; name the column to predict.")
        return self.outcome
