"""Values of every row at every draw, some rows at a time: they are many, and only their sums go further."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp

from fahmc.checks.check import Fit
from fahmc.density.model import try_shape
from fahmc.errors import ModelError, shown

# Numbers of one chunk: 64 MB.
_MOST_NUMBERS = 2**23
# Draws that are evaluated side by side: enough to hide the loop over them, few enough to stay in the cache.
_ABREAST = 32


def row_chunks(num_rows: int, num_draws: int) -> Iterator[tuple[np.ndarray, int]]:
    """Yield places of rows, equally many each time, and how many of them are new; the last are filled up."""
    most = max(1, _MOST_NUMBERS // num_draws)
    size = -(-num_rows // -(-num_rows // most))
    for start in range(0, num_rows, size):
        yield np.minimum(np.arange(start, start + size), num_rows - 1), min(size, num_rows - start)


def over_rows(
    function: Callable[[Any, Any], Any], name: str, fit: Fit
) -> Iterator[tuple[np.ndarray, Float[np.ndarray, "row draw"]]]:
    """Yield places of rows, and ``function(position, rows)`` of these rows at all draws, in double precision."""
    leaf = jax.tree.leaves(fit.positions)[0]
    precision = leaf.dtype if leaf.dtype.kind == "f" else np.dtype(np.float64)
    is_double = precision == np.float64

    def evaluate(positions: Any, rows: Any) -> Any:
        return jax.lax.map(lambda position: function(position, rows), positions, batch_size=_ABREAST)

    compiled = jax.jit(evaluate)
    for places, num_new in row_chunks(fit.num_rows, fit.num_draws):
        rows = jax.tree.map(lambda leaf, places=places: _as_precise(leaf[places], precision), fit.rows)
        with jax.enable_x64(is_double):
            rows, positions = (jax.tree.map(jnp.asarray, part) for part in (rows, fit.positions))
            first = jax.tree.map(lambda leaf: leaf[0], positions)
            shape = getattr(try_shape(name, "", function, first, rows), "shape", None)
            if shape != (len(places),):
                raise ModelError(
                    f"{name} returned shape {shown(shape)} for {len(places)} rows; one value a row is due."
                )
            values = np.asarray(compiled(positions, rows))
        yield places[:num_new], values.T[:num_new].astype(np.float64)


def _as_precise(leaf: Any, precision: np.dtype) -> np.ndarray:
    leaf = np.asarray(leaf)
    return leaf.astype(precision) if leaf.dtype.kind == "f" else leaf


def log_mean_exp(values: np.ndarray, axis: int = -1) -> np.ndarray:
    """Return log of the mean of exp(values)."""
    return np.asarray(logsumexp(values, axis=axis)) - np.log(values.shape[axis])
