"""What the server finds out before a run: what the sites hold, and how all write it as numbers in one way."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple, TypeVar

import pydantic

from fahmc.data.columns import Columns
from fahmc.data.encoding import TableSummary, agree, choose_features
from fahmc.data.federation import checked_weights
from fahmc.engines.flare.rounds import CallSites, ask_all
from fahmc.errors import DataError, FederationError

_Read = TypeVar("_Read")
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

    about: dict[str, Any] = {}
    if columns is None:
        reports = ask("take_arrays", "to give its arrays")
    else:
        asked = _COLUMNS.validate_python(columns)
        listed = ask("list_columns", "to name its columns", request=json.dumps(columns))
        features = choose_features(
            asked,
            {site: _read(_COLUMN_LIST, site, answer).columns for site, answer in listed.items()},
            {site: _read(_COLUMN_LIST, site, answer).file for site, answer in listed.items()},
        )
        request = json.dumps({"columns": columns, "features": features})
        answers = ask("summarize", "to sum up its columns", request=request)
        summaries = {site: _read(_SUMMARY, site, answer) for site, answer in answers.items()}
        encoding = agree(asked, features, summaries)
        request = json.dumps({"columns": columns, "encoding": dataclasses.asdict(encoding)})
        reports = ask("encode", "to encode its rows", request=request)
        about = {
            "feature_names": list(encoding.feature_names),
            "outcome_levels": list(encoding.outcome_levels),
            "standardization": {name: list(scale) for name, scale in encoding.standardization.items()},
            "dropped": {site: summary.num_dropped for site, summary in summaries.items()},
        }
    reports = {site: _read(_REPORT, site, report) for site, report in reports.items()}
    sizes = {site: report.num_rows for site, report in reports.items()}
    return {
        "sizes": sizes,
        "weights": list(checked_weights(sizes, weights)),
        "marks": {site: report.mark for site, report in reports.items()},
        "arrays": _same_arrays(reports),
        "about": about,
    }


class ColumnList(NamedTuple):
    """What a site says of its file."""

    columns: list[str]
    file: str


class RowReport(NamedTuple):
    """What a site says of its rows."""

    num_rows: Annotated[int, pydantic.Field(ge=1)]
    mark: str
    arrays: dict[str, dict[str, Any]]


_COLUMN_LIST, _REPORT = pydantic.TypeAdapter(ColumnList), pydantic.TypeAdapter(RowReport)


def _read(adapter: pydantic.TypeAdapter[_Read], site: str, answer: Any) -> _Read:
    """Check what a site says against what it should look like."""
    try:
        return adapter.validate_python(dict(answer))
    except pydantic.ValidationError as error:
        raise FederationError(
            f"Site {site!r} described its rows in a way that cannot be read; is its fahmc as new as the server's?"
        ) from error


def _same_arrays(reports: Mapping[str, RowReport]) -> dict[str, Any]:
    (first, expected), *others = ((site, report.arrays) for site, report in reports.items())
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
