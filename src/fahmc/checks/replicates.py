"""Replicated outcomes: what the model would have made of the same rows, once for every draw of the posterior.

    y_rep[i, s] ~ p(y | θ_s, row i),        with a key of (seed, site, draw s, first row of the block that i is in)

Blocks are as large as memory allows: a site of fewer than eight thousand rows is one at 1,000 draws.
Whoever knew the keys could undo the chance in sums of these and solve for single rows' predictions, so a site takes a
seed that it keeps to itself (``Fit.private_seed``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from fahmc import keys
from fahmc.checks.check import Fit
from fahmc.checks.pointwise import over_rows
from fahmc.errors import ModelError
from fahmc.types import Key

NO_SAMPLE_FN = (
    "The model has no sample_fn, so it cannot say what outcomes it expects; give Model(sample_fn=...) a function of "
    "(key, position, batch) that draws one for every row."
)


def replicates_key(fit: Fit, seed: int) -> Key:
    """Return the key of all replicated outcomes of a site."""
    return keys.replicates(seed if fit.private_seed is None else fit.private_seed, keys.client_identity(fit.site))


def replicated_outcomes(fit: Fit, key: Key) -> Iterator[tuple[np.ndarray, Float[np.ndarray, "row draw"]]]:
    """Yield places of rows, and their outcomes drawn from the model at every draw."""
    sample = fit.model.sample_fn
    if sample is None:
        raise ModelError(NO_SAMPLE_FN)

    def of_block(indexed: tuple[Any, Any, Any], numbered: tuple[Any, Any]) -> Any:
        (position, draw, words), (places, rows) = indexed, numbered
        return sample(keys.replicate_at(jax.random.wrap_key_data(words), draw, places[0]), position, rows)

    # The key goes along with every draw: part of the program, it would have each question compiled anew.
    words = np.tile(jax.random.key_data(key), (fit.num_draws, 1))
    indexed = fit._replace(
        positions=(fit.positions, np.arange(fit.num_draws, dtype=np.uint32), words),
        rows=(np.arange(fit.num_rows, dtype=np.uint32), fit.rows),
    )
    for places, outcomes in over_rows(of_block, "sample_fn", indexed):
        if not np.isfinite(outcomes).all():
            raise ModelError(
                "sample_fn drew outcomes that are not finite, so they cannot be set against those there are."
            )
        yield places, outcomes


def outcomes_of(fit: Fit) -> Float[np.ndarray, " row"]:
    """Return the outcomes that there are, as precise as those that are drawn."""
    outcomes = fit.outcome
    if outcomes.ndim != 1:
        raise ModelError(f"The outcomes have shape {outcomes.shape}; a predictive check takes one number a row.")
    return outcomes.astype(_precision(fit)).astype(np.float64)


def ranks_among(
    outcomes: Float[np.ndarray, " row"], replicated: Float[np.ndarray, "row draw"], key: Key, places: np.ndarray
) -> Int[np.ndarray, "row 1+draw"]:
    """Return the rank of each row's outcome, and of each replicated one, among all of that row; chance decides ties.

    Were the outcome one more draw from the model, all its ranks would be equally likely.
    """
    width = replicated.shape[1] + 1
    ties = jax.vmap(lambda row: jax.random.uniform(keys.replicate_ties(key, row), (width,)))(
        jnp.asarray(places, np.uint32)
    )
    # Complex numbers are sorted by their real part, then by the imaginary one.
    order = np.argsort(np.column_stack([outcomes, replicated]) + 1j * np.asarray(ties, np.float64), axis=1)
    ranks = np.empty_like(order)
    np.put_along_axis(ranks, order, np.broadcast_to(np.arange(width), order.shape), axis=1)
    return ranks


def _precision(fit: Fit) -> np.dtype:
    dtype = np.asarray(jax.tree.leaves(fit.positions)[0]).dtype
    return dtype if dtype.kind == "f" else np.dtype(np.float64)
