"""Samplers of somebody's own, for tests. Sites and server of a real federation find this file beside their kits."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

import fahmc
from fahmc import Exchange, Field


@fahmc.register("sampler")
@dataclass(frozen=True)
class ServerLangevin(fahmc.Sampler):
    """θ ← θ − h ∇f(θ) + √(2h) ξ at the server, with messages of many kinds.

    Clients reply with gradients, with how many rows they have, which is summed, and each with its potential.
    """

    step: float

    def exchange(self, dimension: int) -> Exchange:
        """Broadcast the position and a number that is the same for all chains; an array stays at the server."""
        state = {
            "position": Field((dimension,)),
            "rounds": Field((), "int32", per_chain=False),
            "totals": Field((2, 2), "float32", is_sent=False),
        }
        reply = {
            "gradient": Field((dimension,)),
            "num_rows": Field((), "int32", combine="sum", per_chain=False),
            "potentials": Field((), combine="each"),
        }

        def begin(carried):
            return {
                "position": carried["position"],
                "rounds": jnp.int32(0),
                "totals": jnp.zeros((2, 2), jnp.float32),
            }

        def merge(keys, round_index, state, replies):
            key = jax.random.fold_in(keys.shared, round_index)
            noise = jax.random.normal(key, (dimension,), state["position"].dtype)
            position = state["position"] - self.step * replies["gradient"] + (2 * self.step) ** 0.5 * noise
            totals = state["totals"].at[0, 1].add(position[0].astype(jnp.float32))
            return {"position": position, "rounds": state["rounds"] + 1, "totals": totals}

        def watch(numbers, round_index, before, replies, after):
            spread = replies["potentials"].max() - replies["potentials"].min()
            return {"spread": spread, "num_rows": replies["num_rows"], "rounds": after["rounds"]}

        return Exchange(state, reply, begin, merge, watch)

    def build(self, target):
        """Differentiate where the rows are."""

        def client_round(keys, round_index, state, numbers, client):
            potential, gradient = target.value_and_gradient(state["position"], client)
            return {"gradient": gradient, "num_rows": client.num_rows, "potentials": potential}

        return client_round


@fahmc.register("sampler")
@dataclass(frozen=True)
class Unlisted(ServerLangevin):
    """The same, which no site lists."""


@fahmc.register("gradient")
@dataclass(frozen=True)
class Clipped(fahmc.Gradient):
    """∇f_c, no longer than ``length``."""

    length: float

    def build(self, target):
        """Shorten the exact gradient."""

        def clipped(key, position, client):
            gradient = target.gradient(position, client)
            return gradient * jnp.minimum(1.0, self.length / jnp.linalg.norm(gradient))

        return clipped
