"""One encoding for all clients, agreed without any table leaving its owner.

A client must end up with the same columns as every other, whatever its own rows happen to hold. So nothing is decided
at one client alone, and yet no place sees two clients' tables. Three steps pass small values between them:

1. each client names its columns and sums up the chosen ones (`summarize`);
2. one place, which has no table, settles how every column is written as numbers (`choose_features`, then `agree`);
3. each client writes its own table that way (`encode`).

What passes holds only strings, numbers, tuples and dicts, so it can go as JSON. It is not anonymous: levels of text
are sent as they are, and the mean over a single row is that row's value.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from fahmc.data.cells import Cells, complete_rows
from fahmc.data.columns import Columns
from fahmc.data.design import Design, design_matrix, read_design
from fahmc.data.formula import read_formula
from fahmc.data.row_columns import row_arrays
from fahmc.data.scales import Scale
from fahmc.data.tables import Table


@dataclass(frozen=True)
class Encoding:
    """How every client writes its table as numbers."""

    features: tuple[str, ...]
    """Columns of the table to predict from, in the order of ``x``."""
    levels: dict[str, tuple[str, ...]]
    """The levels of each feature that is text; the first has no 0/1 column of its own."""
    outcome_levels: tuple[str, ...]
    """What the codes 0, 1, ... of ``y`` stand for; empty for an outcome that is a number."""
    standardization: dict[str, Scale]
    """Feature name to the mean and sd to take out of it; features not named are left as they are."""
    formula: str | None = None
    """What makes the columns of ``x``, if it is not one feature after the other. Functions of features are then
    standardised, too: ``"log(dose)"``."""
    spreads: dict[str, Scale] = field(default_factory=dict)
    """Mean and sd of what a spline, center or scale of the formula is taken of."""

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the columns of ``x``; ``"group[T]"`` is 1 where ``group`` is T."""
        if self.design is not None:
            return self.design.names
        names: list[str] = []
        for column in self.features:
            levels = self.levels.get(column)
            names += [column] if levels is None else [f"{column}[{level}]" for level in levels[1:]]
        return tuple(names)

    @property
    def baselines(self) -> dict[str, str]:
        """The level of each text feature that its others are compared with: the only one without a column."""
        columns: dict[str, set[str]] = {}
        for name in self.feature_names:
            feature, bracket, level = name.removesuffix("]").partition("[")
            if bracket and ":" not in feature and "]:" not in level:  # which are products of several
                columns.setdefault(feature, set()).add(level.removeprefix("" if self.formula is None else "T."))
        without = {
            feature: set(levels) - own
            for feature, own in columns.items()
            for column, levels in self.levels.items()
            if feature == column or feature.startswith((f"C({column})", f"C({column},"))
        }
        return {feature: next(iter(levels)) for feature, levels in without.items() if len(levels) == 1}

    @cached_property
    def design(self) -> Design | None:
        """The columns that the formula makes, if there is one."""
        if self.formula is None:
            return None
        return read_design(read_formula(self.formula), self.levels, self.standardization, self.spreads)


def encode(table: Table, client: str, columns: Columns, encoding: Encoding) -> dict[str, np.ndarray]:
    """Write one client's table as ``{"x": [row, dim], "y": [row]}``, and what says how the rows count, [row] each."""
    rows = complete_rows(table, client, columns.in_table(encoding.features), columns)
    outcome = Cells(rows, client, columns.named_outcome)
    y = outcome.codes(encoding.outcome_levels) if encoding.outcome_levels else outcome.numbers()
    return {"x": _x(rows, client, encoding), "y": y, **row_arrays(rows, client, columns)}


def _x(rows: Table, client: str, encoding: Encoding) -> np.ndarray:
    """Return what is predicted from, [row, dim]."""
    if encoding.design is not None:
        return design_matrix(encoding.design, rows, client)
    blocks: list[np.ndarray] = []
    for column in encoding.features:
        cells = Cells(rows, client, column)
        if (levels := encoding.levels.get(column)) is not None:
            blocks.append((cells.codes(levels)[:, None] == np.arange(1, len(levels))).astype(float))
        else:
            mean, sd = encoding.standardization.get(column, (0.0, 1.0))
            blocks.append((cells.numbers() - mean) / sd)
    return np.column_stack(blocks)
