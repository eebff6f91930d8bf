"""Federated averaging HMC (Algorithm 3), and federated averaging Langevin dynamics as its K = 1.

In one round, client c (weight w_c, potential f_c) starts from the common position and repeats T times

    p    ←  √ρ ξ + √((1 − ρ) / w_c) ξ_c          ξ common to all clients
    θ    ←  K leapfrog steps of size η on f_c, from (θ, p)

then the engine averages, θ = Σ_c w_c θ_c. Targets exp(−Σ_c w_c f_c). There is no accept/reject step, so the law is
biased: O(η²) at fixed K and T; and where clients differ, shrinking η at fixed K η leaves a floor, set by how far they
travel between two averagings (`fahmc.theory.stationary_law` computes it for Gaussian clients).

With ``sync_unit="leapfrog"`` T counts leapfrog steps, as in the paper's experiments: positions and momenta are averaged
every T leapfrog steps, also inside a trajectory; the momentum is drawn anew every K leapfrog steps.

A correction (`anchor`, `curvature`) replaces the gradients of f_c by ones that unlike clients agree on better.

Reference: Liang, Zhang, Deng, Song and Lin (2024), arXiv:2407.06935.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Int

from fahmc import door, keys
from fahmc.data.federation import Federation
from fahmc.density.gradient import FullGradient, Gradient
from fahmc.density.target import Target
from fahmc.dynamics import curvature, leapfrog
from fahmc.dynamics.anchor import anchored, shifted
from fahmc.dynamics.evaluation import evaluated_once
from fahmc.dynamics.mass import Mass, mass_factor
from fahmc.dynamics.momentum import draw_momentum
from fahmc.dynamics.sampler import (
    ClientRound,
    Exchange,
    Field,
    Outcome,
    Phase,
    PhaseResult,
    Sampler,
    displacement,
    position_fields,
)
from fahmc.dynamics.schedules import as_schedule, check_schedule
from fahmc.errors import SettingsError
from fahmc.hints import Jitter, Positive, Probability, Steps
from fahmc.registry import register
from fahmc.types import ChainKeys, Client, GradientFn, Message, Numbers, Position, Schedule, Vector

# A trajectory is called diverging when it went further than this many free flights of its momentum: five standard
# deviations. In the posterior of the embedded trial stable step sizes never reach it and unstable ones do in most
# rounds (tests/engines/test_warning_signs.py).
FREE_FLIGHTS = 5.0


@register("sampler")
@dataclass(frozen=True)
class FAHMC(Sampler):
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
        `FullGradient`, `Minibatch`, `GaussianNoise`, or one of your own.
    sync_unit
        What T counts: ``"trajectory"`` (Algorithm 3) or ``"leapfrog"`` (section 5 of the paper).
    inverse_mass_matrix
        Σ⁻¹: None for the identity, a vector (or pytree like the position) for a diagonal, or a matrix. With
        ``correction="curvature"`` None stands for H⁻¹: step sizes are then in posterior standard deviations.
    reuse_gradient
        Evaluate a stochastic gradient once a leapfrog step instead of twice.
    with_gradients
        Have every client reply ∇f_c where it set out as well, of all its rows, so that ∇f is known there:
        `Draws.gradients`. A draw needs a gradient of its own, so what a round keeps is then the position that it was
        sent, not the average that it ends with: the same chain, a round behind. One vector more in the reply.
    jitter
        Each trajectory of each chain has a step size of its own, η times a number between 1 − jitter and 1 + jitter,
        the same at all clients: a fixed length could be a multiple of some direction's period.
    correction
        What unlike clients do about their differences. None: nothing (Algorithm 3). ``"anchor"``: Algorithm B.2
        (`DebiasedFAHMC`). ``"curvature"``: forces that agree to second order around the posterior's mode, found before
        the first round; chains start from the normal law there (`fahmc.dynamics.curvature`).
    expansion
        What ``"curvature"`` would find, where it is known: a table of ``center``, ``gradient`` and ``curvature`` of f.
    """

    PARTS: ClassVar = ("_evaluation", "_second_order")
    NUMBERS: ClassVar = (
        "step_size",
        "num_leapfrog_steps",
        "num_local_steps",
        "inverse_mass_matrix",
        "jitter",
        "expansion",
    )

    step_size: Positive | Schedule
    num_leapfrog_steps: Annotated[Steps, "K"] = 10
    num_local_steps: Annotated[Steps, "T"] = 1
    momentum_correlation: Annotated[Probability, "rho"] = 1.0
    gradient: Gradient = FullGradient()
    sync_unit: Literal["trajectory", "leapfrog"] = "trajectory"
    inverse_mass_matrix: Any = None
    reuse_gradient: bool = False
    with_gradients: bool = False
    jitter: Jitter = 0.0
    correction: Literal["anchor", "curvature"] | None = None
    expansion: Any = None

    def __post_init__(self):
        door.check(self)
        if self.expansion is not None and self.correction != "curvature":
            raise SettingsError("expansion is given; only correction='curvature' has a use for it.")

    @property
    def reuses_gradient(self) -> bool:
        """Whether a leapfrog step costs one gradient."""
        return self.reuse_gradient or self.gradient.is_exact

    @property
    def counts_leapfrogs(self) -> bool:
        """Whether T counts leapfrog steps, so that averaging may fall inside a trajectory."""
        return self.sync_unit == "leapfrog"

    @property
    def steps_per_round(self) -> int:
        """Leapfrog steps of one client in one round."""
        return self.num_local_steps * (1 if self.counts_leapfrogs else self.num_leapfrog_steps)

    @property
    def starts_at_origin(self) -> bool:
        """Whether the first anchor is 0, not the start."""
        return False

    @property
    def replies_gradient(self) -> bool:
        """Whether clients tell ∇f_c where they set out."""
        return self.with_gradients or self.correction == "anchor"

    def setup(self) -> tuple[Phase, ...]:
        """Ask for ∇f at the start, if that is the first anchor."""
        is_asked = self.correction == "anchor" and not self.starts_at_origin
        return evaluated_once("first anchor") if is_asked else ()

    def course(self, run: Any) -> Generator[Phase, PhaseResult, Outcome | None]:
        """Do what was asked for; the curvature correction needs to know the mode first."""
        if self.correction != "curvature":
            return (yield from super().course(run))
        expansion = self.expansion
        if expansion is None:
            expansion = yield from curvature.expand(run)
        sampling = run.sampling._replace(sampler=replace(self, expansion=expansion))
        start = curvature.start_around(expansion, run.num_chains, run.seed).astype(run.dtype)
        state = {name: start if name == "position" else np.zeros_like(start) for name in run.exchange(sampling).state}
        yield sampling._replace(state=state)
        return None

    def exchange(self, dimension: int) -> Exchange:
        """Broadcast and average positions; momenta too, where averaging may fall inside a trajectory."""
        fields = position_fields(dimension)
        if self.counts_leapfrogs:
            fields["momentum"] = Field((dimension,))

        def begin(carried: Message) -> Message:
            position = carried["position"]
            return {name: position if name == "position" else jnp.zeros_like(position) for name in fields}

        def merge(keys: ChainKeys, round_index: Int[Array, ""], state: Message, mean: Message) -> Message:
            return {name: mean[name] for name in fields}

        def watch(numbers: Numbers, round_index: Int[Array, ""], before: Message, mean: Message, after: Message):
            t = first = round_index * numbers["num_local_steps"]
            steps = numbers["num_local_steps"]
            if self.counts_leapfrogs:
                t = first // numbers["num_leapfrog_steps"]
            else:
                steps = steps * numbers["num_leapfrog_steps"]
            schedule = as_schedule(numbers.get("step_size", self.step_size))
            step_size = jnp.asarray(schedule(t), after["position"].dtype)
            free_flight = steps.astype(step_size.dtype) * step_size * mass_of(numbers).speed(dimension)
            # A trajectory that keeps its energy cannot go much further than its momentum carries it in free flight.
            is_diverging = displacement(before, after) > FREE_FLIGHTS * free_flight
            return {"step_size": step_size, "n_steps": steps, "diverging": is_diverging}

        def draw(before: Message, mean: Message, after: Message) -> Message:
            return {"position": before["position"], "gradient": mean["gradient"]}

        exchange = Exchange(state=fields, reply=fields, begin=begin, merge=merge, watch=watch)
        if self.replies_gradient:
            exchange = exchange._replace(reply={**fields, "gradient": Field((dimension,))})
        if self.with_gradients:
            exchange = exchange._replace(draw=draw)
        return anchored(exchange, dimension, self.starts_at_origin) if self.correction == "anchor" else exchange

    def build(self, target: Target) -> ClientRound:
        """Run T trajectories, or T leapfrog steps, from the broadcast position."""
        gradient_fn = self.gradient.build(target)
        correct = {"anchor": shifted, "curvature": curvature.corrected}.get(str(self.correction))

        def client_round(chain_keys, round_index, state, numbers, client) -> Message:
            force = gradient_fn if correct is None else correct(target, gradient_fn, state, numbers, client)
            end = local_round(self, force, chain_keys, round_index, state, numbers, client)
            if self.correction == "curvature":
                end["position"] = curvature.unless_lost(end["position"], numbers)
            return end | ({"gradient": target.gradient(state["position"], client)} if self.replies_gradient else {})

        return client_round

    def numbers(self, template: Position, dtype: np.dtype) -> Numbers:
        """Return η, K, T and a factor of Σ⁻¹; jitter and expansion where there are any."""
        counts = {name: np.int32(getattr(self, name)) for name in ("num_leapfrog_steps", "num_local_steps")}
        step_size = {} if callable(self.step_size) else {"step_size": dtype.type(self.step_size)}
        others = {"jitter": dtype.type(self.jitter)} if self.jitter else {}
        inverse_mass_matrix = self.inverse_mass_matrix
        if self.expansion is not None:
            others |= curvature.expansion_numbers(self.expansion, template, dtype)
            if inverse_mass_matrix is None:
                inverse_mass_matrix = np.linalg.inv(np.asarray(self.expansion["curvature"], np.float64))
        factor = mass_factor(inverse_mass_matrix, template, dtype)
        return counts | step_size | others | ({} if factor is None else {"mass_factor": factor})

    def check(self, federation: Federation) -> None:
        """Refuse clients without weight that would need infinite momentum, and what the gradient refuses."""
        check_schedule(self.step_size)
        self.gradient.check(federation)
        if self.momentum_correlation < 1 and not federation.weights.all():
            idle = federation.names[int(np.argmin(federation.weights))]
            raise SettingsError(
                f"Client {idle!r} has weight 0, so its private momentum (momentum_correlation < 1) would be infinite. "
                "Drop the client, or use momentum_correlation=1."
            )

    def row_gradients(self, sizes: np.ndarray) -> float | None:
        """Count evaluations: a trajectory spares the second gradient of its last step (`leapfrog.trajectory_end`)."""
        if self.correction == "curvature":
            return None  # Hessians at m are the same for all chains, and may be kept by the compiler
        steps = self.steps_per_round
        if self.counts_leapfrogs:
            estimates = steps + 1 if self.reuses_gradient else 2 * steps
        else:
            estimates = steps if self.reuses_gradient else 2 * steps - self.num_local_steps
        full = self.replies_gradient + (self.correction == "anchor")
        return float(estimates * self.gradient.rows_used(sizes).sum() + full * sizes.sum())

    def remedy(self, round_index: int) -> str:
        """Halve the step size, or do without a correction that threw the chain out."""
        if self.correction == "curvature":
            return (
                "SplitHMC, or FAHMC without a correction, as the corrected potential of a client with few rows may "
                "curve downwards and throw chains out; if all clients are large, a smaller step_size (it was "
                f"{self.step_size})"
            )
        t = round_index * self.num_local_steps // (self.num_leapfrog_steps if self.counts_leapfrogs else 1)
        eta = float(as_schedule(self.step_size)(jnp.int32(t)))
        return f"a smaller step_size (it was {eta:g}; try {eta / 2:g})"


