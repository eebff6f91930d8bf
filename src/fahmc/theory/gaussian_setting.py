"""Quadratic clients and normal laws: what the exact law of FA-HMC is made from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fahmc.errors import SettingsError
from fahmc.report.distances import wasserstein2_gaussians
from fahmc.theory.checks import require


class GaussianLaw(NamedTuple):
    """A normal law."""

    mean: NDArray[np.floating]
    covariance: NDArray[np.floating]


class RoundLaw(NamedTuple):
    """One round as a random map: state' = matrix @ state + offset + N(0, covariance)."""

    matrix: NDArray[np.floating]
    offset: NDArray[np.floating]
    covariance: NDArray[np.floating]

    def push(self, law: GaussianLaw) -> GaussianLaw:
        """Return the law of the state after the round, given the law before it."""
        matrix, offset, noise = self
        return GaussianLaw(matrix @ law.mean + offset, matrix @ law.covariance @ matrix.T + noise)

    def then(self, later: RoundLaw) -> RoundLaw:
        """Return this round followed by a later one."""
        offset, covariance = later.push(GaussianLaw(self.offset, self.covariance))
        return RoundLaw(later.matrix @ self.matrix, offset, covariance)


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
        needed, given = (num_clients, dim, dim), precisions.shape
        require(given == needed, "shape of precisions", given, f"{needed}, [client, dim, dim]")
        for client, matrix in enumerate(precisions):
            fits = np.allclose(matrix, matrix.T, rtol=1e-10, atol=0)
            require(fits, f"precision of client {client}", matrix.tolist(), "symmetric; average it with its own")
        shares = np.full(num_clients, 1 / num_clients) if weights is None else np.asarray(weights, dtype=np.float64)
        fits = shares.shape == (num_clients,) and bool(np.all(shares > 0)) and bool(np.isclose(shares.sum(), 1))
        words = f"{num_clients} numbers greater than 0 with sum 1; drop empty clients"
        require(fits, "weights", shares.tolist(), words)
        for name, value in (("means", means), ("precisions", precisions), ("weights", shares)):
            object.__setattr__(self, name, value)

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


def w2_to_posterior(clients: GaussianClients, law: GaussianLaw) -> float:
    """Return the 2-Wasserstein distance from a law of positions to the posterior."""
    return wasserstein2_gaussians(*law, *clients.posterior())
