"""All clients on one machine: one compiled program, `vmap` over clients and chains, a loop over rounds.

Chains do not meet, so they are shared out among threads that run the program side by side.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from fahmc import door
from fahmc.dynamics.sampler import Phase
from fahmc.engines.in_process import row_space as row_spaces
from fahmc.engines.in_process.loop import ClientByClient, Loop, Way, run_block
from fahmc.engines.run import SAMPLING, Block, Divergence, Run, first_chain
from fahmc.errors import SettingsError
from fahmc.hints import Threads
from fahmc.types import ChainKeys, Message


@dataclass(frozen=True)
class InProcess:
    """Run all clients in this process: the default engine.

    Parameters
    ----------
    threads
        How many threads may share the chains; by default one a core. Draws depend on it by rounding alone.
    row_space
        Run generalised linear models in the space of their rows (`fahmc.engines.in_process.row_space`): the same draws
        to rounding, under `GaussianNoise` other draws of the same law. By default where it pays;
        ``draws.settings["path"]`` says.
    """

    threads: Threads | None = None
    row_space: bool | None = None

    def __post_init__(self):
        door.check(self)

    def start(self, run: Run) -> InProcessSession:
        """Choose the way; compile nothing yet, the first block does."""
        return InProcessSession(run, self.threads or _num_cores(), row_spaces.choose(run, self.row_space))


def _num_cores() -> int:
    """Return how many cores this process may use; not every system tells its own share."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class InProcessSession:
    """A run in this process. Phases share the stacked rows, and programs where they differ in numbers alone."""

    def __init__(self, run: Run, threads: int, fast: row_spaces.RowSpace | None):
        self._run, self._threads, self._fast = run, threads, fast
        self.path = "plain" if fast is None else "row space"
        self._ways: dict[str, Way] = {}
        self._rows: dict[bool, Any] = {}
        self._chain_keys: dict[str, list[ChainKeys]] = {}
        self._programs: dict[str, Any] = {}

    def advance(self, phase: Phase, state: Message, first_round: int, num_rounds: int) -> Block:
        """Run ``num_rounds`` rounds from ``first_round``, fewer if a chain diverges."""
        is_fast = self._fast is not None and phase.name == SAMPLING
        key = f"{'in row space: ' * is_fast}{self._run.program_key(phase)}"
        way = self._way(phase, key, is_fast)
        groups = self._groups(phase, way, way.first_state(state))
        loops = self._run_groups(phase, key, groups, first_round, num_rounds)
        end = min(int(loop.round) for loop in loops)
        if any(int(loop.round) > end for loop in loops):
            # A chain diverged. The others ran on; they go back to where it stopped.
            again = self._run_groups(phase, key, groups, first_round, end - first_round)
            loops = [
                old if int(old.round) == end and not old.is_finite.all() else new
                for old, new in zip(loops, again, strict=True)
            ]
        return _as_block(self._run, way, loops, first_round)

    def _way(self, phase: Phase, key: str, is_fast: bool) -> Way:
        """Return how the phase is run, with the rows as that needs them."""
        if key not in self._ways:
            run = self._run
            if is_fast and run.program_key(phase) != run.program_key(run.sampling):
                raise SettingsError(
                    f"The run began in row space with {run.sampler!r} and cannot go on with {phase.sampler!r}: there "
                    "only step size, K and T may change. Use row_space=False."
                )
            way = self._fast if is_fast and self._fast is not None else ClientByClient(run, phase)
            if is_fast not in self._rows:
                self._rows[is_fast] = way.prepare([bucket.clients for bucket in self._run.buckets])
            self._ways[key] = way
        return self._ways[key]

    def _groups(self, phase: Phase, way: Way, state: Message) -> list[tuple[ChainKeys, Message]]:
        """Share the chains out: equal parts, so that all threads run one program."""
        arrays = {name: jnp.asarray(value) for name, value in state.items()}
        if not way.exchange.has_chains:
            return [(self._keys_of(phase, 1, first_chain)[0], arrays)]
        threads = range(1, self._threads + 1)
        num_groups = max(share for share in threads if self._run.num_chains % share == 0)
        return [
            (
                chain_keys,
                {name: _part(value, way.chain_axes[name], group, num_groups) for name, value in arrays.items()},
            )
            for group, chain_keys in enumerate(self._keys_of(phase, num_groups))
        ]

    def _keys_of(self, phase: Phase, num_groups: int, choose: Any = lambda keys: keys) -> list[ChainKeys]:
        """Return the groups' keys, made once: JAX counts every look at them as a use."""
        if phase.name not in self._chain_keys:
            chain_keys = choose(jax.tree.map(jax.random.clone, self._run.chain_keys(phase)))
            self._chain_keys[phase.name] = [
                chain_keys if num_groups == 1 else ChainKeys(*(_part(key, 0, group, num_groups) for key in chain_keys))
                for group in range(num_groups)
            ]
        return self._chain_keys[phase.name]

    def _run_groups(self, phase: Phase, key: str, groups: list[Any], first_round: int, num_rounds: int) -> list[Loop]:
        run, way = self._run, self._ways[key]
        rows = self._rows[way is self._fast]
        numbers = jax.tree.map(jnp.asarray, way.numbers(phase))
        warmup = phase.num_rounds if phase.num_warmup_rounds is None else phase.num_warmup_rounds
        span = [jnp.int32(number) for number in (first_round, num_rounds, warmup, phase.thin)]
        key = f"{key} {[np.shape(number) for number in numbers.values()]}"
        if key not in self._programs:
            program = jax.jit(run_block(run, way, run.capacity(phase)))
            self._programs[key] = program.lower(rows, numbers, *groups[0], *span).compile()

        def run_group(group: Any) -> Loop:
            return jax.device_get(self._programs[key](rows, numbers, *group, *span))

        if len(groups) == 1:
            return [run_group(groups[0])]
        with ThreadPoolExecutor(len(groups)) as threads:
            return list(threads.map(run_group, groups))


def _part(leaf: Array, axis: int | None, group: int, num_groups: int) -> Array:
    """Return a group's chains, which are on one axis of the array, if any."""
    if axis is None:
        return leaf
    size = leaf.shape[axis] // num_groups
    return lax.slice_in_dim(leaf, group * size, (group + 1) * size, axis=axis)


def _as_block(run: Run, way: Way, loops: list[Loop], first_round: int) -> Block:
    kept, rounds = int(loops[0].slot), int(loops[0].round) - first_round

    def join(leaves: list[Any], axis: int | None = 0) -> Any:
        return leaves[0] if axis is None or len(leaves) == 1 else np.concatenate(leaves, axis)

    # Copies: a view of the few slots in use would keep the whole buffer alive as long as the draws.
    draws, stats = (
        {name: join([np.moveaxis(loop.draws[part][name][:kept], 0, 1).copy() for loop in loops]) for name in buffers}
        for part, buffers in enumerate(loops[0].draws)
    )
    is_finite = join([loop.is_finite for loop in loops])
    divergence = None
    if not is_finite.all():
        chain, client = (int(index) for index in np.argwhere(~is_finite)[0])
        divergence = Divergence(chain, first_round + rounds, client)
    return Block(
        first_round=first_round,
        num_rounds=rounds,
        positions=draws.get("position", np.zeros((run.num_chains, 0, run.dimension), run.dtype)),
        stats=stats,
        drift_squares=None if loops[0].drift_squares is None else join([loop.drift_squares for loop in loops]),
        state={name: join([loop.state[name] for loop in loops], way.chain_axes[name]) for name in loops[0].state},
        divergence=divergence,
        gradients=draws.get("gradient"),
    )
