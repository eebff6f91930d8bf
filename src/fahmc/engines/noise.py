"""The noise of private replies (`fahmc.dynamics.sampler.Release`), added where a reply is made.

Simulations draw it from the run's private seed, as everything else: whoever knows that can take it off again, so they
show what a private run comes to, and protect nobody. A site of a real federation draws it from a secret of its own
(`fahmc.engines.flare.noise`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fahmc import keys
from fahmc.dynamics.sampler import ClientRound, Exchange
from fahmc.types import ChainKeys, Client, Message, Numbers


def with_simulated_noise(exchange: Exchange, client_round: ClientRound, num_clients: int) -> ClientRound:
    """Return a client's round whose replies have their noise, if they are to have any."""
    release = exchange.release
    if release is None:
        return client_round

    def noisy_round(
        chain_keys: ChainKeys, round_index: Array, state: Message, numbers: Numbers, client: Client
    ) -> Message:
        reply = client_round(chain_keys, round_index, state, numbers, client)
        deviations = release.deviations(state, numbers, num_clients)
        key = keys.release(chain_keys, client, round_index, _words(state))
        fields = sorted(deviations)
        noise = {
            name: jax.random.normal(keys.release_of(key, place), reply[name].shape, reply[name].dtype)
            for place, name in enumerate(fields)
        }
        return reply | {name: noisy(reply[name], noise[name], deviations[name], release.grid) for name in fields}

    return noisy_round


def noisy(exact: Any, normal: Any, deviation: Any, grid: float) -> Any:
    """Return what is released: exact + deviation × standard normal, the noise rounded to the grid."""
    where = np if isinstance(exact, np.ndarray) else jnp
    return exact + grid * where.rint(normal * (deviation / grid))


def _words(broadcast: Mapping[str, Array]) -> Array:
    """Return all bits of a message as 32-bit words."""
    parts = [jax.lax.bitcast_convert_type(broadcast[name], jnp.uint32).ravel() for name in sorted(broadcast)]
    return jnp.concatenate(parts)
