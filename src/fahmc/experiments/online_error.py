"""The marginal error of a growing sample, without keeping the sample.

On the line W₁(F, G) = ∫ |F(x) − G(x)| dx. Counts of the samples in narrow cells give F exactly at the cells' borders;
between two borders the integral is taken by the trapezoidal rule. Outside the reference's range, where G is 0 or 1,
the integral is the samples' mean excess, which is exact. Memory does not grow with the samples.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from fahmc.errors import DataError

_NUM_CELLS = 1024


class OnlineMarginalError:
    """ME = (1/d) Σ_i W₁(i-th marginal of the samples so far, i-th marginal of the reference).

    Parameters
    ----------
    reference : array [row, dim]
        Draws of the reference.
    num_cells : int
        Cells over each coordinate's range in the reference. 1024 cells of a hundredth of a standard deviation or less
        leave an error far below the Monte Carlo error of any reference that fits in memory.

    Examples
    --------
    >>> reference = np.random.default_rng(0).normal(size=(4000, 3))
    >>> error = OnlineMarginalError(reference)
    >>> error.add(reference[:1000])
    >>> error.add(reference[1000:])
    >>> error.value()
    0.0
    """

    def __init__(self, reference: ArrayLike, num_cells: int = _NUM_CELLS):
        reference = np.asarray(reference, dtype=np.float64)
        if reference.ndim != 2 or len(reference) < 2 or not np.isfinite(reference).all():
            raise DataError(f"The reference has shape {reference.shape}; it must be finite numbers [row, dim].")
        span = np.ptp(reference, axis=0)
        # A margin keeps the reference itself inside; a coordinate that never moved still gets a range.
        margin = np.where(span > 0, span / num_cells, 0.5)
        self._low, self._high = reference.min(axis=0) - margin, reference.max(axis=0) + margin
        self._width = (self._high - self._low) / num_cells
        self._num_cells = num_cells
        self._reference = self._distribution(self._counts(reference), len(reference))
        self.reset()

    def reset(self) -> None:
        """Forget all samples."""
        self._cells = np.zeros((len(self._low), self._num_cells + 2), dtype=np.int64)
        self._excess = np.zeros(len(self._low))
        self.num_samples = 0

    def add(self, samples: ArrayLike) -> None:
        """Take in samples [row, dim]."""
        samples = np.asarray(samples)
        if samples.ndim != 2 or samples.shape[1] != len(self._low):
            raise DataError(f"The samples have shape {samples.shape}; they must be [row, {len(self._low)}].")
        if not np.isfinite(samples).all():
            raise DataError("The samples hold NaN or infinity; drop diverged draws.")
        self._cells += self._counts(samples)
        outside = np.maximum(self._low - samples, 0) + np.maximum(samples - self._high, 0)
        self._excess += outside.sum(axis=0, dtype=np.float64)
        self.num_samples += len(samples)

    def value(self) -> float:
        """Return the marginal error of the samples so far."""
        if not self.num_samples:
            raise DataError("There are no samples yet; add some first.")
        gap = np.abs(self._distribution(self._cells, self.num_samples) - self._reference)
        inside = self._width * (gap.sum(axis=1) - (gap[:, 0] + gap[:, -1]) / 2)
        return float(np.mean(inside + self._excess / self.num_samples))

    def _counts(self, samples: np.ndarray) -> np.ndarray:
        """Count the samples [dim, cell]; the first and the last cell are those outside the range."""
        cells = np.floor((samples - self._low) / self._width)
        cells = np.clip(cells, -1, self._num_cells).astype(np.int64) + 1
        dim, num_cells = len(self._low), self._num_cells + 2
        cells += np.arange(dim) * num_cells
        return np.bincount(cells.ravel(), minlength=dim * num_cells).reshape(dim, num_cells)

    def _distribution(self, counts: np.ndarray, num_samples: int) -> Float[np.ndarray, "dim border"]:
        """Return the distribution function at the borders of the cells."""
        return np.cumsum(counts[:, :-1], axis=1) / num_samples
