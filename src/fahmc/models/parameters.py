"""What a family has beside its coefficients, on its own scale: dispersions, shapes, cut points, log hazards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array
from numpyro.distributions import biject_to, constraints
from numpyro.distributions.constraints import Constraint

from fahmc.types import Key


class Parameter(NamedTuple):
    """A further parameter: its prior, and where it lives."""

    logprior_fn: Callable[[Array], Any]
    """Up to a constant."""
    draw_fn: Callable[[Key], Array]
    """From the prior."""
    words: str
    """The prior, for people."""
    shape: tuple[int, ...] = ()
    support: Constraint = constraints.real
    coords: Mapping[str, Sequence[Any]] = {}
    """Names of the axes, and of the entries along each."""

    def start(self, key: Key) -> Array:
        """Return where a chain starts: close to the middle of the support."""
        return biject_to(self.support)(0.1 * jax.random.normal(key, self.shape))


def log_normal(scale: float) -> Parameter:
    """Return a positive number whose logarithm is N(0, scale²)."""
    return Parameter(
        lambda value: -jnp.square(jnp.log(value)) / (2 * scale**2) - jnp.log(value),
        lambda key: jnp.exp(scale * jax.random.normal(key)),
        f"log ~ N(0, {scale:g}²)",
        support=constraints.positive,
    )


def gamma(shape: float, rate: float) -> Parameter:
    """Return a positive number of a gamma law."""
    return Parameter(
        lambda value: (shape - 1) * jnp.log(value) - rate * value,
        lambda key: jax.random.gamma(key, shape) / rate,
        f"Gamma({shape:g}, rate {rate:g})",
        support=constraints.positive,
    )


def ordered_normal(scale: float, names: Mapping[str, Sequence[Any]]) -> Parameter:
    """Return increasing numbers: independent N(0, scale²) ones, sorted."""
    ((_, entries),) = names.items()
    shape = (len(entries),)
    return Parameter(
        lambda values: -jnp.sum(values**2) / (2 * scale**2),
        lambda key: jnp.sort(scale * jax.random.normal(key, shape)),
        f"N(0, {scale:g}²), in increasing order",
        shape,
        constraints.ordered_vector,
        names,
    )


def level_and_own(level_scale: float, own_scale: float, names: Mapping[str, Sequence[Any]]) -> Parameter:
    """Return numbers that share a level: v_j = a + b_j with a ~ N(0, level_scale²), b_j ~ N(0, own_scale²).

    a and b are integrated out: v is N(0, own_scale² I + level_scale² 1 1′), so that the level is learned and an entry
    of which rows know nothing lies about it.
    """
    ((_, entries),) = names.items()
    num = len(entries)

    def logprior(values: Array) -> Any:
        mean = jnp.mean(values)
        about = jnp.sum((values - mean[None]) ** 2) / own_scale**2
        return -(about + num * mean**2 / (own_scale**2 + num * level_scale**2)) / 2

    def draw(key: Key) -> Array:
        normals = jax.random.normal(key, (1 + num,))
        return level_scale * normals[:1] + own_scale * normals[1:]

    words = f"a level ~ N(0, {level_scale:g}²) plus N(0, {own_scale:g}²) each"
    return Parameter(logprior, draw, words, (num,), coords=names)
