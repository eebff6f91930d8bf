"""All clients on one machine: one compiled program, `vmap` over clients and chains, a loop over rounds.

The loop's length is an argument of the compiled program, not part of it. A block of 1 round and one of 10,000 run the
same machine code, so draws do not depend on how a run is cut into blocks, and nothing is compiled twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from fahmc.data.buckets import bucket_clients
from fahmc.engines.block import Block, Divergence, Engine, Task
from fahmc.types import ChainKeys

# Five standard deviations of a momentum. In the posterior of the embedded trial stable step sizes never reach it and
# unstable ones do in most rounds (tests/engines/test_warning_signs.py).
_FREE_FLIGHTS = 5.0


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
    """Run all clients in this process: the default engine."""

    def start(self, task: Task) -> Engine:
        """Compile nothing yet; the first block does."""
        return _InProcessRun(task)


class _InProcessRun:
    def __init__(self, task: Task):
        buckets = bucket_clients(task.federation, task.dtype)
        self._task = task
        self._order = np.argsort(np.concatenate([bucket.indices for bucket in buckets]))
        self._clients = jax.tree.map(jnp.asarray, [bucket.clients for bucket in buckets])
        self._run = jax.jit(self._run_block)

    def run(self, state: Any, first_round: int, num_rounds: int) -> Block:
        """Run ``num_rounds`` rounds from ``first_round``, fewer if a chain diverges."""
        state = jax.tree.map(jnp.asarray, state)
        loop = self._run(self._clients, self._task.chain_keys, state, jnp.int32(first_round), jnp.int32(num_rounds))
        loop = jax.device_get(loop)
        kept = int(loop.slot)
        # Copies: a view of the few slots in use would keep the whole buffer alive as long as the draws.
        draws = jax.tree.map(lambda buffer: np.moveaxis(buffer[:kept], 0, 1).copy(), loop.draws)
        divergence = None
        if not loop.is_finite.all():
            chain, client = (int(index) for index in np.argwhere(~loop.is_finite)[0])
            divergence = Divergence(chain, int(loop.round), client)
        positions = draws.pop("position")
        return Block(
            first_round=first_round,
            num_rounds=int(loop.round) - first_round,
            positions=positions,
            stats=draws,
            drift_squares=loop.drift_squares,
            state=loop.state,
            divergence=divergence,
        )

    def _run_block(self, clients, chain_keys: ChainKeys, state: Any, first_round: Array, num_rounds: Array) -> _Loop:
        one_round = partial(self._one_round, clients, chain_keys)
        draw, is_finite, squares = jax.eval_shape(lambda: one_round(state, first_round)[1:])
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
            state, draw, is_finite, squares = one_round(loop.state, loop.round)
            # A round with a non-finite position does not count: the block ends before it, with its state intact.
            counts = is_finite.all()
            sampled = loop.round + 1 - self._task.num_warmup_rounds
            is_kept = counts & (sampled > 0) & (sampled % self._task.thin == 0)
            return _Loop(
                state=jax.tree.map(lambda new, old: jnp.where(counts, new, old), state, loop.state),
                round=loop.round + counts.astype(jnp.int32),
                # Every round writes to the open slot; only a round that is kept closes it.
                slot=loop.slot + is_kept.astype(jnp.int32),
                draws=jax.tree.map(lambda buffer, leaf: buffer.at[loop.slot].set(leaf), loop.draws, draw),
                drift_squares=loop.drift_squares + jnp.where(counts & (sampled > 0), squares, 0),
                is_finite=is_finite,
            )

        return lax.while_loop(goes_on, body, loop)

    def _one_round(self, clients, chain_keys: ChainKeys, state: Any, round_index: Array):
        """Let every client of every chain do its round, average, and look at the spread."""
        kernel = self._task.kernel
        over_clients = jax.vmap(kernel.client_round, in_axes=(None, None, None, 0))
        over_chains = jax.vmap(over_clients, in_axes=(0, None, 0, None))
        replies, stats = zip(*[over_chains(chain_keys, round_index, state, bucket) for bucket in clients], strict=True)
        weights = [bucket.weight for bucket in clients]

        mean = _weighted_sum(weights, replies)
        distances = [jnp.sum((reply.position - mean.position[:, None]) ** 2, axis=-1) for reply in replies]
        squares = jnp.concatenate(distances, axis=1)[:, self._order]
        finite = [jnp.isfinite(reply.position).all(axis=-1) for reply in replies]

        step_size = jnp.asarray(kernel.step_size(round_index), mean.position.dtype)
        # A trajectory that keeps its energy cannot go much further than its momentum carries it in free flight.
        free_flight = kernel.leapfrog_steps * step_size * kernel.speed
        displacement = jnp.linalg.norm(mean.position - state.position, axis=-1)
        draw = {
            "position": mean.position,
            "client_drift": jnp.sqrt(_weighted_sum(weights, distances)),
            "step_size": jnp.full_like(displacement, step_size),
            "diverging": displacement > _FREE_FLIGHTS * free_flight,
        }
        # A sampler's own statistics, e.g. its exact energy error, know better.
        own = _weighted_sum(weights, stats)
        draw |= {name: value > 0 if name == "diverging" else value for name, value in own.items()}
        state = jax.vmap(kernel.merge)(state, mean)
        return state, draw, jnp.concatenate(finite, axis=1)[:, self._order], squares


def _weighted_sum(weights: list[Array], trees: Any) -> Any:
    """Σ_c w_c x_c over the clients of all buckets; leaves are [chain, client, ...]."""
    sums = [
        jax.tree.map(lambda leaf, w=w: jnp.einsum("c,kc...->k...", w, leaf.astype(w.dtype)), tree)
        for w, tree in zip(weights, trees, strict=True)
    ]
    return jax.tree.map(lambda *parts: sum(parts[1:], start=parts[0]), *sums)
