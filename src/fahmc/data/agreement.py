"""How one place, which has no table, settles one encoding for all clients from their summaries."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from fahmc.data.columns import Columns
from fahmc.data.encoding import Encoding
from fahmc.data.formula import Formula, read_formula
from fahmc.data.pooled import Pooled, pool, pooled_variables
from fahmc.data.scales import Scale
from fahmc.data.summaries import MAX_LEVELS, ColumnSummary, TableSummary
from fahmc.data.tables import MAX_COLUMNS, as_text, require_columns
from fahmc.errors import DataError, shown
from fahmc.names import unprintable

# What spreadsheets make of numbers: thousands set apart, a decimal comma, a percent sign.
_FOREIGN_NUMBER = re.compile(r"[-+]?(\d{1,3}([,' ]\d{3})+(\.\d+)?|\d+,\d+|\d+([.,]\d+)? ?%)", re.ASCII)


def choose_features(
    columns: Columns, present: Mapping[str, Sequence[str]], files: Mapping[str, str]
) -> tuple[str, ...]:
    """Check that every client has the columns, and write a two-dimensional array's name out as its columns.

    ``present`` has the names of each client's columns, ``files`` the name of its file, for messages.
    """
    if not present:
        raise DataError("there are no clients; at least one table of rows is needed.")
    first = dict.fromkeys(next(iter(present.values())))
    outcome, kept_out = columns.named_outcome, {columns.named_outcome, *columns.row_columns.values()}
    wanted = [name for name in first if name not in kept_out] if columns.features is None else list(columns.features)
    parts: dict[str, list[str]] = {}  # of two-dimensional arrays
    for column in first:
        for bracket in re.finditer(r"\[", column):
            parts.setdefault(column[: bracket.start()], []).append(column)
    features: list[str] = []
    for name in wanted:
        features += [name] if name in first else parts.get(name, [name])
    for client, names in present.items():
        require_columns(columns.in_table(features), names, f"{files[client]} of client {client!r}")
    if outcome in features or not features or len(set(features)) < len(features):
        raise DataError(
            f"features = {shown(wanted)} with outcome {outcome!r}: name at least one feature, each once, and not the "
            "outcome.",
            setting="features",
        )
    require_columns(columns.categorical, features, "the features (named under categorical)")
    return tuple(features)


def agree(
    columns: Columns,
    features: Sequence[str],
    summaries: Mapping[str, TableSummary],
    pooled: Mapping[str, Pooled] | None = None,
) -> Encoding:
    """Settle one encoding from all clients' summaries: a column is numbers if any client has a number in it.

    ``pooled`` has the variables of `pooled_variables`; without it they are pooled from the summaries.
    """
    if pooled is None:
        names = pooled_variables(columns, features, summaries)
        pooled = {name: pool([summary.of(name) for summary in summaries.values()]) for name in names}
    if columns.formula is not None:
        return _agree_on_formula(columns, read_formula(columns.formula), summaries, pooled)
    levels: dict[str, tuple[str, ...]] = {}
    standardization: dict[str, Scale] = {}
    for column in features:
        at_clients = {client: summary.features[column] for client, summary in summaries.items()}
        if not _is_numeric(at_clients):
            levels[column] = tuple(_agreed_levels(column, at_clients, column in columns.categorical))
        elif columns.standardize:
            scale = _agreed_scale(column, pooled.get(column))
            standardization |= {} if scale is None else {column: scale}
    encoding = Encoding(tuple(features), levels, _agreed_outcome(columns, summaries), standardization)
    _check_feature_names(encoding)
    return encoding


def _agree_on_formula(
    columns: Columns, formula: Formula, summaries: Mapping[str, TableSummary], pooled: Mapping[str, Pooled]
) -> Encoding:
    """Settle the levels of the formula's columns, and mean and sd of what it standardises or takes splines of."""
    levels: dict[str, tuple[str, ...]] = {}
    for column in formula.features:
        at_clients = {client: summary.features[column] for client, summary in summaries.items()}
        if not _is_numeric(at_clients):
            levels[column] = tuple(_agreed_levels(column, at_clients, column in columns.categorical))
    standardization: dict[str, Scale] = {}
    spreads: dict[str, Scale] = {}
    for variable in formula.summarized(columns.standardize):
        if variable.column in levels:
            continue
        scale = _agreed_scale(variable.name, pooled.get(variable.name))
        if scale is not None and columns.standardize and variable in formula.standardized:
            standardization[variable.name] = scale
        if variable in formula.spread and variable.name in pooled:
            spreads[variable.name] = pooled[variable.name].scale
    encoding = Encoding(
        formula.features, levels, _agreed_outcome(columns, summaries), standardization, formula.text, spreads
    )
    _check_feature_names(encoding)
    return encoding


def _agreed_outcome(columns: Columns, summaries: Mapping[str, TableSummary]) -> tuple[str, ...]:
    outcomes = {client: summary.outcome for client, summary in summaries.items()}
    return () if _is_numeric(outcomes) else _agreed_classes(columns, outcomes)


