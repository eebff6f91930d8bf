"""NumPyro's NUTS with a dense metric on any potential of a flat vector, chains in step with each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from jax import Array
from numpyro.infer import MCMC, NUTS


class NutsDraws(NamedTuple):
    """What came out, and what it cost."""

    draws: np.ndarray
    """[chain, draw, dim]"""
    num_steps: np.ndarray
    """[chain, draw] leapfrog steps, each one gradient; those of the warm-up first."""
    num_divergent: int
    """After the warm-up."""


def sample_nuts(
    potential_fn: Callable[[Array], Array],
    starts: Array,
    *,
    num_warmup: int,
    num_draws: int,
    target_accept: float,
    seed: int,
    max_depth: int = 10,
    adapt_metric: bool = True,
) -> NutsDraws:
    """Sample exp(−potential) with one chain from each of ``starts`` [chain, dim]."""
    kernel = NUTS(
        potential_fn=potential_fn,
        dense_mass=True,
        adapt_mass_matrix=adapt_metric,
        target_accept_prob=target_accept,
        max_tree_depth=max_depth,
    )
    mcmc = MCMC(
        kernel,
        num_warmup=num_warmup,
        num_samples=num_draws,
        num_chains=len(starts),
        chain_method="vectorized",
        progress_bar=False,
    )
    # A key of the old kind: NumPyro uses some twice, which a check on typed ones would refuse.
    key_warmup, key_draws = jax.random.split(jax.random.PRNGKey(seed))
    mcmc.warmup(key_warmup, init_params=starts, extra_fields=("num_steps",), collect_warmup=True)
    warmup_steps = np.asarray(mcmc.get_extra_fields(group_by_chain=True)["num_steps"])
    mcmc.run(key_draws, extra_fields=("num_steps", "diverging"))
    fields = mcmc.get_extra_fields(group_by_chain=True)
    return NutsDraws(
        draws=np.asarray(mcmc.get_samples(group_by_chain=True)),
        num_steps=np.concatenate([warmup_steps, np.asarray(fields["num_steps"])], axis=1),
        num_divergent=int(np.sum(fields["diverging"])),
    )
