"""Parameters that are not free: scales, shares, orders, correlations.

A chain moves on the whole line, where θ = T(u) for a bijection T between free numbers u and the parameter's support.
The posterior's density in u has the Jacobian of T as a factor,

    p(u | rows) ∝ p(rows | T(u)) p(T(u)) |det T′(u)|

which belongs to no row and so goes to the prior. Supports and their bijections are NumPyro's (`biject_to`); any of
``numpyro.distributions.constraints`` will do where one of the names below is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import biject_to, constraints
from numpyro.distributions.constraints import Constraint

from fahmc import tree
from fahmc.density.model import Model, try_shape
from fahmc.errors import ModelError, first_line, shown
from fahmc.types import Batch, Position

positive = constraints.positive
"""Above 0, every entry; u = log θ."""
unit_interval = constraints.unit_interval
"""Between 0 and 1, every entry; u = logit θ."""
interval = constraints.interval
"""``interval(low, high)``: between these, every entry."""
simplex = constraints.simplex
"""Shares along the last axis: not negative, of sum 1; K shares are K − 1 free numbers."""
ordered = constraints.ordered_vector
"""Increasing along the last axis, as cut points are."""
positive_ordered = constraints.positive_ordered_vector
"""The same above 0."""
correlation_cholesky = constraints.corr_cholesky
"""L of a correlation matrix L L′, [..., D, D]: lower triangular with rows of length 1; D (D − 1) / 2 free numbers."""

# Draws that are turned into what is presented in one call.
_CHUNK = 1024


def unconstrained(model: Model) -> Model:
    """Return the same model as functions of free numbers, with the Jacobian in the prior."""
    supports = model.supports
    if not supports:
        return model

    def logprior(free: Position, logprior_fn: Any = model.logprior_fn) -> Any:
        # At temperature τ all of the prior is divided by it, but the Jacobian is none of the model's.
        return logprior_fn(constrain(supports, free)) + model.temperature * log_jacobian(supports, free)

    lowered = replace(model, supports=None, derived_fn=None, linear=None, logprior_fn=logprior)
    if (linear := model.linear) is not None:
        of_line = replace(
            linear,
            loglikelihood_fn=lambda xb, rest, batch: linear.loglikelihood_fn(xb, constrain(supports, rest), batch),
            logprior_fn=lambda rest: logprior(rest, linear.logprior_fn),
        )
        lowered = replace(lowered, linear=of_line)
    if (view_fn := model.view_fn) is not None:
        return replace(lowered, view_fn=lambda free: view_fn(constrain(supports, free)))

    def loglikelihood(free: Position, batch: Batch, *row_weights: Any) -> Any:
        return model.loglikelihood_fn(constrain(supports, free), batch, *row_weights)

    return replace(lowered, loglikelihood_fn=loglikelihood)


def constrain(supports: Mapping[str, Constraint], free: Position) -> Position:
    """Return θ = T(u)."""
    return _mapped(supports, lambda name, support, leaf: biject_to(support)(leaf).astype(leaf.dtype), free)


def log_jacobian(supports: Mapping[str, Constraint], free: Position) -> Any:
    """Return log |det T′(u)|, all parameters together."""

    def of_leaf(support: Constraint, leaf: Any) -> Any:
        transform = biject_to(support)
        return jnp.sum(transform.log_abs_det_jacobian(leaf, transform(leaf))).astype(leaf.dtype)

    terms = [of_leaf(supports[name], leaf) for name, leaf in tree.named_leaves(free).items() if name in supports]
    return sum(terms[1:], terms[0]) if terms else 0.0


def unconstrain(model: Model, positions: Position, origin: str = "init") -> Position:
    """Return u of a start, [chain, ...] each, or say which parameter is not in its support.

    ``origin`` says where it came from.
    """
    supports = model.supports or {}
    names = tree.leaf_names(positions)
    for name in supports:
        if name not in names:
            raise ModelError(f"supports names {name!r}, but the position has {', '.join(names)}. Correct the name.")

    def inverse(name: str, support: Constraint, leaf: Any) -> np.ndarray:
        leaf = np.asarray(leaf)
        try:
            values = jnp.asarray(leaf)
            free = np.asarray(jax.vmap(biject_to(support).inv)(values), leaf.dtype)
            is_inside = [bool(np.all(inside)) for inside in np.asarray(jax.vmap(support)(values))]
        except Exception as error:
            raise ModelError(
                f"The support {support} of {name!r} does not fit its shape {list(leaf.shape[1:])}: {first_line(error)}."
            ) from error
        for start, end, inside in zip(leaf, free, is_inside, strict=True):
            if not (inside and np.isfinite(end).all()):
                raise ModelError(
                    f"{origin}: {name} starts at {shown(start.tolist())}, which is not inside its support {support}. "
                    "Start inside; positions are given as the model's functions see them."
                )
        return free

    return _mapped(supports, inverse, positions)


def shape_presented(model: Model, free: Position) -> Position:
    """Return shapes and dtypes of what `present` makes of one position, or refuse what it could not."""
    position = jax.eval_shape(lambda free: constrain(model.supports or {}, free), free)
    if model.derived_fn is None:
        return position
    derived = try_shape("derived_fn", "", model.derived_fn, position)
    if not isinstance(position, dict) or not isinstance(derived, dict):
        raise ModelError(
            f"derived_fn returned a {type(derived).__name__}, and the position is a {type(position).__name__}; both "
            "must be dicts from names to arrays, to stand beside each other."
        )
    if both := sorted(set(position) & set(derived)):
        raise ModelError(f"derived_fn returned {both[0]!r}, as a parameter is called too; give it another name.")
    return {**position, **derived}


def present(model: Model, template: Position, flat: np.ndarray) -> Position:
    """Return what the user sees of draws [..., dim]: the parameters in their supports, and what derives from them.

    ``template`` has structure and shapes of the free position, [..., *leaf] of which is what comes back where the model
    has neither supports nor derived quantities.
    """
    if not model.supports and model.derived_fn is None:
        return tree.unflatten_draws(flat, template)

    def of_one(vector: Any) -> Position:
        parts = jnp.split(vector, cuts)
        free = jax.tree.unflatten(structure, [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)])
        position = constrain(model.supports or {}, free)
        derived = {} if model.derived_fn is None else model.derived_fn(position)
        # Of one precision, whatever a function makes of it: counts and truths are averaged too.
        return position if not derived else position | {k: jnp.asarray(v, vector.dtype) for k, v in derived.items()}

    leaves, structure = jax.tree.flatten(template)
    shapes = [leaf.shape for leaf in leaves]
    cuts = np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1]
    rows = flat.reshape(-1, flat.shape[-1])
    # All parts of one length, so that one program does: the last is filled up, and there is one at least.
    missing = -len(rows) % _CHUNK if len(rows) else _CHUNK
    padded = np.concatenate([rows, np.zeros((missing, rows.shape[1]), flat.dtype)])
    with jax.enable_x64(flat.dtype == np.float64):
        compiled = jax.jit(jax.vmap(of_one))
        parts = [jax.device_get(compiled(part)) for part in np.split(padded, len(padded) // _CHUNK)]

    def joined(*leaves: np.ndarray) -> np.ndarray:
        return np.concatenate(leaves)[: len(rows)].reshape(*flat.shape[:-1], *leaves[0].shape[1:])

    return jax.tree.map(joined, *parts)


def _mapped(supports: Mapping[str, Constraint], function: Any, position: Position) -> Position:
    """Apply ``(name, support, leaf) -> leaf`` to what has a support; names may repeat, which is seen to later."""
    leaves, structure = jax.tree.flatten(position)
    values = [
        function(name, supports[name], leaf) if name in supports else leaf
        for name, leaf in zip(tree.leaf_names(position), leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, values)
