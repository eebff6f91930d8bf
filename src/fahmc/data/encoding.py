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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fahmc.data.cells import Cells, complete_rows
from fahmc.data.columns import Columns
from fahmc.data.tables import Table, as_text, require_columns
from fahmc.errors import DataError

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


class Scale(NamedTuple):
    """What a standardised feature was centred on and divided by."""

    mean: float
    sd: float


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

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the columns of ``x``; ``"group[T]"`` is 1 where ``group`` is T."""
        names: list[str] = []
        for column in self.features:
            levels = self.levels.get(column)
            names += [column] if levels is None else [f"{column}[{level}]" for level in levels[1:]]
        return tuple(names)


def choose_features(
    columns: Columns, present: Mapping[str, Sequence[str]], files: Mapping[str, str]
) -> tuple[str, ...]:
    """Check that every client has the columns, and write a two-dimensional array's name out as its columns.

    ``present`` has the names of each client's columns, ``files`` the name of its file, for messages.
    """
    if not present:
        raise DataError("there are no clients; at least one table of rows is needed.")
    first = next(iter(present.values()))
    outcome = columns.named_outcome
    wanted = [name for name in first if name != outcome] if columns.features is None else list(columns.features)
    features: list[str] = []
    for name in wanted:
        parts = [] if name in first else [column for column in first if column.startswith(f"{name}[")]
        features += parts or [name]
    for client, names in present.items():
        require_columns([outcome, *features], names, f"{files[client]} of client {client!r}")
    if outcome in features or not features or len(set(features)) < len(features):
        raise DataError(
            f"features = {wanted} with outcome {outcome!r}: name at least one feature, each once, and not the outcome."
        )
    require_columns(columns.categorical, features, "the features (named under categorical)")
    return tuple(features)


def summarize(
    table: Table, client: str, columns: Columns, features: Sequence[str], *, show_cells: bool = True
) -> TableSummary:
    """Sum up one client's table for `agree`; with ``show_cells=False``, no refusal quotes what a cell holds."""
    outcome = columns.named_outcome
    rows = complete_rows(table, client, [outcome, *features], columns.missing)

    def summary(column: str, holds_codes: bool, standardize: bool) -> ColumnSummary:
        return _summarize_column(Cells(rows, client, column, show_cells), holds_codes, standardize)

    num_rows = len(rows.row_numbers)
    return TableSummary(
        num_rows=num_rows,
        num_dropped=len(table.row_numbers) - num_rows,
        features={name: summary(name, name in columns.categorical, columns.standardize) for name in features},
        outcome=summary(outcome, columns.outcome_positive is not None, standardize=False),
    )


def agree(columns: Columns, features: Sequence[str], summaries: Mapping[str, TableSummary]) -> Encoding:
    """Settle one encoding from all clients' summaries: a column is numbers if any client has a number in it."""
    levels: dict[str, tuple[str, ...]] = {}
    standardization: dict[str, Scale] = {}
    for column in features:
        at_clients = {client: summary.features[column] for client, summary in summaries.items()}
        if not _is_numeric(at_clients):
            levels[column] = tuple(_agreed_levels(column, at_clients))
        elif columns.standardize:
            scale = _agreed_scale(column, list(at_clients.values()))
            standardization |= {} if scale is None else {column: scale}
    outcomes = {client: summary.outcome for client, summary in summaries.items()}
    outcome_levels = () if _is_numeric(outcomes) else _agreed_classes(columns, outcomes)
    return Encoding(tuple(features), levels, outcome_levels, standardization)


def encode(
    table: Table, client: str, columns: Columns, encoding: Encoding, *, show_cells: bool = True
) -> dict[str, np.ndarray]:
    """Write one client's table as ``{"x": [row, dim], "y": [row]}``.

    With ``show_cells=False``, for a refusal that is read elsewhere, the message does not quote what the cell holds.
    """
    rows = complete_rows(table, client, [columns.named_outcome, *encoding.features], columns.missing)
    blocks: list[np.ndarray] = []
    for column in encoding.features:
        cells = Cells(rows, client, column, show_cells)
        if (levels := encoding.levels.get(column)) is not None:
            blocks.append((cells.codes(levels)[:, None] == np.arange(1, len(levels))).astype(float))
        else:
            mean, sd = encoding.standardization.get(column, (0.0, 1.0))
            blocks.append((cells.numbers() - mean) / sd)
    outcome = Cells(rows, client, columns.named_outcome, show_cells)
    y = outcome.codes(encoding.outcome_levels) if encoding.outcome_levels else outcome.numbers()
    return {"x": np.column_stack(blocks), "y": y}


