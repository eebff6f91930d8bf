"""Linear, logistic, Poisson and softmax regression, and what classifiers have in common."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fahmc.density.model import Model
from fahmc.hints import Classes, Positive
from fahmc.models.family import family
from fahmc.models.generalized_linear import SharedSettings, generalized_linear
from fahmc.models.rows import check_counts, check_outcome
from fahmc.types import Batch, Key, Position

_LOG_TWO_PI = 1.8378770664093453


@family
def linear_regression(
    prior_scale: Positive | None = 1.0, *, noise_scale: Positive | None = None, **settings: Unpack[SharedSettings]
) -> Model:
    """Model y ~ N(xβ + α, s²); `predict` gives the mean.

    s is known (``noise_scale``) or, when None, sampled as ``log_noise`` = log s with a N(0, 1) prior.
    """

    def row_loglikelihood(mean: Array, position: Position, batch: Batch) -> Array:
        log_noise = position["log_noise"] if noise_scale is None else jnp.log(noise_scale).astype(mean.dtype)
        residual = (batch["y"].astype(mean.dtype) - mean) / jnp.exp(log_noise)
        return -(residual**2) / 2 - log_noise - _LOG_TWO_PI / 2

    def sample_row(key: Key, mean: Array, position: Position, batch: Batch) -> Array:
        scale = jnp.exp(position["log_noise"]) if noise_scale is None else jnp.asarray(noise_scale, mean.dtype)
        return mean + scale[None] * jax.random.normal(key, mean.shape, mean.dtype)

    scalars = {"log_noise": 1.0} if noise_scale is None else None
    return generalized_linear(
        row_loglikelihood,
        lambda mean: mean,
        prior_scale,
        scalars=scalars,
        sample_row=sample_row,
        scale_words="difference",
        **settings,
    )


@family
def logistic_regression(prior_scale: Positive | None = 1.0, **settings: Unpack[SharedSettings]) -> Model:
    """Model P(y = 1) = 1 / (1 + exp(−xβ − α)) for y in {0, 1}; `predict` gives P(y = 1)."""

    def row_loglikelihood(logits: Array, position: Position, batch: Batch) -> Array:
        return batch["y"].astype(logits.dtype) * logits - softplus(logits)

    def sample_row(key: Key, logits: Array, position: Position, batch: Batch) -> Array:
        return jax.random.bernoulli(key, jax.nn.sigmoid(logits))

    return generalized_linear(
        row_loglikelihood,
        jax.nn.sigmoid,
        prior_scale,
        sample_row=sample_row,
        validate_fn=check_classes(2),
        scale_words="odds ratio",
        **settings,
    )


@family
def poisson_regression(prior_scale: Positive | None = 1.0, **settings: Unpack[SharedSettings]) -> Model:
    """Model y ~ Poisson(exp(xβ + α)); `predict` gives the rate."""

    def row_loglikelihood(log_rate: Array, position: Position, batch: Batch) -> Array:
        y = batch["y"].astype(log_rate.dtype)
        return y * log_rate - jnp.exp(log_rate) - jax.lax.lgamma(y + 1)

    def sample_row(key: Key, log_rate: Array, position: Position, batch: Batch) -> Array:
        return jax.random.poisson(key, jnp.exp(log_rate))

    return generalized_linear(
        row_loglikelihood,
        jnp.exp,
        prior_scale,
        sample_row=sample_row,
        validate_fn=check_counts,
        scale_words="rate ratio",
        **settings,
    )


@family
def softmax_regression(
    num_classes: Classes, prior_scale: Positive | None = 1.0, **settings: Unpack[SharedSettings]
) -> Model:
    """Model P(y = j) ∝ exp((xβ + α)_j) for y in {0, …, num_classes − 1}; `predict` gives [row, class].

    All classes have coefficients: the prior, not a reference class, makes them identifiable.
    """

    def row_loglikelihood(logits: Array, position: Position, batch: Batch) -> Array:
        return class_loglikelihood(logits, batch["y"])

    def sample_row(key: Key, logits: Array, position: Position, batch: Batch) -> Array:
        return jax.random.categorical(key, logits)

    return generalized_linear(
        row_loglikelihood,
        jax.nn.softmax,
        prior_scale,
        outputs=(num_classes,),
        sample_row=sample_row,
        validate_fn=check_classes(num_classes),
        **settings,
    )


def class_loglikelihood(logits: Array, labels: Array) -> Array:
    """Return log softmax(logits)[label], [row]."""
    return jnp.take_along_axis(jax.nn.log_softmax(logits), labels.astype(jnp.int32)[:, None], axis=1)[:, 0]


# More different whole numbers than this are counts or measurements rather than classes.
_MOST_CLASSES = 20


def check_classes(num_classes: int) -> Callable[[Batch], str | None]:
    """Return a check that every outcome is a class."""
    allowed = "0 or 1" if num_classes == 2 else f"a class from 0 to {num_classes - 1}"
    check = check_outcome(lambda y: np.isin(y, np.arange(num_classes)), allowed)

    def validate(batch: Batch) -> str | None:
        complaint = check(batch)
        return complaint and complaint + _another_model(np.asarray(batch["y"]), num_classes)

    return validate


def _another_model(y: np.ndarray, num_classes: int) -> str:
    """Say which model is for such outcomes, or how they become classes; rows elsewhere may hold more of them."""
    values = np.unique(y)
    if not np.array_equal(values, np.round(values)) or len(values) > _MOST_CLASSES:
        return " If it is a number rather than a class, take linear_regression or another model of numbers."
    if len(values) <= num_classes and values[0] > 0:
        levels = [f"{value:g}" for value in values]
        return (
            f" Write the classes as 0 to {num_classes - 1}, as outcome_levels = {json.dumps(levels)} does of a table."
        )
    return (
        " For more classes, take softmax_regression, or ordered_regression if they have an order, and say how many "
        "there are: num_classes."
    )


@jax.custom_jvp
def softplus(x: Array) -> Array:
    """Return log(1 + exp(x))."""
    return jax.nn.softplus(x)


@softplus.defjvp
def _softplus_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    # JAX differentiates log(1 + exp(x)) through its logarithm, though the derivative is no more than the sigmoid.
    return softplus(*primals), jax.nn.sigmoid(*primals) * tangents[0]
