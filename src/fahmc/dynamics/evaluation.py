"""One round that asks all clients for f and ∇f where the chains are: the phase before samplers that need them at once.

reply_c = (f_c(θ), ∇f_c(θ)),      f = Σ_c w_c f_c,      ∇f = Σ_c w_c ∇f_c
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from fahmc.density.target import Target
from fahmc.dynamics.sampler import ClientRound, Exchange, Field, Phase, Sampler, position_fields
from fahmc.registry import register
from fahmc.types import Message

UNSEEN = 1e21
"""What a client replies for a value that is not finite, so that one bad point does not end the run."""


def is_seen(value: Any) -> Any:
    """Whether all clients found a value that tells anything; NumPy's or JAX's."""
    return abs(value) < 1e-3 * UNSEEN


@register("sampler", "_evaluation")
@dataclass(frozen=True)
class Evaluation(Sampler):
    """The value and the gradient of the potential; positions stay."""

    makes_draws: ClassVar[bool] = False

    def exchange(self, dimension: int) -> Exchange:
        """Broadcast the position; its potential and gradient come back."""
        answer = {"potential": Field(()), "gradient": Field((dimension,))}

        def begin(carried: Message) -> Message:
            position = carried["position"]
            nothing = jnp.zeros_like(position)
            return {"position": position, "potential": nothing[0], "gradient": nothing}

        return Exchange(
            state=position_fields(dimension, **answer),
            reply=answer,
            begin=begin,
            merge=lambda keys, round_index, state, combined: {"position": state["position"], **combined},
        )

    def build(self, target: Target) -> ClientRound:
        """Evaluate once."""

        def client_round(keys, round_index, state, numbers, client) -> Message:
            potential, gradient = target.value_and_gradient(state["position"], client)
            return {"potential": potential, "gradient": gradient}

        return client_round

    def row_gradients(self, sizes: np.ndarray) -> float:
        """One of each row."""
        return float(sizes.sum())


def evaluated_once(name: str) -> tuple[Phase, ...]:
    """Return the phase that asks for potential and gradient at the start."""
    return (Phase(name, Evaluation(), num_rounds=1),)