def _check_feature_names(encoding: Encoding) -> None:
    """Refuse features that could not be told apart, or that are too many."""
    counts = Counter(encoding.feature_names)
    if repeated := next((name for name, count in counts.items() if count > 1), None):
        raise DataError(
            f"two features would be called {repeated!r}: a column of that name, and the level of a column of text. "
            "Rename the column, or leave one of them out."
        )
    if len(counts) > MAX_COLUMNS:
        raise DataError(
            f"the columns make {len(counts):,} features; at most {MAX_COLUMNS:,} are sampled. Leave some out."
        )


def _is_numeric(at_clients: Mapping[str, ColumnSummary]) -> bool:
    return any(summary.has_numbers for summary in at_clients.values())


def _agreed_levels(column: str, at_clients: Mapping[str, ColumnSummary], are_codes: bool) -> list[str]:
    levels = sorted({level for summary in at_clients.values() for level in summary.levels})
    if levels and not are_codes and all(map(_FOREIGN_NUMBER.fullmatch, levels)):
        raise DataError(
            f"column {column!r} is text that reads like numbers in another notation, such as {levels[0]!r}; numbers "
            "are written like 1234.5. Write it so; if these are names, put a letter before them, or name a feature "
            "under categorical."
        )
    num_levels, examples, where = len(levels), tuple(levels), "over all clients"
    for client, summary in at_clients.items():
        if summary.num_levels > MAX_LEVELS:  # not all of them were sent, so the union cannot be counted
            num_levels, examples, where = summary.num_levels, summary.levels, f"at client {client!r}"
    if num_levels < 2:
        value = repr(levels[0]) if levels else "the same text"
        raise DataError(
            f"column {column!r} is {value} in every complete row of every client, so nothing can be learned from it. "
            "Leave the column out.",
            columns=[column],
        )
    if num_levels > MAX_LEVELS:
        such_as = f", such as {examples[0]!r}" if examples else ""
        raise DataError(
            f"column {column!r} is text with {num_levels} different values {where}{such_as}; up to {MAX_LEVELS} can be "
            "encoded. Leave the column out, or group its values.",
            columns=[column],
        )
    if complaint := next(filter(None, map(unprintable, levels)), None):
        raise DataError(
            f"a level of the text column {column!r} {complaint}. Correct it, or leave the column out.", [column]
        )
    return levels


def _agreed_scale(column: str, pooled: Pooled | None) -> Scale | None:
    """Return mean and sd of all rows, or None for what is not standardised."""
    if pooled is None:
        return None  # a client has text where others have numbers: `encode` refuses it there, and can name the cell
    if pooled.is_constant:
        raise DataError(
            f"feature {column!r} is {pooled.scale.mean:g} in every complete row of every client, so nothing can be "
            "learned of its effect. Leave it out of the features.",
            columns=[column],
        )
    if pooled.is_binary:
        return None
    if not 0 < pooled.scale.sd < np.inf:
        raise DataError(
            f"feature {column!r} has values so close together or so far apart that its standard deviation comes out "
            f"as {pooled.scale.sd:g}. Write it in another unit, or leave it out.",
            columns=[column],
        )
    return pooled.scale


def _agreed_classes(columns: Columns, at_clients: Mapping[str, ColumnSummary]) -> tuple[str, ...]:
    """Return the levels in their order, which the user has to say: in any other, an ordered regression fits as well."""
    outcome, positive = columns.named_outcome, columns.outcome_positive
    are_codes = positive is not None or bool(columns.outcome_levels)
    levels = _agreed_levels(outcome, at_clients, are_codes)
    if columns.outcome_levels:
        named = as_text(np.array(columns.outcome_levels, dtype=object)).tolist()  # written as the levels are
        if unnamed := [level for level in levels if level not in named]:
            message = f"outcome {outcome!r} has the level {unnamed[0]!r}, which is not among outcome_levels = {named}."
            raise DataError(f"{message} Add it where it belongs.", setting="outcome_levels")
        return tuple(named)
    if positive is None and len(levels) == 2:
        raise DataError(
            f"outcome {outcome!r} is text with the levels {levels}; say which one counts as 1, for example "
            f'outcome_positive = "{levels[1]}".',
            columns=[outcome],
        )
    if positive is not None:
        positive = str(as_text(np.array([positive], dtype=object))[0])  # written as the levels are
        if positive not in levels or len(levels) != 2:
            raise DataError(
                f"outcome {outcome!r} has the levels {levels}; outcome_positive = {positive!r} must be one of two.",
                setting="outcome_positive",
            )
        return tuple(sorted(levels, key=lambda level: level == positive))
    raise DataError(
        f"outcome {outcome!r} is text with the levels {levels}, which are classes for softmax_regression, or for "
        "ordered_regression if they have an order; say in which they count as 0, 1, ...: outcome_levels = "
        f"{json.dumps(levels, ensure_ascii=False)}, or so.",
        columns=[outcome],
    )
