"""The key schedule, written out once more: every stream depends on all of its indices, and on nothing else."""

import functools
import itertools

import jax
import numpy as np
import pytest

from fahmc import keys
from fahmc.types import ChainKeys

STREAMS = {
    "shared_momentum": lambda chain, t, client, k, half: keys.shared_momentum(chain, t),
    "private_momentum": lambda chain, t, client, k, half: keys.private_momentum(chain, t, client),
    "gradient": lambda chain, t, client, k, half: keys.gradient_at(keys.gradient(chain, t, client), k, half),
    "outside_noise": lambda chain, t, client, k, half: keys.outside_noise(chain, t, k),
    "acceptance": lambda chain, t, client, k, half: keys.acceptance(chain, t),
    "jitter": lambda chain, t, client, k, half: keys.jitter(chain, t),
}
DEPENDS_ON = {
    "shared_momentum": "seed chain t",
    "private_momentum": "private chain t client",
    "gradient": "private chain t client k half",
    "outside_noise": "private chain t k",
    "acceptance": "seed chain t",
    "jitter": "seed chain t",
}


# Identities share a word each, and seeds their lower half.
AXES = {"seed": [1, 1 + 2**32], "private": [2, 2 + 2**40], "chain": [0, 1], "t": [0, 1], "client": [0, 1, 2],
        "k": [0, 1, 2], "half": [0, 1]}  # fmt: skip
CLIENTS = np.array([[5, 7], [5, 8], [6, 7]], np.uint32)


@functools.cache
def roots(seed: int, private_seed: int) -> ChainKeys:
    return jax.tree.map(np.asarray, jax.tree.map(jax.random.key_data, keys.chain_keys(seed, 2, private_seed)))


def numbers(name: str, places: list[dict[str, int]]) -> list[tuple[int, ...]]:
    """Return the keys of a stream at some places, as numbers."""
    chains = [jax.tree.map(lambda key, at=at: key[at["chain"]], roots(at["seed"], at["private"])) for at in places]
    t, client, k, half = (np.array([at[axis] for at in places], np.int32) for axis in ("t", "client", "k", "half"))

    def stream(chain, *indices):
        return jax.random.key_data(STREAMS[name](jax.tree.map(jax.random.wrap_key_data, chain), *indices))

    stacked = jax.tree.map(lambda *parts: np.stack(parts), *chains)
    return list(map(tuple, jax.jit(jax.vmap(stream))(stacked, t, CLIENTS[client], k, half).tolist()))


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_depends_on_its_indices_and_on_no_others(name):
    own, base = DEPENDS_ON[name].split(), {axis: values[0] for axis, values in AXES.items()}
    places = [base | dict(zip(own, place, strict=True)) for place in itertools.product(*(AXES[axis] for axis in own))]
    assert len(set(numbers(name, places))) == len(places)
    others = [base | {axis: AXES[axis][1]} for axis in AXES if axis not in own]
    assert len(set(numbers(name, [base, *others]))) == 1


def test_streams_of_one_seed_do_not_meet():
    base = {axis: values[0] for axis, values in AXES.items()} | {"private": AXES["seed"][0]}
    assert len({key for name in STREAMS for key in numbers(name, [base])}) == len(STREAMS)
