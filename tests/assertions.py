"""Comparisons of independent replicas with an exact law, at one stated rate of false alarms.

Replicas are independent, so the standard errors are exact and nothing is estimated from a chain. A check of m numbers
uses z = Φ⁻¹(1 − α / (2 m)), so each call fails by chance with probability at most α.
"""

import numpy as np
from scipy import stats

FALSE_ALARM = 1e-6


def threshold(num_comparisons: int) -> float:
    return float(stats.norm.isf(FALSE_ALARM / (2 * num_comparisons)))


def assert_mean(replicas: np.ndarray, mean: np.ndarray, covariance: np.ndarray) -> None:
    """Replicas [n, dim] of N(mean, covariance) must have that mean."""
    z = (replicas.mean(axis=0) - mean) / np.sqrt(np.diag(covariance) / len(replicas))
    assert np.abs(z).max() < threshold(z.size), f"mean off by z = {z}"


def assert_covariance(replicas: np.ndarray, covariance: np.ndarray) -> None:
    """Replicas [n, dim] of a normal law must have that covariance; its entries err by (C_ii C_jj + C_ij²) / n."""
    variances = np.diag(covariance)
    error = np.sqrt((np.outer(variances, variances) + covariance**2) / len(replicas))
    z = (np.cov(replicas, rowvar=False) - covariance) / error
    upper = np.triu_indices(len(covariance))
    assert np.abs(z[upper]).max() < threshold(len(upper[0])), f"covariance off by z = {z[upper]}"


def assert_same_mean(draws, reference, allowance: float = 0.0) -> None:
    """Two runs have the same mean for every parameter, within Monte Carlo error plus ``allowance`` posterior sds."""
    a, b = draws.summary(), reference.summary()
    assert min(a["ess_bulk"].min(), b["ess_bulk"].min()) > 400, (
        "too few effective draws for this check to mean anything"
    )
    error = np.hypot(a["mcse_mean"], b["mcse_mean"])
    gap = np.abs(a["mean"] - b["mean"])
    assert (gap < threshold(len(gap)) * error + allowance * b["sd"]).all(), (
        f"means differ by {(gap / error).max():.1f} mcse"
    )
