"""Draws made up for the tests of the report: a logistic regression over four clinics."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from fahmc.draws import Draws

COVARIATES = (
    "treatment",
    "age",
    "black",
    "hispanic",
    "education",
    "public assistance",
    "hypertension",
    "diabetes",
    "previous pregnancy",
    "pocket depth",
    "bleeding",
)
CLIENTS = ("MN", "KY", "MS", "NY")


def fake_draws(
    *,
    seed: int = 0,
    num_chains: int = 4,
    num_draws: int = 1000,
    shift: float = 0.0,
    autocorrelation: float = 0.3,
    is_metropolis: bool = False,
    with_gradients: bool = False,
    spread: float = 1.0,
    num_covariates: int = len(COVARIATES),
) -> Draws:
    """Return stationary AR(1) paths around a posterior, off by ``shift`` posterior sds, ``spread`` as wide."""
    rng = np.random.default_rng(seed)
    dim = 1 + num_covariates
    mean = np.array([-1.9, -0.12, 0.05, 0.31, -0.08, 0.02, 0.22, 0.74, 0.41, -0.35, 0.10, 0.06])[:dim]
    sd = np.array([0.22, 0.21, 0.11, 0.27, 0.33, 0.12, 0.25, 0.48, 0.59, 0.24, 0.13, 0.12])[:dim]
    noise = rng.normal(size=(num_chains, num_draws, dim))
    paths = np.empty_like(noise)
    paths[:, 0] = noise[:, 0]
    for t in range(1, num_draws):
        paths[:, t] = autocorrelation * paths[:, t - 1] + np.sqrt(1 - autocorrelation**2) * noise[:, t]
    values = (mean + sd * (spread * paths + shift)).astype(np.float32)
    # Of independent normals; leaves of the position come in the order of their names, so the intercept is the last.
    slopes = np.roll((values - mean) / sd**2, -1, axis=-1) if with_gradients else None
    stats = {
        "step_size": np.full((num_chains, num_draws), 0.02),
        "n_steps": np.full((num_chains, num_draws), 50),
        "client_drift": 0.09 * np.sqrt(rng.chisquare(12, size=(num_chains, num_draws)) / 12),
        "diverging": np.zeros((num_chains, num_draws), dtype=bool),
    }
    if is_metropolis:
        stats["acceptance_rate"] = rng.uniform(0.7, 1.0, size=(num_chains, num_draws))
    return Draws(
        positions={"intercept": values[..., 0], "coefficients": values[..., 1:]},
        stats=stats,
        client_names=CLIENTS,
        client_drift=np.array([0.07, 0.08, 0.10, 0.13]) * rng.normal(1, 0.01, size=(num_chains, 4)),
        settings={
            "sampler": {"name": "HMC" if is_metropolis else "FAHMC", "step_size": 0.02, "num_leapfrog_steps": 10},
            "seed": seed,
            "num_rounds": num_draws,
            "num_warmup_rounds": 500,
            "thin": 1,
            "dtype": "float32",
        },
        cost={
            "rounds": 500.0 + num_draws,
            "seconds": 12.34,
            "row_gradients": 6.17e7,
            "bytes_to_clients": 1_152_000.0,
            "bytes_to_server": 1_152_000.0,
        },
        dims={"coefficients": ("covariate",)},
        coords={"covariate": COVARIATES[:num_covariates]},
        gradients=slopes,
    )


def draws_of(values: np.ndarray, **changes) -> Draws:
    """Return draws of one variable ``w`` with these values [chain, draw, ...]."""
    stats = {"client_drift": np.ones(values.shape[:2])}
    drift = np.ones((values.shape[0], 1))
    return dataclasses.replace(Draws({"w": values}, stats, ("only",), drift, {}, {}), **changes)


@pytest.fixture(scope="session")
def make_draws() -> Callable[..., Draws]:
    return fake_draws


@pytest.fixture(scope="session")
def make_draws_of() -> Callable[..., Draws]:
    return draws_of


@pytest.fixture(scope="session")
def federated() -> Draws:
    return fake_draws(seed=1)


@pytest.fixture(scope="session")
def certified() -> Draws:
    return fake_draws(seed=1, with_gradients=True)


@pytest.fixture(scope="session")
def pooled() -> Draws:
    return fake_draws(seed=2, is_metropolis=True)
