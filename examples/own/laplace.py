"""A sampler with a set-up phase of its own, in one file: FA-HMC whose chains start around the mode.

Set-up rounds know no chains. Everybody looks at one point m, clients reply with gradient and curvature there, and the
server takes a Newton step:

    m ← m − (Σ_c w_c ∇²f_c(m))⁻¹ Σ_c w_c ∇f_c(m)

Then every chain starts at m plus its own distance from the chains' average start. Rounds of [d] and [d, d] replace a
warm-up from far away; where the posterior is Gaussian one of them is enough.

    fahmc.sample(model, federation, NewtonStart(step_size=0.05, num_newton_rounds=3), num_rounds=1000)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp

import fahmc
from fahmc.errors import SettingsError


@fahmc.register("sampler")
@dataclass(frozen=True)
class Newton(fahmc.Sampler):
    """Newton's method for the mode of exp(−f): no chains, no draws."""

    makes_draws: ClassVar[bool] = False

    def exchange(self, dimension: int) -> fahmc.Exchange:
        """Broadcast one point; gradient and curvature come back. The server remembers where chains are on average."""
        shared = fahmc.Field((dimension,), per_chain=False)
        curvature = fahmc.Field((dimension, dimension), per_chain=False)

        def begin(carried):
            center = carried["start"].mean(axis=0)  # there are no chains here, so this is all of them, [chain, dim]
            return {"position": center, "center": center}

        def merge(chain_keys, round_index, state, mean):
            return {**state, "position": state["position"] - jnp.linalg.solve(mean["curvature"], mean["gradient"])}

        return fahmc.Exchange(
            state={"position": shared, "center": shared._replace(is_sent=False)},
            reply={"gradient": shared, "curvature": curvature},
            begin=begin,
            merge=merge,
        )

    def build(self, target):
        """Differentiate twice."""

        def client_round(chain_keys, round_index, state, numbers, client):
            position = state["position"]
            return {"gradient": target.gradient(position, client), "curvature": target.curvature(position, client)}

        return client_round

    def remedy(self, round_index: int) -> str:
        """Do without: the curvature may be singular, or the step too long."""
        return "num_newton_rounds=0"


@fahmc.register("sampler")
@dataclass(frozen=True)
class NewtonStart(fahmc.FAHMC):
    """Settings of `fahmc.FAHMC`, and the number of Newton steps before it."""

    num_newton_rounds: int = 3

    def __post_init__(self):
        super().__post_init__()
        if self.num_newton_rounds < 0:
            raise SettingsError(f"num_newton_rounds is {self.num_newton_rounds}; it must be at least 0.")

    def setup(self) -> tuple[fahmc.Phase, ...]:
        """Find the mode."""
        return (fahmc.Phase("newton", Newton(), self.num_newton_rounds),) if self.num_newton_rounds else ()

    def exchange(self, dimension: int) -> fahmc.Exchange:
        """Begin around the mode; all else is FA-HMC's."""
        plain = super().exchange(dimension)

        def begin(carried):
            if self.num_newton_rounds:
                carried = {"position": carried["position"] + carried["start"] - carried["center"]}
            return plain.begin(carried)

        return plain._replace(begin=begin)
