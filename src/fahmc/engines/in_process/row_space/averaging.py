"""The average of all clients in row space, and each client's distance to it."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fahmc.engines.in_process.row_space.basis import RowBasis
from fahmc.engines.in_process.row_space.layout import (
    Course,
    Pair,
    across_clients,
    bucket_shapes,
    halves,
    mean_rest,
    product,
)
from fahmc.types import Client


def average_clients(basis: RowBasis, now: Course) -> tuple[dict[str, Pair], Array, Array]:
    """Return Σ_c w_c θ_c as the parts of a state, and for each [chain, client] |θ_c − θ|² and whether θ_c is finite."""
    weights = [bucket.weight for bucket in basis.clients]
    own = Pair(*(across_clients([pair[part] for pair in now.own]) for part in (0, 1)))
    row_weights = jnp.repeat(
        jnp.concatenate(weights),
        np.concatenate([np.full(*shape) for shape in bucket_shapes(basis.clients)]),
        total_repeat_length=len(own.at),
    )[:, None]
    mean = Pair(row_weights * own.at, row_weights * own.rate)
    rest = Pair(*(mean_rest(weights, [pair[part] for pair in now.rest]) for part in (0, 1)))
    spread = _spread(basis, mean, now.outside)
    state = {
        "base": now.base,
        "force": now.force + mean,
        "noise": now.noise + now.outside,
        "predictor": now.predictor + spread,
        "rest": rest,
    }
    squares, is_finite = _squares(basis, now, own.at * spread.at, rest.at)
    return state, jnp.maximum(squares, 0), is_finite


def _squares(basis: RowBasis, now: Course, meetings: Array, rest_mean: Array) -> tuple[Array, Array]:
    """|θ_c − θ|² = |X_c′γ_c|² − 2 (X_c′γ_c)·(X′γ) + |X′γ|², of products that are there already.

    ``meetings`` holds the summands of the second, [row of all, column]; the third is their mean. What the noise
    outside adds to them has mean 0, and is left in. Also returned is whether the first is finite: the others are of
    all clients, and would not tell which one diverged. [chain, client] both.
    """
    num_chains = rest_mean.shape[1]
    sizes = [n * size for n, size in bucket_shapes(basis.clients)]
    parts = jnp.split(meetings, np.cumsum(sizes)[:-1])
    crosses = [
        part.reshape(n, size, -1, num_chains).sum(axis=(1, 2))
        for part, (n, size) in zip(parts, bucket_shapes(basis.clients), strict=True)
    ]
    mean = jnp.sum(
        jnp.stack([bucket.weight @ cross for bucket, cross in zip(basis.clients, crosses, strict=True)]), axis=0
    )
    squares, is_finite = [], []
    for bucket, own, reached, cross, rest in zip(basis.clients, now.own, now.reached, crosses, now.rest, strict=True):
        length = jnp.sum(own.at * reached, axis=2).reshape(len(cross), -1, num_chains).sum(axis=1)
        is_finite.append(jnp.isfinite(length) & jnp.isfinite(rest.at).all(axis=2))
        square = length - 2 * cross + mean[None] + jnp.sum((rest.at - rest_mean.T[None]) ** 2, axis=2)
        squares.append(square + _expected_outside(basis, bucket, now)[:, None])
    return jnp.concatenate(squares).T, jnp.concatenate(is_finite).T


def _spread(basis: RowBasis, force: Pair, outside: Pair) -> Pair:
    """Return the predictors that forces and noise add up to."""
    force_columns, noise_columns = (jnp.concatenate(pair, axis=1) for pair in (force, outside))
    if basis.spread is not None:
        return halves(product(basis.spread, jnp.concatenate([force_columns, noise_columns])))
    coefficients = product(basis.transposed, force_columns) + product(basis.outside, noise_columns)
    return halves(product(basis.rows, coefficients))


def _expected_outside(basis: RowBasis, bucket: Client, now: Course) -> Float[Array, " client"]:
    """E |θ_c − θ|² of the noise that is drawn for the clients' average only."""
    num_outputs = now.base.at.shape[1] // now.rest[0].at.shape[1]
    dimension = basis.rows.shape[1]
    free = [dimension - client.row_weights.shape[1] for client in basis.clients]
    mean = sum(jnp.sum(client.weight**2) * size for client, size in zip(basis.clients, free, strict=True))
    own = (1 - 2 * bucket.weight) * (dimension - bucket.row_weights.shape[1])
    return num_outputs * now.outside_cov[0, 0] * (own + mean)
