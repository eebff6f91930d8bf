"""All clients on one machine: one compiled program, `vmap` over clients and chains, a loop over rounds.

The loop's length is an argument of the compiled program, not part of it. A block of 1 round and one of 10,000 run the
same machine code, so draws do not depend on how a run is cut into blocks, and nothing is compiled twice. Chains do not
meet, so they are shared out among threads that run the program side by side.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from fahmc.data.buckets import bucket_clients
from fahmc.engines.block import FREE_FLIGHTS, Block, Divergence, Engine, Task
from fahmc.errors import SettingsError
from fahmc.types import ChainKeys, Client, Kernel


class _Loop(NamedTuple):
    """What one compiled block carries from round to round."""

    state: Any
    round: Int[Array, ""]
    slot: Int[Array, ""]
    """How many draws this block has kept; also the place the next one is written to."""
    draws: Any
    """Buffers [slot, chain, ...]."""
    drift_squares: Float[Array, "chain client"]
    is_finite: Bool[Array, "chain client"]


@dataclass(frozen=True)
class InProcess:
    """Run all clients in this process: the default engine.

    Parameters
    ----------
    threads
        How many threads may share the chains; by default one a core. Draws depend on it by rounding alone.
    """

    threads: int | None = None

    def __post_init__(self):
        is_count = isinstance(self.threads, int) and not isinstance(self.threads, bool) and self.threads >= 1
        if self.threads is not None and not is_count:
            raise SettingsError(f"threads is {self.threads!r}; it must be a whole number of at least 1, or None.")

    def start(self, task: Task) -> Engine:
        """Compile nothing yet; the first block does."""
        return _InProcessRun(task, self.threads or _num_cores())


def _num_cores() -> int:
    """Return how many cores this process may use; not every system tells its own share."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _InProcessRun:
    def __init__(self, task: Task, threads: int):
        buckets = bucket_clients(task.federation, task.dtype)
        self._task = task
        self._order = np.argsort(np.concatenate([bucket.indices for bucket in buckets]))
        self._rounds = task.row_space or _ClientByClient(task.kernel)
        self._rows = self._rounds.prepare([bucket.clients for bucket in buckets])
        # Equal shares, so that all threads run one program.
        self._num_groups = max(share for share in range(1, threads + 1) if task.chain_keys.shared.size % share == 0)
        self._chain_keys = [
            self._share(group, 0, jax.tree.map(jax.random.clone, task.chain_keys)) for group in range(self._num_groups)
        ]
        self._program: Any = None

    def run(self, state: Any, first_round: int, num_rounds: int) -> Block:
        """Run ``num_rounds`` rounds from ``first_round``, fewer if a chain diverges."""
        state = jax.tree.map(jnp.asarray, state)
        groups = [
            (chain_keys, self._share(group, self._rounds.chain_axis, state))
            for group, chain_keys in enumerate(self._chain_keys)
        ]
        loops = self._run_groups(groups, first_round, num_rounds)
        end = min(int(loop.round) for loop in loops)
        if any(int(loop.round) > end for loop in loops):
            # A chain diverged. The others ran on; they go back to where it stopped.
            again = self._run_groups(groups, first_round, end - first_round)
            loops = [
                old if int(old.round) == end and not old.is_finite.all() else new
                for old, new in zip(loops, again, strict=True)
            ]
        return self._as_block(loops, first_round)

    def _share(self, group: int, axis: int, tree: Any) -> Any:
        """Return a thread's chains, on one axis of every leaf."""

        def share(leaf: Array) -> Array:
            size = leaf.shape[axis] // self._num_groups
            return lax.slice_in_dim(leaf, group * size, (group + 1) * size, axis=axis)

        return jax.tree.map(share, tree)

    def _run_groups(self, groups: list[Any], first_round: int, num_rounds: int) -> list[_Loop]:
        span = jnp.int32(first_round), jnp.int32(num_rounds)
        if self._program is None:
            self._program = jax.jit(self._run_block).lower(self._rows, *groups[0], *span).compile()

        def run(group: Any) -> _Loop:
            return jax.device_get(self._program(self._rows, *group, *span))

        if len(groups) == 1:
            return [run(groups[0])]
        with ThreadPoolExecutor(len(groups)) as threads:
            return list(threads.map(run, groups))

    def _as_block(self, loops: list[_Loop], first_round: int) -> Block:
        kept, rounds = int(loops[0].slot), int(loops[0].round) - first_round

        def join(*leaves: Any, axis: int = 0) -> Any:
            return np.concatenate(leaves, axis) if len(loops) > 1 else leaves[0]

        # Copies: a view of the few slots in use would keep the whole buffer alive as long as the draws.
        draws = [jax.tree.map(lambda leaf: np.moveaxis(leaf[:kept], 0, 1).copy(), loop.draws) for loop in loops]
        draws = jax.tree.map(join, *draws)
        is_finite = join(*(loop.is_finite for loop in loops))
        divergence = None
        if not is_finite.all():
            chain, client = (int(index) for index in np.argwhere(~is_finite)[0])
            divergence = Divergence(chain, first_round + rounds, client)
        positions = draws.pop("position")
        return Block(
            first_round=first_round,
            num_rounds=rounds,
            positions=positions,
            stats=draws,
            drift_squares=join(*(loop.drift_squares for loop in loops)),
            state=jax.tree.map(partial(join, axis=self._rounds.chain_axis), *(loop.state for loop in loops)),
            divergence=divergence,
        )

    def _run_block(self, rows: Any, chain_keys: ChainKeys, state: Any, first_round: Array, num_rounds: Array) -> _Loop:
        # Its own jit, so that it is traced once for the two places that it is called from.
        one_round = partial(jax.jit(self._one_round, inline=True), rows, chain_keys)
        draw, is_finite, squares = jax.eval_shape(lambda: one_round(state, first_round, jnp.bool(True))[1:])
        # One slot more than can be kept: rounds after the last kept draw need a place to write to.
        loop = _Loop(
            state=state,
            round=first_round,
            slot=jnp.int32(0),
            draws=jax.tree.map(lambda leaf: jnp.zeros((self._task.capacity + 1, *leaf.shape), leaf.dtype), draw),
            drift_squares=jnp.zeros(squares.shape, squares.dtype),
            is_finite=jnp.ones(is_finite.shape, bool),
        )

        def goes_on(loop: _Loop):
            return (loop.round < first_round + num_rounds) & loop.is_finite.all()

        def body(loop: _Loop) -> _Loop:
            sampled = loop.round + 1 - self._task.num_warmup_rounds
            is_due = (sampled > 0) & (sampled % self._task.thin == 0)
            state, draw, is_finite, squares = one_round(loop.state, loop.round, is_due)
            # A round with a non-finite position does not count: the block ends before it, with its state intact.
            counts = is_finite.all()
            return _Loop(
                state=jax.tree.map(lambda new, old: jnp.where(counts, new, old), state, loop.state),
                round=loop.round + counts.astype(jnp.int32),
                # Every round writes to the open slot; only a round that is kept closes it.
                slot=loop.slot + (counts & is_due).astype(jnp.int32),
                draws=jax.tree.map(
                    lambda buffer, leaf: lax.dynamic_update_index_in_dim(buffer, leaf, loop.slot, 0), loop.draws, draw
                ),
                drift_squares=loop.drift_squares + jnp.where(counts & (sampled > 0), squares, 0),
                is_finite=is_finite,
            )

        return lax.while_loop(goes_on, body, loop)

    def _one_round(self, rows: Any, chain_keys: ChainKeys, state: Any, round_index: Array, is_due: Array):
        """Let every client of every chain do its round, average, and look at the result if a draw is due."""
        kernel, rounds = self._task.kernel, self._rounds
        new_state, squares, is_finite, stats = rounds.advance(rows, chain_keys, round_index, state)
        weights = jnp.asarray(self._task.federation.weights, squares.dtype)
        squares, is_finite = squares[:, self._order], is_finite[:, self._order]

        def look():
            position = rounds.positions(rows, new_state)
            displacement = jnp.linalg.norm(position - rounds.positions(rows, state), axis=-1)
            step_size = jnp.asarray(kernel.step_size(round_index), position.dtype)
            # A trajectory that keeps its energy cannot go much further than its momentum carries it in free flight.
            free_flight = kernel.leapfrog_steps * step_size * kernel.speed
            draw = {
                "position": position,
                "client_drift": jnp.sqrt(squares @ weights),
                "step_size": jnp.full_like(displacement, step_size),
                "diverging": displacement > FREE_FLIGHTS * free_flight,
            }
            # A sampler's own statistics, e.g. its exact energy error, know better.
            return draw | {name: value > 0 if name == "diverging" else value for name, value in stats.items()}

        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(look))
        draw = lax.cond(is_due, look, lambda: nothing)
        return new_state, draw, is_finite, squares


