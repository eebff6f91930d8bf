"""Arrays of all chains: a column is an output of a chain; a bucket holds the clients of one padded size."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from fahmc.types import Client


class Pair(NamedTuple):
    """A position and a momentum, of whatever space."""

    at: Array
    rate: Array

    def flow(self, step: Float[Array, "2 2"]) -> Pair:
        """Move under the prior alone."""
        return Pair(step[0, 0] * self.at + step[0, 1] * self.rate, step[1, 0] * self.at + step[1, 1] * self.rate)

    def __add__(self, other: Pair) -> Pair:  # pyright: ignore[reportIncompatibleMethodOverride]
        return Pair(self.at + other.at, self.rate + other.rate)


class Course(NamedTuple):
    """What changes in a round: what all clients have in common, then each one's deviation from it."""

    step: Int[Array, ""]
    """Leapfrog steps taken since the round began."""
    trajectory: Int[Array, ""]
    k: Int[Array, ""]
    """The next step is step k of this trajectory."""
    base: Pair
    force: Pair
    noise: Pair
    predictor: Pair
    own: list[Pair]
    """γ_c and its rate, [client, column, row] for each bucket; a column is an output of a chain."""
    reached: list[Array]
    """X_c X_c′ γ_c, as of the last kick."""
    rest: list[Pair]
    """[client, chain, other] for each bucket."""
    outside: Pair
    """[dim, column]: the clients' average of this round's noise that no likelihood sees."""
    outside_cov: Float[Array, "2 2"]
    """Covariance of one client's such noise, on a coordinate."""


def times(vectors: Array, matrices: Any) -> Array:
    """Multiply every client's vectors, [client, column, row], by its matrix from the right; None is the identity."""
    return vectors if matrices is None else jnp.einsum("cbm,cmn->cbn", vectors, matrices)


def at_rest(pair: Pair) -> Pair:
    """Take the momentum out."""
    return pair._replace(rate=jnp.zeros_like(pair.rate))


def columns(array: Array) -> Array:
    """[row, output, chain] to [row, column]."""
    return array.reshape(len(array), array.shape[1] * array.shape[2])


def halves(array: Array) -> Pair:
    """Take a pair apart whose columns stand side by side."""
    return Pair(*jnp.split(array, 2, axis=1))


def product(matrix: Array, vectors: Array) -> Array:
    """Multiply, and keep XLA from merging the product with what comes before: it would do that again for each row."""
    return matrix @ lax.optimization_barrier(vectors)


def bucket_shapes(clients: list[Client]) -> list[tuple[int, int]]:
    """[client, row] of each bucket."""
    return [bucket.row_weights.shape for bucket in clients]


def by_client(clients: list[Client], pair: Pair) -> list[Pair]:
    """[row of all, column] to [client, column, row] for each bucket."""
    shapes = bucket_shapes(clients)
    ends = np.cumsum([n * size for n, size in shapes])
    parts = [jnp.split(array, ends[:-1]) for array in pair]
    return [
        Pair(*(part.reshape(*shape, -1).swapaxes(1, 2) for part in both))
        for shape, *both in zip(shapes, *parts, strict=True)
    ]


def mean_rest(weights: list[Array], parts: list[Array]) -> Array:
    """Σ_c w_c of [client, chain, other] of each bucket, as [other, chain]."""
    sums = [jnp.einsum("c,cko->ok", w, part) for w, part in zip(weights, parts, strict=True)]
    return jnp.sum(jnp.stack(sums), axis=0)


def across_clients(parts: list[Array]) -> Array:
    """[client, column, row] of each bucket to [row of all, column]."""
    return jnp.concatenate([part.swapaxes(1, 2).reshape(-1, part.shape[1]) for part in parts])
