"""The cells of one client's table: which rows are complete, and a column read as numbers or as levels.

Every refusal names column, client and row, and quotes the cell: it is for who may read the rows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NoReturn

import numpy as np

from fahmc.data.columns import Columns
from fahmc.data.tables import Table, as_text, is_missing, numbers_or_nan, require_columns
from fahmc.errors import DataError, shown

LARGEST = 1e30
"""Larger numbers stand for a missing value more often than for one, and their squares leave what floats can hold."""


def complete_rows(table: Table, client: str, names: Sequence[str], columns: Columns) -> Table:
    """Return the rows that lack none of the named columns; refuse or drop the others."""
    require_columns(names, table.columns, f"{table.file} of client {client!r}")
    gaps = {name: is_missing(table.columns[name], columns.missing_values) for name in names}
    worst = max(names, key=lambda name: gaps[name].sum())
    is_incomplete = np.logical_or.reduce(list(gaps.values()))
    if columns.missing == "error" and is_incomplete.any():
        counts = ", ".join(f"{name!r} ({gap.sum()})" for name, gap in gaps.items() if gap.any())
        raise DataError(
            f"client {client!r} lacks values in {counts} (first in {worst!r}: {table.first(gaps[worst])}). "
            'Fill them in, leave the columns out, or set missing = "drop" to leave such rows out.',
            columns=[name for name, gap in gaps.items() if gap.any()],
        )
    if is_incomplete.all():
        raise DataError(
            f"client {client!r} has no complete row among its {len(is_incomplete)}; most gaps are in {worst!r}. "
            "Leave that column or this client out."
        )
    return table.keep(~is_incomplete)


@dataclass(frozen=True, eq=False)
class Cells:
    """One column of one client, to be read as numbers or as levels."""

    table: Table
    client: str
    column: str

    def has_numbers(self) -> bool:
        """Whether any cell is a number."""
        return not np.isnan(self._parsed).all()

    def numbers(self) -> np.ndarray:
        """Return the cells as numbers, or refuse the first that is none."""
        numbers, cells = self._parsed, self.table.columns[self.column]
        is_bad = ~np.isfinite(numbers)
        if is_bad.any():
            self._refuse(is_bad, cells, "holds numbers", self._advice_on_text(cells[is_bad]))
        is_bad = np.abs(numbers) > LARGEST
        if is_bad.any():
            advice = "Correct that cell, or write the column in another unit."
            self._refuse(is_bad, cells, f"may hold numbers up to {LARGEST:g} in size", advice)
        return numbers

    def _advice_on_text(self, texts: np.ndarray) -> str:
        """Say what to do about text among numbers: "?", or the same over and over, stands for a missing value."""
        different = set(map(str, texts.tolist()))
        if len(different) == 1 and (len(texts) > 1 or not any(map(str.isalnum, *different))):
            return f"If it stands for a missing value, set missing_values = [{json.dumps(*different)}]."
        return f'Correct that cell; or, if the column holds codes, set categorical = ["{self.column}"].'

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

    @cached_property
    def _parsed(self) -> np.ndarray:
        return numbers_or_nan(self.table.columns[self.column])

    def _refuse(self, is_bad: np.ndarray, cells: np.ndarray, expected: str, advice: str) -> NoReturn:
        place = f"{self.table.first(is_bad)} (client {self.client!r})"
        cell = shown(cells[is_bad].tolist()[0])
        raise DataError(f"column {self.column!r} {expected}, but {cell} in {place}. {advice}", columns=[self.column])
