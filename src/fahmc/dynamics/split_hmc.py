"""Split HMC: exact federated MCMC, one communication round a step.

With enough rows the posterior exp(−f), f = Σ_c w_c f_c, is nearly N(m, F F′). In u = F⁻¹(θ − m) the Hamiltonian is

    H = f + ½|v|²  =  ½|u|² + ½|v|²  +  R(u),        ∇R(u) = F′∇f(θ) − u,        v ~ N(0, I)

The Gaussian part is solved exactly, by turning (u, v); only the rest R, which is small, has to be integrated. A step is

    v ← v − h/2 ∇R(u)
    u, v ← u cos h + v sin h, v cos h − u sin h
    v ← v − h/2 ∇R(u)                               one round: f and ∇f at the new θ = m + F u

and after K steps θ is accepted with probability min(1, exp(−ΔH)), otherwise the chain stays. A kick shears (u, v) and a
turn rotates it, so a step keeps volume; with v → −v each of the three is its own inverse and their order reads the same
backwards, so a step is reversible. Hence exp(−H) is left invariant exactly, whatever m, F, h and K are, and as θ is an
affine function of u so is exp(−f): they only decide how often a proposal is accepted. On a Gaussian with the right m
and F nothing is rejected, and trajectories of length K h = π/2 end in independent draws.

Everything is decided at the server. A client is asked for f_c and ∇f_c at one point a chain.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import pi
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fahmc import door, keys
from fahmc.density.target import Target
from fahmc.dynamics.fa_hmc import mass_of
from fahmc.dynamics.mass import as_array, mass_factor
from fahmc.dynamics.sampler import ClientRound, Exchange, Field, Phase, Sampler
from fahmc.errors import SettingsError
from fahmc.hints import Jitter, Positive, Steps
from fahmc.registry import register
from fahmc.types import ChainKeys, Message, Numbers, Position, Vector

# Stan's and NumPyro's threshold: an energy error beyond it means that the integrator has left the level set.
_DIVERGENCE = 1000.0


@register("sampler")
@dataclass(frozen=True)
class SplitHMC(Sampler):
    """Settings of split HMC.

    A draw takes K rounds, so by default `sample` keeps every K-th, with ∇f there (`Draws.gradients`). Between them,
    with another ``thin``, the position is that of the last trajectory that ended, and so are the statistics:
    ``acceptance_rate``, ``energy_error`` (ΔH) and ``diverging`` (ΔH above 1000, or a potential or gradient on the way
    that is not finite; both are rejected).

    Parameters
    ----------
    num_steps
        K, the steps, and rounds, of a trajectory. Double it where fewer than 8 of 10 proposals are accepted.
    step_size
        h, the angle of a step; by default π/2 / K.
    center
        m, where the Gaussian part has its mean: a vector, or a pytree like the position. None for zeros.
    inverse_mass_matrix
        F F′, its covariance: None for the identity, a vector (or pytree like the position) for a diagonal, or a matrix.
    jitter
        Each trajectory of each chain has steps of its own, h times a number between 1 − jitter and 1 + jitter: where m
        and F are wrong, a fixed length could be a multiple of some direction's period.

    Notes
    -----
    All of them may be changed between blocks of rounds, which compiles nothing. The trajectory under way keeps its h
    and K, but not m and F: it alone is then not exact. So change these in warm-up.
    """

    NUMBERS: ClassVar = ("num_steps", "step_size", "center", "inverse_mass_matrix", "jitter")

    num_steps: Annotated[Steps, "K"] = 2
    step_size: Positive | None = None
    center: Any = None
    inverse_mass_matrix: Any = None
    jitter: Jitter = 0.1

    def __post_init__(self):
        door.check(self)

    @property
    def rounds_per_draw(self) -> int:
        """Return K."""
        return self.num_steps

    def setup(self) -> tuple[Phase, ...]:
        """Ask for f and ∇f at the start, whose round ends with the first step of the first trajectory."""
        return (Phase("first energy", self, num_rounds=1),)

    def exchange(self, dimension: int) -> Exchange:
        """Broadcast a point; f and ∇f there come back. The trajectories are the server's own."""
        vector, number = Field((dimension,), is_sent=False), Field((), is_sent=False)
        state = {
            "point": Field((dimension,)),
            "velocity": vector,
            "angle": number,
            "steps_left": Field((), "int32", per_chain=False, is_sent=False),
            "is_lost": Field((), "bool", is_sent=False),
            # Where the trajectory began, and how the last one ended.
            **dict.fromkeys(("position", "gradient"), vector),
            **dict.fromkeys(("potential", "kinetic_energy", "energy_error"), number),
        }

        def begin(carried: Message) -> Message:
            if "steps_left" in carried:
                return {name: carried[name] for name in state}
            position = carried["position"]
            no_vector, nothing = jnp.zeros_like(position), jnp.zeros((), position.dtype)
            shapes = {name: no_vector if field.shape else nothing for name, field in state.items()}
            first = {"point": position, "position": position, "steps_left": jnp.int32(0), "is_lost": jnp.bool(False)}
            return shapes | first

        def watch(numbers: Numbers, round_index: Int[Array, ""], before: Message, mean: Message, after: Message):
            energy_error = after["energy_error"]
            return {
                "acceptance_rate": acceptance_rate(energy_error),
                "energy_error": energy_error,
                "diverging": energy_error > _DIVERGENCE,
            }

        return Exchange(
            state=state,
            reply={
                "potential": Field(()),
                "gradient": Field((dimension,)),
                "num_failures": Field((), "int32", combine="sum"),
            },
            begin=begin,
            merge=next_step,
            watch=watch,
            draw=lambda before, combined, after: {name: after[name] for name in ("position", "gradient")},
            merge_takes_numbers=True,
        )

    def build(self, target: Target) -> ClientRound:
        """Evaluate once. Where that is not finite, say so in finite numbers: a proposal fails, and no chain ends."""

        def client_round(chain_keys, round_index, state, numbers, client) -> Message:
            potential, gradient = target.value_and_gradient(state["point"], client)
            is_finite = jnp.isfinite(potential) & jnp.isfinite(gradient).all()
            return {
                "potential": jnp.where(is_finite, potential, 0),
                "gradient": jnp.where(is_finite, gradient, 0),
                "num_failures": (~is_finite).astype(jnp.int32),
            }

        return client_round

    def numbers(self, template: Position, dtype: np.dtype) -> Numbers:
        """Return K, h, the jitter, m and F."""
        dimension = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(template))
        center = np.zeros(dimension) if self.center is None else as_array(self.center, template)
        if center is None or center.shape != (dimension,) or not np.isfinite(center).all():
            raise SettingsError(
                f"center must be {dimension} finite numbers, as a vector or in the position's own structure."
            )
        factor = mass_factor(self.inverse_mass_matrix, template, dtype)
        return {
            "num_steps": np.int32(self.num_steps),
            "step_size": dtype.type(pi / 2 / self.num_steps if self.step_size is None else self.step_size),
            "jitter": dtype.type(self.jitter),
            "center": center.astype(dtype),
            **({} if factor is None else {"mass_factor": factor}),
        }

    def row_gradients(self, sizes: np.ndarray) -> float:
        """One of each row."""
        return float(sizes.sum())

    def remedy(self, round_index: int) -> str:
        """Take more steps."""
        return f"more steps (num_steps was {self.num_steps}; try {2 * self.num_steps})"


