"""Where row space is possible, and where it is worth it."""

from __future__ import annotations

from typing import Any

from fahmc.data.federation import Federation
from fahmc.density.gradient import FullGradient, GaussianNoise
from fahmc.density.potential import Model
from fahmc.dynamics.fa_hmc import FAHMC

# Noise needs the square root of a d × d matrix before the run, at a cost of d³.
_LARGEST_ROOT = 2048


def is_possible(model: Model, sampler: Any, federation: Federation) -> bool:
    """Whether these chains can be run in row space."""
    if model.linear is None or type(sampler) is not FAHMC:
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
    sizes, steps = federation.sizes.astype(float), round_steps(sampler)
    num_rows = sizes.sum()
    is_noisy = isinstance(sampler.gradient, GaussianNoise)
    if is_noisy and dimension > _LARGEST_ROOT:
        return False
    plain = 2 * steps * num_rows * dimension
    within = (2 if is_noisy else 1) * steps * (sizes**2).sum()
    between = 2 * min(num_rows**2, 2 * num_rows * dimension)
    outside = 2 * dimension * (dimension + num_rows) if is_noisy else 0
    return within + between + outside < plain / 1.5


def round_steps(sampler: FAHMC) -> int:
    """Leapfrog steps between two averagings: a round of trajectories is one of as many leapfrog steps."""
    return sampler.num_local_steps * (1 if sampler.sync_unit == "leapfrog" else sampler.num_leapfrog_steps)
