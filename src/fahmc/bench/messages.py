"""Models whose messages have a given size and whose rounds take next to no work: for timing what lies between."""

from __future__ import annotations

import jax.numpy as jnp

from fahmc.density.model import Model

SIZES = {"8 KB": 8 * 2**10, "1 MB": 2**20, "10 MB": 10 * 2**20}


def _message_of(num_bytes: int) -> Model:
    """Return θ ~ N(0, I) in single precision, of which the rows see the first entry."""
    return Model(
        loglikelihood_fn=lambda position, batch: -((batch["y"] - position["theta"][0]) ** 2) / 2,
        logprior_fn=lambda position: -jnp.sum(position["theta"] ** 2) / 2,
        init={"theta": jnp.zeros(num_bytes // 4, jnp.float32)},
    )


def small() -> Model:
    """8 KB."""
    return _message_of(SIZES["8 KB"])


def medium() -> Model:
    """1 MB."""
    return _message_of(SIZES["1 MB"])


def large() -> Model:
    """10 MB."""
    return _message_of(SIZES["10 MB"])
