"""What the server finds out before a run: what the sites hold, and how all write it as numbers in one way."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, TypeVar

import pydantic

from fahmc.data.agreement import agree, choose_features
from fahmc.data.columns import Columns
from fahmc.data.federation import checked_weights
from fahmc.data.formula import read_formula
from fahmc.data.levels import level_remarks
from fahmc.data.pooled import Pooled, pooled_variables
from fahmc.data.public import encoded_bounds
from fahmc.data.summaries import MAX_LEVELS, ColumnSummary, TableSummary
from fahmc.engines.flare.agreement import introduce
from fahmc.engines.flare.arrays import NumberType
from fahmc.engines.flare.masked_survey import pooled_in_sums
from fahmc.engines.flare.rounds import CallSites, ask_all
from fahmc.engines.flare.versions import check_versions
from fahmc.errors import DataError, FahmcError, FederationError

_Read = TypeVar("_Read")
# What no site has; more is a fault, or meant to take the server's memory.
_MOST_COLUMNS, _MOST_ROWS, _MOST_NUMBERS_A_ROW, _LONGEST_TEXT = 100_000, 2**48, 10**7, 1000
_Text = Annotated[str, pydantic.Field(max_length=_LONGEST_TEXT)]
_COLUMNS, _SUMMARY = pydantic.TypeAdapter(Columns), pydantic.TypeAdapter(TableSummary)


def survey(
    call: CallSites,
    sites: Sequence[str],
    columns: Mapping[str, Any] | None,
    weights: Mapping[str, float] | None,
    seconds: float,
) -> dict[str, Any]:
    """Find out what the sites hold, and have them write it as numbers in one way."""

    def ask(method: str, during: str, **arguments: Any) -> dict[str, Any]:
        return ask_all(call, sites, method, seconds, arguments, during)

    for site, answer in ask("hello", "to tell its versions").items():
        check_versions(f"Site {site!r}", answer.get("versions"))
    secure_sum = introduce(ask)
    about: dict[str, Any] = {}
    if columns is None:
        reports = ask("take_arrays", "to give its arrays")
    else:
        asked = _read_columns(columns)
        listed = ask("list_columns", "to name its columns")
        present = {site: _read(_COLUMN_LIST, site, answer).columns for site, answer in listed.items()}
        # What a site keeps to itself is like what it does not have.
        features = choose_features(asked, present, dict.fromkeys(present, "what others may use"))
        request = json.dumps({"columns": columns, "features": features})
        answers = ask("summarize", "to sum up its columns", request=request)
        summaries = {site: _read(_SUMMARY, site, answer) for site, answer in answers.items()}
        for site, summary in summaries.items():
            if not _is_sound(summary, features, asked):
                raise _unreadable(site)
        pooled = None
        if secure_sum != "off":
            pooled = _pooled_in_sums(ask, {"columns": columns, "features": features}, asked, summaries)
        encoding = agree(asked, features, summaries, pooled)
        request = json.dumps({"columns": columns, "encoding": dataclasses.asdict(encoding)})
        reports = ask("encode", "to encode its rows", request=request)
        about = {
            "feature_names": list(encoding.feature_names),
            "outcome_levels": list(encoding.outcome_levels),
            "baselines": encoding.baselines,
            "standardization": {name: list(scale) for name, scale in encoding.standardization.items()},
            "dropped": {site: summary.num_dropped for site, summary in summaries.items()},
        }
        if (bounds := encoded_bounds(asked, encoding)) is not None:
            about["bounds"] = bounds
        if remarks := level_remarks(asked, features, summaries):
            about["remarks"] = remarks
    reports = {site: _read(_REPORT, site, report) for site, report in reports.items()}
    for site, report in reports.items():
        if sum(math.prod(array.shape) for array in report.arrays.values()) > _MOST_NUMBERS_A_ROW:
            raise _unreadable(site)
    sizes = {site: report.num_rows for site, report in reports.items()}
    return {
        "sizes": sizes,
        "weights": list(checked_weights(sizes, weights)),
        "marks": {site: report.mark for site, report in reports.items()},
        "arrays": _same_arrays(reports),
        "about": about,
        "secure_sum": secure_sum,
    }


def _pooled_in_sums(
    ask: Callable[..., dict[str, Any]],
    request: Mapping[str, Any],
    asked: Columns,
    summaries: Mapping[str, TableSummary],
) -> dict[str, Pooled]:
    """Pool what is standardised without any site's own mean or squares."""

    def ask_for(more: dict[str, Any]) -> dict[str, Any]:
        answers = ask("add_up", "to add up its columns", request=json.dumps({**request, **more}))
        return {site: answer.get("share") for site, answer in answers.items()}

    features = list(request["features"])
    num_rows = sum(summary.num_rows for summary in summaries.values())
    return pooled_in_sums(ask_for, pooled_variables(asked, features, summaries), num_rows)


