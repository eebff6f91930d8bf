"""Where row space is possible, and where it is worth it: the faster of two ways to the same chains."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fahmc.data.federation import Federation
from fahmc.density.gradient import FullGradient, GaussianNoise
from fahmc.density.model import Model
from fahmc.dynamics.fa_hmc import FAHMC
from fahmc.engines.in_process.row_space.rounds import RowSpace
from fahmc.engines.run import Run
from fahmc.errors import ModelError, SettingsError
from fahmc.types import Position

# Noise needs the square root of a d × d matrix before the run, at a cost of d³.
_LARGEST_ROOT = 2048


def choose(run: Run, wanted: bool | None) -> RowSpace | None:
    """Return the way through row space if it is possible and pays, unless the user chose."""
    if wanted is False:
        return None
    model, federation, sampler = run.target.free, run.federation, run.sampler
    _check_linear(model, run.target.template, federation.rows[0])
    if not is_possible(model, sampler, federation):
        if wanted:
            raise SettingsError(
                "row_space=True, but these chains cannot be run in row space: that takes a generalised linear model (a "
                "ready-made one, or Model(linear=...)), FAHMC with exact gradients or GaussianNoise on them, a "
                "constant step size, momentum_correlation=1, no mass matrix, jitter, correction or gradients along "
                "with the draws, and clients with no more rows than coefficients. Leave row_space out to have it used "
                "where it pays."
            )
        return None
    assert model.linear is not None and isinstance(sampler, FAHMC)
    if not (wanted or pays(model, sampler, federation)):
        return None
    fast, bucket = RowSpace(run, sampler, model.linear), run.buckets[0]
    first = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), bucket.clients)
    plain, reduced = (float(value(jnp.asarray(run.start[0]), first)) for value in (run.target.value, fast.potential))
    if abs(plain - reduced) > 1e-3 * (1 + abs(plain)):
        name = federation.names[bucket.indices[0]]
        raise ModelError(
            f"The model's linear part contradicts the model: the potential of client {name!r} at the start is "
            f"{plain:g} by loglikelihood_fn and logprior_fn, but {reduced:g} by linear. Correct Model(linear=...), or "
            "leave it out."
        )
    return fast


def is_possible(model: Model, sampler: Any, federation: Federation) -> bool:
    """Whether these chains can be run in row space."""
    if model.linear is None or type(sampler) is not FAHMC:
        return False
    if sampler.with_gradients or sampler.jitter or sampler.correction is not None:
        return False
    if sampler.momentum_correlation < 1 or sampler.inverse_mass_matrix is not None or callable(sampler.step_size):
        return False
    gradient = sampler.gradient
    if isinstance(gradient, GaussianNoise):
        gradient = None if sampler.reuse_gradient else gradient.of
    if not isinstance(gradient, FullGradient):
        return False
    covariates = federation.rows[0][model.linear.covariates]
    return covariates.ndim == 2 and federation.sizes.max() <= covariates.shape[1]


def pays(model: Model, sampler: FAHMC, federation: Federation) -> bool:
    """Whether row space takes clearly fewer multiplications, counted for a round of one chain and one output."""
    assert model.linear is not None
    dimension = federation.rows[0][model.linear.covariates].shape[1]
    sizes, steps = federation.sizes.astype(float), sampler.steps_per_round
    num_rows = sizes.sum()
    is_noisy = isinstance(sampler.gradient, GaussianNoise)
    if is_noisy and dimension > _LARGEST_ROOT:
        return False
    plain = 2 * steps * num_rows * dimension
    within = (2 if is_noisy else 1) * steps * (sizes**2).sum()
    between = 2 * min(num_rows**2, 2 * num_rows * dimension)
    outside = 2 * dimension * (dimension + num_rows) if is_noisy else 0
    return within + between + outside < plain / 1.5


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
