"""The certificate: exact on Gaussians, honest about the rest, and what it is made from."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import fahmc
from assertions import threshold
from fahmc import stein
from fahmc.draws import Draws

MEAN = np.array([1.0, -2.0, 0.5])
COVARIANCE = np.array([[1.0, 0.6, 0.1], [0.6, 0.5, 0.0], [0.1, 0.0, 4.0]])
SDS = np.sqrt(np.diag(COVARIANCE))
# What the draws are off by: means in posterior standard deviations, standard deviations as a share.
SHIFT = np.array([0.3, -0.1, 0.05])
EXCESS = np.array([0.2, 0.0, -0.15])


def off_by(shift=SHIFT, excess=EXCESS, *, num_chains=4, num_draws=500, seed=0):
    """Return draws of a Gaussian that is off by so much, and the posterior's ∇f at each."""
    rng = np.random.default_rng(seed)
    factor = np.diag(1 + excess) @ np.linalg.cholesky(COVARIANCE)
    draws = MEAN + shift * SDS + rng.normal(size=(num_chains, num_draws, 3)) @ factor.T
    return draws, (draws - MEAN) @ np.linalg.inv(COVARIANCE)


def draws_of(positions, gradients=None, **changes):
    drift = np.ones((len(positions), 1))
    made = Draws({"w": positions}, {"diverging": np.zeros(positions.shape[:2], bool)}, ("only",), drift, {}, {})
    return dataclasses.replace(made, gradients=gradients, **changes)


@pytest.mark.parametrize("num_chains", [1, 2, 4, 8])
def test_a_gaussian_posterior_is_found_exactly_whatever_the_draws_are(num_chains):
    draws, gradients = off_by(num_chains=num_chains)
    moments = stein.posterior_moments(draws, gradients)
    np.testing.assert_allclose(moments.mean, MEAN, atol=1e-6)
    np.testing.assert_allclose(moments.sd, SDS, rtol=1e-6)
    assert (moments.mean_rest < 1e-8).all() and (moments.sd_rest < 1e-8).all()
    table = draws_of(draws, gradients).bias
    np.testing.assert_allclose(table["mean_shift"], (draws.mean(axis=(0, 1)) - MEAN) / SDS, atol=1e-5)
    np.testing.assert_allclose(table["sd_excess"], draws.std(axis=(0, 1)) / SDS - 1, atol=1e-5)
    assert table.attrs["found_by"] == "gradients" and list(table.index) == ["w[0]", "w[1]", "w[2]"]


def test_the_law_s_shift_and_excess_are_found_within_their_monte_carlo_error():
    draws, gradients = off_by(num_draws=5000)
    table, count = draws_of(draws, gradients).bias, draws[..., 0].size
    z = (table["mean_shift"] - SHIFT) / ((1 + EXCESS) / np.sqrt(count))
    assert np.abs(z).max() < threshold(3)
    assert np.abs((table["sd_excess"] - EXCESS) / ((1 + EXCESS) / np.sqrt(2 * count))).max() < threshold(3)
    # The draws' own spread is not the posterior's, in whose unit a shift is told.
    assert np.abs(table["mean_shift"] * (1 + EXCESS) - SHIFT).max() < 0.1


@pytest.mark.parametrize("broken", [lambda g: -g, lambda g: g / SDS**2, lambda g: g + 0.3, lambda g: 0.8 * g])
def test_wrong_gradients_do_not_find_it(broken):
    draws, gradients = off_by(num_draws=5000)
    moments = stein.posterior_moments(draws, broken(gradients))
    assert not (np.allclose(moments.mean, MEAN, atol=0.02) and np.allclose(moments.sd, SDS, rtol=0.02))


def test_few_terms_find_it_too(monkeypatch):
    monkeypatch.setattr(stein, "_MOST_TERMS", 5)
    draws, gradients = off_by()
    moments = stein.posterior_moments(draws, gradients)
    np.testing.assert_allclose(moments.mean, MEAN, atol=1e-6)
    np.testing.assert_allclose(moments.sd, SDS, rtol=1e-6)


def skewed(num_chains=8, num_draws=2000, shift=0.0, seed=0):
    """Return draws near y, where exp(y) has a Gamma(4) law, and ∇f: a posterior that is not Gaussian."""
    y = np.log(np.random.default_rng(seed).gamma(4.0, size=(num_chains, num_draws, 1))) + shift
    return y, np.exp(y) - 4.0


