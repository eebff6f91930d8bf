"""HMC on one machine (Algorithm 2), without and with Metropolis correction (MHMC).

    p ~ N(0, I);   θ′, p′ = K leapfrog steps of size η from (θ, p);   θ ← θ′

Without correction this is FA-HMC with one client and T = 1, and is run as such. With it, θ′ is accepted with
probability min(1, exp(H(θ, p) − H(θ′, p′))), H = f + ½‖p‖², otherwise the chain stays: exp(−f) is left invariant
exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from fahmc import keys
from fahmc.density.gradient import FullGradient, Gradient, check_gradient, is_exact
from fahmc.density.potential import Potentials
from fahmc.dynamics import leapfrog
from fahmc.dynamics.fa_hmc import FAHMC, checked_count
from fahmc.dynamics.mass import Mass
from fahmc.dynamics.momentum import draw_momentum
from fahmc.dynamics.schedules import as_schedule, checked_step_size
from fahmc.errors import SettingsError
from fahmc.types import ChainKeys, Client, Kernel, Schedule, Vector

# Stan's and NumPyro's threshold: an energy error beyond it means that the integrator has left the level set.
_DIVERGENCE = 1000.0


@dataclass(frozen=True)
class HMC:
    """Settings of HMC on all rows at once; a federation given to it is pooled.

    Parameters
    ----------
    step_size, num_leapfrog_steps, gradient, inverse_mass_matrix, reuse_gradient
        As for `FAHMC`.
    metropolis
        Accept or reject each trajectory; needs the full gradient.
    """

    step_size: float | Schedule
    num_leapfrog_steps: int = 10
    metropolis: bool = False
    gradient: Gradient = FullGradient()
    inverse_mass_matrix: Any = None
    reuse_gradient: bool = False

    def __post_init__(self):
        object.__setattr__(self, "step_size", checked_step_size(self.step_size))
        steps = checked_count("num_leapfrog_steps", "K", self.num_leapfrog_steps)
        object.__setattr__(self, "num_leapfrog_steps", steps)
        check_gradient(self.gradient)
        if self.metropolis and not is_exact(self.gradient):
            raise SettingsError(
                f"metropolis=True with gradient={self.gradient!r}: the acceptance probability needs the exact energy. "
                "Use FullGradient(), or metropolis=False."
            )

    def as_fahmc(self) -> FAHMC:
        """Return the federated sampler that does the same without correction on one client."""
        return FAHMC(
            self.step_size,
            num_leapfrog_steps=self.num_leapfrog_steps,
            gradient=self.gradient,
            inverse_mass_matrix=self.inverse_mass_matrix,
            reuse_gradient=self.reuse_gradient,
        )


class MetropolisState(NamedTuple):
    """The chain, with what would otherwise be computed again at every start."""

    position: Vector
    potential: Float[Array, ""]
    gradient: Vector


def build_metropolis_kernel(sampler: HMC, mass: Mass, potentials: Potentials, client: Client) -> Kernel:
    """Build MHMC for an engine; ``client`` holds all rows."""
    schedule = as_schedule(sampler.step_size)

    def init(position: Vector) -> MetropolisState:
        return MetropolisState(position, *potentials.value_and_gradient(position, client))

    def client_round(chain_keys: ChainKeys, round_index: Int[Array, ""], state: MetropolisState, client: Client):
        position, potential, gradient = state
        momentum = draw_momentum(chain_keys, round_index, position, client, correlation=1.0)
        step_size = jnp.asarray(schedule(round_index), position.dtype)

        def gradient_fn(k: Int[Array, ""] | int, half: int, position: Vector) -> Vector:
            return potentials.gradient(position, client)

        def step(phase: leapfrog.Phase, k: Int[Array, ""]):
            return leapfrog.leapfrog_step(gradient_fn, phase, k, step_size, mass=mass, reuse_gradient=True), None

        last = sampler.num_leapfrog_steps - 1
        phase, _ = lax.scan(step, leapfrog.Phase(position, momentum, gradient), jnp.arange(last))
        # The last step is written out: its gradient comes with the potential that the energy needs.
        end = leapfrog.drift(phase.position, phase.momentum, phase.gradient, step_size, mass)
        end_potential, end_gradient = potentials.value_and_gradient(end, client)
        end_momentum = phase.momentum - step_size / 2 * mass.force(phase.gradient + end_gradient)

        energy_error = end_potential + end_momentum @ end_momentum / 2 - potential - momentum @ momentum / 2
        # A trajectory that left the finite numbers has infinite energy: it is rejected, and the chain lives on.
        energy_error = jnp.where(jnp.isfinite(energy_error), energy_error, jnp.inf)
        acceptance_rate = jnp.minimum(1.0, jnp.exp(-energy_error))
        is_accepted = (
            jax.random.uniform(keys.acceptance(chain_keys, round_index), dtype=position.dtype) < acceptance_rate
        )
        proposal = MetropolisState(end, end_potential, end_gradient)
        state = jax.tree.map(lambda new, old: jnp.where(is_accepted, new, old), proposal, state)
        return state, {"acceptance_rate": acceptance_rate, "diverging": energy_error > _DIVERGENCE}

    return Kernel(
        init=init,
        client_round=client_round,
        merge=lambda state, mean: mean,
        step_size=schedule,
        leapfrog_steps=sampler.num_leapfrog_steps,
        estimates=0,
        full_gradients=sampler.num_leapfrog_steps,
        speed=mass.speed(potentials.dimension),
    )
