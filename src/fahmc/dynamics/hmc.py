"""HMC on one machine (Algorithm 2), without and with Metropolis correction (MHMC).

    p ~ N(0, I);   θ′, p′ = K leapfrog steps of size η from (θ, p);   θ ← θ′

Without correction this is FA-HMC with one client and T = 1, and is run as such. With it, θ′ is accepted with
probability min(1, exp(H(θ, p) − H(θ′, p′))), H = f + ½‖p‖², otherwise the chain stays: exp(−f) is left invariant
exactly. The potential and gradient where the chain is are kept from round to round, so a round costs K gradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Int

from fahmc import door, keys
from fahmc.data.federation import Federation
from fahmc.density.gradient import FullGradient, Gradient
from fahmc.density.target import Target
from fahmc.dynamics import leapfrog
from fahmc.dynamics.evaluation import evaluated_once
from fahmc.dynamics.fa_hmc import FAHMC, jittered, mass_of
from fahmc.dynamics.momentum import draw_momentum
from fahmc.dynamics.sampler import ClientRound, Exchange, Field, Phase, Sampler, position_fields
from fahmc.dynamics.schedules import as_schedule
from fahmc.errors import SettingsError
from fahmc.hints import Jitter, Positive, Steps
from fahmc.registry import register
from fahmc.types import Message, Numbers, Position, Schedule, Vector

# Stan's and NumPyro's threshold: an energy error beyond it means that the integrator has left the level set.
_DIVERGENCE = 1000.0


@register("sampler")
@dataclass(frozen=True)
class HMC(Sampler):
    """Settings of HMC on all rows at once; a federation given to it is pooled.

    Parameters
    ----------
    step_size, num_leapfrog_steps, gradient, inverse_mass_matrix, reuse_gradient, jitter
        As for `FAHMC`.
    metropolis
        Accept or reject each trajectory; needs the full gradient.
    """

    pools_rows: ClassVar[bool] = True
    NUMBERS: ClassVar = ("step_size", "num_leapfrog_steps", "inverse_mass_matrix", "jitter")

    step_size: Positive | Schedule
    num_leapfrog_steps: Annotated[Steps, "K"] = 10
    metropolis: bool = False
    gradient: Gradient = FullGradient()
    inverse_mass_matrix: Any = None
    reuse_gradient: bool = False
    jitter: Jitter = 0.0

    def __post_init__(self):
        door.check(self)
        if self.metropolis and not self.gradient.is_exact:
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
            jitter=self.jitter,
        )

    def setup(self) -> tuple[Phase, ...]:
        """Evaluate potential and gradient at the start, where acceptance needs them."""
        return evaluated_once("first energy") if self.metropolis else ()

    def exchange(self, dimension: int) -> Exchange:
        """Keep the chain on the one machine, with what would otherwise be computed again at every start."""
        plain = self.as_fahmc().exchange(dimension)
        if not self.metropolis:
            return plain
        state = position_fields(dimension, potential=Field(()), gradient=Field((dimension,)))

        def merge(keys, round_index, before: Message, combined: Message) -> Message:
            return {name: combined[name] for name in state}

        def watch(numbers: Numbers, round_index: Int[Array, ""], before: Message, combined: Message, after: Message):
            rates = {name: combined[name] for name in ("acceptance_rate", "diverging")}
            return plain.watch(numbers, round_index, before, combined, after) | rates

        return Exchange(
            state=state,
            reply={**state, "acceptance_rate": Field(()), "diverging": Field(())},
            begin=lambda carried: {name: carried[name] for name in state},
            merge=merge,
            watch=watch,
            draw=lambda before, combined, after: {name: after[name] for name in ("position", "gradient")},
        )

    def build(self, target: Target) -> ClientRound:
        """Run one trajectory, and with correction decide on it."""
        if not self.metropolis:
            return self.as_fahmc().build(target)

        def client_round(chain_keys, round_index, state, numbers, client) -> Message:
            position, potential, gradient = state["position"], state["potential"], state["gradient"]
            mass, num_steps = mass_of(numbers), numbers["num_leapfrog_steps"]
            momentum = draw_momentum(chain_keys, round_index, position, client, correlation=1.0)
            step_size = jnp.asarray(as_schedule(numbers.get("step_size", self.step_size))(round_index), position.dtype)
            step_size = jittered(step_size, numbers, chain_keys, round_index)

            def gradient_fn(k: Int[Array, ""] | int, half: int, position: Vector) -> Vector:
                return target.gradient(position, client)

            def step(k: Int[Array, ""], point: leapfrog.PhasePoint) -> leapfrog.PhasePoint:
                return leapfrog.leapfrog_step(gradient_fn, point, k, step_size, mass=mass, reuse_gradient=True)

            point = lax.fori_loop(0, num_steps - 1, step, leapfrog.PhasePoint(position, momentum, gradient))
            # The last step is written out: its gradient comes with the potential that the energy needs.
            end = leapfrog.move(point.position, point.momentum, point.gradient, step_size, mass)
            end_potential, end_gradient = target.value_and_gradient(end, client)
            end_momentum = point.momentum - step_size / 2 * mass.force(point.gradient + end_gradient)

            energy_error = end_potential + end_momentum @ end_momentum / 2 - potential - momentum @ momentum / 2
            # A trajectory that left the finite numbers has infinite energy: it is rejected, and the chain lives on.
            energy_error = jnp.where(jnp.isfinite(energy_error), energy_error, jnp.inf)
            acceptance_rate = jnp.minimum(1.0, jnp.exp(-energy_error))
            uniform = jax.random.uniform(keys.acceptance(chain_keys, round_index), dtype=position.dtype)
            proposal = {"position": end, "potential": end_potential, "gradient": end_gradient}
            kept = jax.tree.map(lambda new, old: jnp.where(uniform < acceptance_rate, new, old), proposal, state)
            is_diverging = (energy_error > _DIVERGENCE).astype(position.dtype)
            return kept | {"acceptance_rate": acceptance_rate, "diverging": is_diverging}

        return client_round

    def numbers(self, template: Position, dtype: np.dtype) -> Numbers:
        """Return η, K and a factor of Σ⁻¹."""
        return self.as_fahmc().numbers(template, dtype)

    def check(self, federation: Federation) -> None:
        """Refuse what FA-HMC refuses."""
        self.as_fahmc().check(federation)

    def row_gradients(self, sizes: np.ndarray) -> float | None:
        """Count K gradients, or what FA-HMC does."""
        return self.as_fahmc().row_gradients(sizes)

    def remedy(self, round_index: int) -> str:
        """Halve the step size."""
        return self.as_fahmc().remedy(round_index)
