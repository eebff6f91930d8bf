"""What the server asks the sites about their likelihoods: two questions, one round each.

Both are about the loss ℓ(φ) = Σ_c w_c (n / n_c) Σ_{rows z of c} −log p(z | φ) / τ, the negative log likelihood of all
rows, where φ is what the likelihood sees of a position. The prior is the server's own business. Replies are weighted
means, so no site's answer need be seen alone, and symmetric matrices cross as triangles.

`Expansion` asks at a few points φ_i for  ℓ(φ_i) − ℓ(φ_0),  ∇ℓ(φ_i),  ∇²ℓ(φ_i).

`Scatter` asks at many points φ_m = c + F z_m for ℓ(φ_m) − ℓ(c), and for what fits a quadratic to ℓ where they lie: the
means of the whitened gradients γ_m = F′∇ℓ(φ_m) and of the symmetrised γ_m z_m′. The z_m are standard normal or
Student-t; sites make them from the common seed, so that only c and F cross. Points that come from
elsewhere are sent. A few other points ride along, where somebody looks for further modes (`scouts`) or for the
posterior's end (`propriety`): `scouts` ask for derivatives, `probes` for the loss alone.

Differences of losses are summed row by row: with a million rows ℓ itself would have lost its last digits in float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from fahmc import keys
from fahmc.density.target import Target
from fahmc.dynamics.evaluation import UNSEEN, is_seen
from fahmc.dynamics.sampler import ClientRound, Exchange, Field, Phase, Sampler
from fahmc.registry import register
from fahmc.types import ChainKeys, Client, Message, Vector

# Points that a site looks at together: enough to keep the processor busy, few enough to hold their rows' terms.
_TOGETHER = 64
# Up to this size triangles are as good as free, so that points which merely look around ask for them too.
_SMALL = 64


# Where the ways from scouts to the bulk are looked at.
WAY = np.arange(1, 8) / 8


def sends_triangles(size: int) -> bool:
    """Whether scouts ask for curvature, and searches try many points in a round."""
    return size <= _SMALL


def triangle_size(size: int) -> int:
    """Return how many numbers a symmetric matrix has."""
    return size * (size + 1) // 2


def pack(matrix: Any) -> Any:
    """Return the lower triangle as a vector."""
    return matrix[np.tril_indices(matrix.shape[-1])]


def unpack_lower(triangle: Any, size: int) -> Array:
    """Return a lower triangular matrix."""
    return jnp.zeros((size, size), triangle.dtype).at[np.tril_indices(size)].set(triangle)


def unpack_symmetric(triangle: np.ndarray, size: int) -> np.ndarray:
    """Return a symmetric matrix in double precision."""
    lower = np.zeros((size, size))
    lower[np.tril_indices(size)] = triangle
    return lower + np.tril(lower, -1).T


def way_points(scouts: Any) -> Any:
    """Return points on the straight ways from all scouts but the first to the first, flat."""
    steps = (scouts[:1] - scouts[1:])[:, None] * WAY[None, :, None].astype(scouts.dtype)
    return (scouts[1:, None] + steps).reshape(-1, scouts.shape[-1])


class Question(Sampler):
    """A round without chains whose state is the question and, after it, the answer."""

    makes_draws: ClassVar[bool] = False

    def question(self) -> dict[str, Field]:
        """Declare what is sent."""
        raise NotImplementedError

    def answer(self) -> dict[str, Field]:
        """Declare what comes back."""
        raise NotImplementedError

    def exchange(self, dimension: int) -> Exchange:
        """Keep the answers beside the question; they are not sent on."""
        question, answer = self.question(), self.answer()
        kept = {name: field._replace(is_sent=False) for name, field in answer.items()}
        return Exchange(
            state=question | kept,
            reply=answer,
            begin=lambda carried: carried,
            merge=lambda keys, round_index, state, combined: {**state, **combined},
        )

    def ask(self, name: str, dtype: np.dtype, **question: Any) -> Phase:
        """Return the round that asks."""
        empty = {name: np.zeros(field.shape, dtype) for name, field in self.answer().items()}
        return Phase(name, self, 1, state=empty | {name: np.asarray(value, dtype) for name, value in question.items()})

    def _shared(self, **shapes: tuple[int, ...]) -> dict[str, Field]:
        return {name: Field(shape, per_chain=False) for name, shape in shapes.items()}


@register("sampler", "_expansion")
@dataclass(frozen=True)
class Expansion(Question):
    """Ask for loss, gradient and curvature at a few points."""

    size: int
    num_points: int

    def question(self) -> dict[str, Field]:
        """Send the points."""
        return self._shared(points=(self.num_points, self.size))

    def answer(self) -> dict[str, Field]:
        """Get the loss, compared with the first point's, and its derivatives."""
        count, size = self.num_points, self.size
        return self._shared(loss=(count,), gradient=(count, size), curvature=(count, triangle_size(size)))

    def build(self, target: Target) -> ClientRound:
        """Differentiate twice at every point."""

        def client_round(chain_keys, round_index, state, numbers, client) -> Message:
            loss = _loss_fn(target, client)
            first = target.seen_losses(state["points"][0], client)

            def at(point: Vector) -> Message:
                value, gradient = jax.value_and_grad(loss)(point, first)
                curvature = pack(jax.hessian(loss)(point, first))
                return _finite({"loss": value, "gradient": gradient, "curvature": curvature})

            return lax.map(at, state["points"])

        return client_round

    def row_gradients(self, sizes: np.ndarray) -> float:
        """Count a gradient and a Hessian, which costs one gradient a column, at every point."""
        return float(sizes.sum()) * self.num_points * (1 + self.size)


