"""`Auto`: the sampler for those who have no settings to give."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from fahmc.adaptive.inquiry import Inquiry
from fahmc.adaptive.surrogate_posterior import check_counts, learn, unsettled
from fahmc.dynamics.sampler import Leader, Outcome, Phase, PhaseResult
from fahmc.engines.run import Run
from fahmc.registry import register


@register("sampler")
@dataclass(frozen=True)
class Auto(Leader):
    """Decide by itself."""

    target_ess: int = 400
    max_rounds: int = 1000
    budget_bytes: float | None = None

    def __post_init__(self):
        check_counts(self, "target_ess", "max_rounds")

    def course(self, run: Run) -> Generator[Phase, PhaseResult, Outcome | None]:
        """Try the cheapest first."""
        inquiry = Inquiry(run, self.target_ess, self.max_rounds, self.budget_bytes)
        yield from learn(inquiry)
        if not inquiry.is_settled:
            inquiry.doubts.append(unsettled(inquiry))
        return inquiry.outcome()
