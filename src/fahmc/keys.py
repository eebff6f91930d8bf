"""The key schedule: the only place that derives random keys.

Every key is a function of indices, never of the order of calls, so the same seed gives the same draws on every engine,
for any block length, chain batching, padding or order of replies:

    shared momentum     (seed, chain, trajectory)
    private momentum    (private seed, chain, trajectory, client)
    gradient estimate   (private seed, chain, trajectory, client, leapfrog step, half)
    outside the rows    (private seed, chain, trajectory, leapfrog step), see `engines.in_process.row_space`
    acceptance          (seed, chain, trajectory)
    jitter of the step  (seed, chain, trajectory)
    noise of a release  (private seed, client, round, every bit of the broadcast, field), in simulations
    replicated outcome  (seed, or one that a site keeps to itself, site, draw, first row of a block)
    initial position    (seed, chain)
    a sampler's own     (seed, chain, any indices), or (private seed, chain, client, any indices)

The trajectory's index counts momentum refreshments from the start of the run (the paper's t). The shared stream is
rederived by every client, so no noise crosses the network. The private stream has a seed of its own, which a site may
keep secret from the server; by default it is the common seed under another label.
"""

from __future__ import annotations

import hashlib
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Int, UInt32

from fahmc.threefry import written_out
from fahmc.types import ChainKeys, Client, Key

# Labels keep the streams of one seed apart.
_INITIAL, _SHARED, _PRIVATE, _MOMENTUM, _GRADIENT, _ACCEPTANCE, _OUTSIDE, _OWN, _JITTER, _REPLICATE = range(10)
_RELEASE = 10


def client_identity(name: str) -> UInt32[np.ndarray, " word"]:
    """Hash a client's name to 64 bits, the same on every machine."""
    return np.frombuffer(hashlib.sha256(name.encode()).digest()[:8], dtype="<u4").astype(np.uint32)


def chain_keys(seed: int, num_chains: int, private_seed: int | None = None, stream: str = "") -> ChainKeys:
    """Return the roots of all chains, with a leading chain axis; phases of a run have streams of their own."""
    chains = np.arange(num_chains, dtype=np.uint32)
    labels = client_identity(stream) if stream else ()

    def roots(seed: int, label: int) -> Key:
        root = _fold(_root(seed), label, *labels)
        return written_out(jax.vmap(lambda chain: jax.random.fold_in(root, chain))(chains))

    return ChainKeys(roots(seed, _SHARED), roots(seed if private_seed is None else private_seed, _PRIVATE))


def initial_position(seed: int, chain: int) -> Key:
    """Key for drawing the initial position of a chain."""
    return _fold(_root(seed), _INITIAL, chain)


def shared_momentum(keys: ChainKeys, trajectory: Int[Array, ""]) -> Key:
    """Key of the momentum part that all clients have in common."""
    return _fold(keys.shared, _MOMENTUM, trajectory)


def private_momentum(keys: ChainKeys, trajectory: Int[Array, ""], identity: UInt32[Array, " word"]) -> Key:
    """Key of the momentum part that belongs to one client."""
    return _fold(keys.private, _MOMENTUM, trajectory, identity[0], identity[1])


def gradient(keys: ChainKeys, trajectory: Int[Array, ""], identity: UInt32[Array, " word"]) -> Key:
    """Key of all gradient estimates of one client in one trajectory; see `gradient_at`."""
    return _fold(keys.private, _GRADIENT, trajectory, identity[0], identity[1])


def gradient_at(key_gradient: Key, leapfrog_step: Int[Array, ""] | int, half: int) -> Key:
    """Key of xi_k (``half`` = 0) or xi_{k+1/2} (``half`` = 1)."""
    return _fold(key_gradient, 2 * leapfrog_step + half)


def outside_noise(keys: ChainKeys, trajectory: Int[Array, ""], leapfrog_step: Int[Array, ""]) -> Key:
    """Key of the clients' mean gradient noise in directions that no row points to, from this step on."""
    return _fold(keys.private, _OUTSIDE, trajectory, leapfrog_step)


def acceptance(keys: ChainKeys, trajectory: Int[Array, ""]) -> Key:
    """Key of the Metropolis decision."""
    return _fold(keys.shared, _ACCEPTANCE, trajectory)


def jitter(keys: ChainKeys, trajectory: Int[Array, ""]) -> Key:
    """Key of a trajectory's own step size, which all clients have in common."""
    return _fold(keys.shared, _JITTER, trajectory)


def shared_noise(keys: ChainKeys, *indices: Any) -> Key:
    """Key that all clients and the server have in common, for samplers of your own: name the round, the step, ...

    Nothing else of fahmc uses it; keys of different indices are independent as long as there are equally many.
    """
    return _fold(keys.shared, _OWN, *indices)


def private_noise(keys: ChainKeys, client: Client, *indices: Any) -> Key:
    """Key that belongs to one client, for samplers and gradients of your own; see `shared_noise`."""
    return _fold(keys.private, _OWN, client.identity[0], client.identity[1], *indices)


def release(keys: ChainKeys, client: Client, round_index: Any, broadcast: Any) -> Key:
    """Key of the noise in a private reply: it belongs to one client and to all 32-bit words of what it was asked.

    Of two broadcasts in one round, replies with the same noise would tell the difference exactly.
    """
    key = _fold(keys.private, _RELEASE, client.identity[0], client.identity[1], round_index)
    return jax.lax.scan(lambda key, word: (jax.random.fold_in(key, word), None), key, broadcast)[0]


def release_of(key_release: Key, field: int) -> Key:
    """Key of the noise in one field of a private reply."""
    return _fold(key_release, field)


def replicates(seed: int, identity: UInt32[np.ndarray, " word"]) -> Key:
    """Key of all outcomes that a site replicates; see `replicate_at` and `replicate_ties`."""
    return _fold(_root(seed), _REPLICATE, identity[0], identity[1])


def replicate_at(key_replicates: Key, draw: Any, row: Any) -> Key:
    """Key of the outcomes of a block of rows, named by its first, at one draw of the posterior."""
    return _fold(key_replicates, 0, draw, row)


def replicate_ties(key_replicates: Key, row: Any) -> Key:
    """Key that decides which of equal outcomes of one row counts as the smaller."""
    return _fold(key_replicates, 1, 0, row)


def _root(seed: int) -> Key:
    """Return the key of a seed of up to 64 bits, the same in single and in double precision."""
    low, high = seed % 2**32, seed // 2**32
    key = jax.random.key(np.uint32(low))
    return _fold(key, np.uint32(high)) if high else key


def _fold(key: Key, *indices) -> Key:
    for index in indices:
        key = jax.random.fold_in(key, index)
    return key
