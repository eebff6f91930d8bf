"""The way from the start to where the posterior is: Newton's method, with several steps tried in one round.

At φ the loss is expanded, the surrogate posterior of that expansion has some mean and covariance, and with them a
Gaussian that stands for the prior:  Λ = Cov⁻¹ − H,  h such that mean is where the gradient vanishes (for a Gaussian
prior: that prior). Candidates for the next φ are the minima of the sum, damped by λ as Levenberg and Marquardt do, all
expanded in one round; the best is kept. The end is a full step shorter than about one standard deviation.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from fahmc.adaptive.inquiry import Inquiry
from fahmc.adaptive.propriety import check_curvature
from fahmc.adaptive.questions import Expansion, is_seen, sends_triangles, unpack_symmetric
from fahmc.adaptive.surrogate import Quadratic
from fahmc.dynamics.sampler import Phase, PhaseResult
from fahmc.errors import ModelError

# Damping of the candidates, as a multiple of the curvature's diagonal; many where triangles are small.
_DAMPINGS = (0.0, 0.1, 1.0, 10.0, 100.0, 1000.0)
# The squared length of a full step, in standard deviations, at which the search ends.
_CLOSE = 1.0
_MOST = 40


def num_candidates(size: int) -> int:
    """Return how many points a round expands."""
    return len(_DAMPINGS) if sends_triangles(size) else 3


def find_bulk(inquiry: Inquiry) -> Generator[Phase, PhaseResult, Quadratic]:
    """Search from the chains' starts; return the loss, expanded where the posterior is."""
    run, knowledge = inquiry.run, inquiry.knowledge
    size, count = run.target.num_seen, num_candidates(run.target.num_seen)
    question = Expansion(size, count)
    starts = np.asarray(run.start, np.float64)
    starts = np.concatenate([starts.mean(axis=0, keepdims=True), starts])[np.arange(count) % (len(starts) + 1)]
    points, priors = knowledge.views(starts), knowledge.priors(starts)
    best: Quadratic | None = None
    dampings = np.array(_DAMPINGS[:count])
    for step in range(_MOST):
        result = yield from inquiry.ask(question.ask(f"search {step}", run.dtype, points=points))
        answer = {name: np.asarray(value, np.float64) for name, value in result.state.items()}
        merits = np.where(is_seen(answer["loss"]), answer["loss"] + priors, np.inf)
        if not np.isfinite(merits).any():
            raise ModelError(
                "The log likelihood is not finite where the chains start, nor near it. Start elsewhere (init), or look "
                "for log(0) and overflow in loglikelihood_fn."
            )
        choice = int(np.argmin(merits))
        if best is not None and choice == 0:  # the point from which the last step set out
            dampings = dampings * 1000.0 + 1000.0
        else:
            dampings = np.array(_DAMPINGS[:count])
        curvature = unpack_symmetric(answer["curvature"][choice], size)
        best = Quadratic(answer["points"][choice], answer["gradient"][choice], curvature)
        convex = best.convex()
        law = inquiry.law_of(convex).seen
        precision = np.linalg.inv(law.covariance)
        whole = law.mean - best.center
        if whole @ precision @ whole <= _CLOSE * max(1.0, 0.05 * size):
            check_curvature(knowledge, precision, run.dtype)
            return convex
        prior_curvature = precision - convex.curvature
        # The Gaussian prior's gradient at the centre, from where the law's mean lies.
        prior_slope = -convex.gradient - precision @ whole
        metric = np.diag(np.diag(precision))
        steps = [
            -np.linalg.solve(precision + damping * metric, convex.gradient + prior_slope) for damping in dampings[:-1]
        ]
        points = best.center + np.array([np.zeros(size), *steps])
        moves = points - best.center
        priors = moves @ prior_slope + 0.5 * np.einsum("ij,ij->i", moves @ prior_curvature, moves)
    assert best is not None
    inquiry.doubts.append(f"The search for the posterior's bulk had not ended after {_MOST} rounds.")
    return best.convex()
