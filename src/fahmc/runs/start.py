"""Where the chains start."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fahmc import keys
from fahmc.data.buckets import bucket_clients, single_client
from fahmc.data.federation import Federation
from fahmc.density.potential import Model, Potentials, as_position, build_potentials
from fahmc.errors import ModelError
from fahmc.types import Client, Position


def initial_positions(
    model: Model, client: Client, name: str, *, init: Position | None, seed: int, num_chains: int, dtype: np.dtype
) -> Position:
    """Return the chains' first positions with a leading chain axis, from the model or from the user's ``init``.

    ``client`` is one of the federation's (called ``name``): models may take their dimension from its rows.
    """
    if init is None:
        own = [_own_position(model, client, seed, chain, dtype) for chain in range(num_chains)]
        return jax.tree.map(lambda *leaves: np.stack(leaves), *own)
    given = as_position(init, dtype, "init")
    leaves = jax.tree.leaves(given)
    one_a_chain = given if all(leaf.shape[:1] == (num_chains,) for leaf in leaves) else None
    template = _template(model, client, name, given, one_a_chain, dtype)
    if _shapes(given) == _shapes(template):
        return jax.tree.map(lambda leaf: np.broadcast_to(leaf, (num_chains, *leaf.shape)), given)
    if one_a_chain is not None and _shapes(_first(one_a_chain)) == _shapes(template):
        return one_a_chain
    raise ModelError(
        f"init has shapes {jax.tree.map(np.shape, given)}; the model's position has "
        f"{jax.tree.map(np.shape, template)}. Give one such position, or one a chain (a leading axis of {num_chains})."
    )


def check_start(potentials: Potentials, federation: Federation, positions: jax.Array, dtype: np.dtype) -> None:
    """Refuse a start from which a chain cannot move: the potential of some client is not finite there."""
    values = _potentials_at(potentials, federation, positions, dtype)
    if not np.isfinite(values).all():
        chain, client = (int(index) for index in np.argwhere(~np.isfinite(values))[0])
        raise ModelError(
            f"At the start of chain {chain} the potential of client {federation.names[client]!r} is "
            f"{values[chain, client]}; it must be finite. Start elsewhere (init), or look for log(0) and overflow in "
            "the model's functions."
        )


def model_values(potentials: Potentials, federation: Federation, start: jax.Array, dtype: np.dtype) -> dict[str, float]:
    """Describe a model by what it returns: f and its prior part, at a start and at two points beside it."""
    # Beside it, as priors and signs may agree at 0; fixed points, as the same model must give the same numbers.
    beside = np.random.default_rng(0).normal(scale=0.1, size=(2, start.size))
    points = jnp.asarray(np.concatenate([np.zeros((1, start.size)), beside]) + np.asarray(start), dtype)
    potential = _potentials_at(potentials, federation, points, dtype) @ federation.weights
    first = single_client(federation, 0, dtype)
    without_rows = first._replace(row_weights=np.zeros_like(first.row_weights))
    prior = np.asarray(jax.vmap(lambda point: potentials.value(point, without_rows))(points))
    named = zip(("at the start", "beside it", "beside it again"), potential, prior, strict=True)
    return {f"{part} {where}": float(v) for where, f, p in named for part, v in (("potential", f), ("prior", p))}


def _potentials_at(potentials: Potentials, federation: Federation, positions: jax.Array, dtype: np.dtype) -> np.ndarray:
    """Return f_c at each position, [position, client]."""
    over_clients = jax.vmap(potentials.value, in_axes=(None, 0))
    value_fn = jax.jit(jax.vmap(over_clients, in_axes=(0, None)))
    values = np.empty((len(positions), federation.num_clients))
    for bucket in bucket_clients(federation, dtype):
        values[:, bucket.indices] = value_fn(positions, bucket.clients)
    return values


def _own_position(model: Model, client: Client, seed: int, chain: int, dtype: np.dtype) -> Position:
    rows = jax.tree.map(jnp.asarray, client.rows)
    position = model.initial_position(keys.initial_position(seed, chain), rows)
    return as_position(position, dtype, "The model's init")


def _template(model: Model, client: Client, name: str, given: Position, one_a_chain: Any, dtype: np.dtype) -> Position:
    """Return a position of the model's shapes: its own, or else the reading of ``init`` that it can evaluate."""
    if model.init is not None:
        return _own_position(model, client, 0, 0, dtype)
    if one_a_chain is None:
        return given
    readings = [position for position in (given, _first(one_a_chain)) if _fits(model, position, client, name)]
    if len(readings) == 2:
        raise ModelError(
            "init can be read as one position or as one a chain, and the model takes both; give the model an init of "
            "its own, Model(init=...), so that the shape of a position is known."
        )
    return readings[0] if readings else given


def _fits(model: Model, position: Position, client: Client, name: str) -> bool:
    try:
        build_potentials(model, position, client, name)
    except ModelError:
        return False
    return True


def _first(positions: Position) -> Position:
    return jax.tree.map(lambda leaf: leaf[0], positions)


def _shapes(position: Position) -> Any:
    return jax.tree.structure(position), [leaf.shape for leaf in jax.tree.leaves(position)]
