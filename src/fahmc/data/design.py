"""The columns of x that a formula makes, once levels and scales are agreed on: their names, and their numbers.

A term is a product of factors. A factor that is numbers brings its columns, one of levels a 0/1 column for each level,
without that of the reference where the other terms span it already. Which is which is Patsy's rule, as formulaic has
it: a term of levels a:b stands for all products of {1, a⁻} and {1, b⁻}, where ⁻ means without the reference; those that
came before are left out, and what is left is put together again by 1 + a⁻ = a.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float

from fahmc.data.cells import LARGEST, Cells
from fahmc.data.factors import Factor, Levels, Numbers, Plain, Spline
from fahmc.data.formula import Formula
from fahmc.data.scales import Scale
from fahmc.data.tables import MAX_COLUMNS, Table
from fahmc.errors import DataError
from fahmc.names import unprintable


class _Coded(NamedTuple):
    """A factor in a product; one of levels has a column for each, or for each but the reference."""

    factor: Factor
    is_reduced: bool


_Product: TypeAlias = tuple[_Coded, ...]


@dataclass(frozen=True)
class Design:
    """The products that make up x, and what was agreed on for them."""

    products: tuple[_Product, ...]
    levels: Mapping[str, Sequence[str]]
    scales: Mapping[str, Scale]
    """Of the variables that are standardised, by name."""
    spreads: Mapping[str, Scale]
    """Of the variables of which a factor needs mean and sd."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns of x, as formulaic has them."""
        blocks = ([self._labels(coded) for coded in product] for product in self.products)
        return tuple(":".join(labels) for block in blocks for labels in _in_order(block))

    @property
    def width(self) -> int:
        """How many columns there are."""
        return sum(math.prod(len(self._labels(coded)) for coded in product) for product in self.products)

    def kept_levels(self, coded: _Coded) -> list[int] | None:
        """Return which of the agreed levels have a column, by their places; None for a factor that is numbers."""
        factor, levels = coded.factor, self.levels.get(coded.factor.variable.column)
        if levels is None:
            return None
        said = factor.reference if isinstance(factor, Levels) else None
        reference = levels[0] if said is None else said
        return [place for place, level in enumerate(levels) if not (coded.is_reduced and level == reference)]

    def _labels(self, coded: _Coded) -> tuple[str, ...]:
        factor, kept = coded.factor, self.kept_levels(coded)
        if kept is None:
            assert not isinstance(factor, Levels)
            return factor.labels
        levels, mark = self.levels[factor.variable.column], "T." if coded.is_reduced else ""
        return tuple(f"{factor.name}[{mark}{levels[place]}]" for place in kept)


def read_design(
    formula: Formula,
    levels: Mapping[str, Sequence[str]],
    scales: Mapping[str, Scale],
    spreads: Mapping[str, Scale],
) -> Design:
    """Say what columns a formula makes of what was agreed on; refuse what does not go together.

    Nothing here depends on rows, so a refusal tells nothing of them.
    """
    for factor in formula.factors:
        _check_factor(factor, levels, spreads)
    design = Design(tuple(_products(formula, levels)), levels, scales, spreads)
    if design.width > MAX_COLUMNS:
        raise DataError(
            f"the formula makes {design.width:,} features; at most {MAX_COLUMNS:,} are sampled. Leave some out."
        )
    for name in design.names:
        if complaint := unprintable(name):
            raise DataError(f"a feature would be called {name[:60]!r}, which {complaint}. Use shorter names or levels.")
    return design


def design_matrix(design: Design, rows: Table, client: str) -> Float[np.ndarray, "row column"]:
    """Return x. What exceeds what a cell may hold, as a product of large numbers can, is set to that."""
    blocks: dict[_Coded, np.ndarray] = {}
    x = np.empty((len(rows.row_numbers), design.width))
    place = 0
    for product in design.products:
        for coded in product:
            if coded not in blocks:
                blocks[coded] = _within(_block(design, coded, rows, client))
        for columns in _in_order([blocks[coded].T for coded in product]):
            column = columns[0]
            for other in columns[1:]:
                column = _within(column * other)
            x[:, place] = column
            place += 1
    return x


