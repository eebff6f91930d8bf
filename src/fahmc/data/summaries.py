"""What one client tells the others of its table, so that all can write theirs as numbers in one way.

It is not anonymous: levels of text are told as they are, and the mean over a single row is that row's value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fahmc.data.cells import Cells, complete_rows
from fahmc.data.columns import Columns
from fahmc.data.factors import Variable
from fahmc.data.formula import read_formula
from fahmc.data.row_columns import row_arrays
from fahmc.data.tables import Table

# More levels than this is an identifier or free text rather than a covariate.
MAX_LEVELS = 50


@dataclass(frozen=True)
class ColumnSummary:
    """What the others have to know of one column at one client."""

    has_numbers: bool
    """Whether any cell is a number, in a column whose numbers are not codes."""
    num_levels: int = 0
    levels: tuple[str, ...] = ()
    """How many different texts a column without numbers has, and these in alphabetical order; if there are more than
    `MAX_LEVELS`, only the first, which is all that the refusal of the column needs."""
    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    """Rows, their mean, and the sum of their squared deviations from it, of a feature that may be standardised."""
    is_binary: bool = False
    is_constant: bool = False
    """Whether all values of such a feature are 0 or 1, and whether all are the same, which is then exactly ``mean``."""


@dataclass(frozen=True)
class TableSummary:
    """What the others have to know of one client's table: its complete rows, those dropped, and each column."""

    num_rows: int
    num_dropped: int
    features: dict[str, ColumnSummary]
    outcome: ColumnSummary
    functions: dict[str, ColumnSummary] = field(default_factory=dict)
    """The same of what a formula takes of features: ``"log(dose)"``."""

    def of(self, name: str) -> ColumnSummary:
        """Return the summary of a feature, or of a function of one."""
        return self.features[name] if name in self.features else self.functions[name]


def summarize(table: Table, client: str, columns: Columns, features: Sequence[str]) -> TableSummary:
    """Sum up one client's table for `agree`."""
    outcome, codes = columns.named_outcome, set(columns.categorical)
    formula = None if columns.formula is None else read_formula(columns.formula)
    # Of a formula, statistics are told of what it needs them of, which may be the logarithm of a column alone.
    if formula is not None:
        told = set(formula.summarized(columns.standardize))
    else:
        told = set(map(Variable, features)) if columns.standardize else set()
    rows = complete_rows(table, client, columns.in_table(features), columns)
    if columns.bounds is not None:
        from fahmc.data.public import public_summary  # which is built on this module

        return public_summary(rows, client, columns, features, len(table.row_numbers) - len(rows.row_numbers))
    row_arrays(rows, client, columns)  # a bad cell is better refused before the exchange

    def summary(column: str, holds_codes: bool, standardize: bool) -> ColumnSummary:
        return _summarize_column(Cells(rows, client, column), holds_codes, standardize)

    num_rows = len(rows.row_numbers)
    return TableSummary(
        num_rows=num_rows,
        num_dropped=len(table.row_numbers) - num_rows,
        features={name: summary(name, name in codes, Variable(name) in told) for name in features},
        outcome=summary(outcome, columns.outcome_is_text, standardize=False),
        functions={
            variable.name: _summarize_function(variable, rows, client, variable in told)
            for variable in ([] if formula is None else formula.functions)
        },
    )


def _summarize_function(variable: Variable, rows: Table, client: str, standardize: bool) -> ColumnSummary:
    if not Cells(rows, client, variable.column).has_numbers():
        return ColumnSummary(has_numbers=False)
    return _summarize_numbers(variable.numbers(rows, client), standardize)


def _summarize_column(cells: Cells, holds_codes: bool, standardize: bool) -> ColumnSummary:
    if holds_codes or not cells.has_numbers():
        levels = sorted(set(cells.texts().tolist()))
        # Too many are refused, and are likely to be names: these stay here, but for the one that a message quotes.
        sent = levels if len(levels) <= MAX_LEVELS else levels[:1]
        return ColumnSummary(has_numbers=False, num_levels=len(levels), levels=tuple(sent))
    # Even where no statistic is wanted: a bad cell is better refused before the exchange.
    return _summarize_numbers(cells.numbers(), standardize)


def _summarize_numbers(numbers: np.ndarray, standardize: bool) -> ColumnSummary:
    if not standardize:
        return ColumnSummary(has_numbers=True)
    is_constant = bool((numbers == numbers[0]).all())
    # Clients with the same constant must send the same mean, so it may not carry the rounding of a sum of its rows.
    mean = numbers[0] if is_constant else numbers.mean()
    return ColumnSummary(
        has_numbers=True,
        count=len(numbers),
        mean=float(mean),
        squares=float(((numbers - mean) ** 2).sum()),
        is_binary=bool(((numbers == 0) | (numbers == 1)).all()),
        is_constant=is_constant,
    )