def _summarize_column(cells: Cells, holds_codes: bool, standardize: bool) -> ColumnSummary:
    if holds_codes or not cells.has_numbers():
        levels = sorted(set(cells.texts().tolist()))
        # Too many are refused, and are likely to be names: these stay here, but for the one that a message may quote.
        sent = levels if len(levels) <= MAX_LEVELS else levels[: int(cells.show_cells)]
        return ColumnSummary(has_numbers=False, num_levels=len(levels), levels=tuple(sent))
    numbers = cells.numbers()  # even where no statistic is wanted: a bad cell is better refused before the exchange
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
        is_binary=bool(np.isin(numbers, [0.0, 1.0]).all()),
        is_constant=is_constant,
    )


def _is_numeric(at_clients: Mapping[str, ColumnSummary]) -> bool:
    return any(summary.has_numbers for summary in at_clients.values())


def _agreed_levels(column: str, at_clients: Mapping[str, ColumnSummary]) -> list[str]:
    levels = sorted({level for summary in at_clients.values() for level in summary.levels})
    num_levels, examples, where = len(levels), tuple(levels), "over all clients"
    for client, summary in at_clients.items():
        if summary.num_levels > MAX_LEVELS:  # not all of them were sent, so the union cannot be counted
            num_levels, examples, where = summary.num_levels, summary.levels, f"at client {client!r}"
    if not 2 <= num_levels <= MAX_LEVELS:
        such_as = f", such as {examples[0]!r}" if examples else ""
        raise DataError(
            f"column {column!r} is text with {num_levels} different values {where}{such_as}; 2 to {MAX_LEVELS} can be "
            "encoded. Leave the column out, or group its values."
        )
    return levels


def _agreed_scale(column: str, at_clients: Sequence[ColumnSummary]) -> Scale | None:
    """Pool each client's row count, mean and sum of squared deviations into the mean and sd of all rows.

    They say the same as count, sum and sum of squares, and do not cancel when the mean is large beside the sd.
    """
    if not all(summary.has_numbers for summary in at_clients):
        return None  # a client has text where others have numbers: `encode` refuses it there, and can name the cell
    if all(summary.is_constant for summary in at_clients) and len({summary.mean for summary in at_clients}) == 1:
        raise DataError(
            f"feature {column!r} is {at_clients[0].mean:g} in every row of every client, so it has no standard "
            "deviation to be scaled by and cannot explain the outcome. Leave it out."
        )
    if all(summary.is_binary for summary in at_clients):
        return None
    counts, means, squares = np.array([(summary.count, summary.mean, summary.squares) for summary in at_clients]).T
    mean = (counts * means).sum() / counts.sum()
    variance = (squares.sum() + (counts * (means - mean) ** 2).sum()) / counts.sum()
    return Scale(float(mean), float(np.sqrt(variance)))


def _agreed_classes(columns: Columns, at_clients: Mapping[str, ColumnSummary]) -> tuple[str, ...]:
    outcome, positive = columns.named_outcome, columns.outcome_positive
    levels = _agreed_levels(outcome, at_clients)
    if positive is None and len(levels) == 2:
        raise DataError(
            f"outcome {outcome!r} is text with the levels {levels}; say which one counts as 1, for example "
            f'outcome_positive = "{levels[1]}".'
        )
    if positive is not None:
        positive = str(as_text(np.array([positive], dtype=object))[0])  # written as the levels are
        if positive not in levels or len(levels) != 2:
            raise DataError(
                f"outcome {outcome!r} has the levels {levels}; outcome_positive = {positive!r} must be one of two."
            )
        levels.sort(key=lambda level: level == positive)
    return tuple(levels)