def test_on_a_skewed_posterior_the_stated_errors_hold():
    # Mean and variance of the logarithm of a Gamma(4): digamma and trigamma of 4.
    mean, sd = 1.2561176684, np.sqrt(0.2838229557)
    scores = []
    for seed in range(20):
        y, g = skewed(shift=0.1, seed=seed)
        bias = draws_of(y, g).bias.iloc[0]
        true_shift, true_excess = (y.mean() - mean) / sd, y.std() / sd - 1
        scores.append(((bias["mean_shift"] - true_shift) / bias["mean_shift_error"],
                       (bias["sd_excess"] - true_excess) / bias["sd_excess_error"]))  # fmt: skip
        assert abs(true_shift) > 0.1
    assert np.abs(scores).max() < 4


def test_control_variates_give_a_better_mean():
    y, g = skewed()
    row = draws_of(y, g).summary().iloc[0]
    assert row["mcse_cv"] < 0.4 * row["mcse_mean"]
    assert abs(row["mean_cv"] - 1.2561176684) < threshold(1) * row["mcse_cv"]
    assert "mean_cv" not in draws_of(y).summary()


def test_what_cannot_be_told_is_not():
    draws, gradients = off_by()
    assert draws_of(draws).bias.isna().all(axis=None) and draws_of(draws).bias.attrs["found_by"] == "nothing"
    short = draws_of(draws[:, :5], gradients[:, :5]).bias
    assert short.isna().all(axis=None) and short.attrs["found_by"] == "gradients"
    # Gradients that have nothing to do with the draws explain nothing of them.
    noise = np.random.default_rng(1).normal(size=draws.shape)
    assert draws_of(draws, noise).bias.isna().all(axis=None)
    still = np.concatenate([draws, np.zeros_like(draws[..., :1])], axis=-1)
    table = draws_of(still, np.concatenate([gradients, gradients[..., :1]], axis=-1)).bias
    assert table.isna().iloc[3].all() and not table.isna().iloc[:3].any(axis=None)


def test_draws_far_too_wide_are_told_by_their_width():
    draws, gradients = off_by(excess=np.full(3, 2.0), shift=np.zeros(3), num_draws=2000)
    assert abs(draws_of(draws, gradients).bias.attrs["width"] - 3.0) < 0.1


def test_exact_samplers_and_weights_have_their_monte_carlo_error():
    draws, gradients = off_by()
    exact = draws_of(draws, gradients, stats={"acceptance_rate": np.full(draws.shape[:2], 0.9)})
    summary, bias = exact.summary(), exact.bias
    assert bias.attrs["found_by"] == "exactness" and not bias[["mean_shift", "sd_excess"]].to_numpy().any()
    np.testing.assert_allclose(bias["mean_shift_error"], summary["mcse_mean"] / summary["sd"])
    np.testing.assert_allclose(bias["sd_excess_error"], summary["mcse_sd"] / summary["sd"])
    weights = {"k_hat": 0.3, "ess": [200.0, 300.0, 400.0], "mcse": (0.2 * SDS).tolist(), "num_points": 2000}
    weights["mcse_sd"] = (SDS / np.sqrt(2 * np.array(weights["ess"]))).tolist()
    weighted = draws_of(draws, account={"weights": weights}).bias
    assert weighted.attrs["found_by"] == "weights"
    np.testing.assert_allclose(weighted["mean_shift_error"], 0.2 * SDS / summary["sd"])
    floor = np.maximum(summary["mcse_sd"], weights["mcse_sd"])  # draws that were resampled tell no more than these
    np.testing.assert_allclose(weighted["sd_excess_error"], floor / summary["sd"])


def test_a_run_tells_its_own_bias(tmp_path):
    rng = np.random.default_rng(0)
    clients = [{"x": rng.normal(size=(40, 2)) + c, "y": rng.normal(size=40) + c} for c in (-1.0, 1.0)]
    model, federation = fahmc.models.linear_regression(1.0), fahmc.Federation.from_clients(clients)
    sampler = fahmc.FAHMC(0.03, 5, with_gradients=True)
    draws = fahmc.sample(model, federation, sampler, 2000, num_warmup_rounds=100, dtype="float64", progress=False)
    exact = fahmc.HMC(0.1, 5, metropolis=True)
    pooled = fahmc.sample(model, federation, exact, 4000, num_warmup_rounds=100, dtype="float64", progress=False)
    shift = (draws.flat().mean(axis=(0, 1)) - pooled.flat().mean(axis=(0, 1))) / pooled.flat().std(axis=(0, 1))
    np.testing.assert_allclose(draws.bias["mean_shift"], shift, atol=0.1)
    assert np.abs(shift).max() > 0.2, "a bias worth telling"
    draws.save(tmp_path / "run.nc")
    np.testing.assert_allclose(Draws.load(tmp_path / "run.nc").bias, draws.bias)
