"""Tables written as numbers by what is public of them, so that no scale and no list of levels tells of the rows.

Where bounds are given, a client sums its columns up as they say, in the place of its rows: their middle for the mean,
their half for the standard deviation, the levels that were named for those that occur. All else goes as for any table.
A number x of bounds [low, high] becomes (x − middle) / half; bounds [0, 1] leave it as it is.

What is public is taken for granted: numbers where bounds are, one of the levels where these are. A client whose table
is not like that refuses it, and so tells that; how many complete rows it has, it tells as well.
"""

from __future__ import annotations

from collections.abc import Sequence

from fahmc.data.cells import Cells
from fahmc.data.columns import Columns
from fahmc.data.encoding import Encoding
from fahmc.data.summaries import ColumnSummary, TableSummary
from fahmc.data.tables import Table
from fahmc.errors import DataError

_UNIT = (0.0, 1.0)


def public_summary(
    rows: Table, client: str, columns: Columns, features: Sequence[str], num_dropped: int
) -> TableSummary:
    """Sum up complete rows for `agree`, by bounds and levels alone."""
    bounds, levels, num_rows = columns.bounds or {}, columns.levels or {}, len(rows.row_numbers)
    summaries = {}
    for name in features:
        cells = Cells(rows, client, name)
        if name in bounds:
            summaries[name] = _of_bounds(cells, *bounds[name])
        elif name in levels:
            summaries[name] = _of_levels(cells, levels[name])
        else:
            raise DataError(f"feature {name!r} has neither bounds nor levels; name one of them for each.", [name])
    outcome = Cells(rows, client, columns.named_outcome)
    if columns.outcome_levels:
        summary = _of_levels(outcome, columns.outcome_levels)
    else:
        outcome.numbers()
        summary = ColumnSummary(has_numbers=True)
    return TableSummary(num_rows, num_dropped, summaries, summary)


def _of_bounds(cells: Cells, low: float, high: float) -> ColumnSummary:
    count, half = len(cells.numbers()), (high - low) / 2
    is_unit = (low, high) == _UNIT
    return ColumnSummary(True, count=count, mean=(low + high) / 2, squares=count * half**2, is_binary=is_unit)


def _of_levels(cells: Cells, levels: Sequence[str]) -> ColumnSummary:
    cells.codes(levels)
    return ColumnSummary(has_numbers=False, num_levels=len(levels), levels=tuple(sorted(levels)))


def encoded_bounds(columns: Columns, encoding: Encoding) -> list[list[float]] | None:
    """Return the bounds of every column of x, if any are public."""
    if columns.bounds is None:
        return None
    found: list[list[float]] = []
    for name in encoding.features:
        if name in encoding.levels:
            found += [list(_UNIT)] * (len(encoding.levels[name]) - 1)
        else:
            found.append([-1.0, 1.0] if name in encoding.standardization else list(_UNIT))
    return found