@register("sampler", "_scatter")
@dataclass(frozen=True)
class Scatter(Question):
    """Ask for the loss at many points, and for the quadratic that fits it there.

    Parameters
    ----------
    degrees
        Of freedom of the Student-t from which points come, an even number; 0 for the normal law.
    is_sent
        Whether the points are sent instead of made.
    wants_fit
        Whether gradients are asked for as well.
    num_scouts
        Further points, at which the loss and its gradient are told, and where triangles are small the curvature; of the
        ways from them to the first one (`way_points`) the loss is told.
    num_probes
        Further points, at which only the loss is told.
    """

    size: int
    num_points: int
    degrees: int = 0
    is_sent: bool = False
    wants_fit: bool = True
    num_scouts: int = 0
    num_probes: int = 0

    def question(self) -> dict[str, Field]:
        """Send centre and factor, or points, which have a centre and a factor too."""
        points = {"points": (self.num_points, self.size)} if self.is_sent else {}
        factor = {"factor": (triangle_size(self.size),)} if self.wants_fit or not self.is_sent else {}
        others = {"scouts": self.num_scouts, "probes": self.num_probes}
        others = {name: (count, self.size) for name, count in others.items() if count}
        return self._shared(center=(self.size,), **factor, **points, **others)

    def answer(self) -> dict[str, Field]:
        """Get the losses, what fits a quadratic, and what the scouts see."""
        size, scouts = self.size, self.num_scouts
        fit = {"slope": (size,), "bend": (triangle_size(size),)} if self.wants_fit else {}
        seen: dict[str, tuple[int, ...]] = {}
        if scouts:
            seen = {"scout_loss": (scouts,), "scout_gradient": (scouts, size), "way_loss": ((scouts - 1) * len(WAY),)}
        if scouts and sends_triangles(size):
            seen["scout_curvature"] = (scouts, triangle_size(size))
        if self.num_probes:
            seen["probe_loss"] = (self.num_probes,)
        return self._shared(loss=(self.num_points,), **fit, **seen)

    def points(self, directions: Array | None, state: Message) -> Float[Array, "point size"]:
        """Return φ_m."""
        if directions is None or self.is_sent:
            return state["points"]
        return state["center"][None] + directions @ unpack_lower(state["factor"], self.size).T

    def directions(self, chain_keys: ChainKeys, state: Message) -> Float[Array, "point size"]:
        """Return z_m, such that φ_m = c + F z_m, at the sites and at the server alike."""
        dtype = state["center"].dtype
        if self.is_sent:
            factor = unpack_lower(state["factor"], self.size)
            return jax.scipy.linalg.solve_triangular(factor, (state["points"] - state["center"][None]).T, lower=True).T
        z = jax.random.normal(keys.shared_noise(chain_keys, 0), (self.num_points, self.size), dtype)
        if self.degrees:
            # χ² of an even number of degrees is a sum of exponentials: no rejection, so that machines cannot disagree.
            shape = (self.num_points, self.degrees // 2)
            chi_square = 2 * jax.random.exponential(keys.shared_noise(chain_keys, 1), shape, dtype).sum(axis=1)
            z = z / jnp.sqrt(chi_square / self.degrees)[:, None]
        return z

    def build(self, target: Target) -> ClientRound:
        """Look at all points."""

        def client_round(chain_keys, round_index, state, numbers, client) -> Message:
            loss = _loss_fn(target, client)
            first = target.seen_losses(state["center"], client)
            directions = self.directions(chain_keys, state) if "factor" in state else None
            points = self.points(directions, state)
            reply: Message = {}

            def loss_alone(point: Vector) -> Array:
                value = loss(point, first)
                return jnp.where(is_seen(value), value, UNSEEN)

            if self.wants_fit:
                factor = unpack_lower(state["factor"], self.size)

                def at(point: Vector) -> Message:
                    value, gradient = jax.value_and_grad(loss)(point, first)
                    return _finite({"loss": value, "gradient": gradient})

                seen = lax.map(at, points, batch_size=_TOGETHER)
                slopes = seen["gradient"] @ factor  # the rows are F′∇ℓ
                product = slopes.T @ directions / self.num_points  # type: ignore
                reply |= {"loss": seen["loss"], "slope": slopes.mean(axis=0), "bend": pack((product + product.T) / 2)}
            else:
                reply["loss"] = lax.map(loss_alone, points, batch_size=_TOGETHER)
            if self.num_scouts:

                def scout(point: Vector) -> Message:
                    value, gradient = jax.value_and_grad(loss)(point, first)
                    seen = {"loss": value, "gradient": gradient}
                    if sends_triangles(self.size):
                        seen["curvature"] = pack(jax.hessian(loss)(point, first))
                    return _finite(seen)

                reply |= {f"scout_{name}": value for name, value in lax.map(scout, state["scouts"]).items()}
                reply["way_loss"] = lax.map(loss_alone, way_points(state["scouts"]))
            if self.num_probes:
                reply["probe_loss"] = lax.map(loss_alone, state["probes"])
            return reply

        return client_round

    def row_gradients(self, sizes: np.ndarray) -> float:
        """Count a gradient at every point, and one a column of a Hessian; a loss alone counts as one too."""
        each = 1 + len(WAY) + (self.size if sends_triangles(self.size) else 0)
        return float(sizes.sum()) * (self.num_points + each * self.num_scouts + self.num_probes)


def _loss_fn(target: Target, client: Client) -> Any:
    """Return (φ, the rows' losses at the first point) -> (n / n_c) Σ_rows (loss at φ − loss there)."""

    def loss(seen: Vector, first: Float[Array, " row"]) -> Float[Array, ""]:
        return client.scale * jnp.sum(target.seen_losses(seen, client) - first)

    return loss


def _finite(answer: Message) -> Message:
    """Return an answer as it is, or one that says that nothing is known here."""
    is_in_range = jnp.stack([(jnp.abs(value) < UNSEEN).all() for value in answer.values()]).all()
    is_known = is_in_range & is_seen(answer["loss"])
    return {
        name: jnp.where(is_known, value, UNSEEN if name == "loss" else 0).astype(value.dtype)
        for name, value in answer.items()
    }
