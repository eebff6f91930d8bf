"""From one table per client to one design matrix per client.

A client must end up with the same columns as every other, whatever its own rows happen to hold. So nothing is decided
at one client alone: text levels are the union over clients, and means and standard deviations come from each client's
row count, sum and squares. In a real federation these few numbers are all that the sites have to tell each other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from fahmc.data.tables import Table, as_text, require_columns
from fahmc.errors import DataError

# More levels than this is an identifier or free text rather than a covariate.
MAX_LEVELS = 50


class Scale(NamedTuple):
    """What a standardised feature was centred on and divided by."""

    mean: float
    sd: float


@dataclass(frozen=True)
class Study:
    """One outcome and one design matrix per client, with the words to read them.

    Attributes
    ----------
    clients
        Client name to ``{"x": [row, dim], "y": [row]}``, as ``Federation.from_clients`` takes it.
    feature_names
        Names of the columns of ``x``; ``"group[T]"`` is 1 where ``group`` is T.
    outcome_levels
        What the codes 0, 1, ... of ``y`` stand for; empty for an outcome that is a number.
    standardization
        Feature name to the mean and sd taken out of it; features not named were left as they are.
    dropped
        Client name to the number of rows left out because a value was missing.
    """

    clients: dict[str, dict[str, np.ndarray]]
    feature_names: tuple[str, ...]
    outcome_levels: tuple[str, ...]
    standardization: dict[str, Scale]
    dropped: dict[str, int]


def build_study(
    tables: Mapping[str, Table],
    outcome: str,
    *,
    features: Sequence[str] | None = None,
    outcome_positive: str | None = None,
    categorical: Collection[str] = (),
    missing: Literal["error", "drop"] = "error",
    standardize: bool = True,
) -> Study:
    """Choose and encode the outcome and the features, the same way at every client.

    Parameters
    ----------
    tables
        Client name to table.
    outcome
        Column to predict. Text with two levels needs ``outcome_positive``; text with more becomes classes 0, 1, ... in
        alphabetical order; numbers stay.
    features
        Columns to predict from; by default all but the outcome. Numbers stay numbers. Text becomes one 0/1 column for
        each level but the alphabetically first.
    outcome_positive
        The level of the outcome that counts as 1.
    categorical
        Features whose numbers are codes, to be treated as text.
    missing
        What to do with a row that lacks a value: refuse it, or drop it and count it in ``Study.dropped``.
    standardize
        Centre and scale features that are numbers other than 0/1, by the mean and sd over all clients' rows.
    """
    columns = _choose_columns(tables, outcome, features)
    require_columns(categorical, columns, "the features (named under categorical)")
    tables, dropped = _complete_rows(tables, [outcome, *columns], missing)
    blocks = [_encode(tables, column, column in categorical, standardize) for column in columns]
    y, levels = _encode_outcome(tables, outcome, outcome_positive)
    x = {client: np.column_stack([block.values[client] for block in blocks]) for client in tables}
    return Study(
        clients={client: {"x": x[client], "y": y[client]} for client in tables},
        feature_names=tuple(name for block in blocks for name in block.names),
        outcome_levels=levels,
        standardization={block.names[0]: block.scale for block in blocks if block.scale},
        dropped=dropped,
    )


def _choose_columns(tables: Mapping[str, Table], outcome: str, features: Sequence[str] | None) -> list[str]:
    """Check that every client has the columns, and write a two-dimensional array's name out as its columns."""
    if not tables:
        raise DataError("there are no clients; at least one table of rows is needed.")
    present = list(next(iter(tables.values())).columns)
    wanted = [name for name in present if name != outcome] if features is None else list(features)
    columns: list[str] = []
    for name in wanted:
        parts = [] if name in present else [column for column in present if column.startswith(f"{name}[")]
        columns += parts or [name]
    for client, table in tables.items():
        require_columns([outcome, *columns], table.columns, f"{table.file} of client {client!r}")
    if outcome in columns or not columns or len(set(columns)) < len(columns):
        raise DataError(
            f"features = {wanted} with outcome {outcome!r}: name at least one feature, each once, and not the outcome."
        )
    return columns


def _complete_rows(
    tables: Mapping[str, Table], columns: Sequence[str], missing: str
) -> tuple[dict[str, Table], dict[str, int]]:
    if missing not in ("error", "drop"):
        raise DataError(f"missing = {missing!r} is not known; choose 'error' or 'drop'.")
    complete, dropped = {}, {}
    for client, table in tables.items():
        gaps = {column: pd.isna(table.columns[column]) for column in columns}
        worst = max(columns, key=lambda column: gaps[column].sum())
        is_incomplete = np.logical_or.reduce(list(gaps.values()))
        if missing == "error" and is_incomplete.any():
            counts = ", ".join(f"{column!r} ({gap.sum()})" for column, gap in gaps.items() if gap.any())
            raise DataError(
                f"client {client!r} lacks values in {counts} (first in {worst!r}: {table.first(gaps[worst])}). "
                'Fill them in, leave the columns out, or set missing = "drop" to leave such rows out.'
            )
        if is_incomplete.all():
            raise DataError(
                f"client {client!r} has no complete row among its {len(is_incomplete)}; most gaps are in {worst!r}. "
                "Leave that column or this client out."
            )
        complete[client], dropped[client] = table.keep(~is_incomplete), int(is_incomplete.sum())
    return complete, dropped


