"""Scores against scikit-learn and cases worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics
from sklearn.calibration import calibration_curve

from fahmc.errors import DataError
from fahmc.report import (
    accuracy,
    brier_score,
    expected_calibration_error,
    negative_log_likelihood,
)


@pytest.fixture(scope="module")
def ten_classes():
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(500, 10))
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return probabilities, rng.integers(10, size=500)


def test_scores_agree_with_scikit_learn(ten_classes):
    p, y = ten_classes
    assert accuracy(p, y) == metrics.accuracy_score(y, p.argmax(axis=1))
    np.testing.assert_allclose(negative_log_likelihood(p, y), metrics.log_loss(y, p), rtol=1e-12)
    np.testing.assert_allclose(negative_log_likelihood(p, y, total=True), 500 * metrics.log_loss(y, p), rtol=1e-12)
    expected = metrics.brier_score_loss(y, p, scale_by_half=False, labels=np.arange(10))  # pyright: ignore[reportArgumentType]
    np.testing.assert_allclose(brier_score(p, y), expected, rtol=1e-12)


def test_two_classes_given_as_one_column_are_the_same_as_two():
    rng = np.random.default_rng(1)
    p, y = rng.uniform(size=200), rng.integers(2, size=200)
    both = np.stack([1 - p, p], axis=1)
    for score in (accuracy, brier_score, expected_calibration_error, negative_log_likelihood):
        assert score(p, y) == score(both, y)
    np.testing.assert_allclose(brier_score(p, y), 2 * metrics.brier_score_loss(y, p), rtol=1e-12)


def test_calibration_error_agrees_with_scikit_learns_bins(ten_classes):
    p, y = ten_classes
    share, mean = calibration_curve(p.argmax(axis=1) == y, p.max(axis=1), n_bins=20)
    counts = np.histogram(p.max(axis=1), bins=20, range=(0, 1))[0]
    expected = np.sum(counts[counts > 0] * np.abs(share - mean)) / 500
    assert expected_calibration_error(p, y) == pytest.approx(expected, rel=1e-12)


def test_calibration_error_by_hand():
    """Bin (0.75, 0.8]: 2 rows, one right, |0.5 − 0.78| = 0.28. Bin (0.95, 1]: 1 row, right, |1 − 0.99| = 0.01."""
    p = [[0.76, 0.24], [0.2, 0.8], [0.01, 0.99]]
    assert expected_calibration_error(p, [0, 0, 1]) == pytest.approx((2 * 0.28 + 0.01) / 3)


def test_certainty_lies_in_the_last_bin_and_edges_in_the_lower_one():
    assert expected_calibration_error([[1.0, 0.0], [0.5, 0.5]], [0, 1], num_bins=2) == 0.25
    assert expected_calibration_error([[1.0 + 1e-7, 0.0], [0.9, 0.1]], [0, 1], num_bins=4) == pytest.approx(0.45)


def test_certain_and_wrong_is_the_worst():
    assert brier_score([[0.0, 1.0]], [0]) == 2.0
    assert negative_log_likelihood([[0.0, 1.0]], [0]) == np.inf
    assert negative_log_likelihood([[0.0, 1.0]], [1]) == 0.0
    assert expected_calibration_error([[0.0, 1.0]], [0]) == 1.0


def test_float32_probabilities_and_boolean_labels_are_taken():
    p = np.array([[0.25, 0.75], [0.9, 0.1]], dtype=np.float32)
    assert accuracy(p, np.array([True, False])) == 1.0
    assert accuracy(p, np.array([1.0, 0.0])) == 1.0


@pytest.mark.parametrize(
    ("probabilities", "labels", "words"),
    [
        ([[0.5, 0.6]], [0], "Row 0 of the probabilities sums to 1.1"),
        ([[0.5, 0.5], [1.5, -0.5]], [0, 0], "Row 1 .* between 0 and 1"),
        ([[0.5, np.nan]], [0], "Row 0"),
        ([[0.5, 0.5]], [2], "label of row 0 is 2; with 2 classes labels are 0 to 1"),
        ([[0.5, 0.5]], [-1], "label of row 0 is -1"),
        ([[0.5, 0.5]], [0.5], "label of row 0 is 0.5"),
        ([[0.5, 0.5]], ["yes"], "type"),
        ([[0.5, 0.5]], [0, 1], r"shape \(2,\)"),
        ([[[0.5, 0.5]]], [0], "Average over draws first"),
        ([[1.0]], [0], "2 classes"),
        (np.zeros((0, 2)), np.zeros(0, dtype=int), "at least 1 row"),
    ],
)
def test_unusable_predictions_are_named(probabilities, labels, words):
    for score in (accuracy, brier_score, expected_calibration_error, negative_log_likelihood):
        with pytest.raises(DataError, match=words):
            score(probabilities, labels)
