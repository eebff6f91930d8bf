"""A block of rounds as one program: every client's round, the average, and what is kept of it.

The loop's length is an argument of the compiled program, not part of it. A block of 1 round and one of 10,000 run the
same machine code, so draws do not depend on how a run is cut into blocks, and nothing is compiled twice. A sampler's
numbers are arguments too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from fahmc.dynamics.sampler import Exchange, Phase
from fahmc.engines.noise import with_simulated_noise
from fahmc.engines.record import Average, average, draw_of, statistics
from fahmc.engines.run import Run, over_chains
from fahmc.types import ChainKeys, Client, Message, Numbers


class Way(Protocol):
    """How the rounds of all clients and chains are computed."""

    exchange: Exchange
    chain_axes: dict[str, int | None]
    """Where the chains are in each array of a state; None where all chains share it."""

    def prepare(self, clients: list[Client]) -> Any:
        """Compute what depends on the rows alone."""
        ...

    def numbers(self, phase: Phase) -> Numbers:
        """Return the settings of a phase that are data."""
        ...

    def first_state(self, state: Message) -> Message:
        """Turn the state in which a phase begins into the way's own; leave its own as it is."""
        ...

    def advance(
        self, rows: Any, numbers: Numbers, chain_keys: ChainKeys, round_index: Array, state: Message
    ) -> Average:
        """Let all clients of all chains do a round, and average."""
        ...

    def message(self, rows: Any, state: Message) -> Message:
        """Return the state as the exchange knows it, as far as `Exchange.watch` needs it."""
        ...


class ClientByClient:
    """A round as the sampler tells it: every client's own, then the average."""

    def __init__(self, run: Run, phase: Phase):
        self.exchange = run.exchange(phase)
        self.chain_axes = {name: 0 if field.per_chain else None for name, field in self.exchange.state.items()}
        self.numbers = run.numbers
        client_round = phase.sampler.build(run.target)
        self._client_round = with_simulated_noise(self.exchange, client_round, run.federation.num_clients)
        self._order = np.argsort(np.concatenate([bucket.indices for bucket in run.buckets]))

    def prepare(self, clients: list[Client]) -> list[Client]:
        """Hand the rows to JAX."""
        return jax.tree.map(jnp.asarray, clients)

    def first_state(self, state: Message) -> Message:
        """Return it."""
        return state

    def message(self, rows: list[Client], state: Message) -> Message:
        """Return it."""
        return state

    def advance(
        self, rows: list[Client], numbers: Numbers, chain_keys: ChainKeys, round_index: Array, state: Message
    ) -> Average:
        """Let all clients of all chains do a round, and average."""
        # Clients first, then chains: a client's rows then meet all chains in one matrix product.
        axes = (0, None, self.exchange.broadcast, None, None)
        broadcast = {name: state[name] for name in self.exchange.broadcast}
        one_client = over_chains(self.exchange, self._client_round, axes, self.exchange.reply)
        all_clients = jax.vmap(one_client, in_axes=(None, None, None, None, 0))
        replies = [all_clients(chain_keys, round_index, broadcast, numbers, bucket) for bucket in rows]
        weights = [bucket.weight for bucket in rows]
        return average(self.exchange, numbers, weights, chain_keys, round_index, state, replies, self._order)


class Loop(NamedTuple):
    """What one compiled block carries from round to round."""

    state: Message
    round: Int[Array, ""]
    slot: Int[Array, ""]
    """How many draws this block has kept; also the place the next one is written to."""
    draws: Any
    """Buffers [slot, chain, ...] of draws and of their statistics."""
    drift_squares: Float[Array, "chain client"] | None
    is_finite: Bool[Array, "chain client"]


def run_block(run: Run, way: Way, capacity: int) -> Callable[..., Loop]:
    """Return ``(rows, numbers, keys, state, first round, rounds, warm-up rounds, thin) -> Loop``."""
    weights = run.federation.weights.astype(run.dtype)

    def one_round(
        rows: Any, numbers: Numbers, chain_keys: ChainKeys, state: Message, round_index: Array, is_due: Array
    ) -> tuple[Average, tuple[Message, dict[str, Array]]]:
        """Run a round, and look at the result if a draw is due."""
        done = way.advance(rows, numbers, chain_keys, round_index, state)

        def look() -> tuple[Message, dict[str, Array]]:
            before, after = way.message(rows, state), done._replace(state=way.message(rows, done.state))
            stats = statistics(way.exchange, numbers, weights, round_index, before, after)
            return draw_of(way.exchange, before, after), stats

        if not capacity:
            return done, ({}, {})
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(look))
        return done, lax.cond(is_due, look, lambda: nothing)

    def block(rows, numbers, chain_keys, state, first_round, num_rounds, num_warmup_rounds, thin) -> Loop:
        phase = Phase("", run.sampler, 0, num_warmup_rounds, thin)
        # Its own jit, so that it is traced once for the two places that it is called from.
        next_round = partial(jax.jit(one_round, inline=True), rows, numbers, chain_keys)
        done, draw = jax.eval_shape(next_round, state, first_round, jnp.bool(True))
        # One slot more than can be kept: rounds after the last kept draw need a place to write to.
        loop = Loop(
            state=state,
            round=first_round,
            slot=jnp.int32(0),
            draws=jax.tree.map(lambda leaf: jnp.zeros((capacity + 1, *leaf.shape), leaf.dtype), draw),
            drift_squares=jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), done.drift_squares),
            is_finite=jnp.ones(done.is_finite.shape, bool),
        )

        def goes_on(loop: Loop) -> Array:
            return (loop.round < first_round + num_rounds) & loop.is_finite.all()

        def body(loop: Loop) -> Loop:
            is_due, is_sampled = phase.is_due(loop.round), phase.rounds_sampled(loop.round) > 0
            done, draw = next_round(loop.state, loop.round, is_due)
            # A round with a number that is not finite does not count: the block ends before it, its state intact.
            counts = done.is_finite.all()
            return Loop(
                state=jax.tree.map(lambda new, old: jnp.where(counts, new, old), done.state, loop.state),
                round=loop.round + counts.astype(jnp.int32),
                # Every round writes to the open slot; only a round that is kept closes it.
                slot=loop.slot + (counts & is_due).astype(jnp.int32),
                draws=jax.tree.map(
                    lambda buffer, leaf: lax.dynamic_update_index_in_dim(buffer, leaf, loop.slot, 0), loop.draws, draw
                ),
                drift_squares=jax.tree.map(
                    lambda total, new: total + jnp.where(counts & is_sampled, new, 0),
                    loop.drift_squares,
                    done.drift_squares,
                ),
                is_finite=done.is_finite,
            )

        return lax.while_loop(goes_on, body, loop)

    return block
