"""How good predicted class probabilities are: accuracy, Brier score, calibration, log likelihood.

Everywhere, `probabilities` is [row, class] with rows that sum to 1, or [row] with P(y = 1) for two classes; `labels`
is [row] with the classes 0, 1, …. For a Bayesian predictive, average the probabilities over the draws first.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from fahmc.errors import DataError

# Averages of float32 softmax rows miss 1 by some 1e-6; logits or counts miss it by far more than this.
_SUM_TOLERANCE = 1e-4


def accuracy(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Return the share of rows whose most probable class is the label; ties go to the lower class.

    Examples
    --------
    >>> accuracy([0.9, 0.2, 0.6, 0.4], [1, 0, 0, 0])
    0.75
    """
    p, y = _checked(probabilities, labels)
    return float(np.mean(p.argmax(axis=1) == y))


def brier_score(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Return the Brier score, summed over classes and averaged over rows.

    (1/n) Σ_i Σ_k (p_ik − 1[y_i = k])²: from 0 (certain and right) to 2 (certain and wrong). With two classes it is
    twice the mean of (P(y = 1) − y)².

    Examples
    --------
    >>> brier_score([[0.5, 0.5], [0.0, 1.0]], [0, 1])
    0.25
    """
    p, y = _checked(probabilities, labels)
    return float(np.mean(np.sum((p - np.eye(p.shape[1])[y]) ** 2, axis=1)))


def negative_log_likelihood(probabilities: ArrayLike, labels: ArrayLike, *, total: bool = False) -> float:
    """Return −log p of the labels: the mean per row, or with ``total`` the sum.

    A label that was given probability 0 makes it infinite; nothing is clipped.
    """
    p, y = _checked(probabilities, labels)
    with np.errstate(divide="ignore"):
        losses = -np.log(p[np.arange(len(y)), y])
    return float(losses.sum() if total else losses.mean())


def expected_calibration_error(probabilities: ArrayLike, labels: ArrayLike, *, num_bins: int = 20) -> float:
    """Return the expected calibration error over equal-width bins of the top probability.

    ECE = Σ_b (n_b / n) |accuracy_b − confidence_b|, where bin b of B holds the probabilities in (b / B, (b + 1) / B].
    """
    p, y = _checked(probabilities, labels)
    if num_bins < 1:
        raise DataError(f"num_bins is {num_bins}; at least 1 bin is needed.")
    top, is_right = p.max(axis=1), p.argmax(axis=1) == y
    bins = np.searchsorted(np.linspace(0.0, 1.0, num_bins + 1), top, side="left") - 1
    # n_b (accuracy_b − confidence_b) is the sum over the bin's rows of what is right minus what was claimed.
    return float(np.abs(np.bincount(bins, weights=is_right - top)).sum() / len(y))


def _checked(
    probabilities: ArrayLike, labels: ArrayLike
) -> tuple[Float[np.ndarray, "row class"], Int[np.ndarray, " row"]]:
    """Return probabilities as [row, class] and labels as integers, or say what is wrong with them."""
    p = np.asarray(probabilities, dtype=np.float64)
    if p.ndim == 1:
        p = np.stack([1 - p, p], axis=1)
    if p.ndim != 2 or p.shape[0] == 0 or p.shape[1] < 2:
        raise DataError(
            f"The probabilities have shape {p.shape}; they must be [row, class] with at least 1 row and 2 classes, or "
            "[row] with P(y = 1). Average over draws first."
        )
    is_bad = ~((p >= -_SUM_TOLERANCE) & (p <= 1 + _SUM_TOLERANCE)).all(axis=1)
    if is_bad.any():
        row = int(is_bad.argmax())
        raise DataError(f"Row {row} of the probabilities is {p[row]}; probabilities lie between 0 and 1.")
    is_bad = np.abs(p.sum(axis=1) - 1) > _SUM_TOLERANCE
    if is_bad.any():
        row = int(is_bad.argmax())
        raise DataError(
            f"Row {row} of the probabilities sums to {p[row].sum():.6g}; every row must sum to 1. "
            "Apply the softmax first if these are logits."
        )
    return np.clip(p, 0.0, 1.0), _checked_labels(labels, num_rows=len(p), num_classes=p.shape[1])


def _checked_labels(labels: ArrayLike, *, num_rows: int, num_classes: int) -> Int[np.ndarray, " row"]:
    """Return the labels as integers, or say what is wrong with them."""
    given = np.asarray(labels)
    if given.shape != (num_rows,):
        raise DataError(
            f"The labels have shape {given.shape}; one per row of the probabilities is needed: ({num_rows},)."
        )
    if given.dtype.kind not in "biuf":
        raise DataError(f"The labels have type {given.dtype}; they must be the classes 0 to {num_classes - 1}.")
    is_bad = ~((given == np.floor(given)) & (given >= 0) & (given < num_classes))
    if is_bad.any():
        row = int(is_bad.argmax())
        raise DataError(
            f"The label of row {row} is {given[row]}; with {num_classes} classes labels are 0 to {num_classes - 1}."
        )
    return given.astype(np.int64)
