"""What the server does in a round: ask all sites, check their answers, combine them in the sites' order.

A round counts only when every site's reply has come and is sound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from fahmc.dynamics.sampler import Sampler
from fahmc.engines.flare.wire import Layout
from fahmc.engines.order import Order
from fahmc.engines.record import RoundResult, round_closer
from fahmc.errors import FederationError, error_class
from fahmc.types import Message


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


class Rounds:
    """Runs rounds of one order at all sites."""

    def __init__(self, call: CallSites, order: Order, sampler: Sampler, seconds: float):
        self._call, self._order, self._seconds = call, order, seconds
        exchange = order.exchange(sampler)
        self.num_bytes = Layout(exchange.state, order.num_chains, order.precision).num_bytes
        self.broadcast = Layout(exchange.broadcast, order.num_chains, order.precision)
        self._replies = Layout(exchange.reply, order.num_chains, order.precision)
        with self._in_precision():
            weights = np.array(list(order.weights.values())).astype(order.precision)
            self._close, self._numbers = round_closer(exchange, weights), order.numbers(sampler)
            self._chain_keys = order.chain_keys()

    def advance(self, state: Message, round_index: int) -> RoundResult:
        """Run one round, over replies that are all there and all sound."""
        arguments = {"run": self._order.identity, "round_index": round_index, "state": self.broadcast.pack(state)}
        answers = ask_all(
            self._call, list(self._order.weights), "local_round", self._seconds, arguments, f"in round {round_index}"
        )
        replies = [self._checked(site, answer, round_index) for site, answer in answers.items()]
        with self._in_precision():
            return self._close(self._numbers, self._chain_keys, round_index, state, replies)

    def _in_precision(self):
        return jax.enable_x64(self._order.precision == np.float64)

    def _checked(self, site: str, answer: Mapping[str, Any], round_index: int) -> Message:
        if answer.get("site") != site or answer.get("round") != round_index:
            raise FederationError(
                f"Site {site!r} replied as {answer.get('site')!r} for round {answer.get('round')!r}, but round "
                f"{round_index} was asked for. Its reply was not averaged."
            )
        return self._replies.unpack(answer.get("reply"), f"Site {site!r}, in round {round_index},")
