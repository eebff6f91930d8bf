"""The surrogate posterior: the exact prior times the exponential of a quadratic in what the likelihood sees.

    ℓ(φ) ≈ ℓ(c) + g′(φ − c) + ½ (φ − c)′H(φ − c),        surrogate(θ) = prior(θ) exp(−that at φ(θ))

Whatever is not Gaussian in a posterior mostly is so by its prior (hierarchies, horseshoes, constraints), and that is
kept exactly. Where the prior is Gaussian too, so is the surrogate, and its draws cost nothing; elsewhere the server
draws by NUTS. Neither asks the sites for anything.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.linalg

from fahmc.adaptive.knowledge import Knowledge


class Quadratic(NamedTuple):
    """ℓ up to a constant, in double precision."""

    center: np.ndarray
    gradient: np.ndarray
    curvature: np.ndarray

    def __call__(self, seen: np.ndarray) -> np.ndarray:
        """Return the values at points [point, size]."""
        steps = seen - self.center
        return steps @ self.gradient + 0.5 * np.einsum("ij,ij->i", steps @ self.curvature, steps)

    def convex(self) -> Quadratic:
        """Return it with the curvature made positive: a saddle's downhill directions are turned around."""
        return self._replace(curvature=convex(self.curvature))


def convex(curvature: np.ndarray) -> np.ndarray:
    """Return a symmetric matrix with the signs of its negative eigenvalues turned around."""
    values, vectors = np.linalg.eigh(curvature)
    return curvature if (values >= 0).all() else (vectors * np.abs(values)) @ vectors.T


class Gaussian(NamedTuple):
    """N(mean, FF′)."""

    mean: np.ndarray
    factor: np.ndarray

    @property
    def covariance(self) -> np.ndarray:
        """FF′."""
        return self.factor @ self.factor.T

    @classmethod
    def from_precision(cls, mean: np.ndarray, precision: np.ndarray) -> Gaussian | None:
        """Return N(mean, precision⁻¹), if that is a law."""
        scale = np.sqrt(np.maximum(np.diag(precision), 1e-300))
        try:
            # Scaled first: columns of unlike units differ by powers of ten.
            upper = np.linalg.cholesky((precision / scale[:, None] / scale)[::-1, ::-1])[::-1, ::-1]
        except np.linalg.LinAlgError:
            return None
        # precision = D U U′ D with U upper, so that (D U)⁻¹′ is a lower factor of the covariance.
        lower = scipy.linalg.solve_triangular(upper * scale[:, None], np.eye(len(mean)), lower=False).T
        return cls(mean, lower) if np.isfinite(lower).all() else None

    @classmethod
    def from_moments(cls, mean: np.ndarray, covariance: np.ndarray) -> Gaussian | None:
        """Return N(mean, covariance), if that is a law."""
        scale = np.sqrt(np.maximum(np.diag(covariance), 1e-300))
        try:
            return cls(mean, np.linalg.cholesky(covariance / scale[:, None] / scale) * scale[:, None])
        except np.linalg.LinAlgError:
            return None

    @classmethod
    def of(cls, points: np.ndarray) -> Gaussian | None:
        """Return the Gaussian with the moments of points, if that is a law."""
        return cls.from_moments(points.mean(axis=0), np.atleast_2d(np.cov(points, rowvar=False)))

    def distance(self, points: np.ndarray) -> np.ndarray:
        """Return how far points are from the mean, in standard deviations."""
        steps = np.atleast_2d(points) - self.mean
        return np.linalg.norm(scipy.linalg.solve_triangular(self.factor, steps.T, lower=True), axis=0)


def gaussian_posterior(knowledge: Knowledge, loss: Quadratic) -> Gaussian | None:
    """Return the surrogate posterior of the position where prior and view are affine; None if it is improper."""
    prior = knowledge.affine
    assert prior is not None
    J = prior.jacobian
    precision = prior.curvature + J.T @ loss.curvature @ J
    precision = (precision + precision.T) / 2
    law = Gaussian.from_precision(np.zeros(len(precision)), precision)
    if law is None:
        return None
    # The gradient at θ is  p₀ + Pθ + J′(g + H(Jθ + v₀ − c)).
    slope = prior.slope + J.T @ (loss.gradient + loss.curvature @ (prior.offset - loss.center))
    return law._replace(mean=-law.factor @ (law.factor.T @ slope))


def fit_quadratic(
    center: np.ndarray, factor: np.ndarray, directions: np.ndarray, slope: np.ndarray, bend: np.ndarray
) -> Quadratic:
    """Fit a quadratic to the gradients at points c + F z_m, by least squares.

    With γ = F′∇ℓ, the symmetric A that minimises Σ_m |γ_m − γ̄ − A(z_m − z̄)|² solves AS + SA = C + C′, where S and C
    are the covariances of z with itself and of γ with z. For a quadratic ℓ it is exact; otherwise close to the mean
    curvature where the points lie (Stein's identity).
    """
    mean = directions.mean(axis=0)
    S = np.cov(directions, rowvar=False, bias=True).reshape(len(mean), len(mean))
    C = bend - (np.outer(slope, mean) + np.outer(mean, slope)) / 2
    values, vectors = np.linalg.eigh(S)
    A = vectors @ (2 * (vectors.T @ C @ vectors) / (values[:, None] + values)) @ vectors.T
    gradient = scipy.linalg.solve_triangular(factor, slope, lower=True, trans=1)
    half = scipy.linalg.solve_triangular(factor, A, lower=True, trans=1)
    curvature = scipy.linalg.solve_triangular(factor, half.T, lower=True, trans=1)
    return Quadratic(center + factor @ mean, gradient, (curvature + curvature.T) / 2)
