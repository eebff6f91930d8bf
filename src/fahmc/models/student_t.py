"""Regression that outliers do not pull."""

from __future__ import annotations

from typing import Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array

from fahmc.density.model import Model
from fahmc.hints import Positive
from fahmc.models.family import family
from fahmc.models.generalized_linear import SharedSettings, generalized_linear
from fahmc.models.parameters import gamma, log_normal
from fahmc.models.rows import check_outcome
from fahmc.types import Batch, Key, Position


@family
def student_t_regression(
    prior_scale: Positive | None = 1.0,
    *,
    degrees: Positive | None = 4.0,
    noise_prior_scale: Positive = 1.0,
    **settings: Unpack[SharedSettings],
) -> Model:
    """Model y = xβ + α + noise_scale · t, t of a Student-t law; `predict` gives xβ + α, the median.

    ``degrees`` of freedom are known or, when None, sampled as ``degrees`` with a Gamma(2, rate 0.1) prior (Juárez and
    Steel 2010), about which few rows say much. ``noise_scale`` is sampled; its logarithm has a N(0,
    noise_prior_scale²) prior.
    """

    def degrees_of(position: Position, dtype: np.dtype) -> Array:
        return position["degrees"] if degrees is None else jnp.asarray(degrees, dtype)

    def row_loglikelihood(center: Array, position: Position, batch: Batch) -> Array:
        nu, scale = degrees_of(position, center.dtype), position["noise_scale"]
        residual = (batch["y"].astype(center.dtype) - center) / scale[None]
        log_norm = gammaln((nu + 1) / 2) - gammaln(nu / 2) - jnp.log(np.pi * nu) / 2 - jnp.log(scale)
        return log_norm[None] - (nu[None] + 1) / 2 * jnp.log1p(residual**2 / nu[None])

    def sample_row(key: Key, center: Array, position: Position, batch: Batch) -> Array:
        nu = degrees_of(position, center.dtype)
        return center + position["noise_scale"][None] * jax.random.t(key, nu, center.shape, center.dtype)

    further = {"noise_scale": log_normal(noise_prior_scale)}
    return generalized_linear(
        row_loglikelihood,
        lambda center: center,
        prior_scale,
        parameters=further if degrees is not None else further | {"degrees": gamma(2.0, 0.1)},
        sample_row=sample_row,
        validate_fn=check_outcome(np.isfinite, "a finite number"),
        scale_words="difference",
        **settings,
    )
