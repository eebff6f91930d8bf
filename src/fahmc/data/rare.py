"""Which columns of a client's table hold a value that few rows have: it could single them out.

Columns of levels, and of numbers with no more than two values, such as yes and no as 1 and 0. Of a formula's products
of such columns every combination counts like a value. Nothing here depends on what others propose: which columns are
asked for, and their cells, decide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fahmc.data.cells import Cells
from fahmc.data.columns import Columns
from fahmc.data.formula import read_formula
from fahmc.data.tables import Table

_TWO = 2


class Rare(NamedTuple):
    """Columns whose values, or whose combinations, include one that few rows have."""

    columns: tuple[str, ...]
    words: str
    """Which value it is: for who may read the rows."""


def find_rare(rows: Table, client: str, columns: Columns, features: Sequence[str], minimum: int) -> Rare | None:
    """Return the first column, or product of columns, of which some value has 1 to minimum − 1 of the rows."""
    codes = {*columns.categorical, *([columns.named_outcome] if columns.outcome_is_text else [])}
    found = {}
    for name in columns.in_table(features):
        values = _values(Cells(rows, client, name), name in codes)
        if values is not None:
            found[name] = values
    groups = [(name,) for name in found]
    if columns.formula is not None:
        terms = (tuple(factor.variable.column for factor in term) for term in read_formula(columns.formula).terms)
        products = (tuple(dict.fromkeys(name for name in term if name in found)) for term in terms)
        groups += [product for product in products if len(product) > 1]
    return next(filter(None, (_rare(group, [found[name] for name in group], minimum) for group in groups)), None)


def find_rare_array(arrays: Mapping[str, np.ndarray], minimum: int) -> Rare | None:
    """Return the first column of arrays [row, ...] that has one or two values, one of them in few rows."""
    for name, array in arrays.items():
        columns = array.reshape(len(array), -1).T if array.ndim and array.size else ()
        for column in columns:
            if len(np.unique(column)) <= _TWO and (rare := _rare((name,), [column], minimum)):
                return rare
    return None


def _values(cells: Cells, holds_codes: bool) -> np.ndarray | None:
    """Return what can be counted of a column; None for numbers of more than two values."""
    if holds_codes or not cells.has_numbers():
        return cells.texts()
    numbers = cells.numbers()
    return numbers if len(np.unique(numbers)) <= _TWO else None


def _rare(names: tuple[str, ...], values: Sequence[np.ndarray], minimum: int) -> Rare | None:
    cells = np.zeros(len(values[0]), int)
    for column in values:
        levels, places = np.unique(column, return_inverse=True)
        cells = cells * len(levels) + places
    _, rows, counts = np.unique(cells, return_index=True, return_counts=True)
    if not (few := np.flatnonzero(counts < minimum)).size:
        return None
    row, count = rows[few[0]], counts[few[0]]
    said = ", ".join(f"{name} = {column[row]}" for name, column in zip(names, values, strict=True))
    return Rare(names, f"{said} in {count} rows; {minimum} are needed (minimum_rows_per_level).")
