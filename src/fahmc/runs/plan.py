"""From the user's arguments to a plan: everything about a run that does not change while it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fahmc import keys, tree
from fahmc.data.buckets import check_integers, num_padded_rows, single_client
from fahmc.data.federation import Federation
from fahmc.data.sites import RemoteFederation, made_up_client
from fahmc.density.gradient import check_minibatch, rows_per_evaluation
from fahmc.density.potential import Model, Potentials, build_potentials
from fahmc.dynamics import row_space as row_spaces
from fahmc.dynamics.fa_hmc import FAHMC
from fahmc.dynamics.hmc import HMC
from fahmc.dynamics.kernel import build_kernel
from fahmc.dynamics.row_space import RowSpace
from fahmc.dynamics.schedules import as_schedule, check_schedule
from fahmc.engines.block import Task
from fahmc.errors import DataError, ModelError, SettingsError
from fahmc.runs.pacing import Pacing
from fahmc.runs.settings import describe
from fahmc.runs.start import checked_values, initial_positions
from fahmc.tree import digest
from fahmc.types import ChainKeys, Client, Kernel, Position, Vector

# Draws of one block wait in memory twice, in the compiled program and outside.
_BLOCK_BYTES = 16 * 2**20


class Plan(NamedTuple):
    """A run before its first round."""

    model: Model
    federation: Federation
    """As it is sampled: pooled for one-machine samplers."""
    sampler: FAHMC | HMC
    kernel: Kernel
    row_space: RowSpace | None
    """Runs the kernel's chains where `fahmc.dynamics.row_space` applies."""
    potentials: Potentials
    chain_keys: ChainKeys
    start: Any
    """The kernel's state before the first round, with a chain axis."""
    dtype: np.dtype
    num_chains: int
    settings: dict[str, Any]
    """What the user chose, as JSON values."""
    fingerprint: dict[str, Any]
    """The settings, and checksums of everything else that the draws depend on."""
    rows_per_round: int
    """Row-gradients of all clients, for one chain."""


def make_plan(
    model: Model,
    federation: Federation,
    sampler: FAHMC | HMC,
    *,
    seed: int,
    private_seed: int | None,
    num_chains: int,
    init: Position | None,
    dtype: np.dtype,
    row_space: bool | None = None,
) -> Plan:
    """Check the arguments against each other and build everything that a run needs."""
    _check_arguments(model, federation, sampler)
    check_integers(federation, dtype)
    settings = {
        "sampler": describe(sampler),
        "seed": int(seed),
        "num_chains": int(num_chains),
        "dtype": dtype.name,
        "temperature": float(model.temperature),
        "clients": {name: int(size) for name, size in zip(federation.names, federation.sizes, strict=True)},
    }
    if isinstance(sampler, HMC):
        federation = federation.pooled()
    check_minibatch(sampler.gradient, federation.names, federation.sizes)

    is_remote = isinstance(federation, RemoteFederation)
    first = single_client(made_up_client(federation), 0, dtype)
    start_options = {"init": init, "seed": seed, "num_chains": num_chains, "dtype": dtype}
    positions = initial_positions(model, first, federation.names[0], **start_options)
    position = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), positions)
    potentials = build_potentials(model, position, first, federation.names[0])
    _check_names(model, position)
    flat = jnp.asarray(tree.flatten_draws(positions, batch_ndim=1), dtype)
    # Where rows are elsewhere, a start from which a chain cannot move shows in the first round.
    values = model.recipe if is_remote else checked_values(potentials, federation, flat, dtype)
    kernel = build_kernel(sampler, potentials, first, dtype)
    if is_remote:
        settings["sites"] = federation.about
    fast = _row_space(row_space, model, federation, sampler, potentials, first, flat[0])
    settings["path"] = "plain" if fast is None else "row space"
    fingerprint = {
        "format": 1,
        **settings,
        "private_seed": None if private_seed is None else digest(np.int64(private_seed)),
        "init": digest(np.asarray(flat)),
        "data": {
            name: {"weight": float(weight), "rows": mark}
            for name, weight, mark in zip(federation.names, federation.weights, _row_marks(federation), strict=True)
        },
        "model": values,
    }
    estimated_rows = rows_per_evaluation(sampler.gradient, federation.sizes).sum()
    return Plan(
        model=model,
        federation=federation,
        sampler=sampler,
        kernel=kernel,
        row_space=fast,
        potentials=potentials,
        chain_keys=keys.chain_keys(seed, num_chains, private_seed),
        # Not compiled: the rows that a Metropolis kernel looks at here would become constants of the program.
        start=jax.vmap(kernel.init)(flat) if fast is None else fast.init(flat, num_padded_rows(federation)),
        dtype=dtype,
        num_chains=num_chains,
        settings=settings,
        fingerprint=fingerprint,
        rows_per_round=int(kernel.estimates * estimated_rows + kernel.full_gradients * federation.num_rows),
    )


