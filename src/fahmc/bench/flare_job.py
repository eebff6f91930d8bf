"""The job of `fahmc bench federation`: server and sites that can be timed, which those of a study cannot."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fahmc.engines.flare.arrays import text_to_arrays
from fahmc.engines.flare.job import Job
from fahmc.engines.flare.messages import Request
from fahmc.engines.flare.rounds import Rounds
from fahmc.engines.flare.server import Server, call_sites
from fahmc.engines.flare.site import Site, published
from fahmc.errors import FederationError


@dataclass(frozen=True)
class Time(Request):
    """Time rounds of the order that the sites were told last, masked and plain, next to bare calls, by turns."""

    sites: list[str]
    num_rounds: int
    state: str
    seconds: float
    """How long a bare call may take."""


class TimedServer(Server):
    """The server's worker, with a clock."""

    REQUESTS: ClassVar = (*Server.REQUESTS, Time)

    def do(self, identity: str, request: Request) -> dict[str, Any]:
        """Do one request, on the working thread."""
        return self._time(request) if isinstance(request, Time) else super().do(identity, request)

    def _time(self, request: Time) -> dict[str, Any]:
        assert self.rounds is not None, "rounds are timed after the sites made ready"
        assert self.rounds.is_masked, "there are sites enough for a secure sum"
        state, content = text_to_arrays(request.state), os.urandom(self.rounds.broadcast.num_bytes)
        plain = Rounds(_call_plain, self.rounds.order, self._sampler, request.seconds)
        seconds: dict[str, list[float]] = {"bare": [], "plain": [], "masked": []}
        for round_index in range(request.num_rounds):
            times = [time.perf_counter()]
            replies, _ = call_sites(request.sites, "echo", request.seconds, {"content": content})
            times.append(time.perf_counter())
            plain.advance(state, round_index)
            times.append(time.perf_counter())
            state = self.rounds.advance(state, round_index).state
            times.append(time.perf_counter())
            for kind, took in zip(seconds, np.diff(times), strict=True):
                seconds[kind].append(float(took))
            if any(replies.get(site) != {"content": content} for site in request.sites):
                raise FederationError("A bare call was lost, so its time means nothing; measure again.")
        return {"seconds": seconds}


def _call_plain(sites: Sequence[str], method: str, seconds: float, arguments: Mapping[str, Any], /):
    return call_sites(sites, "plain_round", seconds, arguments)


class EchoSite(Site):
    """A site's worker that also gives back what it gets, and what no study's site gives: replies without masks."""

    @published
    def echo(self, content: bytes) -> dict[str, Any]:
        """Give back what came: what a round costs without any work."""
        return {"content": content}

    @published
    def plain_round(self, run: str, round_index: int, state: dict) -> dict[str, Any]:
        """Reply as a site does that has agreed on no secure sum."""
        work = self._site_work()
        masked, work._masked = work._masked, None
        try:
            return work.local_round(run, round_index, state)
        finally:
            work._masked = masked


JOB = Job(*(f"{worker.__module__}.{worker.__name__}" for worker in (TimedServer, EchoSite)))
