"""Exact Markov chains for what importance weights cannot settle: with the surrogate as proposal, or split HMC.

**Surrogate transition** (Liu 2001, "Monte Carlo Strategies in Scientific Computing", section 9.4.3): propose by draws
that leave the surrogate posterior invariant, accept with min(1, w(θ′) / w(θ)), w = posterior / surrogate. Here the
proposals do not look at where a chain is, so that all of a round are asked for at once: thousands of transitions a
round. Where the surrogate's tails are too light, chains stick at points of great weight, and R-hat and ESS say so.

**Split HMC** asks for gradients and follows trajectories, one round a step: many rounds, but neither dimension nor
tails are too much for it. Warm-up in windows of four draws: K is doubled until eight of ten proposals are accepted, and
the Gaussian part follows the moments of the draws.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator
from typing import Any

import numpy as np

from fahmc.adaptive.inquiry import Inquiry, OutOfRounds
from fahmc.adaptive.refinement import look
from fahmc.adaptive.surrogate import Gaussian, Quadratic
from fahmc.adaptive.weights import tempered
from fahmc.dynamics.sampler import Outcome, Phase, PhaseResult
from fahmc.dynamics.split_hmc import SplitHMC
from fahmc.engines.run import begin
from fahmc.report.convergence import ess, max_r_hat

R_HAT_LIMIT = 1.01
_MOST_TRANSITION_ROUNDS = 30
_WINDOW = 4
_FEW_WINDOWS = 3
_MOST_WINDOWS = 24
_ACCEPTANCE = 0.8
_MOST_STEPS = 64
# Draws a parameter that a covariance needs before it is worth more than the surrogate's.
_DRAWS_PER_MOMENT = 10
# Draws a chain between two looks at R-hat and ESS.
_BLOCK = 16


def transition(inquiry: Inquiry, loss: Quadratic) -> Generator[Phase, PhaseResult, Outcome | None]:
    """Run chains with the surrogate for this loss as proposal; None if they do not come to agree."""
    run, rng = inquiry.run, np.random.default_rng([inquiry.run.seed, 5])
    inquiry.law = inquiry.law_of(loss)
    chains: list[np.ndarray] = []
    rates: list[np.ndarray] = []
    state: tuple[np.ndarray, np.ndarray] | None = None
    for step in range(_MOST_TRANSITION_ROUNDS):
        try:
            seen, _ = yield from look(inquiry, f"transition {step}", loss, inquiry.law)
        except OutOfRounds as reason:
            inquiry.choices.append(f"Stopped: {reason}.")
            break
        count = len(seen.positions) // run.num_chains
        # Shuffled, as draws of NUTS come in order.
        order = rng.permutation(len(seen.positions))[: count * run.num_chains].reshape(run.num_chains, count)
        state, drawn, accepted = metropolis(seen.positions[order], seen.log_weights[order], state, rng)
        chains.append(drawn)
        rates.append(accepted)
        inquiry.law = inquiry.law_of(loss)  # other draws, where NUTS makes them
        positions = np.concatenate(chains, axis=1)
        if step and _is_enough(positions, inquiry.target_ess):
            rate = np.concatenate(rates, axis=1)
            inquiry.is_settled = True
            inquiry.choices.append(
                "Metropolis chains with the surrogate posterior as proposal (exact): "
                f"{100 * rate.mean():.0f} % accepted, {positions.shape[1]:,} transitions a chain in {step + 1} rounds."
            )
            return _thinned(inquiry, positions, {"acceptance_rate": rate})
    return None


def metropolis(
    proposals: np.ndarray, log_weights: np.ndarray, state: Any, rng: np.random.Generator
) -> tuple[Any, np.ndarray, np.ndarray]:
    """Take one independence Metropolis step for each of [chain, step] proposals; return the end, chain and rates."""
    num_chains, num_steps = log_weights.shape
    # A chain begins at its first proposal: it has to be somewhere.
    position, level = (proposals[:, 0].copy(), log_weights[:, 0].copy()) if state is None else state
    drawn, rates = np.empty_like(proposals), np.empty_like(log_weights)
    for step in range(num_steps):
        # Both may be −∞ at the start, where anything is better.
        gain = np.where(np.isneginf(level), np.inf, log_weights[:, step] - level)
        rates[:, step] = np.exp(np.minimum(0.0, gain))
        accept = rng.uniform(size=num_chains) < rates[:, step]
        position = np.where(accept[:, None], proposals[:, step], position)
        level = np.where(accept, log_weights[:, step], level)
        drawn[:, step] = position
    return (position, level), drawn, rates


def split(inquiry: Inquiry, law: Gaussian, starts: np.ndarray) -> Generator[Phase, PhaseResult, Outcome]:
    """Run split HMC from starts [chain, dim], near the Gaussian ``law`` to begin with, until chains agree."""
    run = inquiry.run
    sampler, draws = SplitHMC(2, center=law.mean, inverse_mass_matrix=law.covariance), np.zeros((0, run.dimension))
    first = Phase("split: first energy", sampler, 1)
    begun = dataclasses.replace(run, start=np.asarray(starts, run.dtype))
    result = yield from inquiry.ask(first._replace(state=begin(begun, first)))
    for window in range(_MOST_WINDOWS):
        phase = _phase(f"split: window {window}", sampler, _WINDOW)
        result = yield from inquiry.ask(phase)
        acceptance = float(result.stats["acceptance_rate"].mean())
        # The first windows still come from where the chains started.
        fresh = result.positions.reshape(-1, run.dimension).astype(np.float64)
        draws = np.concatenate([draws[len(draws) // 4 :], fresh])
        is_known = len(draws) >= _DRAWS_PER_MOMENT * run.dimension
        if is_known and (moments := Gaussian.of(draws)) is not None:
            law = moments
        steps = sampler.num_steps
        if acceptance < _ACCEPTANCE and steps < _MOST_STEPS:
            steps *= 2
        elif window >= _FEW_WINDOWS and (is_known or acceptance >= _ACCEPTANCE):
            break
        sampler = SplitHMC(steps, center=law.mean, inverse_mass_matrix=law.covariance)
    kept: list[PhaseResult] = []
    block = 0
    try:
        while not kept or not _is_enough(np.concatenate([k.positions for k in kept], axis=1), inquiry.target_ess):
            result = yield from inquiry.ask(_phase(f"split: block {block}", sampler, _BLOCK))
            kept.append(result)
            block += 1
        inquiry.is_settled = True
    except OutOfRounds as reason:
        if not kept:
            raise
        inquiry.choices.append(f"Stopped: {reason}.")
    positions = np.concatenate([part.positions for part in kept], axis=1)
    stats = {name: np.concatenate([part.stats[name] for part in kept], axis=1) for name in kept[0].stats}
    inquiry.choices.append(
        f"Split HMC (exact): one round a step, {sampler.num_steps} steps a draw, "
        f"{100 * stats['acceptance_rate'].mean():.0f} % accepted; its Gaussian part from the draws of its warm-up."
    )
    if not inquiry.is_settled:
        inquiry.doubts.append("Split HMC was stopped before its chains agreed: trust neither means nor intervals.")
    gradients = np.concatenate([part.gradients for part in kept], axis=1)  # type: ignore
    return Outcome(positions, stats, inquiry.account(), gradients)


def _phase(name: str, sampler: SplitHMC, num_draws: int) -> Phase:
    return Phase(name, sampler, num_draws * sampler.num_steps, num_warmup_rounds=0, thin=sampler.num_steps)


def _is_enough(positions: np.ndarray, target_ess: int) -> bool:
    """Whether every parameter has its effective draws, of bulk and tail, and the chains agree."""
    if positions.shape[0] > 1 and not max_r_hat({"x": positions}) < R_HAT_LIMIT:
        return False
    sizes = [ess({"x": positions}, method=method)["x"].min() for method in ("bulk", "tail")]
    return bool(min(sizes) >= target_ess)


def _thinned(inquiry: Inquiry, positions: np.ndarray, stats: dict[str, np.ndarray]) -> Outcome:
    """Keep about ten draws for every effective one wanted."""
    run = inquiry.run
    thin = max(1, positions[..., 0].size // (10 * inquiry.target_ess))
    kept = {name: values[:, thin - 1 :: thin].astype(run.dtype) for name, values in stats.items()}
    return Outcome(positions[:, thin - 1 :: thin].astype(run.dtype), kept, inquiry.account())


def starts_from(inquiry: Inquiry, rng: np.random.Generator) -> np.ndarray:
    """Return a start for every chain: points of the last round, by weights made even enough to leave a choice."""
    evidence, run = inquiry.evidence, inquiry.run
    assert evidence is not None
    weights = tempered(evidence.log_weights, max(4.0 * run.num_chains, 0.02 * len(evidence.positions)))
    return evidence.positions[rng.choice(len(weights), size=run.num_chains, p=weights)]
