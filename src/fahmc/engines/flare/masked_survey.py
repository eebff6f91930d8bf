"""A survey in which no site's own mean or sum of squares is shown: only sums over all sites leave them (`masks`).

    server                                  site
    summarize          ──────────▶          types and levels of columns, number of rows: no mean, no square
    add up             ──────────▶          Σ x, whether all are 0 or 1, whether all are the same       masked
    add up, with means ──────────▶          Σ (x − mean)²                                               masked

The site's part is written from its own summary, so that no row is looked at that `summarize` has not seen.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pydantic

from fahmc.data.cells import LARGEST
from fahmc.data.columns import Columns
from fahmc.data.pooled import Pooled, pool_totals, squares_about, total
from fahmc.data.summaries import ColumnSummary, TableSummary
from fahmc.engines.exact_sums import NUM_DIGITS, from_digits, to_digits
from fahmc.engines.flare.agreement import Agreement
from fahmc.engines.flare.masks import open_sum
from fahmc.engines.flare.refusals import Refusal, Refused

_CONTEXT = "survey"
_NARROW = ("not_binary", "not_constant")


@dataclass(frozen=True)
class SumRequest:
    """What `Work.add_up` is asked."""

    columns: Columns
    features: list[str]
    variables: list[str]
    means: list[Annotated[float, pydantic.Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]] | None = None
    """Of all sites' rows: squared deviations from these are asked for. Without them, what they are made of."""


def without_moments(summary: TableSummary) -> TableSummary:
    """Leave out of a summary what goes into sums alone."""

    def bare(columns: Mapping[str, ColumnSummary]) -> dict[str, ColumnSummary]:
        plain = {"count": 0, "mean": 0.0, "squares": 0.0, "is_binary": False, "is_constant": False}
        return {name: dataclasses.replace(column, **plain) for name, column in columns.items()}

    return dataclasses.replace(summary, features=bare(summary.features), functions=bare(summary.functions))


def share(agreement: Agreement, request: str, asked: SumRequest, summary: TableSummary) -> bytes:
    """Return a site's share of the sums that are asked for."""
    known = {**summary.features, **summary.functions}
    columns = [known.get(name) for name in asked.variables]
    # Of what is not standardised, nothing was summed up.
    if not all(column is not None and column.count for column in columns):
        raise Refused(Refusal.REQUEST)
    told = [column for column in columns if column is not None]
    if asked.means is None:
        values = {
            "sums": np.array([to_digits(total(column)) for column in told]),
            "not_binary": np.array([not column.is_binary for column in told], float),
            "not_constant": np.array([not column.is_constant for column in told], float),
        }
    elif len(asked.means) == len(told):
        pairs = zip(told, asked.means, strict=True)
        values = {"squares": np.array([to_digits(squares_about(column, mean)) for column, mean in pairs])}
    else:
        raise Refused(Refusal.REQUEST)
    return agreement.shares(_CONTEXT).hide("sums", _digest(request), values, _NARROW)


def pooled_in_sums(
    ask_for: Callable[[dict[str, Any]], Mapping[str, Any]], variables: Sequence[str], num_rows: int
) -> dict[str, Pooled]:
    """Do the server's part: ask for sums, then for squares about the means.

    ``ask_for`` takes what a request has beside columns and features, and returns all sites' shares.
    """
    if not variables:
        return {}
    count = len(variables)
    first = {"sums": (count, NUM_DIGITS), "not_binary": (count,), "not_constant": (count,)}
    sums = open_sum(ask_for({"variables": list(variables)}), first, during="of the survey", narrow=_NARROW)
    means = [from_digits(digits) / num_rows for digits in sums["sums"]]
    second = {"squares": (count, NUM_DIGITS)}
    about = open_sum(ask_for({"variables": list(variables), "means": means}), second, during="of the survey")
    return {
        name: pool_totals(
            num_rows,
            means[place],
            from_digits(about["squares"][place]),
            round(sums["not_binary"][place]),
            round(sums["not_constant"][place]),
        )
        for place, name in enumerate(variables)
    }


def _digest(request: str) -> bytes:
    return hashlib.sha256(request.encode()).digest()
