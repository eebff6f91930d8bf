"""The curvature correction: clients that agree with each other to second order.

With a_c = ∇f_c(m) and H_c = ∇²f_c(m) at one point m that all know, and ā, H their weighted means, client c follows

    g_c(θ) − a_c + ā + (H − H_c)(θ − m)           instead of   g_c(θ)

The weighted mean of these forces at a common position is exact, whatever m. Where f_c is quadratic they are all the
same, so that clients travel together: there is no federation bias, for any K and T. Elsewhere what is left is of third
order in the distance from m, the posterior's mode, which Newton's method finds before the first round. (FSGLD's
conducive gradients are this for Langevin dynamics.)

m, ā and H are told once, as settings; a client computes a_c and H_c from its own rows. So nothing more than in FA-HMC
crosses in a round. H⁻¹ is also the metric, unless another is given: step sizes are in posterior standard deviations.

A client of few rows, scaled up to n, may have a potential whose curvature changes so fast that ∇²f_c(θ) − H_c + H is
negative where chains go; it then throws them out. A client that ends a round far beyond where any posterior reaches
says so, in a reply that is not finite: the run ends, and names it.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from fahmc.density.target import Target
from fahmc.dynamics.evaluation import UNSEEN, is_seen
from fahmc.dynamics.mass import as_array
from fahmc.dynamics.sampler import ClientRound, Exchange, Field, Phase, PhaseResult, Sampler
from fahmc.errors import ModelError, SettingsError
from fahmc.registry import register
from fahmc.types import Client, GradientFn, Key, Message, Numbers, Position, Vector

PARTS = "center", "gradient", "curvature"
# What Newton's method still promises to gain in f: a tenth of this many squared standard deviations off the mode.
_CLOSE = 1e-4
_MOST_ROUNDS = 40
# Where a client is lost: this many times as far from m as a draw is, √d standard deviations. Clients with as many rows
# as parameters go ten times as far on their own and come back in the average; those that never do are soon beyond it.
_LOST = 30.0


@register("sampler", "_second_order")
@dataclass(frozen=True)
class SecondOrder(Sampler):
    """One round without chains: f, ∇f and ∇²f at a point."""

    makes_draws: ClassVar[bool] = False

    def exchange(self, dimension: int) -> Exchange:
        """Broadcast a point; the server keeps what comes back."""
        number, vector = Field((), per_chain=False), Field((dimension,), per_chain=False)
        answer = {"value": number, "gradient": vector, "curvature": Field((dimension, dimension), per_chain=False)}

        def begin(carried: Message) -> Message:
            point = carried["start"].mean(axis=0)
            return {"point": point, **{name: jnp.zeros(field.shape, point.dtype) for name, field in answer.items()}}

        return Exchange(
            state={"point": vector, **{name: field._replace(is_sent=False) for name, field in answer.items()}},
            reply=answer,
            begin=begin,
            merge=lambda keys, round_index, state, mean: {"point": state["point"], **mean},
        )

    def build(self, target: Target) -> ClientRound:
        """Differentiate twice. Where that is not finite, the value is enormous: not a point to go to."""

        def client_round(keys, round_index, state, numbers, client) -> Message:
            value, gradient = target.value_and_gradient(state["point"], client)
            reply = {"value": value, "gradient": gradient, "curvature": target.curvature(state["point"], client)}
            is_finite = jnp.stack([(jnp.abs(part) < UNSEEN).all() for part in reply.values()]).all() & is_seen(value)
            nowhere = {name: jnp.full_like(part, UNSEEN if name == "value" else 0.0) for name, part in reply.items()}
            return {name: jnp.where(is_finite, part, nowhere[name]) for name, part in reply.items()}

        return client_round


def expand(run: Any) -> Generator[Phase, PhaseResult, dict[str, np.ndarray]]:
    """Find the mode from the chains' mean start by damped Newton steps; return what `corrected` needs there."""
    point, damping = np.asarray(run.start, np.float64).mean(axis=0), 0.0
    best: dict[str, np.ndarray] | None = None
    for step in range(_MOST_ROUNDS):
        result = yield Phase(f"expansion {step}", SecondOrder(), 1, state=_asked(point, run.dtype))
        answer = {name: np.asarray(value, np.float64) for name, value in result.state.items()}
        if best is None and not is_seen(answer["value"]):
            raise ModelError(
                "The potential is not finite in the middle of the chains' starts. Start elsewhere (init), or look for "
                "log(0) and overflow in the model's functions."
            )
        slack = 10 * np.finfo(run.dtype).eps * np.abs(answer["value"])
        if best is None or answer["value"] <= best["value"] + slack:
            best, damping = answer, 0.0 if damping < 1 else damping / 10
        else:
            damping = max(1.0, 10 * damping)
        values, vectors = np.linalg.eigh(best["curvature"])
        # A saddle's downhill directions are turned around, so that every step goes down.
        sizes = np.maximum(np.abs(values), 1e-12 * np.abs(values).max())
        slope = vectors.T @ best["gradient"]
        if slope @ (slope / sizes) <= _CLOSE * len(point):
            if values[0] <= 0:
                raise SettingsError(
                    f"The curvature of the potential at its lowest point has the eigenvalue {values[0]:.3g}; "
                    "correction='curvature' needs all of them above 0. Give every parameter a proper prior, or use "
                    "another correction."
                )
            return {"center": best["point"], "gradient": best["gradient"], "curvature": best["curvature"]}
        metric = (vectors * sizes) @ vectors.T
        point = best["point"] - np.linalg.solve(metric + damping * np.diag(np.diag(metric)), best["gradient"])
    raise SettingsError(
        f"Newton's method has not found the posterior's mode in {_MOST_ROUNDS} rounds, which correction='curvature' "
        "needs. Start closer to it (init), or use another correction."
    )


