"""From the user's arguments to a run, and what it is remembered by."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fahmc import registry, tree
from fahmc.data.buckets import check_integers, single_client
from fahmc.data.federation import Federation
from fahmc.data.places import with_places
from fahmc.data.sites import RemoteFederation, made_up_client
from fahmc.density.local import at_sites
from fahmc.density.model import Model
from fahmc.density.supports import shape_presented
from fahmc.density.target import build_target
from fahmc.dynamics.sampler import Sampler
from fahmc.engines.run import Run
from fahmc.models.recipes import with_num_rows
from fahmc.runs.checks import check_arguments, check_can_pool, check_names
from fahmc.runs.start import initial_positions
from fahmc.types import Position


def make_run(
    model: Model,
    federation: Federation,
    sampler: Sampler,
    num_rounds: int | None = 1,
    *,
    num_warmup_rounds: int = 0,
    thin: int = 1,
    seed: int = 0,
    private_seed: int | None = None,
    num_chains: int = 1,
    init: Position | None = None,
    dtype: np.dtype,
    **options: Any,
) -> Run:
    """Check the arguments against each other and build everything that a run needs."""
    check_arguments(model, federation, sampler)
    model = with_num_rows(model, federation.num_rows)
    check_integers(federation, dtype)
    if model.is_by_site:
        # Before rows are pooled, which forgets whose they are.
        model, federation = at_sites(model, federation.names), with_places(federation)
    if sampler.pools_rows:
        check_can_pool(model, sampler)
        federation = federation.pooled()
    sampler.check(federation)
    first, name = single_client(made_up_client(federation), 0, dtype), federation.names[0]
    positions = initial_positions(model, first, name, init=init, seed=seed, num_chains=num_chains, dtype=dtype)
    position = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), positions)
    check_names(model, shape_presented(model, position))
    sampler.numbers(position, dtype)  # which refuses what does not fit the position
    return Run(
        target=build_target(model, position, first, name),
        federation=federation,
        sampler=sampler,
        start=np.asarray(tree.flatten_draws(positions, batch_ndim=1), dtype),
        seed=seed,
        private_seed=private_seed,
        num_rounds=num_rounds,
        num_warmup_rounds=num_warmup_rounds,
        thin=thin,
        **options,
    )


def settings_of(run: Run, clients: dict[str, int], path: str) -> dict[str, Any]:
    """Return what the user chose, as JSON values; ``clients`` are those before pooling."""
    about = {"sites": run.federation.about} if isinstance(run.federation, RemoteFederation) else {}
    model, words = run.model.summary, run.model.prior_words
    return {
        **({} if model is None else {"model": model}),
        "sampler": registry.describe(run.sampler),
        "seed": run.seed,
        "num_chains": run.num_chains,
        "dtype": run.dtype.name,
        "temperature": float(run.model.temperature),
        **({} if words is None else {"prior": dict(words)}),
        "clients": clients,
        **about,
        "path": path,
    }


def fingerprint_of(run: Run, settings: dict[str, Any], model_values: Any) -> dict[str, Any]:
    """Return the settings, and checksums of everything else that the draws depend on."""
    federation = run.federation
    is_remote = isinstance(federation, RemoteFederation)
    marks = federation.marks if is_remote else [tree.digest(rows) for rows in federation.rows]
    # A difference is told by what was typed, such as a prior, before what the model comes to.
    typed = {name: value for name, value in settings.items() if name != "model"}
    return {
        "format": 2,
        **typed,
        "private_seed": None if run.private_seed is None else tree.digest(np.array(run.private_seed)),
        "init": tree.digest(run.start),
        "data": {
            name: {"weight": float(weight), "rows": mark}
            for name, weight, mark in zip(federation.names, federation.weights, marks, strict=True)
        },
        "model": model_values,
        "num_warmup_rounds": run.num_warmup_rounds,
        "thin": run.thin,
    }
