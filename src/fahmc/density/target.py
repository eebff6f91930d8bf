"""From a model's log densities to the clients' potentials.

    f_c(θ) = ( (n / n_c) Σ_{rows z of c} −log p(z | θ)  −  log prior(θ) ) / τ

Since Σ_c w_c = 1, the prior counts once in f = Σ_c w_c f_c, and with w_c = n_c / n the target exp(−f) is the posterior
given all rows (at temperature τ). This file is the only place where the sign changes.

θ are free numbers here: of a model with supports, what its parameters are made of (`fahmc.density.supports`).
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
from fahmc.density.supports import unconstrained
from fahmc.errors import ModelError, shown
from fahmc.types import Batch, Client, Position, Vector


@dataclass(frozen=True, eq=False)
class Target:
    """What samplers and gradients are built on: pure functions of a flat position and a client, for JAX to transform.

    Prior and likelihood are there apart, so that a sampler may treat them apart: f_c = (n / n_c) loss + prior.
    """

    model: Model
    """As the user gave it."""
    free: Model
    """The same on the whole line, where chains move."""
    template: Position
    """Structure and shapes of a position there, without values."""
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
        return -self._log_prior(position) / self.free.temperature

    def view(self, position: Vector) -> Vector:
        """Return φ(θ)."""
        return position if self.free.view_fn is None else ravel_pytree(self.free.view(self.unravel(position)))[0]

    def seen_losses(self, seen: Vector, client: Client) -> Float[Array, " row"]:
        """Return −log p(z | φ) / τ for each of the client's rows, times its weight: 0 for padding."""
        fits = self.free.weighted_loglikelihoods(self.unravel_seen(seen), client.rows, client.row_weights)
        return -fits / self.free.temperature

    def row_losses(self, position: Vector, client: Client) -> Float[Array, " row"]:
        """Return −log p(z | θ) / τ for each of the client's rows, times its weight: 0 for padding."""
        return -self._row_fits(position, client) / self.free.temperature

    def loss(self, position: Vector, client: Client) -> Float[Array, ""]:
        """Return the sum of `row_losses`."""
        return -jnp.sum(self._row_fits(position, client)) / self.free.temperature

    def value(self, position: Vector, client: Client) -> Float[Array, ""]:
        """Return f_c(θ)."""
        loss = -jnp.sum(self._row_fits(position, client))
        return (client.scale * loss - self._log_prior(position)) / self.free.temperature

    def gradient(self, position: Vector, client: Client) -> Vector:
        """Return ∇f_c(θ)."""
        return jax.grad(self.value)(position, client)

    def value_and_gradient(self, position: Vector, client: Client) -> tuple[Float[Array, ""], Vector]:
        """Return f_c(θ) and ∇f_c(θ)."""
        return jax.value_and_grad(self.value)(position, client)

    def row_gradients(self, position: Vector, client: Client) -> Float[Array, "row dim"]:
        """Return the gradient of each of `row_losses`: what clipping needs."""
        self.check_rows_alone("Gradients of single rows")

        def of_row(row: Client) -> Vector:
            alone = row._replace(
                rows=jax.tree.map(lambda leaf: leaf[None], row.rows), row_weights=row.row_weights[None]
            )
            return jax.grad(self.loss)(position, alone)

        axes = Client(rows=0, row_weights=0, num_rows=None, weight=None, scale=None, identity=None)
        return jax.vmap(of_row, in_axes=(axes,))(client)

    def check_rows_alone(self, what: str) -> None:
        """Refuse what takes a client's rows one by one where the likelihood has them together."""
        if self.model.together:
            raise ModelError(
                f"{what} are asked for, but this model has the rows of a site together: the site's own effect, which "
                'they share, is integrated out. Use FullGradient(), or site_effects="intercept".'
            )

    def curvature(self, position: Vector, client: Client) -> Float[Array, "dim dim"]:
        """Return ∇²f_c(θ)."""
        return jax.hessian(self.value)(position, client)

    def _row_fits(self, position: Vector, client: Client) -> Float[Array, " row"]:
        seen = self.free.view(self.unravel(position))
        return self.free.weighted_loglikelihoods(seen, client.rows, client.row_weights)

    def _log_prior(self, position: Vector) -> Float[Array, ""]:
        # A flat prior's Python number must not widen the dtype.
        return jnp.asarray(self.free.logprior_fn(self.unravel(position)), position.dtype)


def build_target(model: Model, position: Position, client: Client, name: str) -> Target:
    """Flatten the model and check that its functions fit the client's rows.

    Parameters
    ----------
    position
        Any position of free numbers; only its structure and shapes count.
    client, name
        A client on which the functions are tried (by shape alone), and its name for error messages.
    """
    free = unconstrained(model)
    _check_likelihood(free, position, client, name)
    _check_prior(free, position)
    template = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), position)
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(free.view, position))
    seen, unravel_seen = ravel_pytree(zeros)
    return Target(model, free, template, ravel_pytree(position)[1], unravel_seen, len(seen))


def _check_likelihood(model: Model, position: Position, client: Client, name: str) -> None:
    num_rows = client.row_weights.shape[0]
    if model.view_fn is not None:
        try_shape("view_fn", "", model.view_fn, position)
    arguments = position, client.rows, client.row_weights
    result = try_shape("loglikelihood_fn", f" on client {name!r}", _terms(model), *arguments)
    if getattr(result, "shape", None) != (num_rows,):
        shapes = jax.tree.map(lambda leaf: leaf.shape, result)
        raise ModelError(
            f"loglikelihood_fn returned shape {shown(shapes)} for the {num_rows} rows of client {name!r}; it must "
            f"return one value per row, shape ({num_rows},). Return the rows' terms, not their sum."
        )
    _check_real("loglikelihood_fn", result)


def _terms(model: Model) -> Callable[..., Any]:
    def terms(position: Position, rows: Batch, row_weights: Any) -> Any:
        if model.together:
            return model.weighted_loglikelihoods(model.view(position), rows, row_weights)
        return model.row_loglikelihoods(position, rows)

    return terms


def _check_prior(model: Model, position: Position) -> None:
    result = try_shape("logprior_fn", "", model.logprior_fn, position)
    if getattr(result, "shape", None) != ():
        shapes = jax.tree.map(lambda leaf: leaf.shape, result)
        raise ModelError(f"logprior_fn returned shape {shown(shapes)}; it must return one number. Sum its terms.")
    _check_real("logprior_fn", result)


def _check_real(name: str, result: jax.ShapeDtypeStruct) -> None:
    if jnp.issubdtype(result.dtype, jnp.complexfloating):
        raise ModelError(f"{name} returned {result.dtype}; log densities are real numbers. Take their real part.")
