"""Counts that vary more than Poisson's, and counts out of so many trials."""

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
from fahmc.models.regressions import softplus
from fahmc.models.rows import check_counts, check_successes
from fahmc.types import Batch, Key, Position

# Below, counts are Poisson's to the last digit of a double; and the square of 1 / dispersion is still a float.
_LEAST_DISPERSION = 1e-15
# From here on six terms of Stirling's series have all digits of a double: the next is 1 / (156 z¹³).
_FAR = 15.0


@family
def negative_binomial_regression(
    prior_scale: Positive | None = 1.0, *, dispersion_scale: Positive = 1.0, **settings: Unpack[SharedSettings]
) -> Model:
    """Model counts of mean μ = exp(xβ + α) and variance μ + dispersion μ²; `predict` gives μ.

    log dispersion has a N(0, dispersion_scale²) prior. As the dispersion goes to 0, the counts become Poisson's.
    """

    def row_loglikelihood(log_mean: Array, position: Position, batch: Batch) -> Array:
        y = batch["y"].astype(log_mean.dtype)
        dispersion = jnp.maximum(position["dispersion"], _LEAST_DISPERSION)
        # log Γ(y + r) / (Γ(r) Γ(y + 1)) − y log(1 + r / μ) − r log(1 + μ / r), r = 1 / dispersion, without the
        # differences of large numbers that a large r makes of it.
        r = 1 / dispersion
        log_total = jax.nn.softplus(jnp.log(dispersion)[None] + log_mean)
        return _log_rising(r, y) - gammaln(y + 1) + y * log_mean - (y + r[None]) * log_total

    def sample_row(key: Key, log_mean: Array, position: Position, batch: Batch) -> Array:
        key_rate, key_count = jax.random.split(key)
        r = 1 / jnp.maximum(position["dispersion"], _LEAST_DISPERSION)
        rate = jnp.exp(log_mean) * jax.random.gamma(key_rate, r, log_mean.shape, log_mean.dtype) / r[None]
        return jax.random.poisson(key_count, rate)

    return generalized_linear(
        row_loglikelihood,
        jnp.exp,
        prior_scale,
        parameters={"dispersion": log_normal(dispersion_scale)},
        sample_row=sample_row,
        validate_fn=check_counts,
        scale_words="rate ratio",
        **settings,
    )


@family
def binomial_regression(prior_scale: Positive | None = 1.0, **settings: Unpack[SharedSettings]) -> Model:
    """Model y ~ Binomial(trials, p), p = 1 / (1 + exp(−xβ − α)); `predict` gives p.

    Rows hold ``trials``, of how many y counts the successes.
    """

    def row_loglikelihood(logits: Array, position: Position, batch: Batch) -> Array:
        y, trials = batch["y"].astype(logits.dtype), batch["trials"].astype(logits.dtype)
        log_choices = gammaln(trials + 1) - gammaln(y + 1) - gammaln(trials - y + 1)
        return log_choices + y * logits - trials * softplus(logits)

    def sample_row(key: Key, logits: Array, position: Position, batch: Batch) -> Array:
        return jax.random.binomial(key, batch["trials"].astype(logits.dtype), jax.nn.sigmoid(logits))

    return generalized_linear(
        row_loglikelihood,
        jax.nn.sigmoid,
        prior_scale,
        sample_row=sample_row,
        validate_fn=check_successes,
        uses=["trials"],
        scale_words="odds ratio",
        **settings,
    )


def _log_rising(r: Array, y: Array) -> Array:
    """Return log Γ(y + r) / (Γ(r) r^y), [row]: of y factors 1 + k / r."""
    near, far = jnp.minimum(r, _FAR), jnp.maximum(r, _FAR)
    plain = gammaln(y + near[None]) - gammaln(near)[None] - y * jnp.log(near)[None]
    # log Γ(z) = (z − 1/2) log z − z + log √(2π) + Stirling's series
    ratio = jnp.log1p(y / far[None])
    series = _stirling(y + far[None]) - _stirling(far)[None]
    return jnp.where(r[None] < _FAR, plain, (y + far[None] - 0.5) * ratio - y + series)


def _stirling(z: Array) -> Array:
    """Return 1/(12 z) − 1/(360 z³) + 1/(1260 z⁵) − … (Abramowitz and Stegun 6.1.41)."""
    w = 1 / z
    terms = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360)
    total = jnp.zeros_like(w)
    for term in reversed(terms):
        total = total * w**2 + term
    return total * w
