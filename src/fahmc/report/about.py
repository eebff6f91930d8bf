"""What a report says that draws do not know: what was asked, of whom, and which number answers it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Scale: TypeAlias = Literal["odds ratio", "rate ratio", "hazard ratio", "ratio of means", "ratio", "difference"]
"""What people call an effect: exp of a coefficient, or, a difference, the coefficient itself."""


@dataclass(frozen=True)
class About:
    """The words of a report.

    Parameters
    ----------
    title
        Heading of the page.
    question
        What the study asks, in a sentence.
    outcome
        What was observed: ``"preterm birth"``.
    effect
        The parameters that answer the question: by name, by feature, or by a text feature for all its levels.
    scale
        What an effect is called; by default as the model says.
    dropped
        By client, how many rows were left out because a value was missing.
    spreads
        Features whose coefficients are per standard deviation, with that.
    baselines
        Features that are text, with the level that their others are compared with.
    notes
        Further sentences on the data.
    again
        The command that makes the run again.
    """

    title: str = "Posterior report"
    question: str = ""
    outcome: str = ""
    effect: Sequence[str] = ()
    scale: Scale | None = None
    dropped: Mapping[str, int] = field(default_factory=dict)
    spreads: Mapping[str, float] = field(default_factory=dict)
    baselines: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    again: str = ""
