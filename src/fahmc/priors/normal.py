"""Independent normal coefficients, and what is left of them as the scale grows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fahmc import door
from fahmc.errors import ModelError
from fahmc.hints import Positive
from fahmc.priors.prior import COEFFICIENTS, Prior
from fahmc.registry import register
from fahmc.types import Key


def normal_prior(value: Array, scale: float | None) -> Any:
    """Return the log density of N(0, scale²) on every entry, up to a constant; 0 for a flat prior."""
    return 0.0 if scale is None else -jnp.sum(value**2) / (2 * scale**2)


def normal_words(scale: float | None, mean: float = 0.0) -> str:
    """Write N(mean, scale²), or that the prior is flat."""
    return "flat" if scale is None else f"N({mean:g}, {scale:g}²)"


@register("prior", "normal")
@dataclass(frozen=True)
class Normal(Prior):
    """β_j ~ N(mean, scale²)."""

    scale: Positive
    mean: float = 0.0

    def __post_init__(self):
        door.check(self)

    def log_density(self, sampled: Mapping[str, Array]) -> Any:
        """Return −Σ (β − mean)² / 2 scale²."""
        beta = sampled[COEFFICIENTS]
        return normal_prior(beta if self.mean == 0 else beta - self.mean, self.scale)

    def draw(self, key: Key, shape: tuple[int, ...]) -> dict[str, Array]:
        """Draw β."""
        return {COEFFICIENTS: self.mean + self.scale * jax.random.normal(key, shape)}

    def words(self) -> str:
        """Write it as N(mean, scale²)."""
        return normal_words(self.scale, self.mean)


@register("prior", "flat")
@dataclass(frozen=True)
class Flat(Prior):
    """β_j alike everywhere: the likelihood alone has to make the posterior proper."""

    def log_density(self, sampled: Mapping[str, Array]) -> Any:
        """Return 0."""
        return 0.0

    def draw(self, key: Key, shape: tuple[int, ...]) -> dict[str, Array]:
        """Refuse."""
        raise flat_draw("the coefficients")

    def words(self) -> str:
        """Name it."""
        return normal_words(None)


def flat_draw(what: str) -> ModelError:
    """Say that nothing can be drawn from a flat prior."""
    return ModelError(f"The prior of {what} is flat, so nothing can be drawn from it. Give it a scale.")
