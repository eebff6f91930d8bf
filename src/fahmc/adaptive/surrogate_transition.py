"""Exact Markov chains whose proposals are draws of a surrogate posterior (`exact`, `surrogate`)."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import ClassVar

from fahmc import door
from fahmc.adaptive.bulk import find_bulk
from fahmc.adaptive.exact import transition
from fahmc.adaptive.inquiry import Inquiry
from fahmc.adaptive.refinement import refine
from fahmc.adaptive.surrogate_posterior import giving_up
from fahmc.dynamics.sampler import Leader, Outcome, Phase, PhaseResult
from fahmc.engines.run import Run
from fahmc.hints import Effective, Rounds
from fahmc.registry import register


@register("sampler")
@dataclass(frozen=True)
class SurrogateTransition(Leader):
    """Settings of Metropolis chains with the surrogate posterior as proposal.

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
        """Refine the surrogate, then propose from it until the chains agree."""
        inquiry = Inquiry(run, self.target_ess, self.max_rounds)
        with giving_up(inquiry):
            loss = yield from find_bulk(inquiry)
            yield from refine(inquiry, loss)
        assert inquiry.loss is not None
        inquiry.is_settled = False
        inquiry.choices.clear()  # it is not by importance weights that these draws are made
        outcome = yield from transition(inquiry, inquiry.loss)
        if outcome is not None:
            return outcome
        inquiry.doubts.append(
            f"Chains with the surrogate posterior as proposal did not agree within {inquiry.rounds_asked} rounds: "
            "trust neither means nor intervals. fahmc.Auto() takes another way."
        )
        return inquiry.outcome()
