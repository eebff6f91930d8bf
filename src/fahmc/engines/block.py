"""What every engine is given, a task, and what it gives back: blocks of consecutive rounds of all chains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from fahmc.data.federation import Federation
from fahmc.data.sites import RemoteFederation, Sites
from fahmc.density.potential import Model
from fahmc.dynamics.row_space import RowSpace
from fahmc.types import ChainKeys, Kernel, Position

# A trajectory is called diverging when it went further than this many free flights of its momentum: five standard
# deviations. In the posterior of the embedded trial stable step sizes never reach it and unstable ones do in most
# rounds (tests/engines/test_warning_signs.py).
FREE_FLIGHTS = 5.0


class Task(NamedTuple):
    """What an engine runs."""

    model: Model
    sampler: Any
    kernel: Kernel
    """The sampler on the model."""
    row_space: RowSpace | None
    """The same chains faster, for an engine that holds all rows; its states are not the kernel's."""
    federation: Federation
    chain_keys: ChainKeys
    seed: int
    """What the shared part of ``chain_keys`` derives from, for clients that derive their own."""
    dtype: np.dtype
    template: Position
    """Structure and shapes of a position."""
    total_rounds: int
    """Rounds of the whole run, warm-up included: how far an engine may run ahead."""
    num_warmup_rounds: int
    thin: int
    capacity: int
    """The largest number of draws that one block keeps; it sizes the buffers."""
    is_stopping: Callable[[], bool] = lambda: False
    """Whether the user wants no more rounds. An engine that waits for others looks, and raises `Abandoned`."""

    @property
    def num_chains(self) -> int:
        """Chains that run side by side."""
        return self.chain_keys.shared.size

    @property
    def dimension(self) -> int:
        """Length of a flattened position."""
        return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(self.template))

    def is_due(self, round_index: int) -> bool:
        """Whether the position after a round is kept as a draw."""
        sampled = round_index + 1 - self.num_warmup_rounds
        return sampled > 0 and sampled % self.thin == 0


class Abandoned(Exception):
    """The engine waited for others until the user wanted no more rounds."""


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


class RemoteEngineFactory(Protocol):
    """What `fahmc.sample(engine=...)` takes beside `Sites`: one whose clients hold rows that are not here."""

    def open(self, model: Model, sites: Sites, sampler: Any) -> tuple[Model, RemoteFederation]:
        """Ask the sites what they hold; the model comes back with its coefficients named after their columns."""
        ...

    def start(self, task: Task) -> Engine:
        """Make ready to run rounds at the sites that were asked."""
        ...

    def release(self) -> None:
        """Let the sites go, unless more runs are to come."""
        ...


class EngineFactory(Protocol):
    """What `fahmc.sample(engine=...)` takes: knows where clients run, and starts an engine for a task."""

    def start(self, task: Task) -> Engine:
        """Make ready to run rounds."""
        ...
