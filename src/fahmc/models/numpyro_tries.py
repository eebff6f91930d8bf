"""Rows that a NumPyro model is tried on: as many as it takes to see whether one knows of another, unlike each other.

The first is the example's own; the others are made of it. An outcome that the model cannot make has a likelihood of 0
whatever else is true, and nothing shows by it, so outcomes are drawn from the model where that happens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from fahmc.data.places import SITE
from fahmc.models.numpyro_sites import NUM_ROWS

# So many that all being equal to the first row's tells that no other outcome is likely.
_NUM_DRAWN = 30


def unlike_rows(example: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return three unlike rows, the first the example's own."""

    def unlike(values: np.ndarray) -> np.ndarray:
        values = np.resize(values, (NUM_ROWS[0], *values.shape[1:]))
        shift = np.arange(NUM_ROWS[0]).reshape(-1, *[1] * (values.ndim - 1))
        if values.dtype.kind == "b":
            return values ^ (shift % 2 == 1)
        return values + shift if values.dtype.kind in "iu" else values * (1 + shift / 7) + shift / 20

    return {name: unlike(values) for name, values in example.items()}


def possible_outcomes(sites: Mapping[str, Mapping[str, Any]], rows: Mapping[str, Array]) -> dict[str, Array]:
    """Return columns that are observed, ``sites`` by column, with made-up outcomes that the model cannot make redrawn.

    What is drawn is, if the model makes such, another outcome than the first row's.
    """
    possible = {}
    for column, site in sites.items():
        values, law = rows[column], site["fn"]
        try:
            inside = jnp.asarray(law.support(values)).reshape(len(values), -1).all(axis=1)
            drawn = jnp.asarray(law.sample(jax.random.key(0), (_NUM_DRAWN,)), values.dtype)
        except (NotImplementedError, TypeError, ValueError):  # improper, or of another layout than the column
            continue
        if inside.all() or drawn.shape[1:] != values.shape:
            continue
        is_other = (drawn != values[:1]).reshape(*drawn.shape[:2], -1).any(axis=2)
        unlike = jnp.stack([drawn[jnp.argmax(is_other[:, row]), row] for row in range(len(values))])
        is_kept = inside | (jnp.arange(len(values)) == 0)
        possible[column] = jnp.where(is_kept.reshape(-1, *[1] * (values.ndim - 1)), values, unlike)
    return possible


def first_row_for(impossible: Bool[np.ndarray, " row"], rows: Mapping[str, Array]) -> dict[str, Array]:
    """Put the first row in the place of some, but for whose it is."""
    return {name: values if name == SITE else values.at[impossible].set(values[0]) for name, values in rows.items()}
