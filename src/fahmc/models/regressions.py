"""Linear, logistic, Poisson and softmax regression, and what classifiers have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fahmc.density.model import Model
from fahmc.errors import SettingsError
from fahmc.models.family import family
from fahmc.models.generalized_linear import SharedSettings, check_counts, check_outcome, generalized_linear
from fahmc.types import Batch, Position

_LOG_TWO_PI = 1.8378770664093453


@family
def linear_regression(
    prior_scale: float | None = 1.0, *, noise_scale: float | None = None, **settings: Unpack[SharedSettings]
) -> Model:
    """Model y ~ N(xβ + α, s²); `predict` gives the mean.

    s is known (``noise_scale``) or, when None, sampled as ``log_noise`` = log s with a N(0, 1) prior.
    """
    if noise_scale is not None and not noise_scale > 0:
        raise SettingsError(f"noise_scale is {noise_scale}; it must be above 0, or None to have it sampled.")

    def row_loglikelihood(mean: Array, position: Position, batch: Batch) -> Array:
        log_noise = position["log_noise"] if noise_scale is None else jnp.log(noise_scale).astype(mean.dtype)
        residual = (batch["y"].astype(mean.dtype) - mean) / jnp.exp(log_noise)
        return -(residual**2) / 2 - log_noise - _LOG_TWO_PI / 2

    scalars = {"log_noise": 1.0} if noise_scale is None else None
    return generalized_linear(row_loglikelihood, lambda mean: mean, prior_scale, scalars=scalars, **settings)


@family
def logistic_regression(prior_scale: float | None = 1.0, **settings: Unpack[SharedSettings]) -> Model:
    """Model P(y = 1) = 1 / (1 + exp(−xβ − α)) for y in {0, 1}; `predict` gives P(y = 1)."""

    def row_loglikelihood(logits: Array, position: Position, batch: Batch) -> Array:
        return batch["y"].astype(logits.dtype) * logits - _softplus(logits)

    return generalized_linear(row_loglikelihood, jax.nn.sigmoid, prior_scale, validate_fn=check_classes(2), **settings)


@family
def poisson_regression(prior_scale: float | None = 1.0, **settings: Unpack[SharedSettings]) -> Model:
    """Model y ~ Poisson(exp(xβ + α)); `predict` gives the rate."""

    def row_loglikelihood(log_rate: Array, position: Position, batch: Batch) -> Array:
        y = batch["y"].astype(log_rate.dtype)
        return y * log_rate - jnp.exp(log_rate) - jax.lax.lgamma(y + 1)

    return generalized_linear(row_loglikelihood, jnp.exp, prior_scale, validate_fn=check_counts, **settings)


@family
def softmax_regression(num_classes: int, prior_scale: float | None = 1.0, **settings: Unpack[SharedSettings]) -> Model:
    """Model P(y = j) ∝ exp((xβ + α)_j) for y in {0, …, num_classes − 1}; `predict` gives [row, class].

    All classes have coefficients: the prior, not a reference class, makes them identifiable.
    """

    def row_loglikelihood(logits: Array, position: Position, batch: Batch) -> Array:
        return class_loglikelihood(logits, batch["y"])

    validate_fn, outputs = check_classes(num_classes), (num_classes,)
    return generalized_linear(
        row_loglikelihood, jax.nn.softmax, prior_scale, outputs=outputs, validate_fn=validate_fn, **settings
    )


def class_loglikelihood(logits: Array, labels: Array) -> Array:
    """Return log softmax(logits)[label], [row]."""
    return jnp.take_along_axis(jax.nn.log_softmax(logits), labels.astype(jnp.int32)[:, None], axis=1)[:, 0]


def check_classes(num_classes: int) -> Callable[[Batch], str | None]:
    """Return a check that every outcome is a class, of which there must be two at least."""
    if num_classes < 2:
        raise SettingsError(f"num_classes is {num_classes}; a classification needs at least 2.")
    return check_outcome(lambda y: np.isin(y, np.arange(num_classes)), f"a class from 0 to {num_classes - 1}")


@jax.custom_jvp
def _softplus(x: Array) -> Array:
    return jax.nn.softplus(x)


@_softplus.defjvp
def _softplus_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    # JAX differentiates log(1 + exp(x)) through its logarithm, though the derivative is no more than the sigmoid.
    return _softplus(*primals), jax.nn.sigmoid(*primals) * tangents[0]
