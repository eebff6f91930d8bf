"""Variables over all clients' rows: what standardising and splines have to know of them, and no client's own part.

    mean = Σ_c n_c m_c / n        sd² = Σ_c (s_c + n_c (m_c − mean)²) / n

m_c and s_c are a client's mean and sum of squared deviations from it. Both sums can be had without showing their parts:
the first one first, then the second one, about the mean that all know by then.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fahmc.data.columns import Columns
from fahmc.data.formula import read_formula
from fahmc.data.scales import Scale
from fahmc.data.summaries import ColumnSummary, TableSummary

# Of a mean, what sums of equal numbers may be off by.
_ROUNDING = 1e-14


class Pooled(NamedTuple):
    """A variable over all clients' rows."""

    scale: Scale
    is_binary: bool
    """Whether all values are 0 or 1."""
    is_constant: bool
    """Whether all are the same, which is then the mean."""


def pooled_variables(
    columns: Columns, features: Sequence[str], summaries: Mapping[str, TableSummary]
) -> tuple[str, ...]:
    """Name the variables that have to be pooled: those that are numbers at every client."""
    names = list(features) if columns.standardize else []
    if columns.formula is not None:
        names = [variable.name for variable in read_formula(columns.formula).summarized(columns.standardize)]
    return tuple(name for name in names if all(summary.of(name).has_numbers for summary in summaries.values()))


def total(column: ColumnSummary) -> float:
    """Return the sum of a client's values."""
    return column.count * column.mean


def squares_about(column: ColumnSummary, mean: float) -> float:
    """Return the sum of a client's squared deviations from a mean that is not its own.

    Nothing cancels, however large the mean is beside the sd.
    """
    return column.squares + column.count * (column.mean - mean) ** 2


def pool(at_clients: Sequence[ColumnSummary]) -> Pooled:
    """Pool what every client tells of a variable."""
    count = sum(column.count for column in at_clients)
    mean = math.fsum(map(total, at_clients)) / count
    squares = math.fsum(squares_about(column, mean) for column in at_clients)
    num_binary, num_constant = (
        sum(getattr(column, name) for column in at_clients) for name in ("is_binary", "is_constant")
    )
    return pool_totals(count, mean, squares, len(at_clients) - num_binary, len(at_clients) - num_constant)


def pool_totals(count: int, mean: float, squares: float, num_not_binary: int, num_not_constant: int) -> Pooled:
    """Pool totals: rows, squared deviations from the mean, clients not all of whose values are 0 or 1, or one."""
    sd = math.sqrt(squares / count)
    return Pooled(Scale(mean, sd), num_not_binary == 0, num_not_constant == 0 and sd <= _ROUNDING * abs(mean))
