"""De-biased federated averaging HMC (Algorithms B.1 and B.2).

As FA-HMC, but every gradient of client c in the round that starts at θ_t is corrected towards the common one:

    g_c(θ) − ∇f_c(θ_{t−T}) + ∇f(θ_{t−T}),     ∇f = Σ_c w_c ∇f_c

θ_{t−T} is the last-but-one broadcast. Each client sends ∇f_c(θ_t) along with its new position, and the mean of these
is broadcast a round later: no more round trips. Clients keep nothing between rounds, so θ_{t−T} is sent along.
The first round follows Algorithm B.2's
convention θ_{−T} = ∇f(θ_{−T}) = 0.

The correction removes the bias of the mean that unlike clients cause. The gradients at θ_{t−T} are full ones even when
g_c is a minibatch estimate, so the corrected gradient has the estimator's noise and no more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int

from fahmc.density.potential import Potentials
from fahmc.dynamics import fa_hmc
from fahmc.dynamics.mass import Mass
from fahmc.types import ChainKeys, Client, GradientFn, Kernel, Key, Vector


@dataclass(frozen=True)
class DebiasedFAHMC(fa_hmc.FAHMC):
    """Settings of de-biased FA-HMC: the same as those of `FAHMC`."""


class DebiasedState(NamedTuple):
    """What is broadcast."""

    position: Vector
    momentum: Any
    anchor: Vector
    """θ_{t−T}"""
    anchor_gradient: Vector
    """∇f(θ_{t−T})"""


class DebiasedReply(NamedTuple):
    """What a client replies."""

    position: Vector
    momentum: Any
    gradient: Vector
    """∇f_c at the position it was sent"""


def merge(state: DebiasedState, mean: DebiasedReply) -> DebiasedState:
    """Start the next round from the mean, and correct its gradients at the position that this one started from."""
    return DebiasedState(mean.position, mean.momentum, anchor=state.position, anchor_gradient=mean.gradient)


def build_kernel(sampler: DebiasedFAHMC, gradient_fn: GradientFn, mass: Mass, potentials: Potentials) -> Kernel:
    """Build de-biased FA-HMC for an engine."""
    plain = fa_hmc.build_kernel(sampler, gradient_fn, mass, potentials.dimension)
    local_round = fa_hmc.build_local_round(sampler, mass)

    def init(position: Vector) -> DebiasedState:
        nothing = jnp.zeros_like(position)
        return DebiasedState(position, plain.init(position).momentum, anchor=nothing, anchor_gradient=nothing)

    def client_round(chain_keys: ChainKeys, round_index: Int[Array, ""], state: DebiasedState, client: Client):
        correction = state.anchor_gradient - potentials.gradient(state.anchor, client)

        def corrected_gradient(key: Key, position: Vector, client: Client) -> Vector:
            return gradient_fn(key, position, client) + correction

        start = fa_hmc.FAHMCState(state.position, state.momentum)
        end = local_round(corrected_gradient, chain_keys, round_index, start, client)
        return DebiasedReply(end.position, end.momentum, potentials.gradient(state.position, client)), {}

    return plain._replace(init=init, client_round=client_round, merge=merge, full_gradients=2)
