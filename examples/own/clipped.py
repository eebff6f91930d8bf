"""A gradient of your own, in one file: every row's gradient is clipped, so that no row pulls harder than a bound.

    g(θ) = (n / n_c) Σ_{rows z of c} ∇ℓ_z(θ) min(1, norm / |∇ℓ_z(θ)|)  +  ∇prior(θ),      ℓ_z = −log p(z | θ) / τ

Biased wherever a row is clipped: chains then sample another law, one that heeds outliers less (and the first half of
differential privacy, without its noise). It draws nothing at random, hence ``is_exact``.

    fahmc.FAHMC(step_size=0.05, gradient=Clipped(norm=1.0))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

import fahmc
from fahmc.errors import SettingsError


@fahmc.register("gradient")
@dataclass(frozen=True)
class Clipped(fahmc.Gradient):
    """The full gradient of rows whose own gradients are at most ``norm`` long."""

    is_exact: ClassVar[bool] = True

    norm: float

    def __post_init__(self):
        if not self.norm > 0:
            raise SettingsError(f"norm is {self.norm!r}; it must be above 0.")

    def build(self, target):
        """Clip row by row, then add up; the key is not needed."""

        def clipped_gradient(key, position, client):
            gradients = target.row_gradients(position, client)
            lengths = jnp.linalg.norm(gradients, axis=1, keepdims=True)
            # Rows that are padding have length 0, and so has their share.
            shares = self.norm / jnp.maximum(lengths, self.norm)
            return client.scale * jnp.sum(shares * gradients, axis=0) + jax.grad(target.prior)(position)

        return clipped_gradient
