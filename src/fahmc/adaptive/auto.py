"""`Auto`: the sampler for those who have no settings to give.

The cheapest way first, another where it does not lead to draws that can be trusted:

    surrogate     draws from a surrogate posterior, corrected by importance weights: some ten rounds
    transition    exact Markov chains with the surrogate as proposal, where weights are too uneven but not hopeless
    split         split HMC, exact: hundreds of rounds
    fahmc         FA-HMC that tunes itself, where curvature is too large to be sent or gradients are minibatches

Each choice is a sentence of ``draws.account["choices"]``.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fahmc import door
from fahmc.adaptive.adaptation import MOST_DIMENSIONS
from fahmc.adaptive.bulk import find_bulk
from fahmc.adaptive.exact import split, starts_from, transition
from fahmc.adaptive.inquiry import Inquiry, OutOfRounds
from fahmc.adaptive.surrogate import Gaussian
from fahmc.adaptive.surrogate_posterior import giving_up, learn, unsettled
from fahmc.adaptive.tuned import Tuned
from fahmc.adaptive.weights import K_HAT_LIMIT
from fahmc.data.federation import Federation
from fahmc.density.gradient import FullGradient, Gradient
from fahmc.dynamics.sampler import Leader, Outcome, Phase, PhaseResult
from fahmc.engines.run import Run
from fahmc.errors import SettingsError
from fahmc.hints import Effective, Positive, Rounds
from fahmc.registry import register

Method = Literal["surrogate", "transition", "split", "fahmc"]
# Numbers that a likelihood sees, up to which Hessians are asked for.
_MOST_SEEN = 1000
# The share of effective points below which chains with the surrogate as proposal would stick.
_WORTH_PROPOSING = 0.02


@register("sampler")
@dataclass(frozen=True)
class Auto(Leader):
    """Decide by itself.

    Parameters
    ----------
    target_ess
        Effective draws wanted of every parameter.
    max_rounds, budget_bytes
        What it may cost, all sites and both directions together. What is known by then is returned, with its doubts.
    method
        Take this way, instead of the cheapest that leads somewhere.
    gradient
        `Minibatch` and its like leave FA-HMC as the only way.
    """

    PARTS: ClassVar = (*Tuned.PARTS, "SplitHMC")

    target_ess: Effective = 400
    max_rounds: Rounds = 5000
    budget_bytes: Positive | None = None
    method: Method | None = None
    gradient: Gradient = FullGradient()

    def __post_init__(self):
        door.check(self)

    def check(self, federation: Federation) -> None:
        """Refuse what the gradient refuses."""
        self.gradient.check(federation)

    def course(self, run: Run) -> Generator[Phase, PhaseResult, Outcome | None]:
        """Try the cheapest first."""
        is_large = max(run.target.num_seen, run.dimension) > _MOST_SEEN
        if self.method == "fahmc" or not self.gradient.is_exact or (is_large and self.method is None):
            shared = {name: getattr(self, name) for name in ("target_ess", "max_rounds", "budget_bytes", "gradient")}
            return (yield from Tuned(**shared).course(run))
        inquiry = Inquiry(run, self.target_ess, self.max_rounds, self.budget_bytes)
        if self.method == "split":
            return (yield from self._split(inquiry))
        yield from learn(inquiry)
        if self.method == "surrogate" or (inquiry.is_settled and self.method is None):
            if not inquiry.is_settled:
                inquiry.doubts.append(unsettled(inquiry))
            return inquiry.outcome()
        evidence = inquiry.evidence
        assert evidence is not None and inquiry.loss is not None
        share = evidence.weights.ess / len(evidence.positions)
        # Where the Student-t was tried, which has heavier tails, a surrogate with light ones is no better.
        is_worth_it = evidence.weights.k_hat < K_HAT_LIMIT and share > _WORTH_PROPOSING
        if self.method == "transition" or (is_worth_it and run.dimension > MOST_DIMENSIONS):
            inquiry.is_settled = False
            inquiry.choices.clear()  # of weights, by which these draws are not made
            outcome = yield from transition(inquiry, inquiry.loss)
            if outcome is not None:
                return outcome
        inquiry.choices.append(
            f"Importance weights stayed too uneven (k-hat {evidence.weights.k_hat:.2f}, {100 * share:.1f} % of the "
            "points effective)."
        )
        return (yield from self._split(inquiry))

    def _split(self, inquiry: Inquiry) -> Generator[Phase, PhaseResult, Outcome]:
        """Run split HMC from where the posterior is, as far as that is known."""
        run, rng = inquiry.run, np.random.default_rng([inquiry.run.seed, 6])
        known = inquiry.evidence
        if inquiry.law is None:
            with giving_up(inquiry):
                loss = yield from find_bulk(inquiry)
            inquiry.law = inquiry.law_of(loss)
        law = inquiry.law.position
        if known is not None and known.weights.ess > 5 * run.dimension:
            steps = known.positions - known.mean
            law = Gaussian.from_moments(known.mean, (known.weights.values[:, None] * steps).T @ steps) or law
        if known is None:
            starts = law.mean + rng.normal(size=(run.num_chains, run.dimension)) @ law.factor.T
        else:
            starts = starts_from(inquiry, rng)
        try:
            return (yield from split(inquiry, law, starts))
        except OutOfRounds as reason:
            if inquiry.evidence is None:
                raise SettingsError(f"{reason} before split HMC could begin. Allow more.") from None
            inquiry.choices.append(f"Stopped: {reason}.")
            inquiry.doubts.append(unsettled(inquiry))
            return inquiry.outcome()
