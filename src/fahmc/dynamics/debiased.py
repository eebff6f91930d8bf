"""De-biased federated averaging HMC (Algorithms B.1 and B.2): FA-HMC with the correction of `anchor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fahmc.dynamics.fa_hmc import FAHMC
from fahmc.errors import SettingsError
from fahmc.registry import register


@register("sampler")
@dataclass(frozen=True)
class DebiasedFAHMC(FAHMC):
    """Settings of de-biased FA-HMC: ``FAHMC(correction="anchor")``, and where the first round's anchor is.

    Parameters
    ----------
    first_anchor
        ``"start"``: where the chain starts. ``"origin"``: Algorithm B.2 as printed.
    """

    first_anchor: Literal["start", "origin"] = "start"

    def __post_init__(self):
        if self.correction is None:
            object.__setattr__(self, "correction", "anchor")
        super().__post_init__()
        if self.correction != "anchor":
            raise SettingsError(
                f"correction is {self.correction!r}; DebiasedFAHMC is FA-HMC with correction='anchor'. Use FAHMC."
            )

    @property
    def starts_at_origin(self) -> bool:
        """Whether the first anchor is 0, with a gradient of 0."""
        return self.first_anchor == "origin"
