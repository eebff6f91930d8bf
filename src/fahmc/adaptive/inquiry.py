"""What a run learns of a posterior, round by round, and what the server makes of it by itself."""

from __future__ import annotations

from collections.abc import Generator
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fahmc import tree
from fahmc.adaptive.knowledge import Knowledge
from fahmc.adaptive.nuts import Nuts
from fahmc.adaptive.propriety import improper
from fahmc.adaptive.questions import Scatter
from fahmc.adaptive.scouts import Scouts
from fahmc.adaptive.surrogate import Gaussian, Quadratic, gaussian_posterior
from fahmc.adaptive.weights import K_HAT_LIMIT, Weights, smoothed
from fahmc.density.supports import present
from fahmc.dynamics.evaluation import is_seen
from fahmc.dynamics.sampler import Outcome, Phase, PhaseResult
from fahmc.engines.run import Run, first_chain
from fahmc.errors import ModelError
from fahmc.report.convergence import ess, max_r_hat

# Points for every effective draw that is wanted: means are then good to a few hundredths of a standard deviation.
_POINTS_PER_DRAW = 10
# The share of points that must be effective. With a quarter, light tails of the proposal passed twice by luck.
_PASS = 0.5
_SERVER_CHAINS = 8
# NUTS steps for every point that is sent, more where points are worth less than this: they cost no message.
_SERVER_THIN, _MOST_SERVER_THIN, _SERVER_SHARE = 4, 32, 0.5
_SERVER_R_HAT = 1.02
_MANY_DIVERGENCES = 0.01
# Differences of log weights that double precision can still tell from infinite.
_LOWEST = 700.0


class OutOfRounds(Exception):
    """No more may be asked."""


class Law(NamedTuple):
    """A surrogate posterior."""

    position: Gaussian
    """Of θ; where ``drawn`` is given, only its moments."""
    seen: Gaussian
    """Of φ, likewise."""
    drawn: np.ndarray | None
    """[chain, draw, dim]: draws by NUTS, where it is not Gaussian."""


class Evidence(NamedTuple):
    """Points, and what they are worth."""

    positions: np.ndarray
    log_weights: np.ndarray
    """As they are; −∞ where nothing could be seen."""
    weights: Weights
    """Smoothed."""
    share: float = 1.0
    """Effective draws a point, were it not for the weights: below 1 where NUTS made them."""

    @property
    def ess(self) -> float:
        """Effective draws."""
        return self.weights.ess * self.share

    @property
    def passes(self) -> bool:
        """Whether averages can be trusted."""
        return self.weights.k_hat < K_HAT_LIMIT and self.weights.ess > _PASS * len(self.positions)

    @property
    def mean(self) -> np.ndarray:
        """The posterior mean."""
        return self.weights.mean(self.positions)

    @property
    def errors(self) -> np.ndarray:
        """Its Monte Carlo standard error."""
        return self.weights.errors(self.positions) / np.sqrt(self.share)

    def agrees(self, other: Evidence) -> bool:
        """Whether two rounds have the same means, up to Monte Carlo error (a false alarm in 10⁵ a coordinate)."""
        return bool(np.all(np.abs(self.mean - other.mean) <= 4.5 * np.hypot(self.errors, other.errors)))


