"""What the server does in a round: ask all sites, check their answers, combine them in the sites' order.

A round counts only when every site's reply has come and is sound.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from fahmc.dynamics.sampler import Sampler
from fahmc.engines.flare.masked_replies import MaskedReplies, where_finite
from fahmc.engines.flare.refusals import raise_refusal
from fahmc.engines.flare.wire import Layout
from fahmc.engines.order import Order
from fahmc.engines.record import RoundResult, round_closer, sum_closer
from fahmc.errors import FederationError
from fahmc.types import Message

# A site is asked again when it takes so many times as long as any round before, but not within so many seconds.
_LATE, _SOON = 10.0, 5.0


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
    call: CallSites,
    sites: Sequence[str],
    method: str,
    seconds: float,
    arguments: Mapping[str, Any],
    during: str,
    soon: float | None = None,
) -> dict[str, Any]:
    """Return every site's answer, in the sites' order, or raise: a site that stays silent is asked a second time.

    Asking again is safe, as sites keep nothing from call to call. ``soon`` is when to do it, if not after ``seconds``.
    """
    answers: dict[str, Any] = {}
    wrong: Mapping[str, str] = {}
    for limit in (seconds if soon is None else min(soon, seconds), seconds):
        missing = [site for site in sites if site not in answers]
        if not missing:
            break
        replies, wrong = call(missing, method, limit, arguments)
        answers |= {site: reply for site, reply in replies.items() if site in missing}
    for site in sites:
        if site not in answers:
            reason = wrong.get(site, f"no reply within {seconds:g} s")
            raise SiteLost(site, f"Site {site!r} did not answer {during}: {reason}.")
        answer = answers[site]
        if not isinstance(answer, Mapping):
            raise FederationError(f"Site {site!r} answered {during} with a {type(answer).__name__}, not with a table.")
        raise_refusal(site, during, answer, arguments.values())
    return {site: answers[site] for site in sites}


class Rounds:
    """Runs rounds of one order at all sites."""

    def __init__(self, call: CallSites, order: Order, sampler: Sampler, seconds: float, is_masked: bool = False):
        self._call, self.order, self._seconds = call, order, seconds
        exchange = order.exchange(sampler)
        self.state = Layout(exchange.state, order.num_chains, order.precision)
        self.broadcast = Layout(exchange.broadcast, order.num_chains, order.precision)
        self._replies = Layout(exchange.reply, order.num_chains, order.precision)
        self._masked = MaskedReplies(order, exchange) if is_masked else None
        with self._in_precision():
            weights = np.array(list(order.weights.values())).astype(order.precision)
            self._close, self._numbers = round_closer(exchange, weights), order.numbers(sampler)
            self._close_sum = sum_closer(exchange, len(weights))
            self._chain_keys = order.chain_keys()
        self._longest: float | None = None
        """Seconds that a round has taken so far: with much more, a message may have been lost with a broken line."""

    @property
    def is_masked(self) -> bool:
        """Whether replies are known in sums alone."""
        return self._masked is not None

    def advance(self, state: Message, round_index: int) -> RoundResult:
        """Run one round, over replies that are all there and all sound."""
        call = {"run": self.order.identity, "round_index": round_index, "state": self.broadcast.pack(state)}
        if self._masked is not None:
            return self._advance_masked(self._masked, call, state, round_index)
        answers = self._ask(call, round_index)
        sender = f"Site {{!r}}, in round {round_index},"
        replies = [self._replies.unpack(answer.get("reply"), sender.format(site)) for site, answer in answers.items()]
        with self._in_precision():
            return self._close(self._numbers, self._chain_keys, round_index, state, replies)

    def _advance_masked(
        self, masked: MaskedReplies, call: Mapping[str, Any], state: Message, round_index: int
    ) -> RoundResult:
        """Add up what all sites send; ask for wide numbers where narrow ones do not do."""
        during, unfit = f"in round {round_index}", []
        for is_wide in (False, True):
            answers = self._ask({**call, "is_wide": is_wide}, round_index)
            unfit = [masked.unfit(answer, f"Site {site!r}, {during},") for site, answer in answers.items()]
            if not any(unfit):
                contents = {site: answer["reply"] for site, answer in answers.items()}
                combined, spread = masked.open(contents, is_wide, state, during)
                with self._in_precision():
                    return self._close_sum(self._numbers, self._chain_keys, round_index, state, combined, spread)
        return RoundResult(state, {}, {}, None, where_finite(unfit, masked.num_chains))

    def _ask(self, arguments: Mapping[str, Any], round_index: int) -> dict[str, Any]:
        """Return the sites' answers for this round."""
        began, sites, during = time.monotonic(), list(self.order.weights), f"in round {round_index}"
        soon = None if self._longest is None else max(_SOON, _LATE * self._longest)
        answers = ask_all(self._call, sites, "local_round", self._seconds, arguments, during, soon)
        took = time.monotonic() - began
        if soon is None or took < soon:
            self._longest = max(took, self._longest or 0.0)
        elif self._longest is not None:
            self._longest *= 2  # perhaps rounds do take longer now
        for site, answer in answers.items():
            if answer.get("site") != site or answer.get("round") != round_index:
                raise FederationError(
                    f"Site {site!r} replied as {answer.get('site')!r} for round {answer.get('round')!r}, but round "
                    f"{round_index} was asked for. Its reply was not averaged."
                )
        return answers

    def _in_precision(self):
        return jax.enable_x64(self.order.precision == np.float64)
