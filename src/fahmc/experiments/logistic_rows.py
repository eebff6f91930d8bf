"""Rows drawn from a known law."""

from __future__ import annotations

import numpy as np


def logistic_rows(num_rows: int, dim: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Return x [row, dim] and y [row] of a logistic regression with features on the unit sphere.

    x = z / ‖z‖ with z ~ N(0, I), θ ~ N(0, I) and y ~ Bernoulli(1 / (1 + exp(-xᵀθ))): the data of the paper's figure 1.

    Examples
    --------
    >>> rows = logistic_rows(num_rows=4, dim=3)
    >>> rows["x"].shape, rows["y"].shape
    ((4, 3), (4,))

    References
    ----------
    Mangoubi and Vishnoi (2018), "Dimensionally tight bounds for second-order Hamiltonian Monte Carlo".
    """
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(num_rows, dim))
    x = z / np.linalg.norm(z, axis=1, keepdims=True)
    chance = 1 / (1 + np.exp(-x @ rng.normal(size=dim)))
    return {"x": x, "y": (rng.random(num_rows) < chance).astype(np.float64)}
