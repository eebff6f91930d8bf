"""Importance weights: how draws of one law become draws of another, and how much they are worth.

Weights are smoothed by Pareto's law (PSIS; Vehtari, Simpson, Gelman, Yao and Gabry 2024, by ArviZ), whose shape k̂ says
whether their average can be trusted: below 0.7 it can.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

K_HAT_LIMIT = 0.7
# Where the weights differ by no more than this (standard deviation of their logarithm), k̂ is a number about noise.
_FLAT = 0.02


class Weights(NamedTuple):
    """Weights of points, of sum 1."""

    values: np.ndarray
    k_hat: float

    @property
    def ess(self) -> float:
        """1 / Σ w²: how many draws of the target they are worth."""
        return float(1 / np.sum(self.values**2))

    def mean(self, points: np.ndarray) -> np.ndarray:
        """Return Σ w x."""
        return self.values @ points

    def covariance(self, points: np.ndarray) -> np.ndarray:
        """Return Σ w (x − μ)(x − μ)′."""
        steps = points - self.mean(points)
        return (self.values[:, None] * steps).T @ steps

    def errors(self, points: np.ndarray) -> np.ndarray:
        """Return the Monte Carlo standard error of every mean: (Σ w² (x − μ)²)^½, with resampling's share."""
        return np.sqrt(self._noise @ (points - self.mean(points)) ** 2)

    def sd_errors(self, points: np.ndarray) -> np.ndarray:
        """Return that of every standard deviation: (Σ w² ((x − μ)² − σ²)²)^½ / 2σ."""
        squares = (points - self.mean(points)) ** 2
        variances = self.mean(squares)
        return np.sqrt(self._noise @ (squares - variances) ** 2) / (2 * np.sqrt(variances))

    @property
    def _noise(self) -> np.ndarray:
        """w², and what resampling adds: it keeps M w of each of M points, up to a fraction r that luck rounds."""
        rest = np.modf(len(self.values) * self.values)[0]
        return self.values**2 + rest * (1 - rest) / len(self.values) ** 2

    def resample(self, count: int, generator: np.random.Generator) -> np.ndarray:
        """Return indices of points, each about ``count`` times its weight (systematic), in random order."""
        places = (np.arange(count) + generator.uniform()) / count
        indices = np.searchsorted(np.cumsum(self.values) / self.values.sum(), places)
        return generator.permutation(np.minimum(indices, len(self.values) - 1))


def smoothed(log_weights: np.ndarray) -> Weights:
    """Return smoothed weights from logarithms of any common offset."""
    from fahmc._arviz import psislw

    log_weights = log_weights - log_weights.max()
    if np.std(log_weights) < _FLAT:
        values = np.exp(log_weights)
        return Weights(values / values.sum(), -np.inf)
    # Where the tail is bounded or all but empty, the fit's own candidates overflow; the ones that matter do not.
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        smooth, k_hat = psislw(log_weights)
    values = np.exp(smooth)
    k = float(k_hat)
    return Weights(values / values.sum(), k if np.isfinite(k) else np.inf)


def tempered(log_weights: np.ndarray, ess: float) -> np.ndarray:
    """Return weights ∝ w^t with the largest t ≤ 1 that leaves an effective size of ``ess``."""

    def at(power: float) -> np.ndarray:
        values = np.exp(power * (log_weights - log_weights.max()))
        return values / values.sum()

    low, high = 0.0, 1.0
    if 1 / np.sum(at(1.0) ** 2) >= ess:
        return at(1.0)
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if 1 / np.sum(at(middle) ** 2) >= ess else (low, middle)
    return at(low)
