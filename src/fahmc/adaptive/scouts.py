"""Scouts: a few points that walk downhill from afar while the rounds go on, to see whether they end elsewhere.

Importance weights know only where points lie: a mode that none of them found is invisible to k̂ and ESS. Scouts set out
from where the chains start, from the bulk mirrored at these starts (models that do not know a sign or a label have a
mode there), and from several times as far out as the surrogate posterior is wide. They go down

    ℓ(φ) + h′(φ − m) + ½ (φ − m)′Λ(φ − m),        the last two terms: the prior, or a Gaussian that stands for it

by Newton's method, damped as Levenberg and Marquardt do; where triangles are too large to be sent, in the surrogate's
own metric. A scout is home when it can see the bulk: when the way straight there goes down all along (from anywhere,
under a log-concave posterior). They ride along with rounds that are asked anyway. One that comes to rest outside has
found a mode, whose mass by Laplace's method is compared with that of the bulk.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fahmc.adaptive.questions import sends_triangles, unpack_symmetric, way_points
from fahmc.adaptive.surrogate import Gaussian, Quadratic, convex
from fahmc.dynamics.evaluation import is_seen

# Standard deviations beyond the bulk from which scouts set out in random directions.
_DISTANCES = (5.0, 10.0, 20.0, 40.0)
# Scouts that set out from the chains' starts.
_MOST_STARTS = 6
NUM_SCOUTS = len(_DISTANCES) + 1 + _MOST_STARTS
NUM_ASKED = NUM_SCOUTS + 1
# How much the way to the bulk may rise by rounding.
_RISE = 0.5
# Rounds that the search for other modes is worth when all else is done.
MOST_FOR_SCOUTS = 4
# A step this short, in standard deviations, is one at rest.
_REST = 0.5
# Modes with less than this share of the bulk's mass change no mean and no interval to be seen.
_NEGLIGIBLE = 1e-4


@dataclass
class Scouts:
    """The scouts of one run."""

    law: Gaussian
    """The surrogate posterior of φ."""
    reference: np.ndarray
    """Where the loss is asked for every time: the others' are compared with it."""
    places: np.ndarray
    """[scout, size]: where they stand."""
    trial: np.ndarray
    """[scout, size]: where they ask next."""
    values: np.ndarray
    """[scout]: how much higher than the reference they stand."""
    steps: np.ndarray
    """[scout]: the length of a full step from where they stand, in standard deviations."""
    log_volumes: np.ndarray
    """[scout]: ½ log det of the curvature there over that of the bulk."""
    damping: np.ndarray
    slopes: np.ndarray
    curvatures: list[np.ndarray | None]
    are_home: np.ndarray
    """[scout]: whether they have seen the bulk."""

    @classmethod
    def set_out(cls, law: Gaussian, starts: np.ndarray, seed: int) -> Scouts:
        """Set out from the chains' starts (as the likelihood sees them), from the mirrored bulk, and from afar."""
        size = len(law.mean)
        half = np.random.default_rng([seed, 2]).normal(size=(len(_DISTANCES) // 2, size))
        z = np.concatenate([half, -half])
        z /= np.linalg.norm(z, axis=1, keepdims=True)
        far = law.mean + ((np.array(_DISTANCES) + size**0.5)[:, None] * z) @ law.factor.T
        mirrored = 2 * starts.mean(axis=0) - law.mean
        places = np.concatenate([far, mirrored[None], starts[np.arange(_MOST_STARTS) % len(starts)]])
        count = len(places)
        return cls(
            law,
            law.mean,
            places,
            trial=places.copy(),
            values=np.full(count, np.inf),
            steps=np.full(count, np.inf),
            log_volumes=np.zeros(count),
            damping=np.zeros(count),
            slopes=np.zeros_like(places),
            curvatures=[None] * count,
            are_home=np.zeros(count, bool),
        )

    @property
    def asked(self) -> np.ndarray:
        """Where to ask: the reference, then every scout's next step."""
        return np.concatenate([self.reference[None], self.trial])

    def has_lost(self, law: Gaussian) -> bool:
        """Whether the bulk is no longer where it was when they set out, so that all they know is of another place."""
        return bool(law.distance(self.reference)[0] > _radius(law))

    def hear(self, law: Gaussian, prior: Quadratic, answer: dict[str, np.ndarray]) -> None:
        """Learn what the sites saw, add the prior, and walk on."""
        size, self.law = len(law.mean), law
        precision = np.linalg.inv(law.covariance)
        asked, ways = answer["scouts"], way_points(answer["scouts"])
        bottom = answer["scout_loss"][0] + prior(asked[:1])[0]
        values = (answer["scout_loss"] + prior(asked) - bottom)[1:]
        slopes = (answer["scout_gradient"] + prior.gradient + (asked - prior.center) @ prior.curvature)[1:]
        seen = is_seen(answer["scout_loss"][1:])
        heights = (answer["way_loss"] + prior(ways) - bottom).reshape(NUM_SCOUTS, -1)
        falls = np.diff(np.column_stack([values, heights, np.zeros(NUM_SCOUTS)]), axis=1) <= _RISE
        self.are_home |= seen & falls.all(axis=1)
        for scout in np.flatnonzero(~self.are_home):
            if not seen[scout] or values[scout] > self.values[scout]:
                self.damping[scout] = 4 * max(self.damping[scout], 1.0)
            else:
                own = precision
                if sends_triangles(size):
                    own = convex(unpack_symmetric(answer["scout_curvature"][scout + 1], size) + prior.curvature)
                self.places[scout], self.values[scout] = self.trial[scout], values[scout]
                self.slopes[scout], self.curvatures[scout] = slopes[scout], own
                self.damping[scout] = 0.0 if self.damping[scout] < 1.0 else self.damping[scout] / 8
                self.log_volumes[scout] = 0.5 * (_log_det(own) - _log_det(precision))
            self._step(int(scout), precision)

    def _step(self, scout: int, precision: np.ndarray) -> None:
        """Choose where a scout asks next."""
        curvature = self.curvatures[scout]
        if curvature is None:
            return
        damped = curvature + self.damping[scout] * np.diag(np.diag(curvature)) + 1e-9 * precision
        step = -np.linalg.solve(damped, self.slopes[scout])
        full = -np.linalg.solve(curvature + 1e-9 * precision, self.slopes[scout])
        self.steps[scout] = np.sqrt(full @ curvature @ full)
        self.trial[scout] = self.places[scout] + step

    @property
    def have_returned(self) -> np.ndarray:
        """Whether each scout sees the bulk, or is where the surrogate's own draws are."""
        return self.are_home | (self.law.distance(self.places) < _radius(self.law))

    @property
    def are_stuck(self) -> np.ndarray:
        """Whether each scout is at rest outside: in a mode of its own."""
        return ~self.have_returned & np.isfinite(self.values) & (self.steps < _REST)

    @property
    def are_walking(self) -> np.ndarray:
        """Whether each scout is still on its way, and not too high up to tell of anything."""
        return ~self.have_returned & ~self.are_stuck & np.isfinite(self.values)

    @property
    def mass_elsewhere(self) -> float:
        """How many times the bulk's mass the modes hold that scouts found, by Laplace's method."""
        stuck = np.flatnonzero(self.are_stuck)
        return float(np.exp(np.clip(max(-self.values[k] - self.log_volumes[k] for k in stuck), -700, 700)))

    def findings(self) -> tuple[list[str], list[str]]:
        """Return what to know and what to doubt, in sentences."""
        stuck, walking = int(self.are_stuck.sum()), int(self.are_walking.sum())
        remarks = []
        if walking:
            remarks.append(f"{walking} of {NUM_SCOUTS} searches for other modes were still on their way at the end.")
        if not stuck:
            return remarks, []
        found = f"{stuck} of {NUM_SCOUTS} searches from elsewhere ended outside of where the draws are"
        if (mass := self.mass_elsewhere) < _NEGLIGIBLE:
            return [*remarks, f"{found}, in a mode of {mass:.0e} times the mass (by Laplace): too little to see."], []
        return remarks, [
            f"{found}: the posterior has another mode there, of about {mass:.2g} times the mass (by Laplace), which "
            "these draws do not show. Start chains there (init) to see it, or give the model what tells modes apart."
        ]


def _radius(law: Gaussian) -> float:
    """Return a distance, in standard deviations, that hardly any draw exceeds."""
    return len(law.mean) ** 0.5 + 3.0


def _log_det(matrix: np.ndarray) -> float:
    return float(np.linalg.slogdet(matrix)[1])