class Inquiry:
    """The server's notes in one run."""

    def __init__(self, run: Run, target_ess: int, max_rounds: int, budget_bytes: float | None = None):
        self.run, self.knowledge = run, Knowledge(run.target, run.start[0])
        self.target_ess, self.max_rounds, self.budget_bytes = target_ess, max_rounds, budget_bytes
        self.num_points = max(_POINTS_PER_DRAW * target_ess, 4 * run.target.num_seen) // 8 * 8
        self.rounds_asked, self.bytes_spent = 0, 0
        self.evidence: Evidence | None = None
        self.law: Law | None = None
        self.loss: Quadratic | None = None
        """The best so far."""
        self.prior: Quadratic | None = None
        """Of φ, as scouts take it."""
        self.scouts: Scouts | None = None
        self.is_settled = False
        self.choices: list[str] = []
        self.doubts: list[str] = []
        self.trace: list[dict[str, float]] = []
        self._server_starts = np.asarray(run.start, np.float64)
        self._nuts: Nuts | None = None
        self._server_thin = _SERVER_THIN

    @property
    def is_gaussian(self) -> bool:
        """Whether surrogates are Gaussian."""
        return self.knowledge.affine is not None

    def ask(self, phase: Phase) -> Generator[Phase, PhaseResult, PhaseResult]:
        """Ask the sites, as long as rounds and bytes are left."""
        spent = self.bytes_spent + phase.num_rounds * sum(self.run.message_bytes(phase).values())
        if self.rounds_asked + phase.num_rounds > self.max_rounds:
            raise OutOfRounds(f"max_rounds = {self.max_rounds} is used up")
        if self.budget_bytes is not None and spent > self.budget_bytes:
            raise OutOfRounds(f"budget_bytes = {self.budget_bytes:,.0f} is used up")
        course = {"choices": list(self.choices), "trace": list(self.trace)}
        result = yield phase._replace(course=course)
        self.rounds_asked, self.bytes_spent = self.rounds_asked + result.num_rounds, spent
        return result

    def law_of(self, loss: Quadratic, is_rough: bool = False) -> Law:
        """Return the surrogate posterior for a quadratic loss: computed, or drawn by NUTS, roughly for its moments."""
        knowledge, drawn = self.knowledge, None
        if self.is_gaussian:
            position = gaussian_posterior(knowledge, loss)
        else:
            drawn = self._draw(loss, 1 if is_rough else self._server_thin)
            position = Gaussian.of(drawn.reshape(-1, drawn.shape[-1]))
        if knowledge.is_identity or position is None:
            seen = position
        elif drawn is None:
            affine = knowledge.affine
            assert affine is not None
            mean = affine.jacobian @ position.mean + affine.offset
            seen = Gaussian.from_moments(mean, affine.jacobian @ position.covariance @ affine.jacobian.T)
        else:
            seen = Gaussian.of(knowledge.views(drawn.reshape(-1, drawn.shape[-1])))
        if position is None or seen is None:
            raise improper("the rows leave a combination of the parameters free")
        return Law(position, seen, drawn)

    def prior_of(self, law: Law, loss: Quadratic) -> Quadratic:
        """Return the prior of φ as a Gaussian potential: itself, or what makes the surrogate's moments of the loss."""
        precision = np.linalg.inv(law.seen.covariance)
        slope = -loss.gradient - loss.curvature @ (law.seen.mean - loss.center)
        return Quadratic(law.seen.mean, slope, precision - loss.curvature)

    def send_scouts(self, law: Gaussian) -> Scouts:
        """Have scouts on their way; anew where the bulk has moved."""
        if self.scouts is None or self.scouts.has_lost(law):
            self.scouts = Scouts.set_out(law, self.starts_seen, self.run.seed)
        return self.scouts

    @property
    def are_searching(self) -> bool:
        """Whether some scouts are still on their way."""
        return self.scouts is not None and bool(self.scouts.are_walking.any())

    @cached_property
    def starts_seen(self) -> np.ndarray:
        """What the likelihood sees of the chains' starts."""
        return self.knowledge.views(np.asarray(self.run.start, np.float64))

    def _draw(self, loss: Quadratic, thin: int) -> np.ndarray:
        if self._nuts is None:
            self._nuts = Nuts(self.knowledge, _SERVER_CHAINS, self.num_points // _SERVER_CHAINS)
        starts = self._server_starts[np.arange(_SERVER_CHAINS) % len(self._server_starts)]
        drawn = self._nuts.draw(loss, starts, thin, seed=self.run.seed + self.rounds_asked)
        self._server_starts = drawn.positions[:, -1]
        self.server_divergences = drawn.num_divergences / (thin * drawn.positions[..., 0].size)
        return drawn.positions

    def made(self, question: Scatter, phase: Phase, result: PhaseResult) -> tuple[np.ndarray, np.ndarray]:
        """Return the directions z and the points φ of a question, as the sites made them, in double precision."""
        state = {name: jnp.asarray(value) for name, value in result.state.items()}
        chain_keys = first_chain(jax.tree.map(jax.random.clone, self.run.chain_keys(phase)))
        directions = question.directions(chain_keys, state) if "factor" in state else None
        points = question.points(directions, state)
        return np.asarray(directions, np.float64), np.asarray(points, np.float64)

    def weigh(self, positions: np.ndarray, log_weights: np.ndarray, losses: np.ndarray, share: float = 1.0) -> Evidence:
        """Make weights, and note what came of them."""
        log_weights = np.where(is_seen(losses) & np.isfinite(log_weights), log_weights, -np.inf)
        if not np.isfinite(log_weights).any():
            raise ModelError(
                "Neither likelihood nor prior is finite where their own expansion puts the posterior. Look for "
                "overflow and log(0) in the model's functions."
            )
        floored = np.maximum(log_weights, log_weights.max() - _LOWEST)
        self.evidence = Evidence(positions, log_weights, smoothed(floored), share)
        self.trace.append(
            {"round": self.rounds_asked, "k_hat": _finite(self.evidence.weights.k_hat), "ess": self.evidence.ess}
        )
        return self.evidence

    def server_share(self, drawn: np.ndarray | None) -> float:
        """Return the smallest effective size of NUTS's draws as a share of them; note what is wrong with them."""
        if drawn is None:
            return 1.0
        self.doubts = [doubt for doubt in self.doubts if "NUTS" not in doubt]
        if (worst := max_r_hat({"drawn": drawn})) > _SERVER_R_HAT:
            self.doubts.append(
                f"NUTS at the server did not mix on the surrogate posterior (R-hat {worst:.2f}); write the model in "
                "other coordinates, such as a non-centred hierarchy."
            )
        elif self.server_divergences > _MANY_DIVERGENCES:
            self.doubts.append(
                f"{100 * self.server_divergences:.1f} % of NUTS's trajectories at the server diverged; write the model "
                "in other coordinates, such as a non-centred hierarchy."
            )
        sizes = [np.min(ess({"drawn": drawn}, method=method)["drawn"]) for method in ("bulk", "sd")]
        share = float(min(1.0, min(sizes) / drawn[..., 0].size))
        if share < _SERVER_SHARE:
            self._server_thin = min(2 * self._server_thin, _MOST_SERVER_THIN)
        return share

    def outcome(self) -> Outcome:
        """Resample the points by weight, and tell what is known of them."""
        run, evidence = self.run, self.evidence
        assert evidence is not None
        count = _POINTS_PER_DRAW * self.target_ess // run.num_chains
        indices = evidence.weights.resample(count * run.num_chains, np.random.default_rng([run.seed, 4]))
        positions = evidence.positions[indices].reshape(run.num_chains, count, -1)
        log_weights = np.log(evidence.weights.values[indices] * len(evidence.positions)).reshape(run.num_chains, count)
        # What is known of every quantity that is presented: points and their weights tell it of any function.
        presented = present(run.model, run.target.template, np.asarray(evidence.positions, np.float64))
        values = tree.flatten_draws(presented, batch_ndim=1)
        worth, scale = evidence.weights, np.sqrt(evidence.share)
        variances, errors = worth.mean((values - worth.mean(values)) ** 2), worth.errors(values) / scale
        with np.errstate(invalid="ignore"):  # of a constant, such as the zeros of a triangular matrix
            sizes, sd_errors = variances / errors**2, worth.sd_errors(values) / scale
        weights = {
            "k_hat": _finite(worth.k_hat),
            "ess": sizes.tolist(),
            "mcse": errors.tolist(),
            "mcse_sd": sd_errors.tolist(),
            "num_points": len(evidence.positions),
        }
        stats = {"log_weight": log_weights.astype(run.dtype)}
        return Outcome(positions.astype(run.dtype), stats, self.account() | {"weights": weights})

    def account(self) -> dict[str, Any]:
        """Return what was decided and what is doubted."""
        remarks, doubts = ([], []) if self.scouts is None else self.scouts.findings()
        return {"choices": [*self.choices, *remarks], "doubts": [*self.doubts, *doubts], "trace": self.trace}


def _finite(k_hat: float) -> float:
    """Write k̂ for JSON, which knows no infinity."""
    return float(np.clip(k_hat, -99.0, 99.0))
