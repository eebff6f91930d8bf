"""JAX's default random generator, threefry2x32, written out: the same bits in one pass over the array.

JAX compiles the cipher's 20 rounds as a loop that goes over the array once a round; written out, XLA makes one pass of
it. What this gives are keys of another implementation for `jax.random`, whose numbers equal those of JAX's own keys bit
for bit (tests/test_threefry.py).

Reference: Salmon, Moraes, Dror and Shaw (2011), Parallel random numbers: as easy as 1, 2, 3.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import random as jax_extend_random
from jaxtyping import Array, UInt32

from fahmc.types import Key

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)


def written_out(key: Key) -> Key:
    """Return the key of the same random numbers, drawn sooner."""
    return jax.random.wrap_key_data(jax.random.key_data(key), impl=_WRITTEN_OUT)


def _cipher(key: UInt32[Array, " 2"], high: Array, low: Array) -> tuple[Array, Array]:
    """Encrypt the counters (high, low): 20 rounds, a key injection after every fourth."""
    schedule = (key[0], key[1], key[0] ^ key[1] ^ _PARITY)
    x, y = high + schedule[0], low + schedule[1]
    for injection in range(1, 6):
        for rotation in _ROTATIONS[(injection - 1) % 2]:
            x = x + y
            y = (y << np.uint32(rotation)) | (y >> np.uint32(32 - rotation))
            y = x ^ y
        x = x + schedule[injection % 3]
        y = y + schedule[(injection + 1) % 3] + np.uint32(injection)
    return x, y


def _count(shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Return the number of each place of an array, as two words."""
    places = int(np.prod(shape))
    if places >= 2**32:
        raise ValueError(f"{places} random numbers at once; at most 2^32 - 1 can be drawn with one key.")
    low = jax.lax.iota(jnp.uint32, places).reshape(shape)
    return jnp.zeros_like(low), low


def _seed(seed: Array) -> Array:
    return jnp.stack([jnp.zeros((), jnp.uint32), jnp.asarray(seed).astype(jnp.uint32)])


def _fold_in(key: Array, data: Array | int) -> Array:
    return jnp.stack(_cipher(key, jnp.zeros((), jnp.uint32), jnp.asarray(data).astype(jnp.uint32)))


def _split(key: Array, shape: tuple[int, ...]) -> Array:
    return jnp.stack(_cipher(key, *_count(shape)), axis=-1)


def _random_bits(key: Array, bit_width: int, shape: tuple[int, ...]) -> Array:
    first, second = _cipher(key, *_count(shape))
    if bit_width == 64:
        return (first.astype(jnp.uint64) << np.uint64(32)) | second.astype(jnp.uint64)
    return (first ^ second).astype(f"uint{bit_width}")


_WRITTEN_OUT = jax_extend_random.define_prng_impl(
    key_shape=(2,),
    seed=_seed,
    split=_split,
    random_bits=_random_bits,
    fold_in=_fold_in,
    name="threefry2x32_written_out",
    tag="fryw",
)
