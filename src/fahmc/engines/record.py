"""From the clients' replies to what is kept of a round, and from rounds to blocks: in one place, for every engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fahmc.dynamics.sampler import Exchange, Field, Phase
from fahmc.engines.run import Block, Divergence, Run, first_chain, over_chains
from fahmc.types import ChainKeys, Message, Numbers


class Average(NamedTuple):
    """What the replies of a round come to."""

    state: Message
    """What the next round starts from."""
    combined: Message
    drift_squares: Any
    """[chain, client] |θ_c − θ|²; None where replies hold no position."""
    is_finite: Any
    """[chain, client + 1]: of each reply; at last of the state that they were merged into."""


class RoundResult(NamedTuple):
    """What one round left behind."""

    state: Message
    stats: dict[str, Any]
    """Each [chain]."""
    draw: Message
    """What is kept of the round if a draw is due; nothing where the state has no position."""
    drift_squares: Any
    is_finite: Any


def average(
    exchange: Exchange,
    numbers: Numbers,
    weights: Sequence[Array],
    chain_keys: ChainKeys,
    round_index: Array,
    state: Message,
    replies: Sequence[Message],
    order: np.ndarray | None = None,
) -> Average:
    """Combine the replies and merge them into the state.

    Clients come in buckets: lists of weights [client] and of replies, [client, chain, ...] each; ``order`` puts the
    clients of all buckets into the federation's order.
    """

    def of_all(parts: Sequence[Array]) -> Array:
        joined = jnp.concatenate(parts) if len(parts) > 1 else parts[0]
        return joined if order is None else joined[order]

    def combine(name: str, rule: str) -> Array:
        parts = [reply[name] for reply in replies]
        if rule == "each":
            axis = 1 if exchange.reply[name].per_chain else 0
            return jnp.moveaxis(of_all(parts), 0, axis)
        if rule == "sum":
            return _total([jnp.sum(part, axis=0) for part in parts])
        return _total([jnp.einsum("c,c...->...", w, part) for w, part in zip(weights, parts, strict=True)])

    combined = {name: combine(name, field.combine) for name, field in exchange.reply.items()}
    squares = None
    if "position" in exchange.reply:
        mean = combined["position"][None]
        squares = of_all([jnp.sum((reply["position"] - mean) ** 2, axis=-1) for reply in replies]).T
    merged = _merged(exchange, numbers, chain_keys, round_index, state, combined)
    finite_replies = of_all([jax.vmap(partial(_is_finite, exchange.reply))(reply) for reply in replies]).T
    finite = finite_replies, _is_finite(exchange.state, merged)[:, None]
    rows = max(map(len, finite))  # one of the two may have no chains
    is_finite = jnp.concatenate([jnp.broadcast_to(part, (rows, part.shape[1])) for part in finite], axis=1)
    return Average(merged, combined, squares, is_finite)


def _merged(
    exchange: Exchange, numbers: Numbers, chain_keys: ChainKeys, round_index: Array, state: Message, combined: Message
) -> Message:
    arguments = (chain_keys, round_index, state, combined), (0, None, exchange.state, exchange.reply)
    if exchange.merge_takes_numbers:
        arguments = (*arguments[0], numbers), (*arguments[1], None)
    return over_chains(exchange, exchange.merge, arguments[1], exchange.state)(*arguments[0])


def _total(parts: Sequence[Array]) -> Array:
    return sum(parts[1:], start=parts[0])


def _is_finite(fields: dict[str, Field], message: Message) -> Array:
    """Whether a message is finite, [chain]; [1] where chains have no part of their own."""

    def finite(name: str, field: Field) -> Array:
        values = jnp.isfinite(message[name])
        return values.reshape(len(values) if field.per_chain else 1, -1).all(axis=1)

    return jnp.stack(jnp.broadcast_arrays(*(finite(*entry) for entry in fields.items()))).all(axis=0)


def statistics(
    exchange: Exchange, numbers: Numbers, weights: Any, round_index: Any, before: Message, done: Average
) -> dict[str, Array]:
    """Return what a person may want to see of a round, [chain] each; ``weights`` are the federation's."""
    if not exchange.has_chains:
        return {}
    messages = (exchange.state, exchange.reply, exchange.state)
    watch = over_chains(exchange, exchange.watch, (None, None, *messages), 0)
    stats = watch(numbers, round_index, before, done.combined, done.state)
    if done.drift_squares is not None:
        stats = {"client_drift": jnp.sqrt(done.drift_squares @ weights), **stats}
    return {name: value.astype(float) > 0 if name == "diverging" else value for name, value in stats.items()}


def draw_of(exchange: Exchange, before: Message, done: Average) -> Message:
    """Return what is kept of a round as its draw: [chain, dim] each."""
    if "position" not in exchange.state:
        return {}
    draw = over_chains(exchange, exchange.draw, (exchange.state, exchange.reply, exchange.state), 0)
    return draw(before, done.combined, done.state)


class CloseRound(Protocol):
    """Ends a round whose replies are all there."""

    def __call__(
        self, numbers: Numbers, chain_keys: ChainKeys, round_index: int, state: Message, replies: Sequence[Message], /
    ) -> RoundResult:
        """Combine replies, given in the clients' order, and merge them into the state."""
        ...


