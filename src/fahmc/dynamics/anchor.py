"""The correction of Algorithms B.1 and B.2: every gradient of client c is shifted towards the common one.

    g_c(θ) − ∇f_c(θ_{t−T}) + ∇f(θ_{t−T}),     ∇f = Σ_c w_c ∇f_c

θ_{t−T}, the anchor, is the last-but-one broadcast. Each client sends ∇f_c(θ_t) along with its new position, and the
mean of these is broadcast a round later: no more round trips. Clients keep nothing between rounds, so θ_{t−T} is sent
along.

The first round has no last-but-one broadcast. The start itself takes its place, with ∇f there from one round before
the first. Algorithm B.2 prints θ_{−T} = ∇f(θ_{−T}) = 0 instead, which corrects by −∇f_c(0) and can throw a chain that
starts far from zero out of the finite numbers.

The correction removes the bias of the mean that unlike clients cause. The gradients at θ_{t−T} are full ones even when
g_c is a minibatch estimate, so the corrected gradient has the estimator's noise and no more.
"""

from __future__ import annotations

import jax.numpy as jnp

from fahmc.density.target import Target
from fahmc.dynamics.sampler import Exchange, Field
from fahmc.types import Client, GradientFn, Key, Message, Numbers, Vector


def anchored(plain: Exchange, dimension: int, starts_at_origin: bool) -> Exchange:
    """Send θ_{t−T} and ∇f(θ_{t−T}) along; the replies hold ``gradient``, ∇f_c at the broadcast position."""
    vector = Field((dimension,))

    def begin(carried: Message) -> Message:
        nothing = jnp.zeros_like(carried["position"])
        anchor = nothing if starts_at_origin else carried["position"]
        gradient = nothing if starts_at_origin else carried["gradient"]
        return {**plain.begin(carried), "anchor": anchor, "anchor_gradient": gradient}

    def merge(keys, round_index, state: Message, mean: Message) -> Message:
        anchor = {"anchor": state["position"], "anchor_gradient": mean["gradient"]}
        return plain.merge(keys, round_index, state, mean) | anchor

    return plain._replace(state={**plain.state, "anchor": vector, "anchor_gradient": vector}, begin=begin, merge=merge)


def shifted(target: Target, gradient_fn: GradientFn, state: Message, numbers: Numbers, client: Client) -> GradientFn:
    """Return the corrected gradient of one round."""
    shift = state["anchor_gradient"] - target.gradient(state["anchor"], client)

    def corrected_gradient(key: Key, position: Vector, client: Client) -> Vector:
        return gradient_fn(key, position, client) + shift

    return corrected_gradient
