"""A site that is silent is told of within seconds; one that computes is not called lost."""

import logging

import pytest

from fahmc import owner
from fahmc.engines.flare import lookout, watch
from fahmc.engines.flare.lookout import Lookout
from fahmc.engines.flare.watch import Awaited, Watch


@pytest.fixture
def clock(monkeypatch):
    """A clock that moves when told to."""

    class Clock:
        now = 100.0

        def monotonic(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(watch, "time", clock)
    monkeypatch.setattr(lookout, "time", clock)
    return clock


def test_who_answers_no_call_but_gives_signs_of_life_is_not_silent(clock):
    alive = {"north", "south"}
    sites = Watch(lambda asked: alive.intersection(asked))
    with sites.asking(["north", "south", "va"]):
        sites.look()
        assert sites.awaited() == [("north", 0.0, 0.0), ("south", 0.0, 0.0), ("va", 0.0, 0.0)]
        sites.answered("south")
        clock.now += 40
        sites.look()
        assert sites.awaited() == [("north", 40.0, 0.0), ("va", 40.0, 40.0)]
        clock.now += 2
        assert sites.awaited() == [("north", 42.0, 2.0), ("va", 42.0, 42.0)]
    assert sites.awaited() == []
    clock.now += 1
    with sites.asking(["va"]):
        assert sites.awaited() == [("va", 0.0, 43.0)], "it is asked again because it did not answer"
        sites.answered("va")
    clock.now += 100
    with sites.asking(["va"]):
        assert sites.awaited() == [("va", 0.0, 0.0)]


def test_nobody_is_asked_for_a_sign_of_life_in_a_quick_round(clock):
    sites = Watch(lambda asked: pytest.fail("it has only just been asked"))
    with sites.asking(["north"]):
        clock.now += 0.9
        sites.look()


def test_what_is_said_is_said_soon_and_then_ever_more_seldom(clock, caplog):
    caplog.set_level(logging.WARNING, "fahmc")
    told = Lookout()
    for second in range(0, 61):
        told.see([Awaited("va", second, second), Awaited("north", second, 0.5)])
    for _ in range(40):  # the job was given up, and va is not connected
        told.miss(["va"])
        clock.now += 2
    assert [record.getMessage() for record in caplog.records] == [
        "Waiting for va, lost 4 s ago.",
        "Waiting for va, lost 8 s ago.",
        "Waiting for va, lost 16 s ago.",
        "Waiting for north, which has been at work for 30 s.",
        "Waiting for va, lost 32 s ago.",
        "Waiting for north, which has been at work for 60 s.",
        "Waiting for va, lost 64 s ago.",
        "Waiting for va, lost 128 s ago.",
    ]
    caplog.clear()
    told.rest()
    told.see([Awaited("va", 5, 5), Awaited("north", 60, 0.5)])
    assert [record.getMessage() for record in caplog.records] == ["Waiting for va, lost 5 s ago."]


def test_an_owner_is_gone_when_its_process_is():
    import subprocess
    import sys

    command = [sys.executable, "-c", "import sys; from fahmc import owner; print(owner.this_process())"]
    name = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert owner.is_here(name) and owner.is_gone(name)
    assert owner.is_here(owner.this_process()) and not owner.is_gone(owner.this_process())
    machine, pid, _ = owner.this_process().split(":")
    assert owner.is_gone(f"{machine}:{pid}:1.00"), "another process had this number before"
    for elsewhere in (f"another:{pid}:1.00", "", "nonsense"):
        assert not owner.is_here(elsewhere) and not owner.is_gone(elsewhere)
