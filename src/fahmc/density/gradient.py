"""Estimators of ∇f_c: exact, on a minibatch, and with Gaussian noise on either.

All are unbiased. The random ones are independent between evaluations: Algorithm 1 draws ξ_k and ξ_{k+1/2} separately.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import jax
import numpy as np
from jaxtyping import Array

from fahmc import door, registry
from fahmc.data.federation import Federation
from fahmc.density.subset import draw_subset
from fahmc.density.target import Target
from fahmc.errors import DataError, SettingsError
from fahmc.hints import NotNegative, Rows
from fahmc.types import Client, GradientFn, Key, Vector


class Gradient(Protocol):
    """An estimator of ∇f_c: a frozen dataclass, registered by ``@fahmc.register("gradient")``."""

    is_exact: ClassVar[bool] = False
    """Whether two evaluations at one point are equal, so that a leapfrog step needs only one."""

    def build(self, target: Target) -> GradientFn:
        """Return the estimator as a function of (key, position, client)."""
        ...

    def rows_used(self, sizes: np.ndarray) -> np.ndarray:
        """Return how many row-gradients one evaluation costs clients of these sizes."""
        return sizes

    def check(self, federation: Federation) -> None:
        """Refuse clients that it cannot serve."""


registry.takes("gradient", Gradient)


@registry.register("gradient", "full")
@dataclass(frozen=True)
class FullGradient(Gradient):
    """The exact gradient, from all rows of the client."""

    is_exact: ClassVar[bool] = True

    def build(self, target: Target) -> GradientFn:
        """Ignore the key."""
        return lambda key, position, client: target.gradient(position, client)


@registry.register("gradient", "minibatch")
@dataclass(frozen=True)
class Minibatch(Gradient):
    """The gradient of a random subset of the client's rows, drawn without replacement, scaled up by n_c / size."""

    size: Rows

    def __post_init__(self):
        door.check(self)

    def build(self, target: Target) -> GradientFn:
        """Draw the rows, then differentiate."""
        target.check_rows_alone("Minibatches")
        return lambda key, position, client: target.gradient(position, draw_minibatch(key, client, self.size))

    def rows_used(self, sizes: np.ndarray) -> np.ndarray:
        """Return the size for every client."""
        return np.full_like(sizes, self.size)

    def check(self, federation: Federation) -> None:
        """Refuse a minibatch that the smallest client cannot fill."""
        smallest = int(federation.sizes.argmin())
        if self.size > (least := federation.sizes[smallest]):
            raise DataError(
                f"Minibatch size {self.size} is larger than client {federation.names[smallest]!r}, which has {least} "
                f"rows; they are drawn without replacement. Use a size of at most {least}, or FullGradient()."
            )


@registry.register("gradient", "gaussian_noise")
@dataclass(frozen=True)
class GaussianNoise(Gradient):
    """Another gradient plus N(0, scale²) on each coordinate, fresh at every evaluation."""

    scale: NotNegative
    of: Gradient = FullGradient()

    def __post_init__(self):
        door.check(self)
        if isinstance(self.of, GaussianNoise):
            raise SettingsError(f"GaussianNoise(of={self.of!r}): add the noise once, to another gradient.")

    def build(self, target: Target) -> GradientFn:
        """Add the noise to what the other gradient returns."""
        inner_fn = self.of.build(target)

        def noisy_gradient(key: Key, position: Vector, client: Client) -> Vector:
            key_inner, key_noise = jax.random.split(key)
            noise = jax.random.normal(key_noise, position.shape, position.dtype)
            return inner_fn(key_inner, position, client) + self.scale * noise

        return noisy_gradient

    def rows_used(self, sizes: np.ndarray) -> np.ndarray:
        """Return what the other gradient uses."""
        return self.of.rows_used(sizes)

    def check(self, federation: Federation) -> None:
        """Refuse what the other gradient refuses."""
        self.of.check(federation)


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
