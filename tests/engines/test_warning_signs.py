"""A step that is too large: R-hat sees nothing, so something else must."""

import logging

import numpy as np
import pytest

import fahmc
from fahmc.data.trial import load_opt_trial
from fahmc.report import judge, parameter_table, relative_drift


@pytest.fixture(scope="module")
def trial():
    study = load_opt_trial()
    model = fahmc.models.logistic_regression(prior_scale=2.5, feature_names=study.feature_names)
    return {"model": model, "federation": fahmc.Federation.from_clients(study.clients)}


def run(trial, sampler, num_rounds=2000):
    options: dict = trial | {
        "num_warmup_rounds": 500,
        "num_chains": 4,
        "seed": 1,
        "dtype": "float32",
        "progress": False,
    }
    return fahmc.sample(sampler=sampler, num_rounds=num_rounds, **options)


@pytest.mark.parametrize("step_size", [0.03, 0.1])
def test_stable_steps_raise_no_alarm(trial, step_size):
    draws = run(trial, fahmc.FAHMC(step_size, 4))
    assert not draws.stats["diverging"].any()


def test_unstable_steps_are_flagged_though_the_chains_agree(trial, caplog):
    with caplog.at_level(logging.WARNING, "fahmc"):
        draws = run(trial, fahmc.FAHMC(0.3, 4))
    assert np.isfinite(draws.flat()).all() and np.abs(draws.flat()).max() > 10, "garbage, but finite"
    assert fahmc.report.max_r_hat(draws) < 1.01
    assert draws.stats["diverging"].mean() > 0.5
    assert "further than their momentum carries them" in caplog.text
    verdict = judge(draws, parameter_table(draws))
    assert not verdict.is_good and "Do not use" in verdict.headline


def largest_shift(draws, pooled) -> float:
    """The largest difference of means, in posterior standard deviations."""
    return np.abs(parameter_table(draws, reference=pooled)["difference_sd"].to_numpy()).max()


def test_long_trajectories_bias_the_draws_and_the_drift_says_so(trial):
    pooled = run(trial, fahmc.HMC(0.075, 5, metropolis=True))
    short = run(trial, fahmc.FAHMC(0.03, 4, with_gradients=True), 12_000)
    long = run(trial, fahmc.FAHMC(0.02, 20))
    assert relative_drift(short) < 0.4 and relative_drift(long) > 1
    assert largest_shift(short, pooled) < 0.25 and largest_shift(long, pooled) > 0.5
    assert judge(short, parameter_table(short)).is_good
    verdict = judge(long, parameter_table(long))
    assert not verdict.is_good and any("stray" in fault for fault in verdict.faults)
    own_momentum = run(trial, fahmc.FAHMC(0.03, 4, momentum_correlation=0.0))
    faults = judge(own_momentum, parameter_table(own_momentum)).faults
    assert relative_drift(own_momentum) > 0.5 and not any("stray" in words for words in faults)
