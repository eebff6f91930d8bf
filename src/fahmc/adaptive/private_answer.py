"""What a private run asks the sites: the score and the information of a logistic regression at a point, with noise.

Rows are written by public bounds alone: u = ((x − m) / h, 1) with m and h middle and half of the bounds, so that
|u_j| ≤ 1; what is out of bounds is put on them, and what is longer than a public radius r is shrunk to it. At a point θ
of the coefficients of u, with p = σ(u′θ),

    score        g = Σ_rows (p − y) u                       (the gradient of −log likelihood)
    information  A = Σ_rows p (1 − p) u u′

How far these move if one row is replaced is known from bounds, r and θ (`diameter`, `information_diameter`), so every
site can work it out before it answers. Contributions of rows are rounded to a grid first: their sum is exact, in any
order, and no digit of it depends on rounding.

Logistic regression it is because its rows' scores and informations are bounded whatever the outcome and the
coefficients are: |p − y| ≤ 1 and p (1 − p) ≤ 1/4. `UNBOUNDED` says what other families lack.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fahmc import door
from fahmc.adaptive.questions import Question, triangle_size
from fahmc.data.federation import Federation
from fahmc.density.model import Model
from fahmc.density.target import Target
from fahmc.dynamics.sampler import ClientRound, Exchange, Field, Release
from fahmc.errors import ModelError, SettingsError
from fahmc.hints import Positive
from fahmc.registry import register
from fahmc.types import Client, Message, Numbers, Vector

Bounds = Sequence[float]
"""Two numbers, [low, high]."""
Noise = Literal["own", "shared"]

GRID = 2.0**-24
_CELLS = 512
# What rounding in double precision adds to a bound, many times over.
_SLACK = 1 + 1e-9
FAMILY = "logistic_regression"
UNBOUNDED = {
    "binomial_regression": "its score grows with the row's trials",
    "poisson_regression": "its score grows with the count, and its information with exp of the predictor",
    "linear_regression": "its score grows with the outcome, and in sigma with its square",
    "student_t_regression": "its information can be negative, and its score in sigma is that of a scale",
    "softmax_regression": "its information is zero along a shift of all classes, where noise cannot be told from it",
    "ordered_regression": "its score grows without bound as two thresholds meet",
    "exponential_survival": "its score grows with time and with exp of the predictor",
    "piecewise_exponential": "its score grows with time and with exp of the predictor",
    "mlp": "its score grows with its weights",
}
_SCALE = "it has a parameter of scale or shape, in which its score has no bound"


@register("sampler", "_private_answer")
@dataclass(frozen=True)
class PrivateAnswer(Question):
    """Ask once for score and information, with noise.

    Parameters
    ----------
    bounds
        Of every column of x, as all sites have them.
    has_intercept
        Whether the model has one; without, columns are scaled by their bounds but not centred.
    radius
        r.
    mu_score, mu_information, mu_left
        What the two cost a row, and what the run costs from here on.
    noise
        ``"own"``: every site adds all the noise that its own reply needs. ``"shared"``: the sum over sites has it.
    """

    bounds: Sequence[Bounds]
    has_intercept: bool
    radius: Positive
    mu_score: Positive
    mu_information: Positive
    mu_left: Positive
    noise: Noise = "own"
    NUMBERS: ClassVar[tuple[str, ...]] = ("mu_score", "mu_information", "mu_left")

    def __post_init__(self):
        door.check(self)
        object.__setattr__(self, "bounds", [[low, high] for low, high in self.bounds])

    @property
    def size(self) -> int:
        """Length of u."""
        return len(self.bounds) + self.has_intercept

    def question(self) -> dict[str, Field]:
        """Send θ."""
        return self._shared(point=(self.size,))

    def answer(self) -> dict[str, Field]:
        """Get g, and of A the triangle that has its Frobenius norm."""
        fields = self._shared(score=(self.size,), information=(triangle_size(self.size),))
        return {name: field._replace(combine="sum") for name, field in fields.items()}

    def exchange(self, dimension: int) -> Exchange:
        """Declare the noise with the messages."""
        mu = float(np.hypot(self.mu_score, self.mu_information))
        release = Release(mu, self.deviations, GRID, max(mu, self.mu_left), is_shared=self.noise == "shared")
        return super().exchange(dimension)._replace(release=release)

    def deviations(self, broadcast: Message, numbers: Numbers, num_clients: int) -> dict[str, Any]:
        """Return the standard deviation of each field's noise: its sensitivity over μ."""
        share = num_clients**-0.5 if self.noise == "shared" else 1.0
        score, information = _diameter(jnp.asarray(broadcast["point"]), self.radius), information_diameter(self.radius)
        # Every number of both rows may have been rounded by half a grid step.
        score, information = (
            bound * _SLACK + GRID * size**0.5
            for bound, size in ((score, self.size), (information, triangle_size(self.size)))
        )
        bounds = {"score": score, "information": information}
        return {name: share * bound / numbers[f"mu_{name}"] for name, bound in bounds.items()}

    def build(self, target: Target) -> ClientRound:
        """Sum over rows; padding counts for nothing."""
        check_family(target.model)

        def client_round(chain_keys, round_index, state, numbers, client) -> Message:
            point = state["point"]
            if point.dtype != np.float64:
                raise SettingsError("a private run sums on a grid, which takes dtype='float64'.")
            u = self.scaled(client)
            p = jax.nn.sigmoid(u @ point)
            scores = (p - jnp.clip(client.rows["y"].astype(u.dtype), 0, 1))[:, None] * u
            informations = triangles(u * (p * (1 - p))[:, None], u)
            return {"score": _exact_sum(scores, client), "information": _exact_sum(informations, client)}

        return client_round

    def scaled(self, client: Client) -> Float[Array, "row size"]:
        """Return u of every row: within bounds, and no longer than r."""
        middle, half = self.scales
        x = client.rows["x"].astype(middle.dtype)
        u = jnp.clip((x - middle[None]) / half[None], -1, 1)
        if self.has_intercept:
            u = jnp.concatenate([u, jnp.ones_like(u[:, :1])], axis=1)
        length = jnp.linalg.norm(u, axis=1, keepdims=True)
        return u * jnp.minimum(1.0, self.radius / jnp.maximum(length, 1e-9))

    def deviations_at(self, point: Any, num_clients: int) -> tuple[float, float]:
        """Return the standard deviations of the noise in the sums over all sites."""
        point = np.asarray(point, np.float64)
        with jax.enable_x64(True):
            deviations = self.deviations({"point": point}, self.numbers(point, point.dtype), num_clients)
        score, information = (num_clients**0.5 * float(deviations[name]) for name in ("score", "information"))
        return score, information

    @property
    def scales(self) -> tuple[np.ndarray, np.ndarray]:
        """Middle and half of every column's bounds, m and h."""
        low, high = np.asarray(self.bounds, np.float64).reshape(-1, 2).T
        if self.has_intercept:
            return (low + high) / 2, (high - low) / 2
        return np.zeros_like(low), np.maximum(np.abs(low), np.abs(high))

    def check(self, federation: Federation) -> None:
        """Refuse rows that hold more than x and y, or columns without bounds."""
        check_rows(federation, len(self.bounds))

    def row_gradients(self, sizes: np.ndarray) -> float:
        """Count a gradient and an outer product, one gradient a column."""
        return float(sizes.sum()) * (1 + self.size)


