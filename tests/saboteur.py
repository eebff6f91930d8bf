"""Harm done to a real federation, and how to see that nothing came of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fahmc import Phase
from fahmc.engines import Flare
from fahmc.engines.run import Block, Run
from fahmc.types import Message


class Saboteur:
    """Reaches the sites as `Flare` does, and does harm before some blocks, while the server is at work on them.

    ``harm`` is named by a round or by a phase: it is done before the first block that begins there, or, as blocks are
    cut short where a federation has to be put together anew, after it.
    """

    path = "plain"

    def __init__(self, engine: Flare, harm: Mapping[Any, Callable[[], None]]):
        self._engine, self._harm = engine, dict(harm)
        self.open, self.release = engine.open, engine.release

    def start(self, run: Run) -> Saboteur:
        self._session = self._engine.start(run)
        return self

    def advance(self, phase: Phase, state: Message, first_round: int, num_rounds: int) -> Block:
        due = (name for name in self._harm if name == phase.name or (isinstance(name, int) and first_round >= name))
        if (name := next(due, None)) is not None:
            self._harm.pop(name)()
        return self._session.advance(phase, state, first_round, num_rounds)


def kill(*processes: int) -> None:
    assert processes, "there is nothing to kill"
    for pid in processes:
        os.kill(pid, signal.SIGKILL)


def assert_same_bits(draws, undisturbed):
    for name, values in undisturbed.positions.items():
        np.testing.assert_array_equal(draws.positions[name], values)
    for name, values in undisturbed.stats.items():
        np.testing.assert_array_equal(draws.stats[name], values)
