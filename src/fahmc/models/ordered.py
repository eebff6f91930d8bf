"""Ordered classes: stages, grades, answers from "never" to "always"."""

from __future__ import annotations

from typing import Unpack

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fahmc.density.model import Model
from fahmc.hints import Classes, Positive
from fahmc.models.family import family
from fahmc.models.generalized_linear import SettingsWithoutIntercept, generalized_linear
from fahmc.models.parameters import ordered_normal
from fahmc.models.regressions import check_classes
from fahmc.types import Batch, Key, Position

# Cut points this close leave nothing between them, in single precision too.
_LEAST_GAP = 1e-30


@family
def ordered_regression(
    num_classes: Classes,
    prior_scale: Positive | None = 1.0,
    *,
    cutpoint_scale: Positive = 10.0,
    **settings: Unpack[SettingsWithoutIntercept],
) -> Model:
    """Model P(y ≤ j) = 1 / (1 + exp(xβ − c_j)) for y in {0, …, num_classes − 1}; `predict` gives [row, class].

    Proportional odds: exp(β) multiplies the odds of a higher class, wherever one cuts. The cut points c_0 < c_1 < …
    stand for the intercept; they are N(0, cutpoint_scale²), sorted.
    """
    last = num_classes - 1

    def row_loglikelihood(eta: Array, position: Position, batch: Batch) -> Array:
        # P(y = j) = σ(c_j − η) − σ(c_{j−1} − η) = σ(c_j − η) σ(η − c_{j−1}) (1 − exp(c_{j−1} − c_j)), whose logarithm
        # is exact in both tails; the first class has no lower cut, the last no upper one.
        cuts, y = position["cutpoints"], batch["y"].astype(jnp.int32)
        upper = jax.nn.log_sigmoid(cuts[jnp.minimum(y, last - 1)] - eta)
        lower = jax.nn.log_sigmoid(eta - cuts[jnp.maximum(y - 1, 0)])
        log_gaps = jnp.log(-jnp.expm1(-jnp.maximum(jnp.diff(cuts), _LEAST_GAP)))
        fits = jnp.where(y < last, upper, 0) + jnp.where(y > 0, lower, 0)
        return fits + jnp.pad(log_gaps, 1)[y]

    def chances(eta: Array, position: Position, batch: Batch) -> Array:
        below = jax.nn.sigmoid(position["cutpoints"][None] - eta[:, None])
        ends = jnp.zeros_like(eta)[:, None]
        return jnp.diff(jnp.concatenate([ends, below, ends + 1], axis=1), axis=1)

    def sample_row(key: Key, eta: Array, position: Position, batch: Batch) -> Array:
        # The latent outcome: a row is above every cut that its η plus logistic noise exceeds.
        latent = eta + jax.random.logistic(key, eta.shape, eta.dtype)
        return jnp.sum(latent[:, None] > position["cutpoints"][None], axis=1)

    between = [f"{j}|{j + 1}" for j in range(last)]
    return generalized_linear(
        row_loglikelihood,
        lambda eta: eta,
        prior_scale,
        intercept=False,
        parameters={"cutpoints": ordered_normal(cutpoint_scale, {"cut": between})},
        predict_row=chances,
        sample_row=sample_row,
        validate_fn=check_classes(num_classes),
        scale_words="odds ratio",
        **settings,
    )
