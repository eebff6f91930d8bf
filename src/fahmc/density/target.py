"""From a model's log densities to the clients' potentials.

    f_c(θ) = ( (n / n_c) Σ_{rows z of c} −log p(z | θ)  −  log prior(θ) ) / τ

Since Σ_c w_c = 1, the prior counts once in f = Σ_c w_c f_c, and with w_c = n_c / n the target exp(−f) is the posterior
given all rows (at temperature τ). This file is the only place where the sign changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from fahmc.density.model import Model, try_shape
from fahmc.errors import ModelError
from fahmc.types import Client, Position, Vector


@dataclass(frozen=True, eq=False)
class Target:
    """What samplers and gradients are built on: pure functions of a flat position and a client, for JAX to transform.

    Prior and likelihood are there apart, so that a sampler may treat them apart: f_c = (n / n_c) loss + prior.
    """

    model: Model
    template: Position
    """Structure and shapes of the user's position, without values."""
    unravel: Callable[[Vector], Position]
    unravel_seen: Callable[[Vector], Any]
    num_seen: int
    """Length of φ, what the likelihood sees of a position, flattened."""

    @property
    def dimension(self) -> int:
        """Length of a flat position."""
        return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(self.template))

    def prior(self, position: Vector) -> Float[Array, ""]:
        """Return −log prior(θ) / τ."""
        return -self._log_prior(position) / self.model.temperature

    def view(self, position: Vector) -> Vector:
        """Return φ(θ)."""
        return position if self.model.view_fn is None else ravel_pytree(self.model.view(self.unravel(position)))[0]

    def seen_losses(self, seen: Vector, client: Client) -> Float[Array, " row"]:
        """Return −log p(z | φ) / τ for each of the client's rows, times its weight: 0 for padding."""
        fits = self.model.loglikelihood_fn(self.unravel_seen(seen), client.rows)
        return -client.row_weights * fits / self.model.temperature

    def row_losses(self, position: Vector, client: Client) -> Float[Array, " row"]:
        """Return −log p(z | θ) / τ for each of the client's rows, times its weight: 0 for padding."""
        return -self._row_fits(position, client) / self.model.temperature

    def loss(self, position: Vector, client: Client) -> Float[Array, ""]:
        """Return the sum of `row_losses`."""
        return -jnp.sum(self._row_fits(position, client)) / self.model.temperature

    def value(self, position: Vector, client: Client) -> Float[Array, ""]:
        """Return f_c(θ)."""
        loss = -jnp.sum(self._row_fits(position, client))
        return (client.scale * loss - self._log_prior(position)) / self.model.temperature

    def gradient(self, position: Vector, client: Client) -> Vector:
        """Return ∇f_c(θ)."""
        return jax.grad(self.value)(position, client)

    def value_and_gradient(self, position: Vector, client: Client) -> tuple[Float[Array, ""], Vector]:
        """Return f_c(θ) and ∇f_c(θ)."""
        return jax.value_and_grad(self.value)(position, client)

    def row_gradients(self, position: Vector, client: Client) -> Float[Array, "row dim"]:
        """Return the gradient of each of `row_losses`: what clipping needs."""

        def of_row(row: Client) -> Vector:
            alone = row._replace(
                rows=jax.tree.map(lambda leaf: leaf[None], row.rows), row_weights=row.row_weights[None]
            )
            return jax.grad(self.loss)(position, alone)

        axes = Client(rows=0, row_weights=0, num_rows=None, weight=None, scale=None, identity=None)
        return jax.vmap(of_row, in_axes=(axes,))(client)

    def curvature(self, position: Vector, client: Client) -> Float[Array, "dim dim"]:
        """Return ∇²f_c(θ)."""
        return jax.hessian(self.value)(position, client)

    def _row_fits(self, position: Vector, client: Client) -> Float[Array, " row"]:
        return client.row_weights * self.model.row_loglikelihoods(self.unravel(position), client.rows)

    def _log_prior(self, position: Vector) -> Float[Array, ""]:
        # A flat prior's Python number must not widen the dtype.
        return jnp.asarray(self.model.logprior_fn(self.unravel(position)), position.dtype)


def build_target(model: Model, position: Position, client: Client, name: str) -> Target:
    """Flatten the model and check that its functions fit the client's rows.

    Parameters
    ----------
    position
        Any position; only its structure and shapes count.
    client, name
        A client on which the functions are tried (by shape alone), and its name for error messages.
    """
    _check_likelihood(model, position, client, name)
    _check_prior(model, position)
    template = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), position)
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(model.view, position))
    seen, unravel_seen = ravel_pytree(zeros)
    return Target(model, template, ravel_pytree(position)[1], unravel_seen, len(seen))


def _check_likelihood(model: Model, position: Position, client: Client, name: str) -> None:
    num_rows = client.row_weights.shape[0]
    if model.view_fn is not None:
        try_shape("view_fn", "", model.view_fn, position)
    result = try_shape("loglikelihood_fn", f" on client {name!r}", model.row_loglikelihoods, position, client.rows)
    if getattr(result, "shape", None) != (num_rows,):
        shapes = jax.tree.map(lambda leaf: leaf.shape, result)
        raise ModelError(
            f"loglikelihood_fn returned shape {shapes} for the {num_rows} rows of client {name!r}; it must return one "
            f"value per row, shape ({num_rows},). Return the rows' terms, not their sum."
        )


def _check_prior(model: Model, position: Position) -> None:
    result = try_shape("logprior_fn", "", model.logprior_fn, position)
    if np.shape(result) != ():
        raise ModelError(f"logprior_fn returned shape {np.shape(result)}; it must return one number. Sum its terms.")
