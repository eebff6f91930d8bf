"""The draws that a run has left on disk so far, thinned to what a page shows and a diagnostic needs.

Blocks are read once each, as they come; nothing in the run's folder is locked, written or removed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fahmc.runs.checkpoint import block_files, read_block
from fahmc.runs.journal import MOST_NAMES

# Draws a chain that are kept: above twice as many, every other one goes.
MOST_DRAWS = 500
# Blocks by whose pace the time left is told.
_RECENT = 5


class _Pace(NamedTuple):
    phase: int
    rounds: int
    seconds: float


class Trail:
    """Follows a run's blocks."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._forget()

    def _forget(self) -> None:
        self._next, self._group = 0, ""
        self._recent: list[_Pace] = []
        self.positions = np.zeros((0, 0, 0), np.float32)
        """[chain, draw, parameter]: draws of the latest phase that keeps some, every `every`-th."""
        self.every, self.num_draws = 1, 0
        self.seconds = 0.0

    def follow(self, phases: Sequence[str]) -> bool:
        """Read the blocks that are new, of phases by name, and say whether there were any."""
        files, before = block_files(self._folder), self._next
        if len(files) < self._next:  # the run began anew
            self._forget()
        for file in files[self._next :]:
            block = read_block(file)
            if block is None or int(block["phase"]) >= len(phases):
                break  # it is there whole a moment later, or its phase is not told yet
            phase = int(block["phase"])
            self._next += 1
            self.seconds += float(block["seconds"])
            self._recent = [*self._recent[1 - _RECENT :], _Pace(phase, int(block["rounds"]), float(block["seconds"]))]
            self._add(group_of(phases[phase]), block["positions"][..., :MOST_NAMES])
        return self._next != before

    def _add(self, group: str, positions: np.ndarray) -> None:
        """Keep every so many of a block's draws; parts of a phase belong together, another phase begins anew."""
        if not positions.shape[1]:
            return
        if group != self._group or positions.shape[::2] != self.positions.shape[::2]:
            self._group, self.every, self.num_draws = group, 1, 0
            self.positions = positions[:, :0]
        first = -self.num_draws % self.every
        self.positions = np.concatenate([self.positions, positions[:, first :: self.every]], axis=1)
        self.num_draws += positions.shape[1]
        while self.positions.shape[1] > 2 * MOST_DRAWS:
            self.positions, self.every = self.positions[:, ::2], 2 * self.every

    def rate(self, phase: int) -> float | None:
        """Return the rounds a second of a phase, by its last blocks; its first one compiles."""
        own = [pace for pace in self._recent if pace.phase == phase]
        seconds = sum(pace.seconds for pace in own[1:])
        return sum(pace.rounds for pace in own[1:]) / seconds if seconds > 0 else None


def group_of(phase: str) -> str:
    """Return what phases have in common that differ only by a number at the end: ``"attempt 1, part 0"`` and ``1``."""
    return re.sub(r"\s*\d+$", "", phase)
