"""Positive outcomes whose spread grows with their mean: costs, durations, concentrations."""

from __future__ import annotations

from typing import Unpack

import jax
import jax.numpy as jnp
from jax.scipy.special import gammaln
from jaxtyping import Array

from fahmc.density.model import Model
from fahmc.hints import Positive
from fahmc.models.family import family
from fahmc.models.generalized_linear import SharedSettings, generalized_linear
from fahmc.models.parameters import log_normal
from fahmc.models.rows import check_positive
from fahmc.types import Batch, Key, Position


@family
def gamma_regression(
    prior_scale: Positive | None = 1.0, *, shape_scale: Positive = 1.0, **settings: Unpack[SharedSettings]
) -> Model:
    """Model y > 0 by a gamma law of mean μ = exp(xβ + α) and variance μ² / shape; `predict` gives μ.

    log shape has a N(0, shape_scale²) prior. exp(β) multiplies the mean.
    """

    def row_loglikelihood(log_mean: Array, position: Position, batch: Batch) -> Array:
        y, shape = batch["y"].astype(log_mean.dtype), position["shape"][None]
        # log(shape y / μ) is a difference of logarithms: the quotient might leave the floats.
        log_scaled = jnp.log(shape) + jnp.log(y) - log_mean
        return shape * log_scaled - jnp.exp(log_scaled) - gammaln(shape) - jnp.log(y)

    def sample_row(key: Key, log_mean: Array, position: Position, batch: Batch) -> Array:
        shape = position["shape"]
        return jnp.exp(log_mean) * jax.random.gamma(key, shape, log_mean.shape, log_mean.dtype) / shape[None]

    return generalized_linear(
        row_loglikelihood,
        jnp.exp,
        prior_scale,
        parameters={"shape": log_normal(shape_scale)},
        sample_row=sample_row,
        validate_fn=check_positive,
        scale_words="ratio of means",
        **settings,
    )
