"""A model family of your own, in one file: negative binomial regression of counts that vary more than Poisson's.

y ~ NegativeBinomial(mean μ = exp(xβ + α), variance μ + μ² / r),      log r ~ N(0, dispersion_scale²)

model = negative_binomial_regression(prior_scale=1.0)
draws.positions["log_dispersion"]      # log r; Poisson as r → ∞

fahmc has this family too, with 1 / r, on its own scale, as ``dispersion``: `fahmc.models.negative_binomial_regression`.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
from jax.scipy.special import gammaln

import fahmc


@fahmc.models.family
def negative_binomial_regression(
    prior_scale: float | None = 1.0,
    *,
    dispersion_scale: float = 1.0,
    intercept: bool = True,
    feature_names: Sequence[str] | None = None,
) -> fahmc.Model:
    """Model counts; `predict` gives the mean μ."""

    def row_loglikelihood(log_mean, position, batch):
        y, log_r = batch["y"].astype(log_mean.dtype), position["log_dispersion"]
        r, log_total = jnp.exp(log_r), jnp.logaddexp(log_r, log_mean)
        choose = gammaln(y + r) - gammaln(r) - gammaln(y + 1)
        return choose + r * (log_r - log_total) + y * (log_mean - log_total)

    return fahmc.models.generalized_linear(
        row_loglikelihood,
        jnp.exp,
        prior_scale=prior_scale,
        intercept=intercept,
        scalars={"log_dispersion": dispersion_scale},
        feature_names=feature_names,
        validate_fn=fahmc.models.check_counts,
    )