def _check_factor(factor: Factor, levels: Mapping[str, Sequence[str]], spreads: Mapping[str, Scale]) -> None:
    column = factor.variable.column
    is_text = column in levels
    if is_text and not (isinstance(factor, Levels) or (isinstance(factor, Plain) and not factor.variable.function)):
        raise DataError(
            f"the formula takes {factor.name}, but column {column!r} is text. Leave it out, or take it as it is."
        )
    if isinstance(factor, Levels) and not is_text:
        raise DataError(f"the formula takes {factor.name}, but no levels of {column!r} were agreed on.")
    if isinstance(factor, Levels) and factor.reference is not None and factor.reference not in levels[column]:
        raise DataError(
            f"the formula takes {factor.name}, but the levels of {column!r} are {', '.join(levels[column])}. Name "
            "one of them."
        )
    if factor.needs_spread and factor.variable.name not in spreads:
        raise DataError(
            f"the formula takes {factor.name}, but {factor.variable.name} is not numbers at every client, so it has no "
            "mean and sd."
        )
    if isinstance(factor, Spline):
        complaint = factor.knots(spreads.get(factor.variable.name)).complaint()
        if complaint:
            raise DataError(
                f"the formula takes {factor.name}, but {complaint}. Give other knots, or lower_bound and upper_bound."
            )


def _block(design: Design, coded: _Coded, rows: Table, client: str) -> np.ndarray:
    """Return the columns of one factor."""
    factor, kept = coded.factor, design.kept_levels(coded)
    if kept is not None:
        column = factor.variable.column
        codes = Cells(rows, client, column).codes(design.levels[column])
        return (codes[:, None] == np.array(kept, int)).astype(float)
    assert not isinstance(factor, Levels)
    return factor.columns(_numbers(design, factor, rows, client), design.spreads.get(factor.variable.name))


def _numbers(design: Design, factor: Numbers, rows: Table, client: str) -> np.ndarray:
    """Return a variable in the units that a factor takes it in."""
    numbers = factor.variable.numbers(rows, client)
    scale = None if factor.is_raw else design.scales.get(factor.variable.name)
    return numbers if scale is None else (numbers - scale.mean) / scale.sd


def _within(numbers: np.ndarray) -> np.ndarray:
    return np.clip(numbers, -LARGEST, LARGEST)


def _in_order(blocks: Sequence[Any]) -> Iterator[tuple]:
    """Run through one entry of each block, the first block's fastest."""
    return (entries[::-1] for entries in itertools.product(*reversed(blocks)))


def _products(formula: Formula, levels: Mapping[str, Sequence[str]]) -> Iterator[_Product]:
    """Write the terms out so that no column follows from others, whatever the numbers in them."""
    spanned: set[frozenset[_Coded]] = {frozenset()} if formula.has_intercept else set()
    for term in formula.terms:
        choices = []
        for factor in term:
            is_levels = factor.variable.column in levels
            choices.append(((_Coded(factor, True),), ()) if is_levels else ((_Coded(factor, False),),))
        written = [tuple(itertools.chain(*parts)) for parts in itertools.product(*choices)]
        new = [product for product in written if frozenset(product) not in spanned]
        spanned |= set(map(frozenset, new))
        yield from _put_together(new)


def _put_together(products: Sequence[_Product]) -> list[_Product]:
    """Replace p·a⁻ + p by p·a as long as there are such pairs."""
    found: list[_Product] = []
    for product in sorted(products, key=len):
        for smaller in found:
            more = set(product) - set(smaller)
            if len(smaller) != len(product) - 1 or len(more) != 1:
                continue
            (coded,) = more
            if coded.is_reduced:
                whole = tuple(_Coded(one.factor, False) if one == coded else one for one in product)
                found = _put_together([*(other for other in found if other != smaller), whole])
                break
        else:
            found.append(product)
    return found