def next_step(
    chain_keys: ChainKeys, round_index: Int[Array, ""], state: Message, mean: Message, numbers: Numbers
) -> Message:
    """End a step with f and ∇f at its point, decide on the trajectory if it was the last, and begin the next step.

    The round before the first has no step to end: it only says what f and ∇f are where the chain starts.
    """
    mass, center = mass_of(numbers), numbers["center"]
    point, dtype = state["point"], state["point"].dtype

    def place_of(position: Vector) -> Vector:
        """Return u."""
        return mass.whitened(position - center)

    def kick(velocity: Vector, angle: Array, place: Vector, gradient: Vector) -> Vector:
        """Return v − h/2 ∇R(u)."""
        return velocity - angle / 2 * (mass.force(gradient) - place)

    velocity = kick(state["velocity"], state["angle"], place_of(point), mean["gradient"])
    is_first = state["steps_left"] == 0
    steps_left = state["steps_left"] - 1
    is_end = steps_left <= 0

    kinetic_energy = velocity @ velocity / 2
    energy_error = mean["potential"] - state["potential"] + kinetic_energy - state["kinetic_energy"]
    is_lost = state["is_lost"] | (mean["num_failures"] > 0) | ~jnp.isfinite(energy_error)
    energy_error = jnp.where(is_lost, jnp.finfo(dtype).max, energy_error)
    # A chain cannot start where f is not finite: its run ends, as a state that is not finite ends it.
    energy_error = jnp.where(is_first, jnp.where(is_lost, jnp.nan, jnp.zeros((), dtype)), energy_error)

    # A key is named after the round that draws with it, so that K may change between rounds.
    uniform = jax.random.uniform(keys.acceptance(chain_keys, round_index), dtype=dtype)
    is_accepted = is_end & (uniform < acceptance_rate(energy_error))
    proposal = {"position": point, "potential": mean["potential"], "gradient": mean["gradient"]}
    kept = {name: jnp.where(is_accepted, new, state[name]) for name, new in proposal.items()}

    fresh = jax.random.normal(keys.shared_momentum(chain_keys, round_index), point.shape, dtype)
    spread = jax.random.uniform(keys.shared_noise(chain_keys, round_index), dtype=dtype, minval=-1, maxval=1)
    begun = {**kept, "velocity": fresh, "angle": numbers["step_size"] * (1 + numbers["jitter"] * spread)}
    under_way = {**proposal, "velocity": velocity, "angle": state["angle"]}
    now = {name: jnp.where(is_end, begun[name], under_way[name]) for name in begun}

    angle, place = now["angle"], place_of(now["position"])
    velocity = kick(now["velocity"], angle, place, now["gradient"])
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    place, velocity = place * cos + velocity * sin, velocity * cos - place * sin
    point = center + mass.velocity(place)
    # What overflows is lost too. It waits where it began for its end, at which it is rejected.
    is_lost = (is_lost & ~is_end) | ~(jnp.isfinite(point).all() & jnp.isfinite(velocity).all())
    return {
        **kept,
        "point": jnp.where(is_lost, kept["position"], point),
        "velocity": jnp.where(is_lost, 0, velocity),
        "angle": angle,
        "steps_left": jnp.where(is_end, numbers["num_steps"], steps_left),
        "is_lost": is_lost,
        "kinetic_energy": jnp.where(is_end, fresh @ fresh / 2, state["kinetic_energy"]),
        "energy_error": jnp.where(is_end, energy_error, state["energy_error"]),
    }


def acceptance_rate(energy_error: Float[Array, ""]) -> Float[Array, ""]:
    """Return min(1, exp(−ΔH))."""
    return jnp.minimum(1.0, jnp.exp(-energy_error))
