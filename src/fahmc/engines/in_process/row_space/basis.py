"""What is computed of the clients' rows before a run."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fahmc.types import Client


class RowBasis(NamedTuple):
    """What is computed of the clients' rows before the run. Lists have an entry for each bucket of clients."""

    clients: list[Client]
    grams: list[Any]
    """[client, row, row] X_c X_c′; None for an orthonormal basis."""
    factors: list[Any]
    """[client, row, row] L_c in X_c = L_c Q_c′, and L_c′; None where the basis is the rows themselves."""
    rows: Any
    """[row, dim] of all clients: their rows, or with noise an orthonormal basis of each client's."""
    transposed: Any
    """[dim, row] The basis again: XLA is slower at products with a matrix that it has to transpose."""
    outside: Any
    """[dim, dim] Square root of Σ_c w_c² (I − Q_c Q_c′); [dim, 0] without noise."""
    spread: Any
    """[row, row + dim] the basis' products with the basis and with ``outside``: what forces and noise do to predictors.
    None where the way over the coefficients is shorter."""


def build_basis(clients: list[Client], covariates_name: str, *, is_noisy: bool) -> RowBasis:
    """Compute what depends on the rows alone."""
    covariates = [np.asarray(bucket.rows[covariates_name], np.float64) for bucket in clients]
    weights = np.concatenate([bucket.weight for bucket in clients]).astype(np.float64)
    dtype = clients[0].weight.dtype
    grams = factors = [None] * len(clients)
    bases = covariates
    if is_noisy:
        bases, factors = zip(*[_orthonormal(x) for x in covariates], strict=True)
    else:
        grams = [x @ x.swapaxes(1, 2) for x in covariates]
    basis = np.concatenate([rows.reshape(-1, rows.shape[2]) for rows in bases])
    num_rows, dimension = basis.shape
    outside = np.zeros((dimension, 0))
    if is_noisy:
        spans = np.repeat(weights, np.concatenate([np.full(len(q), q.shape[1]) for q in bases]))
        outside = _square_root(np.sum(weights**2) * np.eye(dimension) - (basis.T * spans**2) @ basis)
    spread = basis @ np.concatenate([basis.T, outside], axis=1) if num_rows <= 2 * dimension else None
    arrays = RowBasis(clients, list(grams), list(factors), basis, basis.T, outside, spread)
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype if leaf.dtype.kind == "f" else None), arrays)


def _orthonormal(x: np.ndarray) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """Q_c′, L_c and L_c′ of X_c = L_c Q_c′, for [client, row, dim]; n_c directions even where rows are dependent."""
    q, r = np.linalg.qr(x.swapaxes(1, 2))
    return q.swapaxes(1, 2), (r.swapaxes(1, 2), r)


def _square_root(matrix: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
