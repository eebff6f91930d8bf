"""From noisy scores and informations to a posterior that knows their noise.

At a point c the sites told g̃ = g + e and Ã = A + E, with e_j ~ N(0, s²), and E symmetric of independent N(0, t²) on the
diagonal and N(0, t²/2) beside it. To second order the score at c is g = −A v − ½ T[v, v] + N(0, A), where v = θ − c and
T is the third derivative of −log likelihood. E v has the covariance ½ t² (|v|² I + vv′), and is not known either. So

    g̃ + Ãv + ½ T[v, v]  ~  N(0, Σ),      Σ = A + s² I + ½ t² (tr V I + V)

where V, the mean of vv′ under the posterior itself, takes the place of vv′, and turns by turns both are found. Of −log
likelihood this leaves a quadratic with curvature P = A Σ⁻¹ A: with enough rows A, with too few of them nothing, so that
the prior is what remains. In Σ and P stands Ã without its negative part; where a direction is drowned by noise, nothing
is claimed of it.

T is not asked for. ½ T[V] = ½ Σ_rows p (1 − p)(1 − 2p) (u′Vu) u matters where V is large, as noise makes it: it shifts
the intercept. It is taken for the rows' mean of ½ u′Vu times n E[p (1 − p)(1 − 2p) u], and that, by Stein's identity,
from the rows' second moment, which the first answer told (at θ = 0 every p (1 − p) is 1/4), as if predictors were
normal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.special import expit, logit

from fahmc.adaptive.surrogate import Gaussian, Quadratic

_TURNS = 8
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(21)

Posterior = Callable[[Quadratic], Gaussian | None]
"""Joins a quadratic for −log likelihood to the prior; None if that is no law."""


class Answer(NamedTuple):
    """What the sites told together at a point, and how noisy that is."""

    point: np.ndarray
    score: np.ndarray
    information: np.ndarray
    score_sd: float
    """s"""
    information_sd: float
    """t"""

    @property
    def positive(self) -> np.ndarray:
        """The information without its negative part, which is noise."""
        return _positive(self.information)

    @property
    def noise_norm(self) -> float:
        """About the largest eigenvalue of the noise in the information."""
        return self.information_sd * (2 * len(self.point)) ** 0.5


class Moments(NamedTuple):
    """What is known of all rows: their number, and Σ uu′ / n."""

    num_rows: int
    second: np.ndarray
    has_intercept: bool

    @classmethod
    def of(cls, first: Answer, num_rows: int, has_intercept: bool) -> Moments:
        """Read them off the answer at θ = 0."""
        second = _positive(4 * first.information / num_rows)
        if has_intercept:
            second[-1, -1] = 1.0
        return cls(num_rows, second, has_intercept)

    @property
    def mean(self) -> np.ndarray:
        """Σ u / n, as far as there is an intercept to tell it."""
        return self.second[:, -1] if self.has_intercept else np.zeros(len(self.second))

    def bend(self, point: np.ndarray) -> np.ndarray:
        """Return n E[p (1 − p)(1 − 2p) u] at a point."""
        mean = self.mean
        spread = self.second - np.outer(mean, mean)
        sd = max(float(point @ spread @ point), 1e-12) ** 0.5
        p = expit(mean @ point + sd * _NODES)
        values, weights = p * (1 - p) * (1 - 2 * p), _WEIGHTS / _WEIGHTS.sum()
        slope = weights @ (values * _NODES) / sd
        return self.num_rows * ((weights @ values) * mean + slope * (spread @ point))


class Aware(NamedTuple):
    """What an answer leaves of −log likelihood, and the posterior with it."""

    loss: Quadratic
    law: Gaussian


def noise_aware(answer: Answer, moments: Moments, posterior: Posterior) -> Aware | None:
    """Return the quadratic that an answer leaves of −log likelihood; None if with the prior it is no law."""
    A, identity = answer.positive, np.eye(len(answer.point))
    bend, V, found = moments.bend(answer.point), np.zeros_like(A), None
    for _ in range(_TURNS):
        noise = answer.score_sd**2 * identity + 0.5 * answer.information_sd**2 * (np.trace(V) * identity + V)
        gain = np.linalg.solve(A + noise, A).T
        score = answer.score + 0.5 * float(np.sum(V * moments.second)) * bend
        P = gain @ A
        loss = Quadratic(answer.point, gain @ score, (P + P.T) / 2)
        law = posterior(loss)
        if law is None:
            return found
        found, v = Aware(loss, law), law.mean - answer.point
        V = np.outer(v, v) + law.covariance
    return found


def at_constant_chance(first: Answer, num_rows: int) -> Answer:
    """Move the answer at θ = 0 to where the intercept alone fits the outcomes: it tells all that is needed.

    With ȳ the share of outcomes that are 1, which the intercept's score tells, the score at intercept logit ȳ is
    g + (ȳ − ½) Σ u and the information 4ȳ(1 − ȳ) A, where Σ u is a column of 4A. It is a Newton step for nothing.
    """
    chance = 0.5 - float(first.score[-1]) / num_rows
    chance = float(np.clip(chance, num_rows**-0.5, 1 - num_rows**-0.5))
    factor, point = 4 * chance * (1 - chance), first.point.copy()
    point[-1] = logit(chance)
    return Answer(
        point,
        first.score + (chance - 0.5) * 4 * first.information[:, -1],
        factor * first.information,
        first.score_sd,
        factor * first.information_sd,
    )


def _positive(matrix: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.maximum(values, 0.0)) @ vectors.T
