"""Finished rounds wait in order, in limited memory; a request that is repeated is done once."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fahmc.engines.flare import desk
from fahmc.engines.flare.desk import Buffer, Desk
from fahmc.engines.flare.messages import Prepare
from fahmc.engines.record import RoundResult

# No test waits for this to pass, unless it fails.
LONG = 30.0


def result(round_index: int) -> RoundResult:
    return RoundResult({"round": round_index}, stats={}, draw={}, drift_squares=None, is_finite=np.ones((1, 1), bool))


def request(name: str) -> Prepare:
    return Prepare(order=name, seconds=1.0, round_timeout=1.0)


def filled(first_round: int, *, num_rounds: int, capacity: int | None = None) -> Buffer:
    bytes_per_round = 1 if capacity is None else desk._BUFFER_BYTES // capacity
    buffer = Buffer("begun", first_round, bytes_per_round)
    for round_index in range(first_round, first_round + num_rounds):
        buffer.put(result(round_index))
    return buffer


def rounds_in(finished: desk.Finished | None) -> list[int]:
    assert finished is not None
    return [result.state["round"] for result in finished.results]


class Aside:
    """Does something on a thread of its own."""

    def __init__(self, action: Callable[[], Any]):
        self._result: list[Any] = []
        self._thread = threading.Thread(target=lambda: self._result.append(action()), daemon=True)
        self._thread.start()

    def result(self) -> Any:
        self._thread.join(LONG)
        assert self._result, "it waits for ever"
        return self._result[0]


def when_waiting(condition: threading.Condition, action: Callable[[], Any], monkeypatch) -> Aside:
    """Start something on another thread, and return when it waits: no test has to guess how long that takes."""
    waits, wait = threading.Event(), condition.wait

    def wait_and_tell(timeout=None):
        waits.set()  # the lock is held here, so whoever changes something next comes after the wait has begun
        return wait(timeout)

    monkeypatch.setattr(condition, "wait", wait_and_tell)
    aside = Aside(action)
    assert waits.wait(LONG), "it does not wait"
    return aside


def test_rounds_come_out_in_order_and_are_let_go_once_fetched():
    buffer = filled(7, num_rounds=6)
    assert rounds_in(buffer.take(7, 2, 0.0)) == [7, 8]
    assert rounds_in(buffer.take(7, 2, 0.0)) == [7, 8], "an answer that was lost on the way can be asked for again"
    assert rounds_in(buffer.take(9, 3, 0.0)) == [9, 10, 11]
    with pytest.raises(ValueError, match="round 8 was let go: 9 is the first that is kept"):
        buffer.take(8, 1, 0.0)
    assert rounds_in(buffer.take(12, 1, 0.0)) == [12] and buffer.next_round == 13


def test_rounds_that_are_not_there_yet_are_waited_for(monkeypatch):
    buffer = filled(0, num_rounds=1)
    assert buffer.take(0, 2, 0.0) is None
    aside = when_waiting(buffer._changed, lambda: buffer.take(0, 2, LONG), monkeypatch)
    buffer.put(result(1))
    assert rounds_in(aside.result()) == [0, 1]


def test_a_full_buffer_has_no_room_until_rounds_are_fetched(monkeypatch):
    buffer = filled(0, num_rounds=3, capacity=4)
    assert buffer.wait_for_room(0.0)
    buffer.put(result(3))
    assert not buffer.wait_for_room(0.0)
    assert rounds_in(buffer.take(0, 2, 0.0)) == [0, 1]
    assert not buffer.wait_for_room(0.0), "rounds on their way may have to be sent again"
    aside = when_waiting(buffer._changed, lambda: buffer.wait_for_room(LONG), monkeypatch)
    assert rounds_in(buffer.take(2, 1, 0.0)) == [2]
    assert aside.result() is True


def test_a_stop_wakes_who_waits_for_room(monkeypatch):
    buffer = filled(0, num_rounds=4, capacity=4)
    aside = when_waiting(buffer._changed, lambda: buffer.wait_for_room(LONG), monkeypatch)
    buffer.stop()
    assert aside.result() is True and buffer.is_stopped


def test_more_rounds_than_fit_are_not_waited_for(monkeypatch):
    buffer = filled(0, num_rounds=3, capacity=4)
    aside = when_waiting(buffer._changed, lambda: buffer.take(0, 100, LONG), monkeypatch)
    buffer.put(result(3))
    finished = aside.result()
    assert rounds_in(finished) == [0, 1, 2, 3] and finished.end is None


def test_a_round_however_large_does_not_stop_the_run():
    buffer = Buffer("begun", 0, 10 * desk._BUFFER_BYTES)
    for round_index in range(2):
        assert buffer.wait_for_room(0.0)
        buffer.put(result(round_index))
    assert not buffer.wait_for_room(0.0)


def test_the_end_comes_after_the_last_round(monkeypatch):
    buffer, end = filled(0, num_rounds=3), {"kind": "divergence"}
    aside = when_waiting(buffer._changed, lambda: buffer.take(0, 4, LONG), monkeypatch)
    buffer.finish(end)
    finished = aside.result()
    assert rounds_in(finished) == [0, 1, 2] and finished.end == end
    full = buffer.take(1, 2, 0.0)
    assert rounds_in(full) == [1, 2] and full is not None and full.end is None, "there may be more"
    assert buffer.take(3, 2, 0.0) == ([], end)


def test_a_repeated_request_is_done_once(monkeypatch):
    table, done = Desk(), []

    def work(identity, request):
        done.append((identity, request))
        return {"did": request.order}

    assert table.ask("1", request("first"), 0.0) is None
    assert table.answer("1") is None and table.answer("never asked") is None
    assert table.ask("1", request("first"), 0.0) is None
    table.serve_one(work, 0.0)
    table.serve_one(work, 0.0)
    assert table.ask("1", request("first"), 0.0) == table.answer("1") == {"did": "first"}
    assert done == [("1", request("first"))]
    # Another request has an answer of its own, and who waits for it is woken.
    aside = when_waiting(table._changed, lambda: table.ask("2", request("second"), LONG), monkeypatch)
    table.serve_one(work, LONG)
    assert aside.result() == {"did": "second"} and len(done) == 2


def test_a_request_that_is_repeated_while_it_is_done_is_done_once():
    table, done = Desk(), []
    begun, may_end = threading.Event(), threading.Event()

    def work(identity, request):
        done.append(identity)
        begun.set()
        assert may_end.wait(LONG)
        return {}

    aside = Aside(lambda: table.serve_one(work, LONG))
    assert table.ask("slow", request("slow"), 0.0) is None
    assert begun.wait(LONG) and table.is_working
    assert table.ask("slow", request("slow"), 0.0) is None
    may_end.set()
    aside.result()
    table.serve_one(work, 0.0)
    assert table.ask("slow", request("slow"), 0.0) == {} and done == ["slow"] and not table.is_working


def test_the_desk_knows_when_the_analyst_was_last_heard(monkeypatch):
    table = Desk()
    monkeypatch.setattr(desk.time, "monotonic", lambda: 123.0)
    table.heard("somebody")
    assert table.last_heard == 123.0 and table.owner == "somebody"
