"""The class that a job names for the server: it serves one analyst until told to close.

The analyst's commands arrive through FLARE as JSON; whoever sends them has been authenticated by certificate and
authorised by the server's policy. The server holds no rows, and after it has handed a round out, nothing of it either.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from nvflare.collab import collab

from fahmc.dynamics.sampler import Phase
from fahmc.engines.client import Limits, check_memory, message_bytes
from fahmc.engines.flare.agreement import SecureSum
from fahmc.engines.flare.arrays import text_to_arrays
from fahmc.engines.flare.calls import call_sites, start_watching, watch
from fahmc.engines.flare.desk import Buffer, Desk
from fahmc.engines.flare.job import COMMAND
from fahmc.engines.flare.masked_replies import MaskedReplies
from fahmc.engines.flare.messages import (
    REQUESTS,
    Ask,
    Begin,
    Close,
    Fetch,
    Prepare,
    Request,
    Status,
    Stop,
    Survey,
    block_to_text,
    read_request,
)
from fahmc.engines.flare.rounds import Rounds, SiteLost, ask_all
from fahmc.engines.flare.server_rules import read_server_rules
from fahmc.engines.flare.survey import survey
from fahmc.engines.order import Order
from fahmc.engines.record import record
from fahmc.engines.summands import told_apart
from fahmc.errors import FahmcError, FederationError

logger = logging.getLogger("fahmc")
# An analyst who is silent for this long in a run, or without one, is taken to be gone.
_SILENCE_IN_RUN, _SILENCE = 120.0, 3600.0


class Server:
    """The server's worker in one job."""

    REQUESTS: ClassVar = REQUESTS

    def __init__(self):
        self.rounds: Rounds | None = None
        """Of the order that the sites were told last."""
        self.secure_sum: SecureSum | None = None
        """What the sites agreed on last."""
        self._desk = Desk()
        self._buffer: Buffer | None = None
        self._phase: Phase | None = None
        self._is_closing = False

    @collab.main
    def serve(self) -> str:
        """Do what the analyst asks, until told to close or not asked any more."""
        start_watching()
        collab.fl_ctx.get_engine().register_app_command(COMMAND, self._command)
        while not (self._is_closing or collab.is_aborted or self._is_silent(_SILENCE)):
            self._desk.serve_one(self._work, seconds=0.5)
        return "closed"

    def _is_silent(self, limit: float) -> bool:
        return time.monotonic() - self._desk.last_heard > limit

    def _command(self, topic: str, values: dict[str, Any], fl_ctx: Any) -> dict[str, Any]:
        """Answer one command of the analyst, on a thread of FLARE; ``pending`` means: ask again."""
        try:
            seconds, identity = float(values.pop("wait", 1.0)), str(values.pop("id", ""))
            owner = str(values.pop("owner", ""))
            request = read_request(values, self.REQUESTS)
            if not isinstance(request, Status):
                self._desk.heard(owner)
            answer = self._answer(request, identity, seconds)
            return {"pending": True, "awaited": _awaited()} if answer is None else answer
        except FahmcError as error:
            return {"end": _end(error)}

    def _answer(self, request: Request, identity: str, seconds: float) -> dict[str, Any] | None:
        match request:
            case Status():
                return {
                    "round": self._buffer.next_round if self._buffer else None,
                    "is_working": self._desk.is_working and not self._is_closing,
                    "silent_for": time.monotonic() - self._desk.last_heard,
                    "owner": self._desk.owner,
                    "awaited": _awaited(),
                    "secure_sum": self.secure_sum,
                }
            case Stop() | Close():
                self._is_closing |= isinstance(request, Close)
                if self._buffer is not None:
                    self._buffer.stop()
                return {}
            case Fetch():
                return self._fetch(request, seconds)
        return self._desk.ask(identity, request, seconds)

    def _fetch(self, request: Fetch, seconds: float) -> dict[str, Any] | None:
        """Hand over finished rounds: draws only where one is due, and what the next round starts from."""
        buffer = self._buffer
        if buffer is None or buffer.identity != request.begun or self._phase is None:
            answer = self._desk.answer(request.begun)  # there is one if the run could not begin
            return None if answer is None else {"end": answer.get("end")}
        finished = buffer.take(request.first_round, request.num_rounds, seconds)
        if finished is None:
            return None
        if not finished.results:
            return {"end": finished.end}
        block = record(self._phase, {}, request.first_round, finished.results)
        return {"block": block_to_text(block), "end": finished.end}

    def _work(self, identity: str, request: Request) -> dict[str, Any]:
        try:
            return self.do(identity, request)
        except Exception as error:
            return {"end": _end(error)}

    def do(self, identity: str, request: Request) -> dict[str, Any]:
        """Do one request, on the working thread."""
        match request:
            case Survey():
                told = survey(call_sites, request.sites, request.columns, request.weights, request.seconds)
                self.secure_sum = told["secure_sum"]
                return told
            case Prepare():
                self._prepare(request)
            case Begin():
                self._begin(identity, request)
            case Ask():
                return self._ask(request)
        return {}

    def _prepare(self, request: Prepare) -> None:
        order = Order.read(request.order)
        try:
            rules = read_server_rules(Path(collab.workspace.get_site_config_dir()))
            sampler = order.build_sampler(rules.own_samplers)
            # Its own copy, and one of every site's.
            exchange = order.exchange(sampler)
            is_masked = self.secure_sum not in (None, "off") and not told_apart(exchange)
            reply_bytes = MaskedReplies(order, exchange).num_bytes() if is_masked else 0
            needed = (1 + len(order.weights)) * max(message_bytes(order, exchange), reply_bytes)
            check_memory(needed, Limits(rules.maximum_megabytes * 2**20))
        except FederationError as error:
            raise FederationError(f"The server refuses to make ready for the run: {error}") from error
        arguments = {"order": request.order}
        ask_all(call_sites, list(order.weights), "prepare", request.seconds, arguments, "to make ready for the run")
        self.rounds = Rounds(call_sites, order, sampler, request.round_timeout, is_masked)
        self._sampler = sampler

    def _ask(self, request: Ask) -> dict[str, Any]:
        """Pass a question about draws on to the sites, and their answers back."""
        during, arguments = "to answer a question about draws", {"question": request.question}
        answers = ask_all(call_sites, request.sites, "answer", request.seconds, arguments, during)
        return {"answers": {site: answer.get("answer") for site, answer in answers.items()}}

    def _begin(self, identity: str, request: Begin) -> None:
        """Run rounds until the end, a fault, or a command to stop; they are fetched meanwhile."""
        if self.rounds is None:
            raise FederationError("The analyst wants rounds of an order that the server was not told.")
        rounds, state = self.rounds, text_to_arrays(request.state)
        rounds.state.check(state, "The analyst")
        self._phase = Phase("", self._sampler, request.num_rounds, request.num_warmup_rounds, request.thin)
        buffer = self._buffer = Buffer(identity, request.first_round, max(1, rounds.state.num_bytes))

        def is_over() -> bool:
            return buffer.is_stopped or collab.is_aborted or self._is_silent(_SILENCE_IN_RUN)

        end: dict[str, Any] = {"kind": "complete"}
        try:
            while buffer.next_round < request.num_rounds:
                if is_over():
                    end = {"kind": "stopped"}
                    break
                if buffer.wait_for_room(seconds=1.0):
                    result = rounds.advance(state, buffer.next_round)
                    if not result.is_finite.all():
                        end = _divergence(result.is_finite, buffer.next_round)
                        break
                    buffer.put(result)
                    state = result.state
        except Exception as error:
            end = _end(error)
        buffer.finish(end)


def _awaited() -> list[list[Any]]:
    return [list(awaited) for awaited in watch.awaited()]


def _divergence(is_finite: Any, round_index: int) -> dict[str, Any]:
    chain, client = (int(index) for index in np.argwhere(~is_finite)[0])
    return {"kind": "divergence", "chain": chain, "client": client, "round": round_index}


def _end(error: Exception) -> dict[str, Any]:
    """Say why there will be no more rounds."""
    if isinstance(error, SiteLost):
        return {"kind": "lost", "site": error.site, "message": str(error)}
    if isinstance(error, FahmcError):
        return {"kind": type(error).__name__, "message": str(error)}
    logger.exception("the server failed")
    return {"kind": "lost", "site": None, "message": f"The server failed with {type(error).__name__}: {error}."}
