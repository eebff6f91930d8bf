"""The way from the start to where the posterior is: Newton's method, with several steps tried in one round.

At φ the loss is expanded, the surrogate posterior of that expansion has some mean and covariance, and with them a
Gaussian that stands for the prior:  Λ = Cov⁻¹ − H,  h such that mean is where the gradient vanishes (for a Gaussian
prior: that prior). Candidates for the next φ lie on the way to the minimum of the sum, or are damped as Levenberg and
Marquardt do, all expanded in one round; the best is kept. The end is a full step shorter than about one standard
deviation.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from fahmc.adaptive.inquiry import Inquiry
from fahmc.adaptive.propriety import check_curvature
from fahmc.adaptive.questions import Expansion, sends_triangles, unpack_symmetric
from fahmc.adaptive.surrogate import Quadratic
from fahmc.dynamics.evaluation import is_seen
from fahmc.dynamics.sampler import Phase, PhaseResult
from fahmc.errors import ModelError

# Candidates for the next point: shares of a full step, and full steps damped by a multiple of the curvature's diagonal;
# more where triangles are small. Shares do not mind columns in unlike units that nearly determine each other.
_SHARES, _DAMPINGS = (1.0, 0.4, 0.1), (0.1, 10.0)
_FEW_SHARES = (1.0, 0.3)
# How much shorter steps are tried next, when all of a round went too far.
_SHORTER = 0.02
# The squared length of a full step, in standard deviations, at which the search ends.
_CLOSE = 1.0
_MOST = 40


def num_candidates(size: int) -> int:
    """Return how many points a round expands: where it stands, and where it may go."""
    return 1 + (len(_SHARES) + len(_DAMPINGS) if sends_triangles(size) else len(_FEW_SHARES))


def find_bulk(inquiry: Inquiry) -> Generator[Phase, PhaseResult, Quadratic]:
    """Search from the chains' starts; return the loss, expanded where the posterior is."""
    run, knowledge = inquiry.run, inquiry.knowledge
    size, count = run.target.num_seen, num_candidates(run.target.num_seen)
    question = Expansion(size, count)
    starts = np.asarray(run.start, np.float64)
    starts = np.concatenate([starts.mean(axis=0, keepdims=True), starts])[np.arange(count) % (len(starts) + 1)]
    points, priors = knowledge.views(starts), knowledge.priors(starts)
    best: Quadratic | None = None
    reach = 1.0
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
        # The first is the point from which the last step set out.
        reach = reach * _SHORTER if best is not None and choice == 0 else 1.0
        curvature = unpack_symmetric(answer["curvature"][choice], size)
        best = Quadratic(answer["points"][choice], answer["gradient"][choice], curvature)
        convex = best.convex()
        law = inquiry.law_of(convex, is_rough=True).seen
        precision = np.linalg.inv(law.covariance)
        whole = law.mean - best.center
        if whole @ precision @ whole <= _CLOSE * max(1.0, 0.05 * size):
            check_curvature(knowledge, precision, run.dtype)
            return convex
        prior_curvature = precision - convex.curvature
        # The Gaussian prior's gradient at the centre, from where the law's mean lies.
        prior_slope = -convex.gradient - precision @ whole
        moves = np.array([np.zeros(size), *_steps(precision, whole, reach)])
        points = best.center + moves
        priors = moves @ prior_slope + 0.5 * np.einsum("ij,ij->i", moves @ prior_curvature, moves)
    assert best is not None
    inquiry.doubts.append(f"The search for the posterior's bulk had not ended after {_MOST} rounds.")
    return best.convex()


def _steps(precision: np.ndarray, whole: np.ndarray, reach: float) -> list[np.ndarray]:
    """Return the candidates, given a full step."""
    if not sends_triangles(len(whole)):
        return [reach * share * whole for share in _FEW_SHARES]
    damped = [precision + np.diag(damping / reach * np.diag(precision)) for damping in _DAMPINGS]
    return [*(reach * share * whole for share in _SHARES), *(np.linalg.solve(m, precision @ whole) for m in damped)]
