"""Estimators of grad f_c: exact, on a minibatch, and with Gaussian noise on either.

All are unbiased. The random ones are independent between evaluations: Algorithm 1 draws ξ_k and ξ_{k+1/2} separately.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from fahmc.density.potential import Potentials
from fahmc.density.subset import draw_subset
from fahmc.errors import DataError, SettingsError
from fahmc.types import Client, GradientFn, Key, Vector


@dataclass(frozen=True)
class FullGradient:
    """The exact gradient, from all rows of the client."""


@dataclass(frozen=True)
class Minibatch:
    """The gradient of a random subset of the client's rows, drawn without replacement, scaled up by n_c / size."""

    size: int

    def __post_init__(self):
        if isinstance(self.size, bool) or not isinstance(self.size, int | np.integer) or self.size < 1:
            raise SettingsError(f"Minibatch size is {self.size!r}; it must be a whole number of rows, at least 1.")
        object.__setattr__(self, "size", int(self.size))


@dataclass(frozen=True)
class GaussianNoise:
    """Another gradient plus N(0, scale²) on each coordinate, fresh at every evaluation."""

    scale: float
    of: FullGradient | Minibatch = FullGradient()

    def __post_init__(self):
        if isinstance(self.scale, bool) or not isinstance(self.scale, int | float) or not self.scale >= 0:
            raise SettingsError(f"GaussianNoise scale is {self.scale!r}; it must be a number of at least 0.")
        if not isinstance(self.of, FullGradient | Minibatch):
            raise SettingsError(f"GaussianNoise(of={self.of!r}): it adds noise to FullGradient() or Minibatch(size).")


Gradient = FullGradient | Minibatch | GaussianNoise


def check_gradient(gradient: Any) -> None:
    """Refuse what is not one of the estimators."""
    if not isinstance(gradient, Gradient):
        raise SettingsError(f"gradient is {gradient!r}; use FullGradient(), Minibatch(size) or GaussianNoise(scale).")


def is_exact(gradient: Gradient) -> bool:
    """Whether two evaluations at one point are equal, so that a leapfrog step needs only one."""
    return isinstance(gradient, FullGradient)


def rows_per_evaluation(gradient: Gradient, sizes: np.ndarray) -> np.ndarray:
    """How many row-gradients one evaluation costs each client."""
    if isinstance(gradient, GaussianNoise):
        return rows_per_evaluation(gradient.of, sizes)
    return np.full_like(sizes, gradient.size) if isinstance(gradient, Minibatch) else sizes


def check_minibatch(gradient: Gradient, names: tuple[str, ...], sizes: np.ndarray) -> None:
    """Refuse a minibatch that the smallest client cannot fill."""
    if isinstance(gradient, GaussianNoise):
        gradient = gradient.of
    if isinstance(gradient, Minibatch) and gradient.size > sizes.min():
        smallest = int(sizes.argmin())
        raise DataError(
            f"Minibatch size {gradient.size} is larger than client {names[smallest]!r}, which has {sizes[smallest]} "
            f"rows; they are drawn without replacement. Use a size of at most {sizes[smallest]}, or FullGradient()."
        )


def build_gradient(gradient: Gradient, potentials: Potentials) -> GradientFn:
    """Build the estimator as a function of (key, position, client)."""
    if isinstance(gradient, FullGradient):
        return lambda key, position, client: potentials.gradient(position, client)

    if isinstance(gradient, Minibatch):
        size = gradient.size
        return lambda key, position, client: potentials.gradient(position, draw_minibatch(key, client, size))

    inner_fn, scale = build_gradient(gradient.of, potentials), gradient.scale

    def noisy_gradient(key: Key, position: Vector, client: Client) -> Vector:
        key_inner, key_noise = jax.random.split(key)
        noise = jax.random.normal(key_noise, position.shape, position.dtype)
        return inner_fn(key_inner, position, client) + scale * noise

    return noisy_gradient


def draw_minibatch(key: Key, client: Client, size: int) -> Client:
    """Restrict a client to ``size`` of its rows, drawn without replacement, and let them stand for all its rows."""
    chosen = draw_subset(key, client.num_rows, size)

    def choose(leaf: Array) -> Array:
        return leaf.at[chosen].get(mode="promise_in_bounds")

    return client._replace(
        rows=jax.tree.map(choose, client.rows),
        row_weights=choose(client.row_weights),
        scale=client.scale * client.num_rows.astype(client.scale.dtype) / size,
    )
