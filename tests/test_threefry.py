"""The written-out generator gives JAX's own numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fahmc.threefry import written_out


@pytest.mark.parametrize("seed", [0, 2**31 + 12345])
@pytest.mark.parametrize("shape", [(), (3, 5), (0,)])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
def test_bits_are_those_of_jax(seed, shape, dtype):
    jaxs = jax.random.key(seed, impl="threefry2x32")
    ours = written_out(jaxs)
    np.testing.assert_array_equal(jax.random.bits(ours, shape, dtype), jax.random.bits(jaxs.copy(), shape, dtype))


def test_derived_keys_are_those_of_jax():
    jaxs = jax.random.key(7, impl="threefry2x32")
    ours = written_out(jaxs)
    for derive in (lambda key: jax.random.fold_in(key, 3), lambda key: jax.random.split(key, (2, 3))):
        np.testing.assert_array_equal(jax.random.key_data(derive(ours)), jax.random.key_data(derive(jaxs)))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_normals_under_jit_and_vmap_are_those_of_jax(dtype):
    jaxs = jax.random.split(jax.random.key(5, impl="threefry2x32"), 4)

    def draw(keys):
        return jax.jit(jax.vmap(lambda key: jax.random.normal(key, (1001,), dtype)))(keys)

    # To the last digit but one: XLA may fuse the arithmetic after the bits in another way.
    np.testing.assert_allclose(draw(written_out(jaxs)), draw(jaxs), rtol=1e-6)
