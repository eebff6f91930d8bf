"""Models that are not ready-made. Where prior and likelihood see different things, the likelihood's *view* is apart.

The prior of a hierarchy or a horseshoe is not Gaussian, but what the rows see of it, φ = view(θ), are coefficients and
intercepts, as in any regression.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fahmc.density.model import Model
from fahmc.models import logistic_regression
from fahmc.models.generalized_linear import generalized_linear
from fahmc.priors.normal import normal_prior
from fahmc.types import Batch, Key, Position


def student_t(degrees: float = 4.0) -> Model:
    """Model y = xβ + α + σε, ε ~ t_ν; coefficients N(0, 2.5²), log σ ~ N(0, 1)."""

    def row_loglikelihood(mean: Array, position: Position, batch: Batch) -> Array:
        residual = (batch["y"].astype(mean.dtype) - mean) / jnp.exp(position["log_scale"])
        return -(degrees + 1) / 2 * jnp.log1p(residual**2 / degrees) - position["log_scale"]

    return generalized_linear(row_loglikelihood, lambda mean: mean, 2.5, scalars={"log_scale": 1.0})


def linear_with_scale() -> Model:
    """Model y = xβ + α + σε, ε ~ N(0, 1); flat on β and α, log σ ~ N(0, 10²), so that units do not matter."""

    def row_loglikelihood(mean: Array, position: Position, batch: Batch) -> Array:
        residual = (batch["y"].astype(mean.dtype) - mean) / jnp.exp(position["log_scale"])
        return -(residual**2) / 2 - position["log_scale"]

    return generalized_linear(
        row_loglikelihood, lambda mean: mean, None, intercept_scale=None, scalars={"log_scale": 10.0}
    )


def horseshoe(num_coefficients: int, num_rows: int, num_relevant: int = 3, slab_scale: float = 2.5) -> Model:
    """Model a logistic regression under the regularised horseshoe.

        β_j = z_j τ λ̃_j,   λ̃_j² = c² λ_j² / (c² + τ² λ_j²),   z_j ~ N(0, 1),   λ_j ~ C⁺(0, 1),   τ ~ C⁺(0, τ₀)

    with τ₀ = p₀ / (d − p₀) · 2 / √n (2 being the pseudo-sd of a balanced logistic outcome), sampled in z, log λ, log τ.

    References
    ----------
    Piironen and Vehtari (2017), "Sparsity information and regularization in the horseshoe and other shrinkage priors".
    """
    global_scale = num_relevant / (num_coefficients - num_relevant) * 2 / num_rows**0.5

    def view(position: Position) -> Position:
        scale = jnp.exp(position["log_local"] + position["log_global"][None])  # τ λ_j
        shrunk = scale / jnp.sqrt(1 + (scale / slab_scale) ** 2)
        return {"coefficients": position["z"] * shrunk, "intercept": position["intercept"]}

    def logprior(position: Position) -> Any:
        log_global = position["log_global"] - jnp.log(global_scale).astype(position["log_global"].dtype)
        return (
            normal_prior(position["z"], 1.0)
            + normal_prior(position["intercept"], 10.0)
            + jnp.sum(_log_half_cauchy(position["log_local"]))
            + _log_half_cauchy(log_global)
        )

    shapes = {"z": (num_coefficients,), "log_local": (num_coefficients,), "log_global": (), "intercept": ()}
    return _seen_through(view, logistic_regression().loglikelihood_fn, logprior, shapes)


def centred(position: Position) -> Position:
    """Return the centred position of a non-centred one of `site_intercepts`."""
    return position | {"sites": position["mean"] + jnp.exp(position["log_scale"]) * position["sites"]}


def site_intercepts(num_coefficients: int, num_sites: int, *, is_centred: bool) -> Model:
    """Model a logistic regression with an intercept for every site, its index being a column.

        α_c ~ N(μ, τ²),   μ ~ N(0, 2.5²),   τ ~ N⁺(0, 1),   β ~ N(0, 1)

    in log τ and α (centred), or in log τ and a = (α − μ) / τ (non-centred).
    """

    def view(position: Position) -> Position:
        seen = position if is_centred else centred(position)
        return {name: seen[name] for name in ("coefficients", "sites")}

    def loglikelihood(seen: Position, batch: Batch) -> Array:
        x, y = (batch[name].astype(seen["sites"].dtype) for name in "xy")
        logits = x @ seen["coefficients"] + seen["sites"][batch["site"]]
        return y * logits - jax.nn.softplus(logits)

    def logprior(position: Position) -> Any:
        sites, log_scale = position["sites"], position["log_scale"]
        if is_centred:
            of_sites = normal_prior((sites - position["mean"]) / jnp.exp(log_scale), 1.0) - num_sites * log_scale
        else:
            of_sites = normal_prior(sites, 1.0)
        of_scale = log_scale - jnp.exp(2 * log_scale) / 2
        return of_sites + of_scale + normal_prior(position["mean"], 2.5) + normal_prior(position["coefficients"], 1.0)

    shapes = {"coefficients": (num_coefficients,), "sites": (num_sites,), "mean": (), "log_scale": ()}
    return _seen_through(view, loglikelihood, logprior, shapes)


def _seen_through(
    view: Callable[[Position], Position],
    loglikelihood: Callable[[Position, Batch], Array],
    logprior: Callable[[Position], Any],
    shapes: dict[str, tuple[int, ...]],
) -> Model:
    """Put a model together whose rows see view(θ) only."""

    def init(key: Key) -> Position:
        keys = jax.random.split(key, len(shapes))
        return {name: 0.1 * jax.random.normal(key, shapes[name]) for name, key in zip(shapes, keys, strict=True)}

    return Model(loglikelihood, logprior, init=init, view_fn=view)


def _log_half_cauchy(log_value: Array) -> Array:
    """Log density of log x for x ~ C⁺(0, 1), up to a constant: the Jacobian is x."""
    return log_value - jax.nn.softplus(2 * log_value)
