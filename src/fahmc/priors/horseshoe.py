"""The regularised horseshoe: a few coefficients may be large, the others are shrunk to zero.

    β_j = z_j τ λ̃_j,    λ̃_j² = c² λ_j² / (c² + τ² λ_j²),    z_j ~ N(0, 1),    λ_j ~ C⁺(0, 1),    τ ~ C⁺(0, τ₀)

    τ₀ = p₀ / (D − p₀) · σ / √n

for p₀ relevant ones of D coefficients, n rows that tell of the linear predictor with standard deviation σ each, and a
slab of width c for the relevant ones. Sampled are z, log λ and log τ, of which chains make less of a funnel than of β;
the rows see β.

Reference: Piironen and Vehtari (2017), "Sparsity information and regularization in the horseshoe and other shrinkage
priors", Electronic Journal of Statistics 11; their slab's width is sampled, here it is fixed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fahmc import door
from fahmc.errors import SettingsError
from fahmc.hints import Count, Positive
from fahmc.priors.normal import normal_prior
from fahmc.priors.prior import Prior
from fahmc.registry import register
from fahmc.types import Key

_RAW, _LOCAL, _GLOBAL = "raw_coefficients", "log_local_scale", "log_global_scale"


@register("prior", "horseshoe")
@dataclass(frozen=True)
class Horseshoe(Prior):
    """The regularised horseshoe, for features on comparable scales (standardised).

    Parameters
    ----------
    num_relevant
        p₀, a guess: how many coefficients are not near zero. It need not be whole.
    slab_scale
        c: how large a relevant coefficient is.
    noise_scale
        σ: 1 for unit noise, 2 for balanced yes and no, 1 / √(mean) for counts.
    num_rows
        n; by default the rows of all clients, which `fahmc.sample` fills in.
    """

    num_relevant: Positive
    slab_scale: Positive = 2.5
    noise_scale: Positive = 1.0
    num_rows: Count | None = None

    def __post_init__(self):
        door.check(self)

    def for_rows(self, num_rows: int) -> Horseshoe:
        """Return it with n."""
        return self if self.num_rows is not None else replace(self, num_rows=num_rows)

    def parts(self, axes: tuple[Any, ...]) -> dict[str, tuple[Any, ...]]:
        """Name z, log λ and log τ."""
        return {_RAW: axes, _LOCAL: axes, _GLOBAL: ()}

    def coefficients(self, sampled: Mapping[str, Array]) -> Array:
        """Return z τ λ̃."""
        local = sampled[_LOCAL]
        scale = jnp.exp(local + jnp.broadcast_to(sampled[_GLOBAL], local.shape))  # τ λ_j
        shrunk = scale / jnp.sqrt(1 + (scale / self.slab_scale) ** 2)
        return sampled[_RAW] * shrunk

    def log_density(self, sampled: Mapping[str, Array]) -> Any:
        """Return the log density of z, log λ and log τ."""
        local, overall = sampled[_LOCAL], sampled[_GLOBAL]
        log_global_scale = math.log(self.global_scale(local.size))
        return (
            normal_prior(sampled[_RAW], 1.0)
            + jnp.sum(_log_half_cauchy(local))
            + _log_half_cauchy(overall - log_global_scale)
        )

    def draw(self, key: Key, shape: tuple[int, ...]) -> dict[str, Array]:
        """Draw z, log λ and log τ."""
        key_raw, key_local, key_global = jax.random.split(key, 3)
        log_global_scale = math.log(self.global_scale(math.prod(shape)))
        return {
            _RAW: jax.random.normal(key_raw, shape),
            _LOCAL: jnp.log(jnp.abs(jax.random.cauchy(key_local, shape))),
            _GLOBAL: log_global_scale + jnp.log(jnp.abs(jax.random.cauchy(key_global))),
        }

    def words(self) -> str:
        """Tell p₀, c and, if it is known, n."""
        rows = "" if self.num_rows is None else f", {self.num_rows} rows of sd {self.noise_scale:g}"
        return f"regularised horseshoe, about {self.num_relevant:g} relevant, slab {self.slab_scale:g}{rows}"

    def global_scale(self, num_coefficients: int) -> float:
        """Return τ₀, or say what is missing."""
        if self.num_rows is None:
            raise SettingsError(
                "The horseshoe's scale depends on how many rows there are, which is not known here. Give num_rows."
            )
        if self.num_relevant >= num_coefficients:
            raise SettingsError(
                f"num_relevant is {self.num_relevant:g}, but there are {num_coefficients} coefficients; a horseshoe is "
                "for a few relevant ones among more. Lower it, or take a normal prior."
            )
        odds = self.num_relevant / (num_coefficients - self.num_relevant)
        return odds * self.noise_scale / float(np.sqrt(self.num_rows))


def _log_half_cauchy(log_value: Array) -> Array:
    """Log density of log x for x ~ C⁺(0, 1), up to a constant: the Jacobian is x."""
    return log_value - jax.nn.softplus(2 * log_value)
