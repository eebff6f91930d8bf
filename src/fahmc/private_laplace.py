"""`private_laplace`: draws of which no row can be told."""

from __future__ import annotations

import os
from collections.abc import Sequence

from fahmc import door
from fahmc.adaptive.private_answer import Bounds, Noise
from fahmc.adaptive.private_laplace import PrivateLaplace
from fahmc.data.federation import Federation
from fahmc.data.sites import Sites
from fahmc.density.model import Model
from fahmc.draws import Draws
from fahmc.engines.run import Engine
from fahmc.hints import AboveOne, Chains, Count, Positive, Seed
from fahmc.privacy import Budget
from fahmc.sample import sample


@door.checked()
def private_laplace(
    model: Model,
    federation: Federation | Sites,
    budget: Budget,
    *,
    bounds: Sequence[Bounds] | None = None,
    radius: Positive | None = None,
    noise: Noise = "own",
    max_widening: AboveOne = 1.5,
    num_draws: Count = 1000,
    num_chains: Chains = 4,
    seed: Seed = 0,
    private_seed: Seed | None = None,
    engine: Engine | None = None,
    checkpoint_dir: str | os.PathLike | None = None,
) -> Draws:
    """Draw from the posterior of a logistic regression under (ε, δ)-differential privacy.

    Three noisy answers are asked of the sites, all that ever depends on a row; then as many draws as wanted come from a
    normal approximation that allows for the noise (`fahmc.adaptive.private_laplace`, docs/privacy.md).

    Parameters
    ----------
    budget
        ε and δ, for any one row that is replaced by another.
    bounds, radius, noise, max_widening, num_draws
        As in `PrivateLaplace`.
    seed, private_seed
        In one process noise derives from the private seed: this is a simulation of privacy, for whoever holds all rows
        anyway. Sites of a real federation draw theirs from secrets of their own.
    engine, checkpoint_dir
        As in `fahmc.sample`.
    """
    sampler = PrivateLaplace(
        budget.epsilon, budget.delta, bounds, radius, noise, max_widening=max_widening, num_draws=num_draws
    )
    return sample(
        model,
        federation,
        sampler,
        num_chains=num_chains,
        seed=seed,
        private_seed=private_seed,
        dtype="float64",
        engine=engine,
        checkpoint_dir=checkpoint_dir,
    )