class ColumnList(NamedTuple):
    """What a site says of its file."""

    columns: Annotated[list[_Text], pydantic.Field(max_length=_MOST_COLUMNS)]


class ArrayReport(NamedTuple):
    """What an array is like, but for its rows."""

    dtype: NumberType
    shape: list[pydantic.NonNegativeInt]


class RowReport(NamedTuple):
    """What a site says of its rows."""

    num_rows: Annotated[int, pydantic.Field(ge=1, le=_MOST_ROWS)]
    mark: _Text
    arrays: dict[_Text, ArrayReport]


_COLUMN_LIST, _REPORT = pydantic.TypeAdapter(ColumnList), pydantic.TypeAdapter(RowReport)


def _read_columns(columns: Mapping[str, Any]) -> Columns:
    try:
        return _COLUMNS.validate_python(dict(columns))
    except pydantic.ValidationError as error:
        raise FederationError("The server cannot read which columns are asked for.") from error


def _read(adapter: pydantic.TypeAdapter[_Read], site: str, answer: Any) -> _Read:
    """Check what a site says against what it should look like."""
    try:
        return adapter.validate_python(dict(answer))
    except (pydantic.ValidationError, FahmcError) as error:
        raise _unreadable(site) from error


def _unreadable(site: str) -> FederationError:
    return FederationError(
        f"Site {site!r} described its rows in a way that cannot be read; is its fahmc as new as the server's?"
    )


def _is_sound(summary: TableSummary, features: Sequence[str], asked: Columns) -> bool:
    """Whether a summary is one of rows, as far as can be seen without them."""

    def is_column(column: ColumnSummary) -> bool:
        levels = column.levels
        has_all = column.num_levels == len(levels) <= MAX_LEVELS or (not levels and column.num_levels > MAX_LEVELS)
        is_text = not column.has_numbers and has_all and all(len(level) <= _LONGEST_TEXT for level in levels)
        is_counted = column.count in (0, summary.num_rows) and column.squares >= 0
        are_finite = math.isfinite(column.mean) and math.isfinite(column.squares)
        return are_finite and is_counted and (column.has_numbers or is_text)

    columns = [*summary.features.values(), *summary.functions.values(), summary.outcome]
    functions = () if asked.formula is None else read_formula(asked.formula).functions
    has_all = set(summary.features) == set(features) and set(summary.functions) == {one.name for one in functions}
    is_table = 1 <= summary.num_rows <= _MOST_ROWS and 0 <= summary.num_dropped <= _MOST_ROWS
    return is_table and has_all and all(map(is_column, columns))


def _same_arrays(reports: Mapping[str, RowReport]) -> dict[str, Any]:
    (first, expected), *others = (
        (site, {name: array._asdict() for name, array in report.arrays.items()}) for site, report in reports.items()
    )
    for site, arrays in others:
        for name in [*expected, *arrays]:
            if expected.get(name) != arrays.get(name):
                raise DataError(
                    f"Sites differ in structure: array {name!r} is {_in_words(expected.get(name))} at {first!r} but "
                    f"{_in_words(arrays.get(name))} at {site!r}. Every site needs the same arrays."
                )
    return expected


def _in_words(array: Mapping[str, Any] | None) -> str:
    if array is None:
        return "absent"
    return f"{array['dtype']} [row{''.join(f', {size}' for size in array['shape'])}]"
