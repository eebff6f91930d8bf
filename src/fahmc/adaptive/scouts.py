"""Scouts: a few points that walk downhill from far away while the rounds go on, to see whether they end elsewhere.

Importance weights know only where points lie: a mode that none of them found is invisible to k̂ and ESS. Scouts start
several times as far out as the surrogate posterior is wide and follow the gradient of

    ℓ(φ) + ½ (φ − m)′Λ(φ − m) + h′(φ − m),        the last two terms: the prior, or a Gaussian that stands for it

in the surrogate's own metric; a step that does not go down is halved and tried again. They ride along with rounds that
are asked anyway.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fahmc.adaptive.questions import is_seen
from fahmc.adaptive.surrogate import Gaussian, Quadratic

NUM_SCOUTS = 4
NUM_ASKED = NUM_SCOUTS + 1
# Standard deviations beyond the bulk from which scouts set out.
_DISTANCES = (5.0, 10.0, 20.0, 40.0)


@dataclass
class Scouts:
    """The scouts of one run."""

    law: Gaussian
    """The surrogate posterior of φ."""
    reference: np.ndarray
    """Where the loss is asked for every time: the others' are compared with it."""
    places: np.ndarray
    """[scout, size]: where they were last seen, and where the last step began."""
    trial: np.ndarray
    """[scout, size]: where they ask next."""
    values: np.ndarray
    gradients: np.ndarray
    reach: np.ndarray
    """The share of a full step that each dares."""

    @classmethod
    def set_out(cls, law: Gaussian, seed: int) -> Scouts:
        """Start in random directions, in pairs of opposites."""
        size = len(law.mean)
        half = np.random.default_rng([seed, 2]).normal(size=(NUM_SCOUTS // 2, size))
        z = np.concatenate([half, -half]) / np.linalg.norm(half, axis=1).mean()
        places = law.mean + (np.array(_DISTANCES)[:, None] * z) @ law.factor.T
        nothing = np.full(NUM_SCOUTS, np.inf)
        return cls(law, law.mean, places, places, nothing, np.zeros_like(places), np.ones(NUM_SCOUTS))

    @property
    def asked(self) -> np.ndarray:
        """Where to ask: the reference, then every scout's next step."""
        return np.concatenate([self.reference[None], self.trial])

    def hear(self, law: Gaussian, loss: Quadratic, answer: dict[str, np.ndarray]) -> None:
        """Learn what the sites saw, add the Gaussian that stands for the prior, and walk on."""
        precision = np.linalg.inv(law.covariance)
        prior_curvature = precision - loss.curvature
        prior_slope = -loss.gradient - loss.curvature @ (law.mean - loss.center)
        moves = answer["scouts"] - law.mean
        priors = moves @ prior_slope + 0.5 * np.einsum("ij,ij->i", moves @ prior_curvature, moves)
        values = answer["scout_loss"] - answer["scout_loss"][0] + priors - priors[0]
        gradients = answer["scout_gradient"] + prior_slope + moves @ prior_curvature
        self.walk(law, values[1:], gradients[1:])

    def walk(self, law: Gaussian, values: np.ndarray, gradients: np.ndarray) -> None:
        """Take the next step, given the potential and its gradient where they asked."""
        self.law = law
        better = is_seen(values) & (values <= self.values)
        first = ~np.isfinite(self.values)
        values = np.where(is_seen(values), values, 1e30)
        accept = better | first
        self.places = np.where(accept[:, None], self.trial, self.places)
        self.gradients = np.where(accept[:, None], gradients, self.gradients)
        self.values = np.where(accept, values, self.values)
        self.reach = np.where(better & ~first, np.minimum(1.0, 2 * self.reach), np.where(first, 1.0, self.reach / 4))
        whitened = self.gradients @ law.factor
        # A full step in the surrogate's metric, but never further than the scout is from the bulk.
        length = np.linalg.norm(whitened, axis=1)
        limit = np.maximum(1.0, law.distance(self.places))
        shares = self.reach * np.minimum(1.0, limit / np.maximum(length, 1e-300))
        self.trial = self.places - shares[:, None] * (whitened @ law.factor.T)

    @property
    def have_returned(self) -> np.ndarray:
        """Whether each scout is where the surrogate's own draws are."""
        return self.law.distance(self.places) < np.sqrt(len(self.law.mean)) + 3.0

    @property
    def are_stuck(self) -> np.ndarray:
        """Whether each scout stands still outside: in a mode of its own, or on a plain."""
        slopes = np.linalg.norm(self.gradients @ self.law.factor, axis=1)
        return ~self.have_returned & np.isfinite(self.values) & (slopes < 0.5)

    def doubts(self) -> list[str]:
        """Say what the scouts make of it."""
        if not self.are_stuck.any():
            return []
        return [
            f"{int(self.are_stuck.sum())} of {NUM_SCOUTS} searches from far away ended outside of where the draws are: "
            "the posterior may have another mode, which these draws do not show."
        ]
