"""Finished rounds wait in order, in limited memory; a request that is repeated is done once."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fahmc.engines.flare import desk
from fahmc.engines.flare.desk import Buffer, Desk
from fahmc.engines.flare.rounds import Outcome

# No test waits for this to pass, unless it fails.
LONG = 30.0


def outcome(round_index: int) -> Outcome:
    return Outcome(state=round_index, drift_squares=np.zeros((1, 1)), displacement=np.zeros(1))


def filled(first_round: int, *, num_rounds: int, capacity: int | None = None) -> Buffer:
    bytes_per_round = 1 if capacity is None else desk._BUFFER_BYTES // capacity
    buffer = Buffer("begun", first_round, bytes_per_round)
    for round_index in range(first_round, first_round + num_rounds):
        buffer.put(outcome(round_index))
    return buffer


def rounds_in(finished: desk.Finished | None) -> list[int]:
    assert finished is not None
    return [outcome.state for outcome in finished.outcomes]


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
    buffer.put(outcome(1))
    assert rounds_in(aside.result()) == [0, 1]


def test_a_full_buffer_has_no_room_until_rounds_are_fetched(monkeypatch):
    buffer = filled(0, num_rounds=3, capacity=4)
    assert buffer.wait_for_room(0.0)
    buffer.put(outcome(3))
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
    buffer.put(outcome(3))
    finished = aside.result()
    assert rounds_in(finished) == [0, 1, 2, 3] and finished.end is None


def test_a_round_however_large_does_not_stop_the_run():
    buffer = Buffer("begun", 0, 10 * desk._BUFFER_BYTES)
    for round_index in range(2):
        assert buffer.wait_for_room(0.0)
        buffer.put(outcome(round_index))
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

    def work(request):
        done.append(request)
        return {"sum": sum(request["numbers"])}

    assert table.ask("first", {"numbers": [1, 2]}, 0.0) is None
    assert table.answer("first") is None and table.answer("never asked") is None
    assert table.ask("first", {"numbers": [1, 2]}, 0.0) is None
    table.serve_one(work, 0.0)
    table.serve_one(work, 0.0)
    assert table.ask("first", {"numbers": [1, 2]}, 0.0) == table.answer("first") == {"sum": 3}
    assert done == [{"numbers": [1, 2]}]
    # Another request has an answer of its own, and who waits for it is woken.
    aside = when_waiting(table._changed, lambda: table.ask("second", {"numbers": [5]}, LONG), monkeypatch)
    table.serve_one(work, LONG)
    assert aside.result() == {"sum": 5} and len(done) == 2


def test_a_request_that_is_repeated_while_it_is_done_is_done_once():
    table, done = Desk(), []
    begun, may_end = threading.Event(), threading.Event()

    def work(request):
        done.append(request)
        begun.set()
        assert may_end.wait(LONG)
        return {}

    aside = Aside(lambda: table.serve_one(work, LONG))
    assert table.ask("slow", {}, 0.0) is None
    assert begun.wait(LONG)
    assert table.ask("slow", {}, 0.0) is None
    may_end.set()
    aside.result()
    table.serve_one(work, 0.0)
    assert table.ask("slow", {}, 0.0) == {} and len(done) == 1


def test_the_desk_knows_when_the_analyst_was_last_heard(monkeypatch):
    table = Desk()
    monkeypatch.setattr(desk.time, "monotonic", lambda: 123.0)
    table.heard()
    assert table.last_heard == 123.0
