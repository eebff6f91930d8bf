"""The posterior of a model written in NumPyro, all rows in one place, by long chains of NUTS."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpyro.infer import init_to_median
from numpyro.infer.util import initialize_model

from fahmc.bench.peers.numpyro_nuts import sample_nuts
from fahmc.bench.rounds.references import NUM_CHAINS, Reference, newton, reference_of, whitening_of
from fahmc.data.federation import Federation
from fahmc.data.places import with_places
from fahmc.errors import ModelError

Peer = Callable[..., None]
"""A NumPyro model of pooled rows: its arguments are named as the rows are, and ``site`` is the row's client."""


def posterior_of(peer: Peer, federation: Federation, names: Sequence[str], num_draws: int) -> Reference:
    """Return moments of these sites of the model, flattened one after the other, in double precision."""
    with jax.enable_x64(True):
        pooled = with_places(federation).pooled().rows[0]
        wanted = inspect.signature(peer).parameters
        rows = {name: jnp.asarray(values, None if name == "site" else float) for name, values in pooled.items()}
        # A key of the old kind: NumPyro uses some twice, which a check on typed ones would refuse.
        made: Any = initialize_model(
            jax.random.PRNGKey(0),
            peer,
            init_strategy=init_to_median(num_samples=1),
            model_kwargs={name: rows[name] for name in wanted},
            validate_grad=False,
        )
        start, unravel = ravel_pytree(made.param_info.z)

        # Compiled as a whole: piece by piece takes longer than all the chains.
        @jax.jit
        def potential(position: jax.Array) -> jax.Array:
            return made.potential_fn(unravel(position))

        mode, curvature, _ = newton(potential, np.asarray(start))
        center, scale = jnp.asarray(mode), whitening_of(jnp.asarray(curvature))
        run = sample_nuts(
            lambda u: potential(center + scale @ u),
            # Wider than the posterior, so that R-hat can tell whether chains have met.
            jnp.asarray(2 * np.random.default_rng(0).normal(size=(NUM_CHAINS, len(mode)))),
            num_warmup=min(400, num_draws),
            num_draws=num_draws,
            target_accept=0.8,
            seed=0,
        )

        def presented(u: jax.Array) -> jax.Array:
            sites = made.postprocess_fn(unravel(center + scale @ u))
            if missing := [name for name in names if name not in sites]:
                raise ModelError(f"The model in NumPyro has no site {missing[0]!r}; it has {', '.join(sites)}.")
            return jnp.concatenate([jnp.ravel(sites[name]) for name in names])

        flat = run.draws.reshape(-1, run.draws.shape[-1])
        draws = np.asarray(jax.jit(jax.vmap(presented))(flat)).reshape(*run.draws.shape[:2], -1)
        return reference_of(draws, run.num_divergent)