def _row_marks(federation: Federation) -> Sequence[str]:
    """Tell by a checksum whether the rows are the same as before."""
    if isinstance(federation, RemoteFederation):
        return federation.marks
    return [digest(rows) for rows in federation.rows]


def make_task(plan: Plan, pacing: Pacing, is_stopping: Callable[[], bool] = lambda: False) -> Task:
    """Say what an engine is to run; the first state is ``plan.start``."""
    draw_bytes = plan.num_chains * plan.potentials.dimension * plan.dtype.itemsize
    return Task(
        model=plan.model,
        sampler=plan.sampler,
        kernel=plan.kernel,
        row_space=plan.row_space,
        federation=plan.federation,
        chain_keys=plan.chain_keys,
        seed=plan.settings["seed"],
        dtype=plan.dtype,
        template=plan.potentials.template,
        total_rounds=pacing.total,
        num_warmup_rounds=pacing.num_warmup_rounds,
        thin=pacing.thin,
        capacity=max(1, min(_BLOCK_BYTES // draw_bytes, pacing.num_rounds // pacing.thin)),
        is_stopping=is_stopping,
    )


def message_bytes(plan: Plan) -> dict[str, int]:
    """Bytes of one round's messages, all chains and clients together; on one machine, what would cross a network."""
    if not is_federated(plan):
        return {"bytes_to_clients": 0, "bytes_to_server": 0}

    def size(message: Any) -> int:
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(message))

    state = jax.eval_shape(plan.kernel.init, jax.ShapeDtypeStruct((plan.potentials.dimension,), plan.dtype))
    chain_keys = jax.tree.map(lambda leaf: leaf[0], plan.chain_keys)
    client = jax.tree.map(jnp.asarray, single_client(made_up_client(plan.federation), 0, plan.dtype))
    reply, _ = jax.eval_shape(plan.kernel.client_round, chain_keys, jnp.int32(0), state, client)
    messages = plan.num_chains * plan.federation.num_clients
    return {"bytes_to_clients": messages * size(state), "bytes_to_server": messages * size(reply)}


def is_federated(plan: Plan) -> bool:
    """Whether messages cross a boundary at all."""
    return plan.settings["sampler"]["name"] != "HMC"


def _row_space(
    wanted: bool | None,
    model: Model,
    federation: Federation,
    sampler: Any,
    potentials: Potentials,
    first: Client,
    start: Vector,
) -> RowSpace | None:
    """Choose the faster of two ways to the same chains, unless the user chose."""
    if wanted is False:
        return None
    _check_linear(model, potentials.template, federation.rows[0])
    is_possible = row_spaces.is_possible(model, sampler, federation)
    if wanted and not is_possible:
        raise SettingsError(
            "row_space=True, but these chains cannot be run in row space: that takes a generalised linear model (a "
            "ready-made one, or Model(linear=...)), FAHMC with exact gradients or GaussianNoise on them, a constant "
            "step size, momentum_correlation=1, no mass matrix, and clients with no more rows than coefficients. "
            "Leave row_space out to have it used where it pays."
        )
    if not is_possible or not (wanted or row_spaces.pays(model, sampler, federation)):
        return None
    fast = RowSpace(model, sampler, potentials)
    plain, reduced = (float(value) for value in (potentials.value(start, first), fast.potential(start, first)))
    if abs(plain - reduced) > 1e-3 * (1 + abs(plain)):
        raise ModelError(
            f"The model's linear part contradicts the model: the potential of client {federation.names[0]!r} at the "
            f"start is {plain:g} by loglikelihood_fn and logprior_fn, but {reduced:g} by linear. Correct "
            "Model(linear=...), or leave it out."
        )
    return fast


def _check_linear(model: Model, template: Position, rows: Any) -> None:
    """Refuse a linear part that names what is not there."""
    if model.linear is None:
        return
    for kind, name, tree_of in (
        ("parameter", model.linear.parameter, template),
        ("covariates", model.linear.covariates, rows),
    ):
        if not isinstance(tree_of, dict) or name not in tree_of:
            where = "the model's position" if kind == "parameter" else "the batch of a client"
            found = f"a dict with {', '.join(map(str, tree_of))}" if isinstance(tree_of, dict) else "not a dict"
            raise ModelError(
                f"Model(linear=...) names the {kind} {name!r}, but {where} is {found}. Give a name that is there, or "
                "leave linear out."
            )


def _check_arguments(model: Model, federation: Federation, sampler: FAHMC | HMC) -> None:
    if not isinstance(model, Model):
        raise ModelError(f"model is {model!r}; give a fahmc.Model or one of fahmc.models.")
    if not isinstance(federation, Federation):
        kind = type(federation).__name__
        raise DataError(f"federation is a {kind}; build it with fahmc.Federation.from_clients(...).")
    if not isinstance(sampler, FAHMC | HMC):
        raise SettingsError(f"sampler is {sampler!r}; use FAHMC, FALD, DebiasedFAHMC or HMC.")
    check_schedule(as_schedule(sampler.step_size))
    own_rows = () if isinstance(federation, RemoteFederation) else federation.rows  # sites check theirs
    for name, rows in zip(federation.names, own_rows, strict=False):
        if model.validate_fn is not None and (complaint := model.validate_fn(rows)):
            raise DataError(f"Client {name!r}: {complaint}")
    if isinstance(sampler, FAHMC) and sampler.momentum_correlation < 1 and not federation.weights.all():
        idle = federation.names[int(np.argmin(federation.weights))]
        raise SettingsError(
            f"Client {idle!r} has weight 0, so its private momentum (momentum_correlation < 1) would be infinite. "
            "Drop the client, or use momentum_correlation=1."
        )


def _check_names(model: Model, position: Position) -> None:
    """Refuse positions and names that files and ArviZ could not hold; they would notice only after the run."""
    try:
        tree.skeleton(position)
    except TypeError as error:
        message = (
            f"The position holds {error}; build positions of dicts with string keys, lists, tuples and NamedTuples."
        )
        raise ModelError(message) from None
    names = tree.leaf_names(position)
    for name in names:
        if names.count(name) > 1 or name in ("chain", "draw") or "/" in name:
            raise ModelError(
                f"A parameter is called {name!r}, which is taken or cannot be stored; give it another name."
            )
    shapes = {name: leaf.shape for name, leaf in zip(names, jax.tree.leaves(position), strict=True)}
    for name, dims in model.dims.items():
        if name in shapes and (isinstance(dims, str) or len(dims) != len(shapes[name])):
            raise ModelError(
                f"dims of {name!r} is {dims!r}, but it has {len(shapes[name])} axes; give a list with a name each."
            )
        for dim, size in zip(dims, shapes.get(name, ()), strict=False):
            if dim in model.coords and len(model.coords[dim]) != size:
                raise ModelError(
                    f"{name} has {size} entries along {dim!r}, but {len(model.coords[dim])} names were given for them; "
                    "give one name an entry (feature_names of a ready-made model, coords of your own)."
                )
