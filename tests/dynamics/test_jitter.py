"""Step sizes that vary from trajectory to trajectory, the same at all clients."""

from dataclasses import replace

import jax
import numpy as np
import pytest

import fahmc
from fahmc import keys, theory
from fahmc.engines.run import first_chain
from fahmc.theory import GaussianClients
from gaussian_study import Study

OPTIONS = {"num_chains": 2, "seed": 5, "dtype": "float64", "progress": False}


def factors(jitter: float, num_trajectories: int) -> list[float]:
    """1 + jitter u of every trajectory of the first chain."""
    found = []
    for trajectory in range(num_trajectories):
        key = keys.jitter(first_chain(keys.chain_keys(OPTIONS["seed"], 1)), jax.numpy.int32(trajectory))
        found.append(1 + jitter * float(jax.random.uniform(key, minval=-1, maxval=1)))
    return found


@pytest.mark.parametrize("sync_unit", ["trajectory", "leapfrog"])
def test_it_is_a_schedule_of_random_step_sizes(unlike_gaussians, sync_unit):
    study, num_rounds = unlike_gaussians, 4
    sampler = fahmc.FAHMC(0.2, 3, 2, momentum_correlation=0.5, sync_unit=sync_unit, jitter=0.5)
    jittered = fahmc.sample(study.model, study.federation, sampler, num_rounds, **OPTIONS)
    table = jax.numpy.asarray(0.2 * np.array(factors(0.5, 2 * num_rounds)))
    assert 0.1 <= float(table.min()) < float(table.max()) <= 0.3
    plain = fahmc.sample(
        study.model, study.federation, replace(sampler, jitter=0.0, step_size=lambda t: table[t]), num_rounds, **OPTIONS
    )
    np.testing.assert_allclose(jittered.flat()[0], plain.flat()[0], rtol=1e-12)
    assert np.abs(jittered.flat()[1] - plain.flat()[1]).max() > 1e-3, "chains have step sizes of their own"


def test_it_rescues_a_length_that_is_a_period():
    """At K η = 2π of a standard normal every trajectory ends where it began; with jitter none does."""
    study = Study(means=np.zeros((1, 1)), precisions=np.ones((1, 1, 1)), weights=np.ones(1))
    period = fahmc.HMC(2 * np.sin(np.pi / 16), 16, metropolis=True)  # the leapfrog's own: cos φ = 1 − η²/2, φ = 2π / 16
    options = {**OPTIONS, "num_chains": 4, "num_rounds": 400, "init": np.ones(1)}
    fixed = fahmc.sample(study.model, study.federation, period, **options)
    np.testing.assert_allclose(fixed.flat(), 1.0, atol=1e-6)
    moving = fahmc.sample(study.model, study.federation, replace(period, jitter=0.3), **options)
    summary = moving.summary()
    error = np.sqrt(1 / summary["ess_bulk"].iloc[0])
    assert summary["ess_bulk"].iloc[0] > 100 and abs(summary["mean"].iloc[0]) < 5 * error


def test_theory_knows_no_jitter():
    clients = GaussianClients(np.zeros((1, 1)), np.ones((1, 1, 1)))
    with pytest.raises(fahmc.errors.SettingsError, match=r"jitter is 0\.2"):
        theory.stationary_law(clients, fahmc.FAHMC(0.1, jitter=0.2))
