"""Momentum that clients share in part (section 4.2).

    p_c = √ρ ξ + √((1 − ρ) / w_c) ξ_c,     ξ common to all clients, ξ_c private, all standard normal

The factor 1/√w_c makes Σ_c w_c p_c standard normal for every ρ and w. ξ is rederived by each client from the common
seed, so it never crosses the network.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from fahmc import keys
from fahmc.types import ChainKeys, Client, Vector


def draw_momentum(
    chain_keys: ChainKeys, trajectory: Int[Array, ""], like: Vector, client: Client, correlation: float
) -> Vector:
    """Draw p_c for one trajectory, with the shape and dtype of ``like``."""
    momentum = jnp.zeros_like(like)
    # ρ is a setting, so a part with no share in p_c is not drawn at all.
    if correlation > 0:
        key_shared = keys.shared_momentum(chain_keys, trajectory)
        momentum += correlation**0.5 * jax.random.normal(key_shared, like.shape, like.dtype)
    if correlation < 1:
        key_private = keys.private_momentum(chain_keys, trajectory, client.identity)
        private = jax.random.normal(key_private, like.shape, like.dtype)
        momentum += jnp.sqrt((1 - correlation) / client.weight) * private
    return momentum