@register("sampler")
def FALD(step_size: Positive | Schedule, **settings: Any) -> FAHMC:
    """FA-LD: FA-HMC with K = 1, that is unadjusted Langevin dynamics with learning rate η²/2 on every client."""
    if "num_leapfrog_steps" in settings:
        raise SettingsError("FALD has K = 1 and takes no num_leapfrog_steps; use FAHMC for more.")
    return FAHMC(step_size, num_leapfrog_steps=1, **settings)


def mass_of(numbers: Numbers) -> Mass:
    """Return the mass matrix among a sampler's numbers."""
    return Mass(numbers.get("mass_factor"))


def jittered(step_size: Array, numbers: Numbers, chain_keys: ChainKeys, trajectory: Int[Array, ""]) -> Array:
    """Return η (1 + jitter u), u uniform on [−1, 1]; from the shared stream, so that clients agree."""
    if "jitter" not in numbers:
        return step_size
    key = keys.jitter(chain_keys, trajectory)
    return step_size * (1 + numbers["jitter"] * jax.random.uniform(key, dtype=step_size.dtype, minval=-1, maxval=1))


def local_round(
    sampler: FAHMC,
    gradient_fn: GradientFn,
    chain_keys: ChainKeys,
    round_index: Int[Array, ""],
    state: Message,
    numbers: Numbers,
    client: Client,
) -> Message:
    """Do what a client does between two averagings, with whatever gradient it is given."""
    schedule, mass = as_schedule(numbers.get("step_size", sampler.step_size)), mass_of(numbers)
    trajectory_steps, position = numbers["num_leapfrog_steps"], state["position"]
    first = round_index * numbers["num_local_steps"]
    end = first + numbers["num_local_steps"]

    def momentum_of(trajectory: Int[Array, ""]) -> Vector:
        return draw_momentum(chain_keys, trajectory, position, client, sampler.momentum_correlation)

    def gradient_of(trajectory: Int[Array, ""]) -> leapfrog.TrajectoryGradient:
        key_gradient = keys.gradient(chain_keys, trajectory, client.identity)
        return lambda k, half, position: gradient_fn(keys.gradient_at(key_gradient, k, half), position, client)

    def step_size_of(trajectory: Int[Array, ""]) -> Array:
        return jittered(jnp.asarray(schedule(trajectory), position.dtype), numbers, chain_keys, trajectory)

    def next_trajectory(trajectory: Int[Array, ""], position: Vector) -> Vector:
        return leapfrog.trajectory_end(
            gradient_of(trajectory),
            position,
            momentum_of(trajectory),
            step_size_of(trajectory),
            num_leapfrog_steps=trajectory_steps,
            mass=mass,
            reuse_gradient=sampler.reuses_gradient,
        )

    def next_leapfrog(step: Int[Array, ""], point: leapfrog.PhasePoint) -> leapfrog.PhasePoint:
        """Take step s of the run: step s mod K of trajectory s div K."""
        trajectory, k = jnp.divmod(step, trajectory_steps)
        # The condition is the same for all clients and chains, so under vmap it stays a branch: no idle draws.
        momentum = lax.cond(k == 0, lambda: momentum_of(trajectory), lambda: point.momentum)
        return leapfrog.leapfrog_step(
            gradient_of(trajectory),
            point._replace(momentum=momentum),
            k,
            step_size_of(trajectory),
            mass=mass,
            reuse_gradient=sampler.reuses_gradient,
        )

    if not sampler.counts_leapfrogs:  # momenta end with their trajectories
        return {"position": lax.fori_loop(first, end, next_trajectory, position)}
    trajectory, k = jnp.divmod(first, trajectory_steps)
    point = leapfrog.start(gradient_of(trajectory), position, state["momentum"], k, sampler.reuses_gradient)
    point = lax.fori_loop(first, end, next_leapfrog, point)
    return {"position": point.position, "momentum": point.momentum}
