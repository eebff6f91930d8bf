"""Columns that say how a row counts, beside its outcome and its features.

They become arrays of one number a row, as they are: nothing of them is standardised, agreed on, or told to others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fahmc.data.cells import Cells
from fahmc.data.columns import Columns
from fahmc.data.tables import Table
from fahmc.errors import DataError


class UnfitCell(DataError):
    """A cell that cannot be what its column was named for."""


class _Role(NamedTuple):
    """What a setting makes of the column that it names."""

    array: str
    """Its name among the rows."""
    is_allowed: Callable[[np.ndarray], np.ndarray]
    needed: str
    write: Callable[[np.ndarray], np.ndarray] = np.asarray


_ROLES = {
    "offset": _Role("offset", np.isfinite, "a number"),
    "exposure": _Role("offset", lambda cells: cells > 0, "above 0, as its logarithm is taken", np.log),
    "row_weights": _Role("weight", lambda cells: cells >= 0, "0 or more"),
    "event": _Role("event", lambda cells: (cells == 0) | (cells == 1), "1 (it happened) or 0 (censored)"),
    "trials": _Role("trials", lambda cells: (cells >= 0) & (cells == np.floor(cells)), "a whole number, 0 or more"),
}


def row_arrays(rows: Table, client: str, columns: Columns) -> dict[str, np.ndarray]:
    """Read the columns that say how the rows count, each [row]; the log of an exposure is added to the offset."""
    arrays: dict[str, np.ndarray] = {}
    for setting, column in columns.row_columns.items():
        role, cells = _ROLES[setting], Cells(rows, client, column)
        numbers = cells.numbers()
        is_bad = ~role.is_allowed(numbers)
        if is_bad.any():
            raise UnfitCell(
                f"column {column!r} is named as {setting}, which must be {role.needed}, but {numbers[is_bad][0]:g} in "
                f"{rows.first(is_bad)} (client {client!r}). Correct that cell, or name another column.",
                columns=[column],
                setting=setting,
            )
        arrays[role.array] = arrays.get(role.array, 0.0) + role.write(numbers)
    return arrays


def effective_rows(weight: np.ndarray) -> float:
    """Return Kish's number of rows that would say as much if they counted alike, (Σw)² / Σw²."""
    largest = weight.max()
    shares = weight / largest if largest > 0 else weight  # squares of large weights would leave what floats can hold
    return float(shares.sum() ** 2 / (shares**2).sum()) if largest > 0 else 0.0
