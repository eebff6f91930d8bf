"""Distances against SciPy, closed forms, and cases worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import sqrtm
from scipy.stats import wasserstein_distance

from fahmc.errors import DataError
from fahmc.report.distances import marginal_error, marginal_error_floor, wasserstein2_gaussians


@pytest.mark.parametrize(("n", "m"), [(50, 50), (50, 75), (7, 100), (1, 13), (64, 63)])
def test_marginal_error_is_the_mean_of_scipys_distances(n, m):
    rng = np.random.default_rng(n * m)
    a, b = rng.normal(size=(n, 5)), rng.standard_t(3, size=(m, 5)) + np.arange(5)
    expected = np.mean([wasserstein_distance(a[:, i], b[:, i]) for i in range(5)])
    np.testing.assert_allclose(marginal_error(a, b), expected, rtol=1e-12)


def test_marginal_error_takes_repeated_values_and_vectors():
    assert marginal_error([0.0, 0.0, 1.0], [0.0, 1.0]) == pytest.approx(1 / 6, rel=1e-12)
    assert marginal_error([[1.0], [2.0]], [[2.0], [1.0]]) == 0.0


def test_marginal_error_of_a_shift_is_the_shift_whatever_the_order_of_rows():
    a = np.random.default_rng(0).normal(size=(100, 3))
    assert marginal_error(a, a[::-1] + np.array([1.0, 2.0, -6.0])) == pytest.approx(3.0, rel=1e-12)


def test_floor_depends_on_both_sizes_and_is_below_a_real_error():
    rng = np.random.default_rng(2)
    reference, again = rng.normal(size=(20_000, 20)), rng.normal(size=(20_000, 20))
    full, short = marginal_error_floor(reference, again), marginal_error_floor(reference, again, num_samples=200)
    # E W1 is of the order of sqrt(1/n + 1/m) standard deviations.
    assert 0.5 < full / np.sqrt(2 / 20_000) < 2.5
    assert 0.5 < short / np.sqrt(1 / 20_000 + 1 / 200) < 2.5
    assert marginal_error(rng.normal(size=(200, 20)) + 0.5, reference) > 3 * short
    with pytest.raises(DataError, match="20000 rows"):
        marginal_error_floor(reference, again, num_samples=20_001)


def random_covariance(rng, dim):
    root = rng.normal(size=(dim, dim))
    return root @ root.T


def test_gaussians_against_the_textbook_formula():
    rng = np.random.default_rng(3)
    mean_a, mean_b = rng.normal(size=(2, 6))
    cov_a, cov_b = random_covariance(rng, 6), random_covariance(rng, 6)
    root = np.real(sqrtm(cov_a))
    cross = np.real(sqrtm(root @ cov_b @ root))
    expected = np.sqrt(np.sum((mean_a - mean_b) ** 2) + np.trace(cov_a + cov_b - 2 * cross))
    np.testing.assert_allclose(wasserstein2_gaussians(mean_a, cov_a, mean_b, cov_b), expected, rtol=1e-10)
    np.testing.assert_allclose(wasserstein2_gaussians(mean_b, cov_b, mean_a, cov_a), expected, rtol=1e-10)


def test_gaussians_with_short_covariances_equal_their_matrices():
    mean_a, mean_b, variances = np.zeros(4), np.ones(4), np.array([1.0, 4.0, 9.0, 0.25])
    expected = np.sqrt(4 + np.sum((np.sqrt(variances) - 2) ** 2))
    full = np.diag(variances)
    for cov_a in (variances, full):
        for cov_b in (4.0, np.full(4, 4.0), 4 * np.eye(4)):
            assert wasserstein2_gaussians(mean_a, cov_a, mean_b, cov_b) == pytest.approx(expected, rel=1e-12)


def test_nearly_equal_gaussians_keep_their_digits():
    """The trace formula gives 1e-8 here, or the root of a negative number."""
    cov = random_covariance(np.random.default_rng(4), 5)
    root = (1 + 1e-9) ** 2
    expected = 1e-9 * np.sqrt(np.trace(cov))
    assert wasserstein2_gaussians(np.zeros(5), cov, np.zeros(5), root * cov) == pytest.approx(expected, rel=1e-4)


def test_the_paper_s_figure_2_target_in_1000_dimensions():
    """N(16.2, 1.6 I) against a shift of 0.01 in every coordinate."""
    assert wasserstein2_gaussians(np.full(1000, 16.2), 1.6, np.full(1000, 16.21), 1.6) ** 2 == pytest.approx(0.1)


def test_singular_covariances_are_allowed_and_negative_ones_are_not():
    assert wasserstein2_gaussians([0.0], 0.0, [2.0], 0.0) == 2.0
    singular = np.ones((3, 3))
    assert wasserstein2_gaussians(np.zeros(3), singular, np.zeros(3), singular) == pytest.approx(0, abs=1e-7)
    with pytest.raises(DataError, match="negative variance -1"):
        wasserstein2_gaussians([0.0, 0.0], [1.0, -1.0], [0.0, 0.0], 1.0)
    with pytest.raises(DataError, match="negative variance"):
        wasserstein2_gaussians([0.0, 0.0], [[1.0, 2.0], [2.0, 1.0]], [0.0, 0.0], 1.0)
    with pytest.raises(DataError, match="not symmetric"):
        wasserstein2_gaussians([0.0, 0.0], [[1.0, 0.5], [0.0, 1.0]], [0.0, 0.0], 1.0)
    with pytest.raises(DataError, match=r"cov_b has shape \(3,\)"):
        wasserstein2_gaussians([0.0, 0.0], 1.0, [0.0, 0.0], np.ones(3))


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        (np.zeros((3, 2)), np.zeros((3, 4)), "2 and 4 coordinates"),
        (np.zeros((3, 2, 1)), np.zeros((3, 2)), r"shape \(3, 2, 1\)"),
        (np.zeros((0, 2)), np.zeros((3, 2)), "at least one"),
        (np.array([[0.0, 1.0], [np.nan, 0.0]]), np.zeros((2, 2)), r"entry \(1, 0\) is nan"),
    ],
)
def test_unusable_samples_are_named(a, b, words):
    with pytest.raises(DataError, match=words):
        marginal_error(a, b)
