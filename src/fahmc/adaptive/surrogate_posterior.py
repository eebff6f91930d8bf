"""A posterior in few rounds: draws from a surrogate, corrected by the exact likelihood at every one of them.

    1. Find the bulk: a few expansions of the likelihood (`bulk`).
    2. Draw from the surrogate posterior, exact prior × quadratic likelihood (`surrogate`); in one round the sites tell
       the likelihood at all draws, hence exact importance weights, and what fits a better quadratic (`refinement`).
    3. Where no quadratic is good enough, a Student-t adapts to the weighted points (`adaptation`).

Draws are points resampled by weight. Their error is that of importance sampling: the account tells k̂, and the effective
size of every coordinate.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

from fahmc import door
from fahmc.adaptive.adaptation import MOST_DIMENSIONS, adapt
from fahmc.adaptive.bulk import find_bulk
from fahmc.adaptive.inquiry import Inquiry, OutOfRounds
from fahmc.adaptive.refinement import refine
from fahmc.dynamics.sampler import Leader, Outcome, Phase, PhaseResult
from fahmc.engines.run import Run
from fahmc.errors import SettingsError
from fahmc.hints import Effective, Rounds
from fahmc.registry import register


@register("sampler")
@dataclass(frozen=True)
class SurrogatePosterior(Leader):
    """Settings of the surrogate posterior.

    Parameters
    ----------
    target_ess
        Effective draws wanted of every parameter.
    max_rounds
        Rounds after which it gives up, and says so.
    """

    PARTS: ClassVar = ("_expansion", "_scatter")

    target_ess: Effective = 400
    max_rounds: Rounds = 100

    def __post_init__(self):
        door.check(self)

    def course(self, run: Run) -> Generator[Phase, PhaseResult, Outcome]:
        """Ask until the weights are good."""
        inquiry = Inquiry(run, self.target_ess, self.max_rounds)
        yield from learn(inquiry)
        if not inquiry.is_settled:
            inquiry.doubts.append(unsettled(inquiry))
        return inquiry.outcome()


def learn(inquiry: Inquiry) -> Generator[Phase, PhaseResult, None]:
    """Find the bulk, refine the surrogate, and where that is not enough adapt."""
    with giving_up(inquiry):
        loss = yield from find_bulk(inquiry)
        yield from refine(inquiry, loss)
        if not inquiry.is_settled and inquiry.run.dimension <= MOST_DIMENSIONS:
            yield from adapt(inquiry)


@contextmanager
def giving_up(inquiry: Inquiry) -> Iterator[None]:
    """End early where rounds or bytes are used up, if anything is known by then."""
    try:
        yield
    except OutOfRounds as reason:
        if inquiry.evidence is None:
            raise SettingsError(f"{reason}, and nothing is known of the posterior yet. Allow more.") from None
        inquiry.choices.append(f"Stopped: {reason}.")


def unsettled(inquiry: Inquiry) -> str:
    """Say that the weights cannot be trusted."""
    evidence = inquiry.evidence
    assert evidence is not None
    return (
        f"The importance weights did not settle within {inquiry.rounds_asked} rounds (k-hat "
        f"{evidence.weights.k_hat:.2f}, {evidence.ess:.0f} effective draws): trust neither means nor intervals."
    )