class _ClientByClient:
    """A round as the kernel tells it: every client's own, then the mean."""

    chain_axis = 0

    def __init__(self, kernel: Kernel):
        self._kernel = kernel

    def prepare(self, clients: list[Client]) -> list[Client]:
        return jax.tree.map(jnp.asarray, clients)

    def positions(self, clients: list[Client], state: Any) -> Float[Array, "chain dim"]:
        return state.position

    def advance(self, clients: list[Client], chain_keys: ChainKeys, round_index: Array, state: Any):
        # Clients first, then chains: a client's rows then meet all chains in one matrix product.
        over_chains = jax.vmap(self._kernel.client_round, in_axes=(0, None, 0, None))
        over_clients = jax.vmap(over_chains, in_axes=(None, None, None, 0))
        replies, stats = zip(*[over_clients(chain_keys, round_index, state, bucket) for bucket in clients], strict=True)
        weights = [bucket.weight for bucket in clients]
        mean = _weighted_sum(weights, replies)
        squares = [jnp.sum((reply.position - mean.position) ** 2, axis=-1) for reply in replies]
        is_finite = [jnp.isfinite(reply.position).all(axis=-1) for reply in replies]
        state = jax.vmap(self._kernel.merge)(state, mean)
        return state, jnp.concatenate(squares).T, jnp.concatenate(is_finite).T, _weighted_sum(weights, stats)


def _weighted_sum(weights: list[Array], trees: Any) -> Any:
    """Σ_c w_c x_c over the clients of all buckets; leaves are [client, chain, ...]."""
    sums = [
        jax.tree.map(lambda leaf, w=w: jnp.einsum("c,ck...->k...", w, leaf.astype(w.dtype)), tree)
        for w, tree in zip(weights, trees, strict=True)
    ]
    return jax.tree.map(lambda *parts: sum(parts[1:], start=parts[0]), *sums)
