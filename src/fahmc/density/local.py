"""Parameters that live at a site: one entry for every client, of which a client's rows see its own alone.

A position holds ``{"effect": [site, ...], ...}``. Rows carry ``site``, the client's place among the federation's names,
so that the likelihood of a row is

    log p(z | θ with effect[site of z] in effect's place)

whether rows lie at their clients, are pooled, or are drawn for a minibatch. Whoever has a federation's rows adds their
places (`fahmc.data.places`); whoever has its names tells the model how many there are (`at_sites`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fahmc.data.places import SITE
from fahmc.errors import ModelError, shown
from fahmc.types import Batch, Key, Position

if TYPE_CHECKING:
    from fahmc.density.model import Model


def at_sites(model: Model, names: Sequence[str]) -> Model:
    """Return a model whose positions have an entry for each of these clients, named after them."""
    if model.at_sites_fn is not None:
        model = model.at_sites_fn(model, names)
    local = model.local
    if not local:
        return model

    def init(key: Key, batch: Batch) -> Position:
        key_common, *keys = jax.random.split(key, 1 + len(local))
        common = {} if model.init is None else model.initial_position(key_common, batch)
        if not isinstance(common, Mapping):
            raise ModelError(
                f"local names parameters of sites, so the position must be a dict; init gives {shown(common)}."
            )
        own = {
            name: _one_a_site(start, key, len(names))
            for (name, start), key in zip(sorted(local.items()), keys, strict=True)
        }
        return {**common, **own}

    dims = {name: [SITE, *model.dims.get(name, _own_dims(name, start))] for name, start in local.items()}
    prior_fn = model.prior_fn
    return replace(
        model,
        init=init,
        prior_fn=None if prior_fn is None else lambda key, batch: prior_fn(key, batch, len(names)),
        dims={**model.dims, **dims},
        coords={**model.coords, SITE: list(names)},
    )


def _one_a_site(start: Any, key: Key, num_sites: int) -> Array:
    """Return [site, ...]: a number or an array for all, or what a function makes of a key for each."""
    if callable(start):
        return jnp.asarray(jax.vmap(start)(jax.random.split(key, num_sites)))
    start = jnp.asarray(start, jnp.result_type(float))
    return jnp.broadcast_to(start, (num_sites, *start.shape))


def _own_dims(name: str, start: Any) -> list[str]:
    """Name the axes of one site's entry as ArviZ would."""
    shape = jax.eval_shape(start, jax.random.key(0)).shape if callable(start) else jnp.shape(start)
    return [f"{name}_dim_{axis}" for axis in range(len(shape))]


def own_loglikelihoods(
    loglikelihood_fn: Callable[[Any, Batch], Array], local: Mapping[str, Any], seen: Any, batch: Batch
) -> Float[Array, " row"]:
    """Return the rows' log likelihoods, each with its own site's entries in place of all sites'."""
    if not isinstance(batch, Mapping) or SITE not in batch:
        raise ModelError(
            f"the rows do not say of which client they are; add {SITE!r}, [row], each row's place among the clients."
        )
    missing = [name for name in local if not isinstance(seen, Mapping) or name not in seen]
    if missing:
        raise ModelError(f"local names {missing[0]!r}, which is not in what the likelihood sees (a dict by name).")

    def of_row(row: Batch) -> Array:
        # Beyond the last site: NaN, not somebody else's entry.
        own = {name: seen[name].at[row[SITE]].get(mode="fill", fill_value=jnp.nan) for name in local}
        return loglikelihood_fn({**seen, **own}, jax.tree.map(lambda leaf: leaf[None], row))[0]

    return jax.vmap(of_row)(batch)
