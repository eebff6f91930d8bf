"""A sampler of your own, in one file: federated underdamped Langevin dynamics, by the splitting OBABO.

In one round every client starts from the common position and momentum and repeats T times

    p ← α p + √(1 − α²) ξ          O (twice half of it, as two neighbours are one)
    p ← p − η/2 ∇f_c(θ)            B
    θ ← θ + η p                    A
    p ← p − η/2 ∇f_c(θ)            B

with ξ common to all clients; then positions and momenta are averaged. The momentum lives on from round to round: α = 0
is FA-LD, and α near 1 follows long trajectories at one gradient a step. As in FA-HMC nothing is rejected, so the law is
biased by η and by how far unlike clients travel between two averagings.

    draws = fahmc.sample(model, federation, Underdamped(step_size=0.05, persistence=0.9), num_rounds=1000)
    draws.stats["kinetic_energy"]      # d/2 on average; more where the step size is large or clients disagree
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

import fahmc
from fahmc import keys
from fahmc.errors import SettingsError


@fahmc.register("sampler")
@dataclass(frozen=True)
class Underdamped(fahmc.Sampler):
    """Settings of underdamped Langevin dynamics.

    Parameters
    ----------
    step_size
        η.
    persistence
        α in [0, 1): how much of the momentum a step keeps.
    num_local_steps
        T, between two averagings.
    """

    # These reach the round as data, so that changing them compiles nothing.
    NUMBERS: ClassVar = ("step_size", "persistence", "num_local_steps")

    step_size: float
    persistence: float = 0.9
    num_local_steps: int = 1
    gradient: fahmc.Gradient = fahmc.FullGradient()

    def __post_init__(self):
        if not self.step_size > 0 or not 0 <= self.persistence < 1 or not self.num_local_steps >= 1:
            raise SettingsError(
                f"{self}: step_size must be above 0, persistence in [0, 1), num_local_steps at least 1."
            )

    def exchange(self, dimension: int) -> fahmc.Exchange:
        """Average positions and momenta; a client's kinetic energy comes back too, to be looked at."""
        point = {"position": fahmc.Field((dimension,)), "momentum": fahmc.Field((dimension,))}

        def begin(carried):
            return {"position": carried["position"], "momentum": jnp.zeros_like(carried["position"])}

        def merge(chain_keys, round_index, state, mean):
            return {name: mean[name] for name in point}

        def watch(numbers, round_index, before, mean, after):
            return {"kinetic_energy": mean["kinetic_energy"]}

        return fahmc.Exchange(point, {**point, "kinetic_energy": fahmc.Field(())}, begin, merge, watch)

    def build(self, target):
        """Take T steps; the last gradient of one serves the next."""
        gradient_fn = self.gradient.build(target)

        def client_round(chain_keys, round_index, state, numbers, client):
            step_size, persistence = numbers["step_size"], numbers["persistence"]

            def gradient_at(step, position):
                return gradient_fn(keys.private_noise(chain_keys, client, round_index, step), position, client)

            def step(index, point):
                position, momentum, gradient = point
                noise = jax.random.normal(
                    keys.shared_noise(chain_keys, round_index, index), position.shape, position.dtype
                )
                momentum = persistence * momentum + jnp.sqrt(1 - persistence**2) * noise
                momentum = momentum - step_size / 2 * gradient
                position = position + step_size * momentum
                gradient = gradient_at(index + 1, position)
                return position, momentum - step_size / 2 * gradient, gradient

            start = state["position"], state["momentum"], gradient_at(0, state["position"])
            position, momentum, _ = jax.lax.fori_loop(0, numbers["num_local_steps"], step, start)
            return {"position": position, "momentum": momentum, "kinetic_energy": momentum @ momentum / 2}

        return client_round

    def check(self, federation):
        """Refuse what the gradient refuses."""
        self.gradient.check(federation)

    def row_gradients(self, sizes: np.ndarray) -> float:
        """One gradient a step, and one to begin with."""
        return float((self.num_local_steps + 1) * self.gradient.rows_used(sizes).sum())

    def remedy(self, round_index: int) -> str:
        """Halve the step size."""
        return f"a smaller step_size (it was {self.step_size:g}; try {self.step_size / 2:g})"
