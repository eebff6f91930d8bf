"""Federated averaging HMC (Algorithm 3), and federated averaging Langevin dynamics as its K = 1.

In one round, client c (weight w_c, potential f_c) starts from the common position and repeats T times

    p    ←  √ρ ξ + √((1 − ρ) / w_c) ξ_c          ξ common to all clients
    θ    ←  K leapfrog steps of size η on f_c, from (θ, p)

then the engine averages, θ = Σ_c w_c θ_c. Targets exp(−Σ_c w_c f_c). There is no accept/reject step, so the law is
biased: O(η²) at fixed K and T; and where clients differ, shrinking η at fixed K η leaves a floor, set by how far they
travel between two averagings (`fahmc.theory.stationary_law` computes it for Gaussian clients).

With ``sync_unit="leapfrog"`` T counts leapfrog steps, as in the paper's experiments: positions and momenta are averaged
every T leapfrog steps, also inside a trajectory; the momentum is drawn anew every K leapfrog steps.

Reference: Liang, Zhang, Deng, Song and Lin (2024), arXiv:2407.06935.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Int

from fahmc import keys
from fahmc.density.gradient import FullGradient, Gradient, check_gradient, is_exact
from fahmc.dynamics import leapfrog
from fahmc.dynamics.mass import Mass
from fahmc.dynamics.momentum import draw_momentum
from fahmc.dynamics.schedules import as_schedule, checked_step_size
from fahmc.errors import SettingsError
from fahmc.types import ChainKeys, Client, GradientFn, Kernel, Schedule, Vector


@dataclass(frozen=True)
class FAHMC:
    """Settings of FA-HMC.

    Parameters
    ----------
    step_size
        η, a number or a function of the trajectory's index t.
    num_leapfrog_steps
        K, between two momentum refreshments.
    num_local_steps
        T, between two averagings; counts trajectories or leapfrog steps, see ``sync_unit``.
    momentum_correlation
        ρ in [0, 1]: 1 means that all clients draw the same momentum, 0 that each draws its own.
    gradient
        `FullGradient`, `Minibatch` or `GaussianNoise`.
    sync_unit
        What T counts: ``"trajectory"`` (Algorithm 3) or ``"leapfrog"`` (section 5 of the paper).
    inverse_mass_matrix
        Σ⁻¹: None for the identity, a vector (or pytree like the position) for a diagonal, or a matrix.
    reuse_gradient
        Evaluate a stochastic gradient once a leapfrog step instead of twice.
    """

    step_size: float | Schedule
    num_leapfrog_steps: int = 10
    num_local_steps: int = 1
    momentum_correlation: float = 1.0
    gradient: Gradient = FullGradient()
    sync_unit: Literal["trajectory", "leapfrog"] = "trajectory"
    inverse_mass_matrix: Any = None
    reuse_gradient: bool = False

    def __post_init__(self):
        # Numbers of NumPy and JAX are welcome; kept are Python's, which print, hash and save alike everywhere.
        object.__setattr__(self, "step_size", checked_step_size(self.step_size))
        for name, symbol in [("num_leapfrog_steps", "K"), ("num_local_steps", "T")]:
            object.__setattr__(self, name, checked_count(name, symbol, getattr(self, name)))
        rho = self.momentum_correlation
        if isinstance(rho, bool) or not isinstance(rho, int | float) or not 0 <= rho <= 1:
            raise SettingsError(f"momentum_correlation is {rho!r}; rho must lie between 0 and 1.")
        check_gradient(self.gradient)
        if self.sync_unit not in ("trajectory", "leapfrog"):
            raise SettingsError(f"sync_unit is {self.sync_unit!r}; T counts 'trajectory' or 'leapfrog' steps.")

    @property
    def reuses_gradient(self) -> bool:
        """Whether a leapfrog step costs one gradient."""
        return self.reuse_gradient or is_exact(self.gradient)


def FALD(step_size: float | Schedule, **settings: Any) -> FAHMC:
    """FA-LD: FA-HMC with K = 1, that is unadjusted Langevin dynamics with learning rate η²/2 on every client."""
    if "num_leapfrog_steps" in settings:
        raise SettingsError("FALD has K = 1 and takes no num_leapfrog_steps; use FAHMC for more.")
    return FAHMC(step_size, num_leapfrog_steps=1, **settings)


class FAHMCState(NamedTuple):
    """What is broadcast, and what a client replies. The momentum travels only where T counts leapfrog steps."""

    position: Vector
    momentum: Any


def merge(state: FAHMCState, mean: FAHMCState) -> FAHMCState:
    """Start the next round from the mean."""
    return mean


class LocalRound(Protocol):
    """What a client does between two averagings."""

    def __call__(
        self,
        gradient_fn: GradientFn,
        chain_keys: ChainKeys,
        round_index: Int[Array, ""],
        state: FAHMCState,
        client: Client,
        /,
    ) -> FAHMCState:
        """Return the client's position (and momentum) at the round's end."""
        ...


def build_kernel(sampler: FAHMC, gradient_fn: GradientFn, mass: Mass, dimension: int) -> Kernel:
    """Build FA-HMC for an engine."""
    local_steps, reuses = sampler.num_local_steps, sampler.reuses_gradient
    schedule = as_schedule(sampler.step_size)
    local_round = build_local_round(sampler, mass)
    in_leapfrog_units = sampler.sync_unit == "leapfrog"

    def init(position: Vector) -> FAHMCState:
        return FAHMCState(position, jnp.zeros_like(position) if in_leapfrog_units else None)

    def client_round(chain_keys: ChainKeys, round_index: Int[Array, ""], state: FAHMCState, client: Client):
        return local_round(gradient_fn, chain_keys, round_index, state, client), {}

    def step_size(round_index: Int[Array, ""]):
        first = round_index * sampler.num_local_steps
        return schedule(first // sampler.num_leapfrog_steps if in_leapfrog_units else first)

    if in_leapfrog_units:
        leapfrog_steps, estimates = local_steps, local_steps + 1 if reuses else 2 * local_steps
    else:
        leapfrog_steps = local_steps * sampler.num_leapfrog_steps
        # A trajectory spares the second gradient of its last step (`leapfrog.trajectory_end`).
        estimates = leapfrog_steps if reuses else 2 * leapfrog_steps - local_steps
    return Kernel(
        init=init,
        client_round=client_round,
        merge=merge,
        step_size=step_size,
        leapfrog_steps=leapfrog_steps,
        estimates=estimates,
        full_gradients=0,
        speed=mass.speed(dimension),
    )


def build_local_round(sampler: FAHMC, mass: Mass) -> LocalRound:
    """Build what a client does between two averagings, for whatever gradient it is given."""
    return _leapfrog_round(sampler, mass) if sampler.sync_unit == "leapfrog" else _trajectory_round(sampler, mass)


def _trajectory_round(sampler: FAHMC, mass: Mass) -> LocalRound:
    """T trajectories; their momenta end with them."""
    schedule = as_schedule(sampler.step_size)

    def local_round(gradient_fn, chain_keys, round_index, state, client):
        def local_step(position: Vector, trajectory: Int[Array, ""]):
            momentum = draw_momentum(chain_keys, trajectory, position, client, sampler.momentum_correlation)
            end = leapfrog.trajectory_end(
                _bind(gradient_fn, chain_keys, trajectory, client),
                position,
                momentum,
                jnp.asarray(schedule(trajectory), position.dtype),
                num_leapfrog_steps=sampler.num_leapfrog_steps,
                mass=mass,
                reuse_gradient=sampler.reuses_gradient,
            )
            return end, None

        trajectories = round_index * sampler.num_local_steps + jnp.arange(sampler.num_local_steps)
        position, _ = lax.scan(local_step, state.position, trajectories)
        return FAHMCState(position, None)

    return local_round


def _leapfrog_round(sampler: FAHMC, mass: Mass) -> LocalRound:
    """T leapfrog steps, wherever in a trajectory they fall: step s of the run is step s mod K of trajectory s div K."""
    schedule = as_schedule(sampler.step_size)

    def local_round(gradient_fn, chain_keys, round_index, state, client):
        def local_step(phase: leapfrog.Phase, step: Int[Array, ""]):
            trajectory, k = jnp.divmod(step, sampler.num_leapfrog_steps)
            # The condition is the same for all clients and chains, so under vmap it stays a branch: no idle draws.
            momentum = lax.cond(
                k == 0,
                lambda: draw_momentum(chain_keys, trajectory, phase.position, client, sampler.momentum_correlation),
                lambda: phase.momentum,
            )
            phase = leapfrog.leapfrog_step(
                _bind(gradient_fn, chain_keys, trajectory, client),
                phase._replace(momentum=momentum),
                k,
                jnp.asarray(schedule(trajectory), phase.position.dtype),
                mass=mass,
                reuse_gradient=sampler.reuses_gradient,
            )
            return phase, None

        first = round_index * sampler.num_local_steps
        trajectory, k = jnp.divmod(first, sampler.num_leapfrog_steps)
        phase = leapfrog.start(
            _bind(gradient_fn, chain_keys, trajectory, client),
            state.position,
            state.momentum,
            k,
            sampler.reuses_gradient,
        )
        phase, _ = lax.scan(local_step, phase, first + jnp.arange(sampler.num_local_steps))
        return FAHMCState(phase.position, phase.momentum)

    return local_round


def _bind(gradient_fn: GradientFn, chain_keys: ChainKeys, trajectory: Int[Array, ""], client: Client):
    """Give a client's gradient the keys of one trajectory."""
    key_gradient = keys.gradient(chain_keys, trajectory, client.identity)
    return lambda k, half, position: gradient_fn(keys.gradient_at(key_gradient, k, half), position, client)


def checked_count(name: str, symbol: str, value: Any) -> int:
    """Return a whole number of at least 1, or refuse."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise SettingsError(f"{name} is {value!r}; {symbol} must be a whole number of at least 1.")
    return int(value)
