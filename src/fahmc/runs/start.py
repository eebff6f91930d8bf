"""Where the chains start."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fahmc import keys
from fahmc.data.sites import RemoteFederation
from fahmc.density.model import Model, as_position
from fahmc.density.supports import unconstrain
from fahmc.density.target import build_target
from fahmc.engines.run import Run
from fahmc.errors import ModelError
from fahmc.hints import MAX_DIMENSION, MAX_NUMBERS
from fahmc.types import Client, Position


def initial_positions(
    model: Model, client: Client, name: str, *, init: Position | None, seed: int, num_chains: int, dtype: np.dtype
) -> Position:
    """Return the chains' first positions with a leading chain axis, from the model or from the user's ``init``.

    They are free numbers (`fahmc.density.supports`); ``init`` is a position as the model's functions see it.

    ``client`` is one of the federation's (called ``name``): models may take their dimension from its rows.
    """
    _check_size(model, client, init, num_chains)
    if init is None:
        own = [_own_position(model, client, seed, chain, dtype) for chain in range(num_chains)]
        return unconstrain(model, jax.tree.map(lambda *leaves: np.stack(leaves), *own), "The model's init")
    given = as_position(init, dtype, "init")
    leaves = jax.tree.leaves(given)
    one_a_chain = given if all(leaf.shape[:1] == (num_chains,) for leaf in leaves) else None
    template = _template(model, client, name, given, one_a_chain, dtype)
    if _shapes(given) == _shapes(template):
        given = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (num_chains, *leaf.shape)), given)
        return unconstrain(model, given)
    if one_a_chain is not None and _shapes(_first(one_a_chain)) == _shapes(template):
        return unconstrain(model, one_a_chain)
    raise ModelError(
        f"init has shapes {jax.tree.map(np.shape, given)}; the model's position has "
        f"{jax.tree.map(np.shape, template)}. Give one such position, or one a chain (a leading axis of {num_chains})."
    )


def _check_size(model: Model, client: Client, init: Position | None, num_chains: int) -> None:
    """Refuse positions that no machine holds, before any is made; an init that JAX cannot trace is made without."""
    try:
        rows = jax.tree.map(jnp.asarray, client.rows)
        position = init if init is not None else jax.eval_shape(model.initial_position, jax.random.key(0), rows)
        shapes = [np.shape(leaf) for leaf in jax.tree.leaves(position)]
        if init is not None and all(shape[:1] == (num_chains,) for shape in shapes):
            shapes = [shape[1:] for shape in shapes]  # one a chain
        dimension = sum(map(math.prod, shapes))
    except Exception:
        return
    if dimension > MAX_DIMENSION or num_chains * dimension > MAX_NUMBERS:
        raise ModelError(
            f"A position has {dimension:,} numbers, in {num_chains:,} chains; there may be {MAX_DIMENSION:,}, and "
            f"{MAX_NUMBERS:,} in all chains together. Use a smaller model, or fewer chains."
        )


def model_values(run: Run) -> Any:
    """Refuse a start from which a chain cannot move; otherwise describe the model by what it returns.

    That is f and its prior part, at the first chain's start and at two points beside it. Where rows are elsewhere, such
    a start shows in the first round, and the recipe says what the model is.
    """
    if isinstance(run.federation, RemoteFederation):
        return run.model.recipe
    # Beside it, as priors and signs may agree at 0; fixed points, as the same model must give the same numbers.
    beside = np.random.default_rng(0).normal(scale=0.1, size=(2, run.dimension)) + run.start[0]
    values, priors = _potentials_at(run, np.concatenate([run.start, beside]).astype(run.dtype))
    starts = values[: run.num_chains]
    if not np.isfinite(starts).all():
        chain, client = (int(index) for index in np.argwhere(~np.isfinite(starts))[0])
        raise ModelError(
            f"At the start of chain {chain} the potential of client {run.federation.names[client]!r} is "
            f"{starts[chain, client]}; it must be finite. Start elsewhere (init), or look for log(0) and overflow in "
            "the model's functions."
        )
    places = {"at the start": 0, "beside it": -2, "beside it again": -1}
    sums = {"potential": values @ run.federation.weights, "prior": priors}
    return {f"{part} {where}": float(sums[part][row]) for where, row in places.items() for part in sums}


def _potentials_at(run: Run, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return f_c at each position, [position, client], and the prior's part of it, [position]."""
    over_clients = jax.vmap(run.target.value, in_axes=(None, 0))
    value_fn = jax.jit(jax.vmap(over_clients, in_axes=(0, None)))
    values = np.empty((len(positions), run.federation.num_clients))
    for bucket in run.buckets:
        values[:, bucket.indices] = value_fn(positions, bucket.clients)
    # A bucket again, without its rows: the same program.
    clients = run.buckets[0].clients
    without_rows = value_fn(positions, clients._replace(row_weights=np.zeros_like(clients.row_weights)))
    return values, np.asarray(without_rows[:, 0], values.dtype)


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
        alone = jax.tree.map(lambda leaf: leaf[None], position)
        build_target(model, _first(unconstrain(model, alone)), client, name)
    except ModelError:
        return False
    return True


def _first(positions: Position) -> Position:
    return jax.tree.map(lambda leaf: leaf[0], positions)


def _shapes(position: Position) -> Any:
    return jax.tree.structure(position), [leaf.shape for leaf in jax.tree.leaves(position)]
