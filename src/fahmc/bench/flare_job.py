"""The job of `fahmc bench federation`: server and sites that can be timed, which those of a study cannot."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any, ClassVar

from fahmc.engines.flare.arrays import text_to_arrays
from fahmc.engines.flare.job import Job
from fahmc.engines.flare.messages import Request
from fahmc.engines.flare.server import Server, call_sites
from fahmc.engines.flare.site import Site, published
from fahmc.errors import FederationError


@dataclass(frozen=True)
class Time(Request):
    """Time rounds of the order that the sites were told last, next to bare calls of as many bytes, by turns."""

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
        state, content = text_to_arrays(request.state), os.urandom(self.rounds.broadcast.num_bytes)
        seconds: dict[str, list[float]] = {"bare": [], "round": []}
        for round_index in range(request.num_rounds):
            began = time.perf_counter()
            replies, _ = call_sites(request.sites, "echo", request.seconds, {"content": content})
            between = time.perf_counter()
            state = self.rounds.advance(state, round_index).state
            seconds["round"].append(time.perf_counter() - between)
            seconds["bare"].append(between - began)
            if any(replies.get(site) != {"content": content} for site in request.sites):
                raise FederationError("A bare call was lost, so its time means nothing; measure again.")
        return {"seconds": seconds}


class EchoSite(Site):
    """A site's worker that also gives back what it gets."""

    @published
    def echo(self, content: bytes) -> dict[str, Any]:
        """Give back what came: what a round costs without any work."""
        return {"content": content}


JOB = Job(*(f"{worker.__module__}.{worker.__name__}" for worker in (TimedServer, EchoSite)))