def diameter(point: Vector, radius: float) -> Any:
    """Bound |g(data) − g(data with one row replaced)| at a point: how far two rows' scores can be apart.

    With the sign of y taken into u, a row contributes σ(t) w, where t = −θ′w, |w_j| ≤ 1 and |w| ≤ r. Let two rows
    contribute aw and bw′, a = σ(t), b = σ(t′), q = a + b. Then q ≤ 2σ(B) with B = (t + t′) / 2 = −θ′(w + w′) / 2: rows
    can both be badly wrong only as far as they agree where θ is large.

    - By the box: |aw_j − bw′_j|² is convex in both, so that a bound on its sum is reached at corners, where columns
      agree, and give (a − b)² ≤ (2 − q)², or are opposite, and give q². To reach B, at least k(B) columns agree, the
      largest |θ_j| first. So |aw − bw′|² ≤ k(B)(2 − q)² + (d − k(B)) q².
    - By the ball: 2w′w′' = |w + w′|² − |w|² − |w′|² and |w + w′| ≥ 2B / |θ|, so that, as ab ≥ q − 1,
      |aw − bw′|² ≤ r²q² − 4(q − 1)B² / |θ|².

    The smaller holds, at every B from 0 to its largest, on cells whose ends bound what is between. Where q ≤ 1 both are
    below min(d, r²).
    """
    size = point.shape[0]
    length = jnp.maximum(jnp.linalg.norm(point), 1e-300)
    largest = -jnp.sort(-jnp.abs(point))
    reached = jnp.concatenate([jnp.zeros(1, point.dtype), jnp.cumsum(largest)])
    most = jnp.minimum(reached[-1], radius * length)
    B = most * jnp.linspace(0.0, 1.0, _CELLS + 1, dtype=point.dtype)
    low, q_low, q = B[:-1], 2 * jax.nn.sigmoid(B[:-1]), 2 * jax.nn.sigmoid(B[1:])
    agreeing = jnp.interp(low, reached, jnp.arange(size + 1, dtype=point.dtype))
    box = jnp.maximum(*(agreeing * (2 - end) ** 2 + (size - agreeing) * end**2 for end in (q_low, q)))
    ball = radius**2 * q**2 - 4 * (q_low - 1) * (low / length) ** 2
    least = min(float(size), radius**2)
    return jnp.sqrt(jnp.maximum(least, jnp.minimum(box, ball).max()))


