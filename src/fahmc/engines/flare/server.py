"""The class that a job names for the server: it serves one analyst until told to close.

The analyst's commands arrive through FLARE as JSON; whoever sends them has been authenticated by certificate and
authorised by the server's policy. The server holds no rows, and after it has handed a round out, nothing of it either.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from nvflare.collab import collab

from fahmc.engines.flare.desk import Buffer, Desk, Finished
from fahmc.engines.flare.job import COMMAND
from fahmc.engines.flare.rounds import NotFinite, Rounds, SiteLost, ask_all, survey
from fahmc.engines.flare.wire import Layout, from_text, merge_fn, reply_layout, state_layout, to_text
from fahmc.engines.recipes import build_sampler
from fahmc.errors import FahmcError

logger = logging.getLogger("fahmc")
# An analyst who is silent for this long in a run, or without one, is taken to be gone.
_SILENCE_IN_RUN, _SILENCE = 120.0, 3600.0


def _call_sites(sites: Sequence[str], method: str, seconds: float, arguments: Mapping[str, Any], /):
    """Call sites through FLARE; only the thread of `Server.serve` can."""
    results = getattr(collab.get_clients(list(sites))(timeout=seconds), method)(**arguments)
    return dict(results), {site: _first_line(error) for site, error in results.failures.items()}


def _first_line(error: Any) -> str:
    return str(error).strip().split("\n")[0].rstrip(".")


class _Prepared(NamedTuple):
    """A run that the sites are ready for."""

    rounds: Rounds
    states: Layout


class Server:
    """The server's worker in one job."""

    def __init__(self):
        self._desk = Desk()
        self._prepared: _Prepared | None = None
        self._buffer: Buffer | None = None
        self._is_closing = False

    @collab.main
    def serve(self) -> str:
        """Do what the analyst asks, until told to close or not asked any more."""
        collab.fl_ctx.get_engine().register_app_command(COMMAND, self._command)
        while not (self._is_closing or collab.is_aborted or self._is_silent(_SILENCE)):
            self._desk.serve_one(self._work, seconds=0.5)
        return "closed"

    def _is_silent(self, limit: float) -> bool:
        return time.monotonic() - self._desk.last_heard > limit

    def _command(self, topic: str, request: dict[str, Any], fl_ctx: Any) -> dict[str, Any]:
        """Answer one command of the analyst, on a thread of FLARE; ``pending`` means: ask again."""
        if request["do"] != "status":
            self._desk.heard()
        seconds = float(request.get("wait", 1.0))
        if request["do"] == "status":
            return {
                "round": self._buffer.next_round if self._buffer else None,
                "is_working": self._desk.is_working and not self._is_closing,
                "silent_for": time.monotonic() - self._desk.last_heard,
                "memory": _resident_bytes(),
            }
        if request["do"] in ("stop", "close"):
            self._is_closing |= request["do"] == "close"
            if self._buffer is not None:
                self._buffer.stop()
            return {}
        if request["do"] == "fetch":
            prepared, buffer = self._prepared, self._buffer
            if prepared is None or buffer is None or buffer.identity != request["begun"]:
                answer = self._desk.answer(request["begun"])  # there is one if the run could not begin
                return {"pending": True} if answer is None else {"num_rounds": 0, "end": answer.get("end")}
            finished = buffer.take(request["first_round"], request["num_rounds"], seconds)
            return {"pending": True} if finished is None else _as_json(finished, request, prepared.states)
        answer = self._desk.ask(request["id"], request, seconds)
        return {"pending": True} if answer is None else answer

    def _work(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do one request, on the working thread."""
        tasks = {"survey": self._survey, "prepare": self._prepare, "begin": self._begin, "time": self._time}
        try:
            return tasks[request["do"]](request)
        except Exception as error:
            return {"end": _end(error)}

    def _survey(self, request: dict[str, Any]) -> dict[str, Any]:
        return survey(_call_sites, request["sites"], request["columns"], request["weights"], request["seconds"])

    def _prepare(self, request: dict[str, Any]) -> dict[str, Any]:
        order = json.loads(request["order"])
        names = [site["name"] for site in order["sites"]]
        ask_all(
            _call_sites, names, "prepare", request["seconds"], {"order": request["order"]}, "to make ready for the run"
        )
        sampler, shape = build_sampler(order["sampler"]), (order["num_chains"], order["dimension"])
        dtype = np.dtype(order["dtype"])
        states, replies = state_layout(sampler, shape, dtype), reply_layout(sampler, shape, dtype)
        rounds = Rounds(
            _call_sites,
            run=order["run"],
            weights={site["name"]: site["weight"] for site in order["sites"]},
            states=states,
            replies=replies,
            merge=merge_fn(sampler),
            seconds=request["round_timeout"],
        )
        self._prepared = _Prepared(rounds, states)
        return {}

    def _begin(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run rounds until the end, a fault, or a command to stop; they are fetched meanwhile."""
        assert self._prepared is not None
        rounds, states = self._prepared
        state = _read_state(states, request)
        per_round = states.num_bytes * len(states.fields)
        buffer = self._buffer = Buffer(request["id"], request["first_round"], per_round)

        def is_over() -> bool:
            return buffer.is_stopped or collab.is_aborted or self._is_silent(_SILENCE_IN_RUN)

        end: dict[str, Any] = {"kind": "complete"}
        try:
            while buffer.next_round < request["total_rounds"]:
                if is_over():
                    end = {"kind": "stopped"}
                    break
                if buffer.wait_for_room(seconds=1.0):
                    outcome = rounds.advance(state, buffer.next_round)
                    buffer.put(outcome)
                    state = outcome.state
        except Exception as error:
            end = _end(error, buffer.next_round)
        buffer.finish(end)
        return {}

    def _time(self, request: dict[str, Any]) -> dict[str, Any]:
        """Time rounds of the run next to bare calls that carry as many bytes and do nothing, turn by turn."""
        assert self._prepared is not None
        rounds, states = self._prepared
        state = _read_state(states, request)
        content = os.urandom(states.num_bytes * len(states.fields))
        seconds: dict[str, list[float]] = {"bare": [], "round": []}
        for round_index in range(request["num_rounds"]):
            began = time.perf_counter()
            _call_sites(request["sites"], "echo", request["seconds"], {"content": content})
            between = time.perf_counter()
            state = rounds.advance(state, round_index).state
            seconds["bare"].append(between - began)
            seconds["round"].append(time.perf_counter() - between)
        return {"seconds": seconds}


def _read_state(states: Layout, request: dict[str, Any]) -> Any:
    return states.unpack({name: from_text(text) for name, text in request["state"].items()}, "the analyst")


def _end(error: Exception, round_index: int | None = None) -> dict[str, Any]:
    """Say why there will be no more rounds."""
    if isinstance(error, NotFinite):
        return {"kind": "divergence", "chain": error.chain, "client": error.client, "round": round_index}
    if isinstance(error, SiteLost):
        return {"kind": "lost", "site": error.site, "message": str(error)}
    if isinstance(error, FahmcError):
        return {"kind": type(error).__name__, "message": str(error)}
    logger.exception("the server failed")
    return {"kind": "lost", "site": None, "message": f"The server failed with {type(error).__name__}: {error}."}


def _as_json(finished: Finished, request: dict[str, Any], states: Layout) -> dict[str, Any]:
    """Write finished rounds for the analyst: draws only where one is due, and what the next round starts from."""
    if not finished.outcomes:
        return {"num_rounds": 0, "end": finished.end}
    first, warmup, thin = request["first_round"], request["num_warmup_rounds"], request["thin"]
    sampled = [first + place + 1 - warmup for place in range(len(finished.outcomes))]
    due = [
        outcome for outcome, count in zip(finished.outcomes, sampled, strict=True) if count > 0 and count % thin == 0
    ]
    counted = [outcome.drift_squares for outcome, count in zip(finished.outcomes, sampled, strict=True) if count > 0]

    def text(arrays: Sequence[np.ndarray]) -> str:
        return to_text(b"".join(np.asarray(array, states.dtype.newbyteorder("<")).tobytes() for array in arrays))

    last = finished.outcomes[-1]
    return {
        "num_rounds": len(finished.outcomes),
        "num_draws": len(due),
        "positions": text([outcome.state.position for outcome in due]),
        "drift": text([outcome.drift_squares for outcome in due]),
        "displacement": text([outcome.displacement for outcome in due]),
        "drift_squares": text([np.sum(counted, axis=0) if counted else np.zeros_like(last.drift_squares)]),
        "state": {name: to_text(content) for name, content in states.pack(last.state).items()},
        "end": finished.end,
    }


def _resident_bytes() -> int:
    """Return the memory that this process holds."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
