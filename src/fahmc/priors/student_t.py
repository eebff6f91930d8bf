"""Independent Student-t coefficients: most near zero, some far from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fahmc import door
from fahmc.hints import Positive
from fahmc.priors.prior import COEFFICIENTS, Prior
from fahmc.registry import register
from fahmc.types import Key


@register("prior", "student_t")
@dataclass(frozen=True)
class StudentT(Prior):
    """β_j = mean + scale · t_ν, ν = ``df``; the Cauchy distribution at ν = 1."""

    df: Positive
    scale: Positive = 1.0
    mean: float = 0.0

    def __post_init__(self):
        door.check(self)

    def log_density(self, sampled: Mapping[str, Array]) -> Any:
        """Return −(ν + 1) / 2 Σ log(1 + t² / ν),  t = (β − mean) / scale."""
        t = (sampled[COEFFICIENTS] - self.mean) / self.scale
        return -(self.df + 1) / 2 * jnp.sum(jnp.log1p(t**2 / self.df))

    def draw(self, key: Key, shape: tuple[int, ...]) -> dict[str, Array]:
        """Draw β."""
        return {COEFFICIENTS: self.mean + self.scale * jax.random.t(key, self.df, shape)}

    def words(self) -> str:
        """Write it as t_ν(mean, scale²)."""
        return f"t_{self.df:g}({self.mean:g}, {self.scale:g}²)"
