"""A metric for trajectories, and where to start them: from the surrogate posterior, or from windows of the chain's own.

The surrogate posterior's covariance takes a few rounds of Hessians. Where these are too large to be sent, warm-up
windows of Langevin steps, whose gradients ride along, give a diagonal:  Σ⁻¹_ii = sd(θ_i) / sd(∂_i f),  which is the
variance for independent parameters, and tells of a scale even before the chains have met (as in nutpie).
"""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

import numpy as np

from fahmc.adaptive.bulk import find_bulk
from fahmc.adaptive.inquiry import Inquiry
from fahmc.adaptive.refinement import refine
from fahmc.density.gradient import Gradient
from fahmc.dynamics.evaluation import Evaluation
from fahmc.dynamics.fa_hmc import FAHMC
from fahmc.dynamics.sampler import Phase, PhaseResult

MOST_DENSE = 300
"""Parameters up to which Hessians are asked for."""
_WINDOWS = (10, 20, 40, 80)
_STEP_SIZE = 0.5
_MOST_TRIES = 20


class Metric(NamedTuple):
    """Σ⁻¹ as a matrix or a diagonal, and a start for each chain."""

    inverse_mass_matrix: np.ndarray
    starts: np.ndarray
    skewness: np.ndarray
    """Cov · ∇f(μ) in standard deviations, how far the mode is from the mean; zeros where it is not known."""
    words: str

    @property
    def covariance(self) -> np.ndarray | None:
        """The posterior's covariance, if it is known."""
        return self.inverse_mass_matrix if self.inverse_mass_matrix.ndim == 2 else None


def learn_metric(inquiry: Inquiry, gradient: Gradient) -> Generator[Phase, PhaseResult, Metric]:
    """Ask for what is worth it at this size, and with this gradient."""
    size = max(inquiry.run.dimension, inquiry.run.target.num_seen)
    if gradient.is_exact and size <= MOST_DENSE:
        return (yield from _from_surrogate(inquiry))
    return (yield from _from_windows(inquiry, gradient))


def _from_surrogate(inquiry: Inquiry) -> Generator[Phase, PhaseResult, Metric]:
    run = inquiry.run
    loss = yield from find_bulk(inquiry)
    yield from refine(inquiry, loss)
    evidence, law = inquiry.evidence, inquiry.law
    assert evidence is not None and law is not None
    generator = np.random.default_rng([run.seed, 6])
    normals = generator.normal(size=(run.num_chains, run.dimension))
    mean, covariance = law.position.mean, law.position.covariance
    starts = mean + normals @ law.position.factor.T
    if evidence.passes and evidence.weights.ess > 5 * run.dimension:
        mean, covariance = evidence.mean, evidence.weights.covariance(evidence.positions)
        indices = generator.choice(len(evidence.positions), run.num_chains, p=evidence.weights.values)
        starts = evidence.positions[indices]
    gradient = yield from _gradient_at(inquiry, mean)
    skewness = covariance @ gradient / np.sqrt(np.diag(covariance))
    words = f"The metric is the covariance of the surrogate posterior, learnt in {inquiry.rounds_asked} rounds."
    return Metric(covariance, starts, skewness, words)


def _gradient_at(inquiry: Inquiry, position: np.ndarray) -> Generator[Phase, PhaseResult, np.ndarray]:
    """Ask for ∇f at one position, which all chains have to share."""
    run = inquiry.run
    nothing = np.zeros_like(run.start)
    state = {"position": np.zeros_like(run.start) + position.astype(run.dtype), "gradient": nothing}
    phase = Phase("gradient at the mean", Evaluation(), 1, state={**state, "potential": nothing[:, 0]})
    result = yield from inquiry.ask(phase)
    return np.asarray(result.state["gradient"], np.float64)[0]


def _from_windows(inquiry: Inquiry, gradient: Gradient) -> Generator[Phase, PhaseResult, Metric]:
    run = inquiry.run
    result = yield from inquiry.ask(Phase("first gradient", Evaluation(), 1))
    squares = np.mean(np.asarray(result.state["gradient"], np.float64) ** 2, axis=0)
    # Far from the mode slopes are steep, so this errs on the side of short steps.
    variances = 1 / np.maximum(squares, 1e-3 * np.median(squares) + 1e-300)
    position, step_size = run.start, _STEP_SIZE
    for number, length in enumerate(_WINDOWS):
        for attempt in range(_MOST_TRIES):
            sampler = FAHMC(step_size, 1, gradient=gradient, inverse_mass_matrix=variances, with_gradients=True)
            phase = Phase(
                f"window {number}, {attempt}", sampler, length, length // 4, state={"position": position},
                may_diverge=True,
            )  # fmt: skip
            result = yield from inquiry.ask(phase)
            if not result.has_diverged:
                break
            step_size /= 2
        assert result.gradients is not None
        spread, slope = (
            np.asarray(values, np.float64).std(axis=1).mean(axis=0) for values in (result.positions, result.gradients)
        )
        variances, position = spread / np.maximum(slope, 1e-300), result.state["position"]
        variances = np.maximum(variances, 1e-12 * variances.max())
    many = f"Hessians of {run.dimension} parameters are too large to be sent"
    why = many if gradient.is_exact else "gradients are estimates"
    words = f"The metric is diagonal, from {len(_WINDOWS)} windows of {sum(_WINDOWS)} rounds in all, as {why}."
    return Metric(variances, np.asarray(position, np.float64), np.zeros(run.dimension), words)
