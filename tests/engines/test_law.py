"""The sampler's own law, bias included, on unlike Gaussian clients: 100,000 independent chains against exact algebra.

Each check has the false-alarm rate of `assertions.FALSE_ALARM`; broken samplers must fail the same checks.
"""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

import fahmc
from assertions import assert_covariance, assert_mean
from fahmc import keys, theory
from fahmc.dynamics import fa_hmc

NUM_CHAINS, NUM_ROUNDS, NOISE = 100_000, 4, 1.5
START = np.array([1.0, -1.0])
PLAIN = fahmc.FAHMC(0.25, 3, 2, momentum_correlation=0.4, gradient=fahmc.GaussianNoise(NOISE))
# The others differ from these in what tests/dynamics/test_exact_round.py reads off the code, on noise of its own.
SAMPLERS = {
    "leapfrog": replace(PLAIN, sync_unit="leapfrog"),
    "debiased from the origin": fahmc.DebiasedFAHMC(**vars(PLAIN), first_anchor="origin"),
}


def replicas(study, sampler) -> np.ndarray:
    draws = fahmc.sample(
        study.model, study.federation, sampler, NUM_ROUNDS,
        thin=NUM_ROUNDS, num_chains=NUM_CHAINS, seed=20, init=START, dtype="float64", progress=False,
    )  # fmt: skip
    return draws.flat()[:, -1]


def check(study, sampler) -> None:
    law = theory.law_after(study.clients, sampler, NUM_ROUNDS, start_mean=START)
    found = replicas(study, sampler)
    assert_mean(found, law.mean, law.covariance)
    assert_covariance(found, law.covariance)


@pytest.mark.parametrize("name", SAMPLERS)
def test_law_is_exact(unlike_gaussians, name):
    check(unlike_gaussians, SAMPLERS[name])


def test_five_percent_too_much_noise_is_caught(unlike_gaussians, monkeypatch):
    momentum = fa_hmc.draw_momentum
    monkeypatch.setattr(fa_hmc, "draw_momentum", lambda *arguments: 1.05 * momentum(*arguments))
    with pytest.raises(AssertionError, match="covariance off"):
        check(unlike_gaussians, PLAIN)


def test_swapped_weights_are_caught(unlike_gaussians):
    study = unlike_gaussians
    swapped = type(study)(study.means, study.precisions, study.weights[[1, 0, 2]])
    law = theory.law_after(study.clients, PLAIN, NUM_ROUNDS, start_mean=START)
    with pytest.raises(AssertionError, match="mean off"):
        assert_mean(replicas(swapped, PLAIN), law.mean, law.covariance)


def test_reused_momentum_key_is_caught(unlike_gaussians, monkeypatch):
    shared = keys.shared_momentum
    monkeypatch.setattr(keys, "shared_momentum", lambda chain_keys, trajectory: shared(chain_keys, jnp.int32(0)))
    with pytest.raises(AssertionError, match="covariance off"):
        check(unlike_gaussians, PLAIN)


def test_reused_gradient_key_is_caught(unlike_gaussians, monkeypatch):
    """The two gradients of a step drawn from one key: less noise averages out."""
    gradient_at = keys.gradient_at
    monkeypatch.setattr(keys, "gradient_at", lambda key, k, half: gradient_at(key, jnp.int32(0), 0))
    with pytest.raises(AssertionError, match="covariance off"):
        check(unlike_gaussians, PLAIN)
