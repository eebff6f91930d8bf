"""What the server does: ask all sites, check their answers, average in the sites' order.

A round counts only when every site's reply has come and is sound. Replies are summed in the order of the sites, never
in that of their arrival, so the same replies give the same bits.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, Protocol, TypeVar

import numpy as np
import pydantic

from fahmc.data.columns import Columns
from fahmc.data.encoding import TableSummary, agree, choose_features
from fahmc.data.federation import checked_weights
from fahmc.engines.flare.wire import Layout
from fahmc.errors import DataError, FederationError, error_class

_Read = TypeVar("_Read")
_COLUMNS, _SUMMARY = pydantic.TypeAdapter(Columns), pydantic.TypeAdapter(TableSummary)


class SiteLost(FederationError):
    """A site does not answer: it may come back."""

    def __init__(self, site: str, message: str):
        super().__init__(message)
        self.site = site


class CallSites(Protocol):
    """How sites are called: ``(names, method, seconds, arguments) -> (replies, what went wrong) by site``."""

    def __call__(
        self, sites: Sequence[str], method: str, seconds: float, arguments: Mapping[str, Any], /
    ) -> tuple[Mapping[str, Any], Mapping[str, str]]:
        """Call all sites at once and wait for them."""
        ...


def ask_all(
    call: CallSites, sites: Sequence[str], method: str, seconds: float, arguments: Mapping[str, Any], during: str
) -> dict[str, Any]:
    """Return every site's answer, in the sites' order, or raise: a site that stays silent is asked a second time.

    Asking again is safe, as sites keep nothing from call to call.
    """
    answers: dict[str, Any] = {}
    wrong: Mapping[str, str] = {}
    for _ in range(2):
        missing = [site for site in sites if site not in answers]
        if not missing:
            break
        replies, wrong = call(missing, method, seconds, arguments)
        answers |= {site: reply for site, reply in replies.items() if site in missing}
    for site in sites:
        if site not in answers:
            reason = wrong.get(site, f"no reply within {seconds:g} s")
            raise SiteLost(site, f"Site {site!r} did not answer {during}: {reason}.")
        answer = answers[site]
        if not isinstance(answer, Mapping):
            raise FederationError(f"Site {site!r} answered {during} with a {type(answer).__name__}, not with a table.")
        if "refused" in answer:
            raise error_class(answer.get("kind"))(f"Site {site!r} refuses {during}: {answer['refused']}")
    return {site: answers[site] for site in sites}


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


class Outcome(NamedTuple):
    """What one round left behind."""

    state: Any
    """What the next round starts from."""
    drift_squares: np.ndarray
    """[chain, client] |θ_c − θ|²"""
    displacement: np.ndarray
    """[chain] |θ − θ before|"""


class NotFinite(Exception):
    """A site's position is not a finite number any more."""

    def __init__(self, chain: int, client: int):
        super().__init__(f"chain {chain}, client {client}")
        self.chain, self.client = chain, client


class Rounds:
    """Runs rounds of one run at all sites."""

    def __init__(
        self,
        call: CallSites,
        *,
        run: str,
        weights: Mapping[str, float],
        states: Layout,
        replies: Layout,
        merge: Callable[[Any, Any], Any],
        seconds: float,
    ):
        self._call, self._run, self._seconds = call, run, seconds
        self._sites = tuple(weights)
        self._weights = [states.dtype.type(weight) for weight in weights.values()]
        self._states, self._replies, self._merge = states, replies, merge

    def advance(self, state: Any, round_index: int) -> Outcome:
        """Run one round: θ = Σ_c w_c θ_c over replies that are all there and all sound."""
        during = f"in round {round_index}"
        arguments = {"run": self._run, "round_index": round_index, "state": self._states.pack(state)}
        answers = ask_all(self._call, self._sites, "local_round", self._seconds, arguments, during)
        replies = [self._checked(site, answer, round_index) for site, answer in answers.items()]
        is_finite = np.stack([self._is_finite(reply) for reply in replies], axis=1)
        if not is_finite.all():
            chain, client = (int(index) for index in np.argwhere(~is_finite)[0])
            raise NotFinite(chain, client)
        mean = self._replies.kind(*(self._mean(replies, name) for name in self._replies.kind._fields))
        squares = [_squared_length(reply.position - mean.position) for reply in replies]
        return Outcome(
            state=self._merge(state, mean),
            drift_squares=np.stack(squares, axis=1),
            displacement=np.sqrt(_squared_length(mean.position - state.position)),
        )

    def _checked(self, site: str, answer: Mapping[str, Any], round_index: int) -> Any:
        if answer.get("site") != site or answer.get("round") != round_index:
            raise FederationError(
                f"Site {site!r} replied as {answer.get('site')!r} for round {answer.get('round')!r}, but round "
                f"{round_index} was asked for. Its reply was not averaged."
            )
        return self._replies.unpack(answer.get("reply"), f"Site {site!r}, in round {round_index},")

    def _is_finite(self, reply: Any) -> np.ndarray:
        """Whether a chain's numbers are finite, [chain]."""
        return np.all([np.isfinite(getattr(reply, name)).all(axis=-1) for name in self._replies.fields], axis=0)

    def _mean(self, replies: Sequence[Any], name: str) -> np.ndarray | None:
        if name not in self._replies.fields:
            return None
        total = self._weights[0] * getattr(replies[0], name)
        for weight, reply in zip(self._weights[1:], replies[1:], strict=True):
            total += weight * getattr(reply, name)
        return total


def _squared_length(vectors: np.ndarray) -> np.ndarray:
    return np.einsum("...d,...d->...", vectors, vectors)