def _levels(tables: Mapping[str, Table], column: str) -> list[str]:
    levels = sorted({level for table in tables.values() for level in as_text(table.columns[column]).tolist()})
    if not 2 <= len(levels) <= MAX_LEVELS:
        raise DataError(
            f"column {column!r} is text with {len(levels)} different values over all clients, such as {levels[0]!r}; "
            f"2 to {MAX_LEVELS} can be encoded. Leave the column out, or group its values."
        )
    return levels


def _numbers(tables: Mapping[str, Table], column: str) -> dict[str, np.ndarray] | None:
    """Return the column as numbers, or None if no client has a number in it."""
    numbers = {
        client: np.asarray(pd.to_numeric(table.columns[column], errors="coerce"), dtype=float)
        for client, table in tables.items()
    }
    if all(np.isnan(rows).all() for rows in numbers.values()):
        return None
    for client, rows in numbers.items():
        is_bad = ~np.isfinite(rows)
        if is_bad.any():
            cell = tables[client].columns[column][is_bad][0]
            raise DataError(
                f"column {column!r} holds numbers, but {cell!r} in {tables[client].first(is_bad)} (client {client!r}). "
                f'Correct that cell; or, if the column holds codes, set categorical = ["{column}"].'
            )
    return numbers


class _Block(NamedTuple):
    """What one feature becomes: names of its columns, their values by client, the scale taken out."""

    names: list[str]
    values: dict[str, np.ndarray]
    scale: Scale | None = None


def _encode(tables: Mapping[str, Table], column: str, is_categorical: bool, standardize: bool) -> _Block:
    numbers = None if is_categorical else _numbers(tables, column)
    if numbers is None:
        levels = _levels(tables, column)[1:]
        cells = {client: as_text(table.columns[column]) for client, table in tables.items()}
        indicators = {client: (text[:, None] == np.array(levels)).astype(float) for client, text in cells.items()}
        return _Block([f"{column}[{level}]" for level in levels], indicators)
    values = np.unique(np.concatenate(list(numbers.values())))
    if not standardize or np.array_equal(values, [0.0, 1.0]):
        return _Block([column], numbers)
    if len(values) == 1:
        raise DataError(
            f"feature {column!r} is {values[0]:g} in every row of every client, so it has no standard deviation to be "
            "scaled by and cannot explain the outcome. Leave it out."
        )
    scale = _pooled_scale(numbers.values())
    return _Block([column], {client: (rows - scale.mean) / scale.sd for client, rows in numbers.items()}, scale)


def _pooled_scale(rows_of_clients: Iterable[np.ndarray]) -> Scale:
    """Pool each client's row count, mean and sum of squared deviations into the mean and sd of all rows.

    They say the same as count, sum and sum of squares, and do not cancel when the mean is large beside the sd.
    """
    counts, means, squares = np.array([(len(r), r.mean(), ((r - r.mean()) ** 2).sum()) for r in rows_of_clients]).T
    mean = (counts * means).sum() / counts.sum()
    variance = (squares.sum() + (counts * (means - mean) ** 2).sum()) / counts.sum()
    return Scale(float(mean), float(np.sqrt(variance)))


def _encode_outcome(
    tables: Mapping[str, Table], outcome: str, positive: str | None
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    numbers = _numbers(tables, outcome) if positive is None else None
    if numbers is not None:
        return numbers, ()
    levels = _levels(tables, outcome)
    if positive is not None:
        positive = str(as_text(np.array([positive], dtype=object))[0])  # written as the levels are
    if positive is not None and (positive not in levels or len(levels) != 2):
        raise DataError(
            f"outcome {outcome!r} has the levels {levels}; outcome_positive = {positive!r} must be one of two."
        )
    if positive is None and len(levels) == 2:
        raise DataError(
            f"outcome {outcome!r} is text with the levels {levels}; say which one counts as 1, for example "
            f'outcome_positive = "{levels[1]}".'
        )
    if positive is not None:
        levels.sort(key=lambda level: level == positive)
    code = {level: number for number, level in enumerate(levels)}
    codes = {
        client: np.array([code[level] for level in as_text(table.columns[outcome]).tolist()], dtype=np.int32)
        for client, table in tables.items()
    }
    return codes, tuple(levels)
