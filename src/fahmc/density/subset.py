"""Rows drawn without replacement, at a cost that does not depend on how many there are to draw from.

A random permutation π of {0, …, n − 1} is evaluated at 0, …, m − 1 alone. Places are written as (u, v), u < a, v < b,
with ab the least such product that holds n, and shifted in turn by hashes of each other,

    v ← v + h_i(u) mod b,      u ← u + h′_i(v) mod a

each of which is a permutation, whatever the hash (a Feistel network). A place beyond n goes through it again until it
is one of the n. After the bijective shuffles of Mitchell, Stokes, Frank and Holmes (2022), Bandwidth-optimal random
shuffling for GPUs; tests/density/test_subset.py holds it against the uniform law, which one round fails.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Int, UInt32

from fahmc.types import Key

_NUM_ROUNDS = 12
"""Pairs of shifts: 24 rounds."""


def draw_subset(key: Key, num_rows: Int[Array, ""], size: int) -> Int[Array, " size"]:
    """Draw ``size`` different numbers below ``num_rows``, which may be traced."""
    keys = jax.random.bits(key, (_NUM_ROUNDS, 2), "uint32")
    rows = num_rows.astype(jnp.uint32)
    # Rounding of the root does no harm: any a will do, with b from it.
    width = jnp.ceil(jnp.sqrt(rows.astype(jnp.float32))).astype(jnp.uint32)
    height = (rows + width - 1) // width

    places = _permute(jnp.arange(size, dtype=jnp.uint32), keys, width, height)
    places = lax.while_loop(
        lambda places: (places >= rows).any(),
        lambda places: jnp.where(places < rows, places, _permute(places, keys, width, height)),
        places,
    )
    return places.astype(jnp.int32)


@jax.jit  # traced once for all its places in a program, where it would be most of what there is to trace
def _permute(
    places: UInt32[Array, " size"], keys: UInt32[Array, "round 2"], width: UInt32[Array, ""], height: UInt32[Array, ""]
) -> UInt32[Array, " size"]:
    u, v = jnp.divmod(places, height)
    for key_v, key_u in keys:
        v = _wrap(v + _scale(_hash(u ^ key_v), height), height)
        u = _wrap(u + _scale(_hash(v ^ key_u), width), width)
    return u * height + v


def _hash(x: UInt32[Array, " size"]) -> UInt32[Array, " size"]:
    """Mix 32 bits: the end of MurmurHash3 (Appleby, public domain)."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return x ^ (x >> np.uint32(16))


def _scale(x: UInt32[Array, " size"], bound: UInt32[Array, ""]) -> UInt32[Array, " size"]:
    """Map 16 bits evenly below the bound: a and b stay below 2^16 for any number of rows below 2^32."""
    return ((x >> np.uint32(16)) * bound) >> np.uint32(16)


def _wrap(x: UInt32[Array, " size"], bound: UInt32[Array, ""]) -> UInt32[Array, " size"]:
    """Return x mod bound for x < 2 bound; a division would take longer than all the rest."""
    return jnp.where(x >= bound, x - bound, x)
