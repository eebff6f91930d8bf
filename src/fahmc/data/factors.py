"""What a formula may make of a column: a closed list of forms, each read from its syntax (`fahmc.data.factor_syntax`).

===========================  =======================================================================================
x                            the column: its numbers, or its levels
C(x), C(x, Treatment("a"))   the levels of a column, also of one whose numbers are codes; the level without a column
log(x), log1p(x), sqrt(x)    a function of the numbers
I(v ** 2)                    a power of a column or of such a function v
poly(v, degree=2, raw=True)  powers 1 to degree
center(v), scale(v)          minus the mean of all rows; and divided by their sd
bs(v, df=4)                  a B-spline (`fahmc.data.splines`)
===========================  =======================================================================================

A form that is numbers knows its columns, given those of v: standardised where the study standardises, but as they are
for a spline, center and scale, which have units of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float

from fahmc.data.cells import Cells
from fahmc.data.row_columns import UnfitCell
from fahmc.data.scales import Scale
from fahmc.data.splines import Knots, choose_knots, spline_basis
from fahmc.data.tables import Table

_Column: TypeAlias = Float[np.ndarray, " row"]
_Block: TypeAlias = Float[np.ndarray, "row column"]


class _Function(NamedTuple):
    apply: Callable[[np.ndarray], np.ndarray]
    is_allowed: Callable[[np.ndarray], np.ndarray]
    needed: str


FUNCTIONS = {
    "log": _Function(np.log, lambda cells: cells > 0, "above 0"),
    "log1p": _Function(np.log1p, lambda cells: cells > -1, "above -1"),
    "sqrt": _Function(np.sqrt, lambda cells: cells >= 0, "0 or more"),
}


class Variable(NamedTuple):
    """A column's numbers, or a function of them."""

    column: str
    function: str = ""

    @property
    def name(self) -> str:
        """What it is called in summaries: ``dose``, ``log(dose)``."""
        return f"{self.function}({self.column})" if self.function else self.column

    def numbers(self, rows: Table, client: str) -> _Column:
        """Return its number in every row, or refuse the first cell that has none."""
        cells = Cells(rows, client, self.column).numbers()
        if not self.function:
            return cells
        function = FUNCTIONS[self.function]
        is_bad = ~function.is_allowed(cells)
        if is_bad.any():
            raise UnfitCell(
                f"the formula takes {self.name}, so column {self.column!r} must be {function.needed}, but "
                f"{cells[is_bad][0]:g} in {rows.first(is_bad)} (client {client!r}). Correct that cell, or take the "
                "column as it is.",
                columns=[self.column],
            )
        return function.apply(cells)


@dataclass(frozen=True)
class Plain:
    """A column, or a function of one, as it is; the only form that may turn out to be levels by itself."""

    name: str
    variable: Variable
    needs_spread = is_raw = False

    @property
    def labels(self) -> tuple[str, ...]:
        """The columns' names."""
        return (self.name,)

    def columns(self, numbers: _Column, spread: Scale | None) -> _Block:
        """Return the columns."""
        return numbers[:, None]


@dataclass(frozen=True)
class Powers:
    """Powers of a variable; a list of them has numbered columns, as formulaic counts them."""

    name: str
    variable: Variable
    exponents: tuple[int, ...]
    is_numbered: bool
    needs_spread = is_raw = False

    @property
    def labels(self) -> tuple[str, ...]:
        """The columns' names."""
        if not self.is_numbered:
            return (self.name,)
        return tuple(f"{self.name}[{place}]" for place in range(len(self.exponents)))

    def columns(self, numbers: _Column, spread: Scale | None) -> _Block:
        """Return the columns."""
        return numbers[:, None] ** np.array(self.exponents)


@dataclass(frozen=True)
class Centred:
    """A variable minus its mean over all rows; scaled, also divided by its sd over them (of n rows, not n − 1)."""

    name: str
    variable: Variable
    is_scaled: bool
    needs_spread = is_raw = True

    @property
    def labels(self) -> tuple[str, ...]:
        """The columns' names."""
        return (self.name,)

    def columns(self, numbers: _Column, spread: Scale | None) -> _Block:
        """Return the columns."""
        assert spread is not None
        return (numbers[:, None] - spread.mean) / (spread.sd if self.is_scaled else 1.0)


@dataclass(frozen=True)
class Spline:
    """A B-spline of a variable, by its degree and by what was said of its knots."""

    name: str
    variable: Variable
    degree: int
    num_inner: int
    inner: tuple[float, ...] | None
    lower: float | None
    upper: float | None
    is_raw = True

    @property
    def needs_spread(self) -> bool:
        """Whether any place is left to be chosen from all rows' mean and sd."""
        return self.lower is None or self.upper is None

    @property
    def labels(self) -> tuple[str, ...]:
        """The columns' names."""
        return tuple(f"{self.name}[{place}]" for place in range(1, self.degree + self.num_inner + 1))

    def knots(self, spread: Scale | None) -> Knots:
        """Return where its pieces meet."""
        mean, sd = (math.nan, math.nan) if spread is None else (spread.mean, spread.sd)
        return choose_knots(self.num_inner, self.inner, self.lower, self.upper, mean, sd)

    def columns(self, numbers: _Column, spread: Scale | None) -> _Block:
        """Return the columns."""
        return spline_basis(numbers, self.knots(spread), self.degree)


@dataclass(frozen=True)
class Levels:
    """The levels of a column, said to be such; ``reference`` is the one without a column of its own."""

    name: str
    variable: Variable
    reference: str | None = None
    needs_spread = is_raw = False


Numbers: TypeAlias = Plain | Powers | Centred | Spline
Factor: TypeAlias = Numbers | Levels
