"""Harm of many kinds. A fault is a number: the same number is the same kind, place, moment and duration."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable
from typing import NamedTuple

import psutil
from world import Analyst, World

from clinics import SIZES

_SITES = tuple(SIZES)
# Who is harmed, how, and how often compared with others.
_KILLED = {
    ("site", "worker"): 3, ("site", "main"): 2, ("site", "fork server"): 1, ("site", "operator"): 1,
    ("server", "worker"): 2, ("server", "main"): 1, ("server", "operator"): 1, ("analyst", "process"): 2,
}  # fmt: skip
_STOPPED = {
    ("site", "worker"): 3, ("site", "main"): 2,
    ("server", "worker"): 1, ("server", "main"): 1, ("analyst", "process"): 1,
}  # fmt: skip
_LINES = {
    ("site", "reset"): 1,
    ("site", "cut"): 3,
    ("site", "stall"): 3,
    ("analyst", "cut"): 1,
    ("analyst", "stall"): 1,
}


class Fault(NamedTuple):
    """What is done to whom, for how long, and how many seconds (``moment``) after the last one was over, or begun."""

    number: int
    way: str
    who: str
    what: str
    moment: float
    seconds: float
    is_hasty: bool
    """It comes while the federation still gets over the last one: in a survey, while programs are compiled."""

    @classmethod
    def of(cls, seed: int, number: int) -> Fault:
        """Make up the fault of a number."""
        rng = random.Random(f"{seed}:{number}")
        choices = [
            (way, pair, often)
            for way, table in (("killed", _KILLED), ("stopped", _STOPPED), ("line", _LINES))
            for pair, often in table.items()
        ]
        way, (role, what), _ = rng.choices(choices, [often for *_, often in choices])[0]
        who = rng.choice(_SITES) if role == "site" else role
        is_hasty = rng.random() < 0.2
        moment = rng.uniform(0.5, 8.0) if is_hasty else rng.uniform(0.0, 1.5)
        return cls(number, way, who, what, moment, rng.choice((1.0, 3.0, 6.0, 12.0, 20.0)), is_hasty)

    @property
    def kind(self) -> str:
        """What the fault has in common with others, whoever is harmed."""
        role = "site" if self.who in _SITES else self.who
        return f"{role}'s line, {self.what}" if self.way == "line" else f"{role}'s {self.what} {self.way}"

    def __str__(self) -> str:
        lasting = "" if self.way == "killed" or self.what == "reset" else f" for {self.seconds:g} s"
        return f"{self.kind} ({self.who}{lasting}{', in haste' if self.is_hasty else ''})"

    def do(self, world: World, analyst: Analyst) -> Callable[[], None]:
        """Do harm, and return what ends it."""
        if self.way == "line":
            line = world.lines[self.who]
            {"reset": line.reset, "cut": line.cut, "stall": line.stall}[self.what]()
            return line.restore
        victims = (
            [psutil.Process(analyst.process.pid)] if self.who == "analyst" else world.processes(self.who, self.what)
        )
        for victim in victims:
            with contextlib.suppress(psutil.Error):
                victim.kill() if self.way == "killed" else victim.suspend()
        if self.way == "stopped":
            return lambda: _resume(victims)
        if self.who == "analyst":
            analyst.process.wait()
            return analyst.start
        return lambda: None

    def last(self) -> None:
        """Let it go on for as long as it should."""
        if self.way == "stopped" or (self.way == "line" and self.what != "reset"):
            time.sleep(self.seconds)


def _resume(processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.resume()
