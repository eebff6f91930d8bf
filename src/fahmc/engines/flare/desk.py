"""Where the analyst's commands and the server's work meet: commands come on threads of FLARE, work is done on one.

The server runs ahead of the analyst: finished rounds wait in a buffer of limited size until they are fetched, so a slow
line between the two costs no time, and the server's memory does not grow with the run.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from fahmc.engines.flare.messages import Request
from fahmc.engines.record import RoundResult

# Finished rounds that wait to be fetched take at most this much memory.
_BUFFER_BYTES = 32 * 2**20


class Finished(NamedTuple):
    """Rounds handed out, and how the run ended if it did."""

    results: list[RoundResult]
    end: dict[str, Any] | None


class Buffer:
    """The rounds of one run that wait to be fetched, in order."""

    def __init__(self, identity: str, first_round: int, bytes_per_round: int):
        self.identity, self.next_round = identity, first_round
        self._first = first_round
        self._results: deque[RoundResult] = deque()
        self._capacity = max(2, _BUFFER_BYTES // bytes_per_round)
        self._end: dict[str, Any] | None = None
        self.is_stopped = False
        self._changed = threading.Condition()

    def wait_for_room(self, seconds: float) -> bool:
        """Wait until one more round may be added."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self._results) < self._capacity or self.is_stopped, seconds)

    def put(self, result: RoundResult) -> None:
        """Add the next round."""
        with self._changed:
            self._results.append(result)
            self.next_round += 1
            self._changed.notify_all()

    def finish(self, end: dict[str, Any]) -> None:
        """Say why no more rounds will come."""
        with self._changed:
            self._end = end
            self._changed.notify_all()

    def stop(self) -> None:
        """Ask the run to end."""
        with self._changed:
            self.is_stopped = True
            self._changed.notify_all()

    def take(self, first_round: int, num_rounds: int, seconds: float) -> Finished | None:
        """Return the rounds asked for, fewer only if the run has ended; None if they are not there in time.

        Rounds before them have arrived at the analyst, and are let go.
        """

        def is_ready() -> bool:
            # A buffer that is full cannot wait for more than it holds.
            return self.next_round >= first_round + min(num_rounds, self._capacity) or self._end is not None

        with self._changed:
            self._let_go_before(first_round)
            if not self._changed.wait_for(is_ready, seconds):
                return None
            self._let_go_before(first_round)
            if first_round < self._first:
                raise ValueError(f"round {first_round} was let go: {self._first} is the first that is kept")
            results = list(self._results)[:num_rounds]
            return Finished(results, None if len(results) == num_rounds else self._end)

    def _let_go_before(self, first_round: int) -> None:
        while self._results and self._first < first_round:
            self._results.popleft()
            self._first += 1
        self._changed.notify_all()


class Desk:
    """Takes the analyst's requests to the server's one working thread, and its answers back.

    Every request has an identity: one that is repeated, because an answer was lost on the way, is not done twice.
    """

    def __init__(self):
        self._changed = threading.Condition()
        self._waiting: deque[tuple[str, Request]] = deque()
        self._answers: dict[str, dict[str, Any] | None] = {}
        self.last_heard = time.monotonic()
        self.owner = ""
        """The analyst's process that asked last (`owner`)."""
        self.is_working = False

    def heard(self, owner: str) -> None:
        """Note that the analyst is still there."""
        self.last_heard, self.owner = time.monotonic(), owner

    def ask(self, identity: str, request: Request, seconds: float) -> dict[str, Any] | None:
        """Have a request done; None if there is no answer yet."""
        with self._changed:
            if identity not in self._answers:
                self._answers = {identity: None}  # one analyst, one request at a time: older answers have arrived
                self._waiting.append((identity, request))
                self._changed.notify_all()
            self._changed.wait_for(lambda: self._answers.get(identity) is not None, seconds)
            return self._answers.get(identity)

    def answer(self, identity: str) -> dict[str, Any] | None:
        """Return the answer to a request, if there is one."""
        with self._changed:
            return self._answers.get(identity)

    def serve_one(self, work: Callable[[str, Request], dict[str, Any]], seconds: float) -> None:
        """Do the next request, if one comes in time."""
        with self._changed:
            if not self._changed.wait_for(lambda: bool(self._waiting), seconds):
                return
            identity, request = self._waiting.popleft()
            self.is_working = True
        answer = work(identity, request)
        with self._changed:
            self.is_working = False
            self._answers[identity] = answer
            self._changed.notify_all()
