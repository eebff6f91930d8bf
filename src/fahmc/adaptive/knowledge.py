"""What the server knows without asking anybody: the prior, and what the likelihood sees of a position.

All in double precision, whatever the run's: it is little work, and solving with curvatures needs the digits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from fahmc.density.target import Target

# Points at which a prior's curvature is compared, at three distances.
_TRIES = (0.3, 3.0, 30.0)


class Affine(NamedTuple):
    """A prior of constant curvature, seen through an affine map: prior(θ) = p₀′θ + ½ θ′Pθ,  φ = Jθ + v₀."""

    slope: np.ndarray
    curvature: np.ndarray
    jacobian: np.ndarray
    offset: np.ndarray


class Knowledge:
    """The server's part of a target."""

    def __init__(self, target: Target, start: np.ndarray):
        self.target, self.start = target, np.asarray(start, np.float64)
        self.is_identity = target.free.view_fn is None
        shapes = [leaf.shape for leaf in jax.tree.leaves(target.template)]
        cuts = np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1]
        structure = jax.tree.structure(target.template)

        def unravel(position: Any) -> Any:
            parts = jnp.split(position, cuts)
            leaves = [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
            return jax.tree.unflatten(structure, leaves)

        self._unravel = unravel

    def prior(self, position: Any) -> Any:
        """Return −log prior(θ) / τ."""
        model = self.target.free
        value = jnp.asarray(model.logprior_fn(self._unravel(position)), position.dtype)
        return -value / model.temperature

    def view(self, position: Any) -> Any:
        """Return φ(θ)."""
        return position if self.is_identity else ravel_pytree(self.target.free.view(self._unravel(position)))[0]

    def views(self, positions: np.ndarray) -> np.ndarray:
        """Return φ(θ) of many positions."""
        return positions if self.is_identity else in_double(self._views, positions)

    def priors(self, positions: np.ndarray) -> np.ndarray:
        """Return −log prior(θ) / τ of many positions."""
        return in_double(self._priors, positions)

    @cached_property
    def _priors(self) -> Callable:
        return jax.jit(jax.vmap(self.prior))

    @cached_property
    def _views(self) -> Callable:
        return jax.jit(jax.vmap(self.view))

    @cached_property
    def affine(self) -> Affine | None:
        """The prior as a quadratic, if that is what it is; tried where its curvature would show a change."""

        def derivatives(position: Any) -> tuple[Any, Any, Any]:
            return jax.grad(self.prior)(position), jax.hessian(self.prior)(position), jax.jacfwd(self.view)(position)

        dimension, generator = len(self.start), np.random.default_rng(0)
        tries = [self.start + scale * generator.normal(size=dimension) for scale in _TRIES]
        compiled = jax.jit(derivatives)
        (slope, curvature, jacobian), *others = [in_double(compiled, position) for position in tries]
        parts = [curvature, jacobian]
        if not all(np.isfinite(part).all() for part in parts):
            return None
        for _, *other in others:
            if not all(np.allclose(a, b, rtol=1e-8, atol=1e-10) for a, b in zip(parts, other, strict=True)):
                return None
        first = tries[0]
        offset = self.views(first[None])[0] - jacobian @ first
        return Affine(slope - curvature @ first, curvature, jacobian, offset)


def in_double(function: Callable, *arguments: Any) -> Any:
    """Call a compiled function in double precision, with NumPy arrays in and out."""
    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, jax.device_get(function(*(np.asarray(a, np.float64) for a in arguments))))
