"""Quadratic clients, the sampler's settings and normal laws: what the exact law of FA-HMC is made from."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, inf
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fahmc.errors import SettingsError
from fahmc.report.distances import wasserstein2_gaussians
from fahmc.theory.checks import require, require_positive
from fahmc.types import Schedule


class GaussianLaw(NamedTuple):
    """A normal law."""

    mean: NDArray[np.floating]
    covariance: NDArray[np.floating]


class Leapfrog(NamedTuple):
    """One leapfrog step of a round."""

    step_size: float
    starts_trajectory: bool


@dataclass(frozen=True, eq=False, init=False)
class GaussianClients:
    """Clients with potentials f_c(q) = (q - m_c)' A_c (q - m_c) / 2.

    Parameters
    ----------
    means
        m_c, [client, dim].
    precisions
        A_c, symmetric, [client, dim, dim].
    weights
        w_c, [client], greater than 0 with sum 1; equal unless told.
    """

    means: NDArray[np.floating]
    precisions: NDArray[np.floating]
    weights: NDArray[np.floating]

    def __init__(self, means: ArrayLike, precisions: ArrayLike, weights: ArrayLike | None = None):
        means, precisions = np.asarray(means, dtype=np.float64), np.asarray(precisions, dtype=np.float64)
        require(means.ndim == 2 and means.size > 0, "shape of means", means.shape, "[client, dim], not empty")
        num_clients, dim = means.shape
        expected = (num_clients, dim, dim)
        require(
            precisions.shape == expected, "shape of precisions", precisions.shape, f"{expected}, [client, dim, dim]"
        )
        for client, precision in enumerate(precisions):
            symmetric = np.allclose(precision, precision.T, rtol=1e-10, atol=0)
            require(
                symmetric, f"precision of client {client}", precision.tolist(), "symmetric; average it with its own"
            )
        equal = np.full(num_clients, 1 / num_clients)
        weights = equal if weights is None else np.asarray(weights, dtype=np.float64)
        fits = weights.shape == (num_clients,) and bool(np.all(weights > 0)) and bool(np.isclose(weights.sum(), 1))
        require(
            fits, "weights", weights.tolist(), f"{num_clients} numbers greater than 0 with sum 1; drop empty clients"
        )
        for name, value in (("means", means), ("precisions", precisions), ("weights", weights)):
            object.__setattr__(self, name, value)

    @property
    def num_clients(self) -> int:
        """Number of clients."""
        return self.means.shape[0]

    @property
    def dim(self) -> int:
        """Size of a position."""
        return self.means.shape[1]

    def mean_gradient(self) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
        """Return (A, r) with sum_c w_c grad f_c(q) = A q - r: A = sum_c w_c A_c, r = sum_c w_c A_c m_c."""
        precision = np.einsum("c,cij->ij", self.weights, self.precisions)
        return precision, np.einsum("c,cij,cj->i", self.weights, self.precisions, self.means)

    def posterior(self) -> GaussianLaw:
        """Return the target exp(-sum_c w_c f_c): covariance A^-1, mean A^-1 r (see `mean_gradient`)."""
        precision, pull = self.mean_gradient()
        smallest = np.linalg.eigvalsh(precision)[0]
        if smallest <= 0:
            raise SettingsError(
                f"the weighted mean of the precisions has eigenvalue {smallest:.6g}; a posterior needs all of them "
                "greater than 0. Add a prior's precision to every client."
            )
        return GaussianLaw(np.linalg.solve(precision, pull), np.linalg.inv(precision))


@dataclass(frozen=True)
class Dynamics:
    """Settings of FA-HMC.

    Parameters
    ----------
    step_size
        eta, or eta(t) of the trajectory's index.
    num_leapfrog_steps
        K, leapfrog steps from one refresh of the momentum to the next.
    num_local_steps
        T, what clients do between two averagings, counted in ``sync_unit``.
    momentum_correlation
        rho.
    gradient_noise
        sigma: every evaluation of the gradient has its own N(0, sigma^2) on each coordinate.
    reuse_gradient
        The gradient that ends a leapfrog step also begins the next, with its noise.
    sync_unit
        ``"trajectory"``: Algorithm 3, which averages positions. ``"leapfrog"``: averages positions and momenta every T
        leapfrog steps, wherever the trajectory is.
    debiased
        Gradients are corrected by those at the last-but-one broadcast (Algorithms B.1 and B.2).
    """

    step_size: float | Schedule
    num_leapfrog_steps: int = 1
    num_local_steps: int = 1
    momentum_correlation: float = 1.0
    gradient_noise: float = 0.0
    reuse_gradient: bool = False
    sync_unit: Literal["trajectory", "leapfrog"] = "trajectory"
    debiased: bool = False

    def __post_init__(self):
        if not callable(self.step_size):
            require_positive("step_size", self.step_size)
        for name in ("num_leapfrog_steps", "num_local_steps"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        require(0 <= self.momentum_correlation <= 1, "momentum_correlation", self.momentum_correlation, "in [0, 1]")
        require(0 <= self.gradient_noise < inf, "gradient_noise", self.gradient_noise, "finite and at least 0")
        units = ("trajectory", "leapfrog")
        require(self.sync_unit in units, "sync_unit", repr(self.sync_unit), f"one of {units}")

    @property
    def state_parts(self) -> tuple[str, ...]:
        """Names of the blocks that the server broadcasts, in their order."""
        momentum = ("momentum",) if self.sync_unit == "leapfrog" else ()
        anchor = ("anchor", "anchor_gradient") if self.debiased else ()
        return ("position", *momentum, *anchor)

    @property
    def period(self) -> int:
        """After how many rounds a round begins at the same place of its trajectory: 1, or K / gcd(K, T)."""
        if self.sync_unit == "trajectory":
            return 1
        return self.num_leapfrog_steps // gcd(self.num_leapfrog_steps, self.num_local_steps)

    def leapfrogs(self, round_index: int) -> list[Leapfrog]:
        """Return the leapfrog steps of a round; the momentum is refreshed at every K-th since the first round."""
        k, t = self.num_leapfrog_steps, self.num_local_steps
        length = t if self.sync_unit == "leapfrog" else t * k
        steps = range(round_index * length, (round_index + 1) * length)
        return [Leapfrog(self._step_size_at(step // k), step % k == 0) for step in steps]

    def _step_size_at(self, trajectory: int) -> float:
        return float(self.step_size(trajectory) if callable(self.step_size) else self.step_size)


def w2_to_posterior(clients: GaussianClients, law: GaussianLaw) -> float:
    """Return the 2-Wasserstein distance from a law of positions to the posterior."""
    return wasserstein2_gaussians(*law, *clients.posterior())
