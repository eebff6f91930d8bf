"""Where no quadratic fits: a Student-t proposal that adapts to the weighted points of all rounds so far.

Adaptive multiple importance sampling (Cornuet, Marin, Mira and Robert 2012): the points of all rounds count together,
each with the weight  posterior(θ) / (Σ_t q_t(θ) / rounds),  so that no round is lost. Sites tell losses only: a round
costs one number a point. It gets lost in many dimensions; there split HMC takes over.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
from scipy.special import gammaln

from fahmc.adaptive.inquiry import Evidence, Inquiry
from fahmc.adaptive.questions import Scatter, pack
from fahmc.adaptive.scouts import MOST_FOR_SCOUTS, NUM_ASKED
from fahmc.adaptive.surrogate import Gaussian
from fahmc.adaptive.weights import K_HAT_LIMIT, Weights, tempered
from fahmc.dynamics.evaluation import is_seen
from fahmc.dynamics.sampler import Phase, PhaseResult

MOST_DIMENSIONS = 30
_MOST_ROUNDS = 40
_DEGREES = 6
_INFLATION = 1.2
# Effective draws, in multiples of those wanted, at which it may stop: the proposal still changes.
_PLENTY = 4


def adapt(inquiry: Inquiry) -> Generator[Phase, PhaseResult, None]:
    """Adapt until the weights are good."""
    run, knowledge = inquiry.run, inquiry.knowledge
    assert inquiry.law is not None and inquiry.prior is not None
    law = Gaussian(inquiry.law.position.mean, inquiry.law.position.factor * _INFLATION)
    if inquiry.evidence is not None and inquiry.evidence.weights.ess > 5 * run.dimension:
        law = _moments(inquiry.evidence.positions, inquiry.evidence.weights.values) or law
    question = Scatter(
        run.target.num_seen,
        inquiry.num_points,
        _DEGREES,
        is_sent=not knowledge.is_identity,
        wants_fit=False,
        num_scouts=NUM_ASKED,
        num_probes=1,
    )
    # Rounds compare losses with that at a centre of their own; the loss at a fixed point makes them comparable.
    anchor = knowledge.views(law.mean[None])
    laws: list[Gaussian] = []
    positions, logs = np.zeros((0, run.dimension)), np.zeros(0)
    before: Evidence | None = None
    settled_for = 0
    for step in range(_MOST_ROUNDS):
        laws.append(law)
        if knowledge.is_identity:
            new, seen, asked = None, law, {"center": law.mean, "factor": pack(law.factor)}
        else:
            new = _draw(law, inquiry, step)
            points = knowledge.views(new)
            seen, asked = Gaussian.of(points) or inquiry.law.seen, {"center": points.mean(axis=0), "points": points}
        scouts = inquiry.send_scouts(seen)
        asked |= {"scouts": scouts.asked, "probes": anchor}
        phase = question.ask(f"adapt {step}", run.dtype, **asked)
        result = yield from inquiry.ask(phase)
        new = inquiry.made(question, phase, result)[1] if new is None else new
        answer = {name: np.asarray(value, np.float64) for name, value in result.state.items()}
        scouts.hear(seen, inquiry.prior, answer)
        losses = np.where(is_seen(answer["loss"]), answer["loss"] - answer["probe_loss"][0], np.inf)
        positions, logs = np.concatenate([positions, new]), np.concatenate([logs, -losses - knowledge.priors(new)])
        mixture = np.logaddexp.reduce([_log_density(each, positions) for each in laws], axis=0)
        evidence = inquiry.weigh(positions, logs - mixture, np.zeros(len(positions)))
        weights = tempered(np.where(np.isfinite(logs), logs - mixture, -np.inf), max(50.0, 5.0 * run.dimension))
        law = _moments(positions, weights) or law
        inquiry.law = inquiry.law._replace(position=law)
        good = evidence.weights.k_hat < K_HAT_LIMIT and evidence.ess >= _PLENTY * inquiry.target_ess
        settled_for = settled_for + 1 if good and before is not None and evidence.agrees(before) else 0
        if settled_for > (MOST_FOR_SCOUTS if inquiry.are_searching else 0):
            inquiry.is_settled = True
            inquiry.choices.append(
                "No quadratic fits the likelihood closely enough: points come from a Student-t that adapted in "
                f"{step + 1} rounds, corrected by importance weights (k-hat {evidence.weights.k_hat:.2f}, "
                f"{evidence.ess:,.0f} effective of {len(positions):,})."
            )
            return
        before = evidence if good else None


def _draw(law: Gaussian, inquiry: Inquiry, step: int) -> np.ndarray:
    generator = np.random.default_rng([inquiry.run.seed, 3, step])
    z = generator.normal(size=(inquiry.num_points, len(law.mean)))
    z /= np.sqrt(generator.chisquare(_DEGREES, size=(len(z), 1)) / _DEGREES)
    return law.mean + z @ law.factor.T


def _moments(positions: np.ndarray, weights: np.ndarray) -> Gaussian | None:
    moments = Weights(weights, 0.0)
    return Gaussian.from_moments(moments.mean(positions), moments.covariance(positions))


def _log_density(law: Gaussian, points: np.ndarray) -> np.ndarray:
    """Return the log density of the Student-t with this centre and factor."""
    dimension, nu = len(law.mean), _DEGREES
    constant = gammaln((nu + dimension) / 2) - gammaln(nu / 2) - dimension / 2 * np.log(nu * np.pi)
    constant -= np.log(np.abs(np.diag(law.factor))).sum()
    return constant - (nu + dimension) / 2 * np.log1p(law.distance(points) ** 2 / nu)
