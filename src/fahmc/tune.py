"""`tune`: settings for FA-HMC from a few rounds, for those who then want to run it by themselves."""

from __future__ import annotations

from typing import Any, Literal

from fahmc.adaptive.tuned import Tuned
from fahmc.data.federation import Federation
from fahmc.data.sites import Sites
from fahmc.density.model import Model
from fahmc.draws import Draws
from fahmc.dynamics.fa_hmc import FAHMC
from fahmc.hints import Chains, Effective, Rounds, Seed, Share
from fahmc.registry import decode
from fahmc.sample import sample


def tune(
    model: Model,
    federation: Federation | Sites,
    sampler: Literal["FAHMC", "FALD"] = "FAHMC",
    *,
    max_rounds: Rounds = 200,
    target_ess: Effective = 100,
    max_bias: Share = 0.1,
    num_chains: Chains = 8,
    seed: Seed = 0,
    **options: Any,
) -> FAHMC:
    """Find step size, K and metric of FA-HMC, and return it with these filled in.

    Parameters
    ----------
    sampler
        ``"FAHMC"``, or ``"FALD"`` for K = 1.
    max_rounds
        Rounds that may be asked for.
    target_ess
        Effective draws from which the settings are judged; more of them see a smaller bias.
    max_bias
        How far a mean may be off, in posterior standard deviations, and by which share standard deviations may be.
    options
        As for `fahmc.sample`: ``engine``, ``init``, ``dtype``, ``checkpoint_dir``, ``progress``.

    Notes
    -----
    The sampler has ``with_gradients=True``, so that its draws can be looked at for a bias. `fahmc.sample` with
    `fahmc.Tuned` does both at once, and wastes no round.
    """
    draws = tuning_run(model, federation, sampler, max_rounds, target_ess, max_bias, num_chains, seed, **options)
    return decode("sampler", draws.account["sampler"])


def tuning_run(
    model: Model,
    federation: Federation | Sites,
    method: Literal["FAHMC", "FALD"],
    max_rounds: Rounds,
    target_ess: Effective,
    max_bias: Share,
    num_chains: Chains,
    seed: Seed,
    **options: Any,
) -> Draws:
    """Do what `tune` does; the draws' account holds the sampler, and why it is as it is."""
    leader = Tuned(method, target_ess=target_ess, max_rounds=max_rounds, max_bias=max_bias)
    return sample(model, federation, leader, num_chains=num_chains, seed=seed, **options)
