"""Formulas of random columns: sound, torn, or with what does not belong into one."""

from __future__ import annotations

import random
from collections.abc import Sequence

from odd_values import ODD_TEXTS

_FORMS = (
    "{}", "{}", "{}", "C({})", "log({})", "log1p({})", "sqrt({})", "I({} ** 2)", "poly({}, 2, raw=True)",
    "bs({}, df=4)",
    "bs({}, knots=[1, 5], lower_bound=0, upper_bound=9)", "bs(log1p({}), degree=1, df=2)", "center({})", "scale({})",
    "C({}, Treatment('mild'))", "offset({})", "offset(log({}))", "open({})", "{}.x", "np.exp({})", "({} | site)",
)  # fmt: skip
_SIGNS = (" + ", " + ", " + ", " * ", ":", " - ", " / ", " %in% ", "^2 + ", " ~ ", " | ", "")
_PIECES = (
    "(",
    ")",
    "`",
    "~",
    "**",
    "^99",
    "'",
    '"',
    "\\",
    "{",
    "}",
    "[",
    "|",
    "0",
    "1e999",
    ".",
    "\n",
    "\x00",
    "é",
    "(1 | site)",
    " + 0",
)


def odd_formula(rng: random.Random, outcome: str, names: Sequence[str]) -> str:
    """Put a formula together, and damage one in three."""
    terms = [rng.choice(_FORMS).format(_quoted(rng, rng.choice(names))) for _ in range(rng.randint(1, 4))]
    text = f"{outcome} ~ {terms[0]}" + "".join(rng.choice(_SIGNS) + term for term in terms[1:])
    while rng.random() < 0.33:
        place = rng.randrange(len(text) + 1)
        piece = rng.choice((*_PIECES, rng.choice(ODD_TEXTS)[:50]))
        text = text[:place] + rng.choice((piece, "")) + text[place + rng.choice((0, 0, 1, 3)) :]
    return text if rng.random() < 0.99 else text * 500


def _quoted(rng: random.Random, name: str) -> str:
    return name if name.isidentifier() and rng.random() < 0.8 else f"`{name}`"