def round_closer(exchange: Exchange, weights: np.ndarray) -> CloseRound:
    """Return what ends a round, compiled once, for engines whose clients reply one by one.

    Replies are summed in the clients' order, never in that of their arrival, so the same replies give the same bits.
    """

    @jax.jit
    def close(numbers: Numbers, chain_keys: ChainKeys, round_index: Array, state: Message, replies: Message):
        done = average(exchange, numbers, [jnp.asarray(weights)], chain_keys, round_index, state, [replies])
        stats = statistics(exchange, numbers, weights, round_index, state, done)
        return RoundResult(done.state, stats, draw_of(exchange, state, done), done.drift_squares, done.is_finite)

    def close_round(
        numbers: Numbers, chain_keys: ChainKeys, round_index: int, state: Message, replies: Sequence[Message], /
    ) -> RoundResult:
        chain_keys = chain_keys if exchange.has_chains else first_chain(chain_keys)
        stacked = {name: np.stack([reply[name] for reply in replies]) for name in exchange.reply}
        return jax.device_get(close(numbers, chain_keys, np.int32(round_index), state, stacked))

    return close_round


class CloseSum(Protocol):
    """Ends a round of whose replies only the combination is known."""

    def __call__(
        self,
        numbers: Numbers,
        chain_keys: ChainKeys,
        round_index: int,
        state: Message,
        combined: Message,
        spread: np.ndarray | None,
        /,
    ) -> RoundResult:
        """Merge combined replies into the state; ``spread`` is Σ_c w_c |θ_c − θ̄|², [chain]."""
        ...


def sum_closer(exchange: Exchange, num_clients: int) -> CloseSum:
    """Return what ends a round whose replies were combined elsewhere, compiled once: no client's drift is known."""

    @jax.jit
    def close(numbers: Numbers, chain_keys: ChainKeys, round_index: Array, state: Message, combined: Message, spread):
        merged = _merged(exchange, numbers, chain_keys, round_index, state, combined)
        is_finite = _is_finite(exchange.state, merged)[:, None]
        # All clients as one, which has all the weight.
        squares, weights = (None, None) if spread is None else (spread[:, None], jnp.ones(1, spread.dtype))
        done = Average(merged, combined, squares, is_finite)
        stats = statistics(exchange, numbers, weights, round_index, state, done)
        all_finite = jnp.ones((len(is_finite), num_clients), bool)
        is_finite = jnp.concatenate([all_finite, is_finite], axis=1)
        return RoundResult(merged, stats, draw_of(exchange, state, done), None, is_finite)

    def close_round(
        numbers: Numbers,
        chain_keys: ChainKeys,
        round_index: int,
        state: Message,
        combined: Message,
        spread: np.ndarray | None,
        /,
    ) -> RoundResult:
        chain_keys = chain_keys if exchange.has_chains else first_chain(chain_keys)
        return jax.device_get(close(numbers, chain_keys, np.int32(round_index), state, combined, spread))

    return close_round


def record(phase: Phase, state: Message, first_round: int, results: Iterable[RoundResult]) -> Block:
    """Put rounds together: the draws that are due, their statistics, and where a chain diverged.

    A round with a number that is not finite does not count: the block ends before it, with its state intact.
    """
    draws, stats, drift_squares, divergence, done = [], [], None, None, 0
    for result in results:
        if not result.is_finite.all():
            chain, client = (int(index) for index in np.argwhere(~result.is_finite)[0])
            divergence = Divergence(chain, first_round + done, client)
            break
        state, round_index, done = result.state, first_round + done, done + 1
        if result.drift_squares is not None and phase.rounds_sampled(round_index) > 0:
            drift_squares = result.drift_squares + (0 if drift_squares is None else drift_squares)
        if phase.is_due(round_index):
            draws.append(result.draw)
            stats.append(result.stats)
    kept = {name: np.stack([draw[name] for draw in draws], axis=1) for name in (draws[0] if draws else {})}
    nothing = np.asarray(state.get("position", np.zeros((1, 0))))[:, None][:, :0]
    return Block(
        first_round=first_round,
        num_rounds=done,
        positions=kept.get("position", nothing),
        stats={name: np.stack([each[name] for each in stats], axis=1) for name in (stats[0] if stats else {})},
        drift_squares=drift_squares,
        state=state,
        divergence=divergence,
        gradients=kept.get("gradient"),
    )


class Ask(Protocol):
    """Asks all clients once."""

    def __call__(self, round_index: int, broadcast: Message, /) -> Sequence[Message]:
        """Return the replies in the clients' order."""
        ...


class RoundByRound:
    """A `Session` for engines that only know how to ask all clients once.

    Parameters
    ----------
    make_ready
        Called before every block of rounds with its phase, whose sampler may have other numbers than before. Returns
        ``(round index, broadcast) -> replies``, in the clients' order.
    """

    path = "plain"

    def __init__(self, run: Run, make_ready: Callable[[Phase], Ask]):
        self._run, self._make_ready = run, make_ready
        self._closers: dict[str, CloseRound] = {}

    def advance(self, phase: Phase, state: Message, first_round: int, num_rounds: int) -> Block:
        """Ask, combine, record."""
        rounds = range(first_round, first_round + num_rounds)
        return record(phase, state, first_round, self._results(phase, state, rounds))

    def _results(self, phase: Phase, state: Message, rounds: range) -> Iterator[RoundResult]:
        run, numbers, key = self._run, self._run.numbers(phase), self._run.program_key(phase)
        exchange, ask = run.exchange(phase), self._make_ready(phase)
        if key not in self._closers:
            weights = run.federation.weights.astype(run.dtype)
            self._closers[key] = round_closer(exchange, weights)
        chain_keys = run.chain_keys(phase)
        for round_index in rounds:
            replies = ask(round_index, {name: state[name] for name in exchange.broadcast})
            result = self._closers[key](numbers, chain_keys, round_index, state, replies)
            yield result
            state = result.state
