"""De-biased federated averaging HMC (Algorithms B.1 and B.2).

As FA-HMC, but every gradient of client c in the round that starts at θ_t is corrected towards the common one:

    g_c(θ) − ∇f_c(θ_{t−T}) + ∇f(θ_{t−T}),     ∇f = Σ_c w_c ∇f_c

θ_{t−T} is the last-but-one broadcast. Each client sends ∇f_c(θ_t) along with its new position, and the mean of these
is broadcast a round later: no more round trips. Clients keep nothing between rounds, so θ_{t−T} is sent along.

The first round has no last-but-one broadcast. The start itself takes its place, with ∇f there from one round before
the first. Algorithm B.2 prints θ_{−T} = ∇f(θ_{−T}) = 0 instead, which corrects by −∇f_c(0) and can throw a chain that
starts far from zero out of the finite numbers (``first_anchor="origin"``).

The correction removes the bias of the mean that unlike clients cause. The gradients at θ_{t−T} are full ones even when
g_c is a minibatch estimate, so the corrected gradient has the estimator's noise and no more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import jax.numpy as jnp
import numpy as np

from fahmc.density.target import Target
from fahmc.dynamics.evaluation import evaluated_once
from fahmc.dynamics.fa_hmc import FAHMC, local_round
from fahmc.dynamics.sampler import ClientRound, Exchange, Field, Phase
from fahmc.errors import SettingsError
from fahmc.registry import register
from fahmc.types import Client, Key, Message, Vector


@register("sampler")
@dataclass(frozen=True)
class DebiasedFAHMC(FAHMC):
    """Settings of de-biased FA-HMC: those of `FAHMC`, and where the first round's correction is taken.

    Parameters
    ----------
    first_anchor
        ``"start"``: where the chain starts. ``"origin"``: Algorithm B.2 as printed.
    """

    first_anchor: Literal["start", "origin"] = "start"

    def __post_init__(self):
        super().__post_init__()
        if self.first_anchor not in ("start", "origin"):
            raise SettingsError(f"first_anchor is {self.first_anchor!r}; it is 'start' or 'origin'.")

    def setup(self) -> tuple[Phase, ...]:
        """Ask for ∇f at the start."""
        return evaluated_once("first anchor") if self.first_anchor == "start" else ()

    def exchange(self, dimension: int) -> Exchange:
        """Send θ_{t−T} and ∇f(θ_{t−T}) along; ∇f_c at the broadcast position comes back."""
        plain, vector = super().exchange(dimension), Field((dimension,))

        def begin(carried: Message) -> Message:
            nothing = jnp.zeros_like(carried["position"])
            is_known = self.first_anchor == "start"
            anchor = carried["position"] if is_known else nothing
            gradient = carried["gradient"] if is_known else nothing
            return {**plain.begin(carried), "anchor": anchor, "anchor_gradient": gradient}

        def merge(keys, round_index, state: Message, mean: Message) -> Message:
            anchor = {"anchor": state["position"], "anchor_gradient": mean["gradient"]}
            return plain.merge(keys, round_index, state, mean) | anchor

        return plain._replace(
            state={**plain.state, "anchor": vector, "anchor_gradient": vector},
            reply={**plain.reply, "gradient": vector},
            begin=begin,
            merge=merge,
        )

    def build(self, target: Target) -> ClientRound:
        """Run FA-HMC's round with the corrected gradient."""
        gradient_fn = self.gradient.build(target)

        def client_round(chain_keys, round_index, state, numbers, client) -> Message:
            correction = state["anchor_gradient"] - target.gradient(state["anchor"], client)

            def corrected_gradient(key: Key, position: Vector, client: Client) -> Vector:
                return gradient_fn(key, position, client) + correction

            end = local_round(self, corrected_gradient, chain_keys, round_index, state, numbers, client)
            return end | {"gradient": target.gradient(state["position"], client)}

        return client_round

    def row_gradients(self, sizes: np.ndarray) -> float:
        """Two full gradients more; one of them is the one that may be asked for."""
        return super().row_gradients(sizes) + (1.0 if self.with_gradients else 2.0) * float(sizes.sum())
