"""The stochastic-gradient leapfrog (Algorithm 1).

    θ_{k+1} = θ_k + η p_k − η²/2 g(θ_k, ξ_k)
    p_{k+1} = p_k − η/2 ( g(θ_k, ξ_k) + g(θ_{k+1}, ξ_{k+1/2}) )

A stochastic gradient is drawn twice a step, with independent ξ_k and ξ_{k+1/2}. When it is exact, or on the user's
wish, g(θ_{k+1}, ξ_{k+1/2}) also serves as g(θ_{k+1}, ξ_{k+1}): one evaluation a step. With a mass matrix (see `mass`)
p enters θ as F p, and g enters p as F′ g.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from fahmc.dynamics.mass import Mass
from fahmc.types import Vector

WHOLE, HALF = 0, 1
"""Which of the two gradients of a step: at ξ_k or at ξ_{k+1/2}."""


class TrajectoryGradient(Protocol):
    """A client's gradient in one trajectory, its randomness named by step and half."""

    def __call__(self, k: Int[Array, ""] | int, half: int, position: Vector, /) -> Vector:
        """Return g(position, ξ_k) or g(position, ξ_{k+1/2})."""
        ...


class PhasePoint(NamedTuple):
    """A point of phase space. ``gradient`` is g(θ_k, ξ_{k−1/2}), kept for the next step where it may be reused."""

    position: Vector
    momentum: Vector
    gradient: Vector


def move(position: Vector, momentum: Vector, gradient: Vector, step_size: Float[Array, ""], mass: Mass) -> Vector:
    """θ + η F (p − η/2 F′ g)."""
    return position + step_size * mass.velocity(momentum - step_size / 2 * mass.force(gradient))


def start(
    gradient_fn: TrajectoryGradient, position: Vector, momentum: Vector, k: Int[Array, ""] | int, reuse_gradient: bool
) -> PhasePoint:
    """Begin at step k: only a reused gradient has to be there before the first step."""
    gradient = gradient_fn(k, WHOLE, position) if reuse_gradient else jnp.zeros_like(position)
    return PhasePoint(position, momentum, gradient)


def leapfrog_step(
    gradient_fn: TrajectoryGradient,
    point: PhasePoint,
    k: Int[Array, ""],
    step_size: Float[Array, ""],
    *,
    mass: Mass,
    reuse_gradient: bool,
) -> PhasePoint:
    """Take step k: one evaluation if the gradient is reused, otherwise two."""
    position, momentum, kept = point
    gradient = kept if reuse_gradient else gradient_fn(k, WHOLE, position)
    position = move(position, momentum, gradient, step_size, mass)
    end_gradient = gradient_fn(k, HALF, position)
    momentum = momentum - step_size / 2 * mass.force(gradient + end_gradient)
    return PhasePoint(position, momentum, end_gradient)


def trajectory_end(
    gradient_fn: TrajectoryGradient,
    position: Vector,
    momentum: Vector,
    step_size: Float[Array, ""],
    *,
    num_leapfrog_steps: Int[Array, ""],
    mass: Mass,
    reuse_gradient: bool,
) -> Vector:
    """Return θ_K. p_K is not asked for, so step K − 1 is a move alone and spares its second gradient.

    Costs K evaluations with a reused gradient, otherwise 2 K − 1 (one at K = 1: Langevin).
    """
    last = num_leapfrog_steps - 1
    if reuse_gradient:
        # Between two moves the end of a step and the start of the next are one kick, of p_{k+1/2}: one pass less
        # over the arrays, which shows where they are large.
        def kick(momentum: Vector, gradient: Vector, share: float) -> Vector:
            return momentum - share * step_size * mass.force(gradient)

        def whole_step(k: Int[Array, ""], point: tuple[Vector, Vector]) -> tuple[Vector, Vector]:
            position, momentum = point
            position = position + step_size * mass.velocity(momentum)
            return position, kick(momentum, gradient_fn(k, HALF, position), 1.0)

        momentum = kick(momentum, gradient_fn(0, WHOLE, position), 0.5)
        position, momentum = lax.fori_loop(0, last, whole_step, (position, momentum))
        return position + step_size * mass.velocity(momentum)

    def step(k: Int[Array, ""], point: PhasePoint) -> PhasePoint:
        return leapfrog_step(gradient_fn, point, k, step_size, mass=mass, reuse_gradient=False)

    position, momentum, _ = lax.fori_loop(
        0, last, step, start(gradient_fn, position, momentum, 0, reuse_gradient=False)
    )
    return move(position, momentum, gradient_fn(last, WHOLE, position), step_size, mass)