_diameter = jax.jit(diameter, static_argnums=1)


def information_diameter(radius: float) -> float:
    """Bound the Frobenius norm of the change of A: √2 r² / 4, as |auu′ − bvv′|² = a²|u|⁴ + b²|v|⁴ − 2ab(u′v)²."""
    return 2**0.5 * radius**2 / 4


def triangles(left: Any, right: Any) -> Any:
    """Return of each row's left right′, [row, size], the lower triangle as a vector of its norm; it is symmetric."""
    rows, columns = np.tril_indices(left.shape[1])
    return left[:, rows] * right[:, columns] * np.where(rows == columns, 1.0, 2**0.5)[None]


def matrix_of(triangle: np.ndarray, size: int) -> np.ndarray:
    """Return the symmetric matrix whose triangle this is."""
    rows, columns = np.tril_indices(size)
    matrix = np.zeros((size, size))
    matrix[rows, columns] = triangle / np.where(rows == columns, 1.0, 2**0.5)
    return matrix + np.tril(matrix, -1).T


def _exact_sum(contributions: Float[Array, "row number"], client: Client) -> Array:
    """Sum contributions, each rounded to the grid: whole numbers below 2⁵³, whose sum no order changes."""
    is_row = (client.row_weights > 0)[:, None]
    return GRID * jnp.sum(jnp.where(is_row, jnp.rint(contributions / GRID), 0.0), axis=0)


def check_family(model: Model) -> None:
    """Refuse models of whose rows no public number bounds score and information."""
    recipe = dict(model.recipe or {})
    name = recipe.get("name")
    if name is None:
        raise ModelError(
            f"A private run bounds what each row contributes, which is worked out for {FAMILY} alone; this model is "
            "one of your own."
        )
    if name != FAMILY:
        raise ModelError(
            f"A private run needs rows whose score and information public bounds hold down, as in {FAMILY}. {name} is "
            f"not such a model: {UNBOUNDED.get(str(name), _SCALE)}."
        )
    if model.is_by_site or model.together:
        raise ModelError(
            "A private run takes no site_effects: an effect of each site is a parameter of few rows, which the noise "
            "drowns. Leave them out."
        )
    if model.temperature != 1:
        raise ModelError(f"A private run draws from the posterior itself: temperature = {model.temperature:g} is not.")


def check_rows(federation: Federation, num_columns: int) -> None:
    """Refuse rows that hold more than x and y, or columns without bounds."""
    rows = federation.rows[0]
    if not isinstance(rows, dict) or set(rows) != {"x", "y"}:
        held = ", ".join(map(str, rows)) if isinstance(rows, dict) else type(rows).__name__
        raise ModelError(
            f"A private run takes rows of x and y, but these hold {held}: an offset or a weight is a number of a row "
            "for which there is no public bound. Leave it out."
        )
    if rows["x"].shape[1] != num_columns:
        raise SettingsError(
            f"There are bounds for {num_columns} columns, but x has {rows['x'].shape[1]}. Give [low, high] for each."
        )
