"""How far one set of draws lies from another: Wasserstein distances, exact.

On the line, the optimal coupling of two laws matches their quantiles, whatever the (convex) cost:

    W_p(F, G)^p = ∫_0^1 |F⁻¹(u) − G⁻¹(u)|^p du.

For n and m equally weighted points both quantile functions are constant between the multiples of 1/n and of 1/m, so
the integral is a finite sum. In several dimensions two Gaussians have a closed form (the Bures metric), and two sets of
n points an optimal assignment.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from fahmc.errors import DataError

# Columns are taken in blocks of about this many numbers (128 MB), so that long runs in d = 1000 fit in memory.
_BLOCK_SIZE = 2**24


def marginal_error(samples: ArrayLike, reference: ArrayLike) -> float:
    """Return the marginal error, the mean over coordinates of the W₁ distance of the marginals.

    ME = (1/d) Σ_i W₁(i-th marginal of the samples, i-th marginal of the reference).

    Even exact draws have a positive ME, since both sides are finite: see `marginal_error_floor`.

    Parameters
    ----------
    samples, reference : array [row, dim]
        Draws, chains joined. The numbers of rows may differ. A vector [row] is one coordinate.

    Returns
    -------
    float
        The marginal error, in the units of the parameters.

    Examples
    --------
    >>> marginal_error([[0.0, 0.0], [1.0, 2.0]], [[3.0, 0.0], [2.0, 2.0]])
    1.0
    """
    a, b = _two_samples(samples, reference)
    block = max(1, _BLOCK_SIZE // (len(a) + len(b)))
    total = 0.0
    for start in range(0, a.shape[1], block):
        columns = slice(start, start + block)
        total += float(_quantile_cost(a[:, columns], b[:, columns], power=1).sum())
    return total / a.shape[1]


def marginal_error_floor(
    reference: ArrayLike, independent_reference: ArrayLike, *, num_samples: int | None = None
) -> float:
    """Return the marginal error that a perfect sampler would show: its Monte Carlo floor.

    The ME of n samples against m reference draws is about √(1/n + 1/m) in units of the posterior's standard deviation
    even when both come from the same law. The floor is the ME of a second, independent reference run in the
    place of the samples; an ME is news only above it.

    Parameters
    ----------
    reference : array [row, dim]
        The draws that the samples are compared with.
    independent_reference : array [row, dim]
        Draws from the same law by another run (another seed).
    num_samples : int, optional
        How many rows the samples have. That many rows, evenly spaced, of ``independent_reference`` are used, since the
        floor depends on both sizes; default: all of them.
    """
    _, stand_in = _two_samples(reference, independent_reference)
    if num_samples is not None:
        if not 1 <= num_samples <= len(stand_in):
            raise DataError(
                f"num_samples is {num_samples}, but the independent reference has {len(stand_in)} rows; "
                "give a number from 1 to that, or draw a longer reference."
            )
        stand_in = stand_in[np.linspace(0, len(stand_in) - 1, num_samples).round().astype(int)]
    return marginal_error(stand_in, reference)


def wasserstein2_gaussians(mean_a: ArrayLike, cov_a: ArrayLike, mean_b: ArrayLike, cov_b: ArrayLike) -> float:
    """Return the W₂ distance of two Gaussians.

    W₂² = ‖m_a − m_b‖² + tr(A + B − 2 (A^½ B A^½)^½)

    The trace is computed as min_U ‖A^½ − B^½ U‖²_F over orthogonal U (attained at the polar factor of B^½ A^½): a sum
    of squares, which does not lose its digits when A and B are nearly equal, as the trace does.

    Parameters
    ----------
    mean_a, mean_b : array [dim]
        The means; a number is a vector of length 1.
    cov_a, cov_b : array [dim, dim], array [dim] or float
        The covariances; a vector is a diagonal, a number a multiple of the identity. Two such covariances cost O(dim).

    Examples
    --------
    >>> wasserstein2_gaussians([0.0, 0.0], 1.0, [3.0, 4.0], [1.0, 1.0])
    5.0
    """
    a, b = np.atleast_1d(_finite(mean_a, "mean_a")), np.atleast_1d(_finite(mean_b, "mean_b"))
    if a.ndim != 1 or a.shape != b.shape:
        raise DataError(f"The means have shapes {a.shape} and {b.shape}; both must be vectors of the same length.")
    root_a, root_b = _covariance_root(cov_a, len(a), "cov_a"), _covariance_root(cov_b, len(a), "cov_b")
    if root_a.ndim == root_b.ndim == 1:
        residual = root_a - root_b
    else:
        root_a, root_b = (np.diag(root) if root.ndim == 1 else root for root in (root_a, root_b))
        left, _, right = np.linalg.svd(root_b @ root_a)
        residual = root_a - root_b @ (left @ right)
    return float(np.sqrt(np.sum((a - b) ** 2) + np.sum(residual**2)))


def wasserstein2_samples(a: ArrayLike, b: ArrayLike) -> float:
    """Return the W₂ distance of two samples, by the optimal pairing of their rows.

    W₂² = min_σ (1/n) Σ_i ‖a_i − b_σ(i)‖²

    In one dimension the pairing is by sorting, and the sizes may differ. Above that it is an assignment problem: n²
    memory and up to n³ time, and equal sizes are needed.

    Parameters
    ----------
    a, b : array [row, dim]
        Draws, chains joined. A vector [row] is one coordinate.
    """
    from scipy.optimize import linear_sum_assignment
    from scipy.spatial.distance import cdist

    a, b = _two_samples(a, b)
    if a.shape[1] == 1:
        return float(np.sqrt(_quantile_cost(a, b, power=2)[0]))
    if len(a) != len(b):
        raise DataError(
            f"The samples have {len(a)} and {len(b)} rows; in more than one dimension the optimal pairing needs as "
            "many of each. Thin the longer one."
        )
    costs = cdist(a, b, "sqeuclidean")
    return float(np.sqrt(costs[linear_sum_assignment(costs)].mean()))


def _quantile_cost(
    a: Float[np.ndarray, "n dim"], b: Float[np.ndarray, "m dim"], *, power: int
) -> Float[np.ndarray, " dim"]:
    """Return ∫ |F⁻¹ − G⁻¹|^power du for each column."""
    a, b = np.sort(a, axis=0), np.sort(b, axis=0)
    n, m = len(a), len(b)
    if n == m:
        return np.mean(np.abs(a - b) ** power, axis=0)
    # The breakpoints i/n and j/m as whole numbers, in units of 1/(n m): equal ones meet exactly. They are the same for
    # every column, so one merge serves all.
    ends = np.union1d(np.arange(1, n + 1) * m, np.arange(1, m + 1) * n)
    widths = np.diff(ends, prepend=0) / (n * m)
    return widths @ np.abs(a[(ends - 1) // m] - b[(ends - 1) // n]) ** power


def _covariance_root(cov: ArrayLike, dim: int, name: str) -> np.ndarray:
    """Return the symmetric root of a covariance: a vector for a diagonal one, else a matrix."""
    cov = _finite(cov, name)
    if cov.ndim == 0:
        cov = np.broadcast_to(cov, dim)
    if cov.shape not in ((dim,), (dim, dim)):
        raise DataError(
            f"{name} has shape {cov.shape}; for means of length {dim} it must be (), ({dim},) or ({dim}, {dim})."
        )
    if cov.ndim == 1:
        variances, vectors = cov, None
    else:
        if not np.allclose(cov, cov.T, rtol=0, atol=1e-8 * np.abs(cov).max()):
            raise DataError(f"{name} is not symmetric; a covariance must be.")
        variances, vectors = np.linalg.eigh((cov + cov.T) / 2)
    # A semi-definite matrix has eigenvalues that rounding pushes a little below zero.
    if variances.min() < -1e-10 * np.abs(variances).max():
        raise DataError(f"{name} has the negative variance {variances.min():.3g}; a covariance has none.")
    roots = np.sqrt(np.maximum(variances, 0))
    return roots if vectors is None else (vectors * roots) @ vectors.T


def _two_samples(a: ArrayLike, b: ArrayLike) -> tuple[Float[np.ndarray, "n dim"], Float[np.ndarray, "m dim"]]:
    """Return both samples as [row, dim], checked."""
    first, second = (_finite(x, name) for x, name in ((a, "the first sample"), (b, "the second sample")))
    if first.ndim == second.ndim == 1:
        first, second = first[:, None], second[:, None]
    for x, name in ((first, "first"), (second, "second")):
        if x.ndim != 2 or x.size == 0:
            raise DataError(f"The {name} sample has shape {x.shape}; it must be [row, dim] with at least one of each.")
    if first.shape[1] != second.shape[1]:
        raise DataError(f"The samples have {first.shape[1]} and {second.shape[1]} coordinates; they must have as many.")
    return first, second


def _finite(x: ArrayLike, name: str) -> np.ndarray:
    """Return ``x`` as float64, or say which of its entries is not a finite number."""
    array = np.asarray(x, dtype=np.float64)
    if not np.all(np.isfinite(array)):
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise DataError(
            f"In {name}, entry {where} is {array[where]}; distances need finite numbers. Drop diverged draws."
        )
    return array
