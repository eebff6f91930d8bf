"""What every engine is given, a task, and what it gives back: blocks of consecutive rounds of all chains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from fahmc.data.federation import Federation
from fahmc.dynamics.row_space import RowSpace
from fahmc.types import ChainKeys, Kernel


class Task(NamedTuple):
    """What an engine runs."""

    kernel: Kernel
    row_space: RowSpace | None
    """The same chains faster, for an engine that holds all rows; its states are not the kernel's."""
    federation: Federation
    chain_keys: ChainKeys
    dtype: np.dtype
    num_warmup_rounds: int
    thin: int
    capacity: int
    """The largest number of draws that one block keeps; it sizes the buffers."""


class Divergence(NamedTuple):
    """Where a chain first left the finite numbers."""

    chain: int
    round: int
    client: int


@dataclass(frozen=True)
class Block:
    """Rounds ``first_round`` to ``first_round + num_rounds`` (exclusive) of all chains."""

    first_round: int
    num_rounds: int
    positions: np.ndarray
    """[chain, draw, dim]: the averages kept in this block."""
    stats: dict[str, np.ndarray]
    """Each [chain, draw]."""
    drift_squares: np.ndarray
    """[chain, client]: sum over the block's rounds after warm-up of |θ_c − θ|²."""
    state: Any
    """What the next round starts from: a kernel's state with a leading chain axis, as NumPy arrays."""
    divergence: Divergence | None = None


class Engine(Protocol):
    """Runs rounds. Given the same state and round, every engine gives the same block, to float rounding."""

    def run(self, state: Any, first_round: int, num_rounds: int) -> Block:
        """Run ``num_rounds`` rounds from ``first_round``, fewer if a chain diverges."""
        ...


class EngineFactory(Protocol):
    """What `fahmc.sample(engine=...)` takes: knows where clients run, and starts an engine for a task."""

    def start(self, task: Task) -> Engine:
        """Make ready to run rounds."""
        ...