def _asked(point: np.ndarray, dtype: np.dtype) -> Message:
    size = len(point)
    shapes: dict[str, tuple[int, ...]] = {"value": (), "gradient": (size,), "curvature": (size, size)}
    return {"point": point.astype(dtype), **{name: np.zeros(shape, dtype) for name, shape in shapes.items()}}


def expansion_numbers(expansion: Mapping[str, Any], template: Position, dtype: np.dtype) -> Numbers:
    """Return m, ā and H as a round takes them, or refuse."""
    if not isinstance(expansion, Mapping) or set(expansion) != set(PARTS):
        raise SettingsError(f"expansion must be a table of {', '.join(PARTS)}, as a set-up finds them; or None.")
    parts = {name: as_array(expansion[name], template) for name in PARTS}
    center = parts["center"]
    size = 0 if center is None else center.size
    shapes = {name: None if part is None else part.shape for name, part in parts.items()}
    if shapes != {"center": (size,), "gradient": (size,), "curvature": (size, size)}:
        raise SettingsError(f"expansion has parts of shapes {shapes}; [d], [d] and [d, d] are needed.")
    return {f"expansion_{name}": np.asarray(part, dtype) for name, part in parts.items()}


def start_around(expansion: Mapping[str, Any], num_chains: int, seed: int) -> np.ndarray:
    """Return draws of N(m, H⁻¹), one a chain."""
    center, curvature = np.asarray(expansion["center"]), np.asarray(expansion["curvature"])
    factor = np.linalg.cholesky(np.linalg.inv(curvature))
    return center + np.random.default_rng([seed, 5]).normal(size=(num_chains, len(center))) @ factor.T


def corrected(target: Target, gradient_fn: GradientFn, state: Message, numbers: Numbers, client: Client) -> GradientFn:
    """Return the corrected gradient of one round."""
    center, mean_gradient, mean_curvature = (numbers[f"expansion_{name}"] for name in PARTS)
    shift = mean_gradient - target.gradient(center, client)
    bend = mean_curvature - target.curvature(center, client)

    def corrected_gradient(key: Key, position: Vector, client: Client) -> Vector:
        return gradient_fn(key, position, client) + shift + bend @ (position - center)

    return corrected_gradient


def unless_lost(position: Vector, numbers: Numbers) -> Vector:
    """Return a client's end of a round, or what is not finite if it is further out than any posterior reaches."""
    step = position - numbers["expansion_center"]
    distance = jnp.sqrt(step @ (numbers["expansion_curvature"] @ step))
    return jnp.where(distance <= _LOST * len(step) ** 0.5, position, jnp.nan)
