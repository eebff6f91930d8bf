"""Gaussian clients as a fahmc model: the bridge between the implementation and its exact law in `fahmc.theory`."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

import fahmc
from fahmc import theory


@dataclass(frozen=True)
class Study:
    """f_c(q) = (q − m_c)′ A_c (q − m_c) / 2, with one row (m_c, A_c) at each client."""

    means: np.ndarray
    precisions: np.ndarray
    weights: np.ndarray

    @property
    def dimension(self) -> int:
        return self.means.shape[1]

    @property
    def clients(self) -> theory.GaussianClients:
        return theory.GaussianClients(self.means, self.precisions, self.weights)

    @property
    def federation(self) -> fahmc.Federation:
        rows = [{"mean": m[None], "precision": a[None]} for m, a in zip(self.means, self.precisions, strict=True)]
        return fahmc.Federation.from_clients(rows, weights=list(self.weights))

    @property
    def model(self) -> fahmc.Model:
        # With one row a client, f_c is N times its row's loss; dividing by N undoes it.
        num_clients = len(self.means)

        def loglikelihood_fn(position, batch):
            gap = position[None] - batch["mean"]
            return -jnp.einsum("ri,rij,rj->r", gap, batch["precision"], gap) / 2 / num_clients

        return fahmc.Model(loglikelihood_fn, init=np.zeros(self.dimension))
