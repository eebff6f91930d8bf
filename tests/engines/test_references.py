"""Against an independent sampler: MHMC against NumPyro's NUTS, then FA-HMC against MHMC."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC, NUTS

import fahmc
from assertions import assert_same_mean, threshold

MODEL = fahmc.models.logistic_regression(prior_scale=1.0, intercept_scale=10.0)


@pytest.fixture(scope="module")
def mhmc(logistic_study):
    sampler = fahmc.HMC(0.08, num_leapfrog_steps=18, metropolis=True)
    draws = fahmc.sample(
        MODEL,
        logistic_study,
        sampler,
        4000,
        num_warmup_rounds=300,
        num_chains=4,
        seed=1,
        dtype="float64",
        progress=False,
    )
    assert 0.6 < draws.stats["acceptance_rate"].mean() < 0.999
    assert draws.summary()["r_hat"].to_numpy().max() < 1.01
    return draws


def test_mhmc_agrees_with_numpyros_nuts(logistic_study, mhmc):
    rows = logistic_study.pooled().rows[0]

    def model(x, y):
        coefficients = numpyro.sample("coefficients", dist.Normal(0, 1).expand([3]).to_event(1))
        intercept = numpyro.sample("intercept", dist.Normal(0, 10))
        numpyro.sample("y", dist.Bernoulli(logits=x @ coefficients + intercept), obs=y)

    # NumPyro's handling of keys, shapes and dtypes is not what is tested here.
    with jax.debug_key_reuse(False), jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        nuts = MCMC(
            NUTS(model), num_warmup=500, num_samples=2000, num_chains=2, chain_method="sequential", progress_bar=False
        )
        nuts.run(jax.random.key(3), **rows)
    samples = {name: np.asarray(value) for name, value in nuts.get_samples(group_by_chain=True).items()}
    centre = {name: value.mean((0, 1)) for name, value in samples.items()}
    for power in (1, 2):  # means, and mean squares around one point
        ours, theirs = (
            {name: (value - centre[name]) ** power for name, value in named.items()}
            for named in (mhmc.named(), samples)
        )
        z = fahmc.report.difference_in_mcse(ours, theirs)
        scores = np.concatenate([np.ravel(value) for value in z.values()])
        assert np.abs(scores).max() < threshold(scores.size)


def test_fa_hmc_at_small_steps_agrees_with_mhmc(logistic_study, mhmc):
    sampler = fahmc.FAHMC(0.03, num_leapfrog_steps=4, num_local_steps=1)
    draws = fahmc.sample(
        MODEL, logistic_study, sampler, 15000,
        num_warmup_rounds=500, num_chains=4, seed=2, dtype="float64", progress=False,
    )  # fmt: skip
    # The federated bias at this step size: below 5 % of a posterior sd for these clients.
    assert_same_mean(draws, mhmc, allowance=0.05)


def test_too_large_a_step_is_caught_by_the_same_check(logistic_study, mhmc):
    sampler = fahmc.FAHMC(0.08, num_leapfrog_steps=18, num_local_steps=4)
    draws = fahmc.sample(
        MODEL,
        logistic_study,
        sampler,
        4000,
        num_warmup_rounds=300,
        num_chains=4,
        seed=2,
        dtype="float64",
        progress=False,
    )
    with pytest.raises(AssertionError, match="means differ"):
        assert_same_mean(draws, mhmc, allowance=0.05)
