"""Refining the surrogate: draw from it, ask for the exact likelihood there, fit a better quadratic where the draws are.

In one round the sites tell the loss at all M points, which makes the weights

    log w = log posterior − log surrogate          (the prior cancels where NUTS drew from prior × quadratic)

and the least-squares quadratic of the loss at them, for the next surrogate: an expansion by moments under the posterior
as it is known so far, not at a point. It is done when two rounds in a row pass and agree.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from fahmc.adaptive.inquiry import Evidence, Inquiry, Law
from fahmc.adaptive.propriety import check_rays, flat_directions, ray_points
from fahmc.adaptive.questions import Scatter, pack, unpack_symmetric
from fahmc.adaptive.scouts import MOST_FOR_SCOUTS, NUM_ASKED
from fahmc.adaptive.surrogate import Quadratic, fit_quadratic
from fahmc.dynamics.evaluation import is_seen
from fahmc.dynamics.sampler import Phase, PhaseResult

# Rounds after which the quadratic is taken to be as good as it gets.
_MOST = 6


def refine(inquiry: Inquiry, loss: Quadratic) -> Generator[Phase, PhaseResult, None]:
    """Refine until the weights are good, or no quadratic will do."""
    before: Evidence | None = None
    most = 0.0
    settled_for = 0
    for step in range(_MOST + MOST_FOR_SCOUTS):
        loss = loss.convex()
        inquiry.law = inquiry.law_of(loss)
        evidence, fitted = yield from look(inquiry, f"refine {step}", loss, inquiry.law)
        if evidence.ess > most:
            inquiry.loss, most = loss, evidence.ess
        agrees = before is not None and before.passes and evidence.passes and evidence.agrees(before)
        settled_for = settled_for + 1 if agrees and evidence.ess >= inquiry.target_ess else 0
        if settled_for > (MOST_FOR_SCOUTS if inquiry.are_searching else 0):
            inquiry.is_settled = True
            how = "Gaussian, as the prior is" if inquiry.is_gaussian else "drawn by NUTS at the server"
            inquiry.choices.append(
                f"The surrogate posterior ({how}) fits: its draws are corrected by importance weights (k-hat "
                f"{evidence.weights.k_hat:.2f}, {evidence.ess:,.0f} effective of {len(evidence.positions):,})."
            )
            return
        if step >= _MOST - 1 and not settled_for:
            return
        if before is not None and before.passes and evidence.ess < 0.5 * before.ess:
            fitted = halfway(loss, fitted)  # the fits swing about the best one
        before, loss = evidence, fitted


def look(
    inquiry: Inquiry, name: str, loss: Quadratic, law: Law
) -> Generator[Phase, PhaseResult, tuple[Evidence, Quadratic]]:
    """Ask at draws of the surrogate; return what they are worth, and the quadratic that fits there."""
    run, knowledge = inquiry.run, inquiry.knowledge
    size, seen = run.target.num_seen, law.seen
    scouts, positions = inquiry.send_scouts(seen), _positions(inquiry, law)
    sent = {} if positions is None else {"points": knowledge.views(positions)}
    flat = flat_directions(knowledge)
    rays = ray_points(seen, inquiry.starts_seen.mean(axis=0), flat) if flat.size else np.zeros((0, size))
    question = Scatter(size, inquiry.num_points, is_sent=bool(sent), num_scouts=NUM_ASKED, num_probes=1 + len(rays))
    probes = np.concatenate([loss.center[None], rays])
    asked = {"center": seen.mean, "factor": pack(seen.factor), "scouts": scouts.asked, "probes": probes}
    phase = question.ask(name, run.dtype, **asked, **sent)
    result = yield from inquiry.ask(phase)
    directions, points = inquiry.made(question, phase, result)
    answer = {name: np.asarray(value, np.float64) for name, value in result.state.items()}
    losses = answer["loss"]
    # Compared with the loss at the expansion's own centre, which rounds of one surrogate have in common.
    at_center = answer["probe_loss"][0]
    if len(rays):
        heights = answer["probe_loss"][1:]
        priors = knowledge.priors(rays) - knowledge.priors(seen.mean[None])
        check_rays(np.where(is_seen(heights), heights + priors, np.inf))
    if inquiry.is_gaussian:
        positions = points if positions is None else positions
        log_weights = at_center - losses - knowledge.priors(positions) + 0.5 * law.position.distance(positions) ** 2
    else:
        assert positions is not None
        log_weights = at_center - losses + loss(points)
    evidence = inquiry.weigh(positions, log_weights, losses, inquiry.server_share(law.drawn))
    fitted = loss
    if is_seen(losses).all():
        bend = unpack_symmetric(answer["bend"], size)
        fitted = fit_quadratic(seen.mean, seen.factor, directions, answer["slope"], bend)
    inquiry.prior = inquiry.prior_of(law, loss)
    scouts.hear(seen, inquiry.prior, answer)
    return evidence, fitted


def _positions(inquiry: Inquiry, law: Law) -> np.ndarray | None:
    """Return draws of the surrogate to be sent; None where the sites can make them."""
    if law.drawn is not None:
        return law.drawn.reshape(-1, law.drawn.shape[-1])
    if inquiry.knowledge.is_identity:
        return None
    generator = np.random.default_rng([inquiry.run.seed, inquiry.rounds_asked])
    z = generator.normal(size=(inquiry.num_points, len(law.position.mean)))
    return law.position.mean + z @ law.position.factor.T


def halfway(first: Quadratic, second: Quadratic) -> Quadratic:
    """Return the mean of two quadratics, expanded at the second's centre."""
    moved = first.gradient + first.curvature @ (second.center - first.center)
    return Quadratic(second.center, (moved + second.gradient) / 2, (first.curvature + second.curvature) / 2)
