"""The cells of one client's table: which rows are complete, and a column read as numbers or as levels.

Every refusal names column and client; it says which row and what the cell holds only where that may be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, NoReturn

import numpy as np
import pandas as pd

from fahmc.data.tables import Table, as_text, require_columns
from fahmc.errors import DataError


def complete_rows(table: Table, client: str, names: Sequence[str], missing: Literal["error", "drop"]) -> Table:
    """Return the rows that lack none of the named columns; refuse or drop the others."""
    require_columns(names, table.columns, f"{table.file} of client {client!r}")
    gaps = {name: pd.isna(table.columns[name]) for name in names}
    worst = max(names, key=lambda name: gaps[name].sum())
    is_incomplete = np.logical_or.reduce(list(gaps.values()))
    if missing == "error" and is_incomplete.any():
        counts = ", ".join(f"{name!r} ({gap.sum()})" for name, gap in gaps.items() if gap.any())
        raise DataError(
            f"client {client!r} lacks values in {counts} (first in {worst!r}: {table.first(gaps[worst])}). "
            'Fill them in, leave the columns out, or set missing = "drop" to leave such rows out.'
        )
    if is_incomplete.all():
        raise DataError(
            f"client {client!r} has no complete row among its {len(is_incomplete)}; most gaps are in {worst!r}. "
            "Leave that column or this client out."
        )
    return table.keep(~is_incomplete)


class Cells(NamedTuple):
    """One column of one client, to be read as numbers or as levels."""

    table: Table
    client: str
    column: str
    show_cells: bool
    """Whether a refusal may quote what a cell holds."""

    def has_numbers(self) -> bool:
        """Whether any cell is a number."""
        return not np.isnan(self._parsed()).all()

    def numbers(self) -> np.ndarray:
        """Return the cells as numbers, or refuse the first that is none."""
        numbers = self._parsed()
        is_bad = ~np.isfinite(numbers)
        if is_bad.any():
            advice = f'Correct that cell; or, if the column holds codes, set categorical = ["{self.column}"].'
            self._refuse(is_bad, self.table.columns[self.column], "holds numbers", advice)
        return numbers

    def texts(self) -> np.ndarray:
        """Return the cells as text."""
        return as_text(self.table.columns[self.column])

    def codes(self, levels: Sequence[str]) -> np.ndarray:
        """Return the place of each cell among the levels."""
        place = {level: number for number, level in enumerate(levels)}
        texts = self.texts()
        codes = np.array([place.get(text, -1) for text in texts.tolist()], dtype=np.int32)
        is_bad = codes < 0
        if is_bad.any():
            advice = "Correct that cell; or, if the table has changed, agree on an encoding again."
            self._refuse(is_bad, texts.astype(object), f"was agreed to have the levels {list(levels)}", advice)
        return codes

    def _parsed(self) -> np.ndarray:
        return np.asarray(pd.to_numeric(self.table.columns[self.column], errors="coerce"), dtype=float)

    def _refuse(self, is_bad: np.ndarray, cells: np.ndarray, expected: str, advice: str) -> NoReturn:
        cell = repr(cells[is_bad][0]) if self.show_cells else "something else"
        # Where a stranger chose what is expected, the row would tell him what it holds.
        place = self.table.first(is_bad) if self.show_cells else f"some rows of {self.table.file}"
        raise DataError(f"column {self.column!r} {expected}, but {cell} in {place} (client {self.client!r}). {advice}")
