"""A posterior without settings: what `fahmc.sample(model, federation)` does, and what it refuses to say."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fahmc
from assertions import assert_covariance, assert_mean, threshold
from fahmc.adaptive.surrogate import gaussian_posterior
from fahmc.adaptive.weights import Weights
from fahmc.errors import ModelError, SettingsError
from fahmc.runs.history import History

OTHER: Any = "nuts"
METHODS = {"auto": fahmc.Auto(), "transition": fahmc.SurrogateTransition(), "split": fahmc.Auto(method="split")}


def deal(x, y, num_clients=2):
    parts = zip(np.array_split(x, num_clients), np.array_split(y, num_clients), strict=True)
    return fahmc.Federation.from_clients([{"x": x, "y": y} for x, y in parts])


def sample(model, federation, sampler=None, **options):
    sampler = fahmc.Auto(target_ess=100) if sampler is None else sampler
    return fahmc.sample(model, federation, sampler, **({"num_chains": 4, "progress": False} | options))


def test_gaussian_clients_take_three_rounds_and_are_exact(unlike_gaussians):
    """The quadratic of a quadratic loss is itself: every point has the same weight, so draws are independent."""
    draws = sample(unlike_gaussians.model, unlike_gaussians.federation, fahmc.Auto())
    posterior = unlike_gaussians.clients.posterior()
    flat = draws.flat().reshape(-1, 2)
    assert_mean(flat, posterior.mean, posterior.covariance)
    assert_covariance(flat, posterior.covariance)
    # One round to expand, one where that expansion puts the bulk, two that agree.
    assert draws.cost["rounds"] <= 4
    np.testing.assert_allclose(draws.stats["log_weight"], 0, atol=1e-9)
    assert draws.account["doubts"] == []


def test_a_surrogate_of_the_wrong_width_is_corrected_by_the_weights_alone(unlike_gaussians, monkeypatch):
    def wide(*arguments):
        law = gaussian_posterior(*arguments)
        assert law is not None
        return law._replace(factor=1.2 * law.factor)

    def even(log_weights):
        return Weights(np.full(len(log_weights), 1 / len(log_weights)), -np.inf)

    monkeypatch.setattr("fahmc.adaptive.inquiry.gaussian_posterior", wide)
    covariance = unlike_gaussians.clients.posterior().covariance
    draws = sample(unlike_gaussians.model, unlike_gaussians.federation, fahmc.Auto())
    assert_covariance(draws.flat().reshape(-1, 2), covariance)
    monkeypatch.setattr("fahmc.adaptive.inquiry.smoothed", even)
    draws = sample(unlike_gaussians.model, unlike_gaussians.federation, fahmc.Auto())
    with pytest.raises(AssertionError, match="covariance off"):
        assert_covariance(draws.flat().reshape(-1, 2), covariance)


@pytest.mark.parametrize("way", METHODS)
def test_all_ways_lead_to_one_posterior(way, logistic_study, pooled_logistic):
    draws = sample(fahmc.models.logistic_regression(), logistic_study, METHODS[way], num_chains=8)
    table, (mean, sd, errors) = draws.summary(), pooled_logistic
    assert table[["ess_bulk", "ess_tail"]].to_numpy().min() >= 390
    error = np.hypot(table["mcse_mean"], errors)
    assert np.all(np.abs(table["mean"] - mean) < threshold(len(mean)) * error)
    assert np.abs(table["sd"] / sd - 1).max() < 0.15
    assert draws.account["choices"] and not draws.account["doubts"]


@pytest.fixture(scope="module")
def pooled_logistic(logistic_study):
    reference = fahmc.sample(
        fahmc.models.logistic_regression(), logistic_study, fahmc.HMC(0.25, 6, metropolis=True), 4000,
        num_warmup_rounds=200, num_chains=8, progress=False,
    )  # fmt: skip
    table = reference.summary()
    assert table["ess_bulk"].to_numpy().min() > 4000
    return table["mean"].to_numpy(), table["sd"].to_numpy(), table["mcse_mean"].to_numpy()


def hierarchy(num_sites=4):
    """Normal means with half-normal scale, non-centred; the likelihood sees the sites' means only."""

    def logprior(position):
        return -jnp.sum(position["z"] ** 2) / 2 - position["mu"] ** 2 / 50 + position["log_tau"] - jnp.exp(
            2 * position["log_tau"]
        ) / 2  # fmt: skip

    return fahmc.Model(
        lambda seen, batch: -((batch["y"] - seen[batch["x"][:, 0].astype(int)]) ** 2) / 2,
        logprior,
        init=lambda key: {"z": jnp.zeros(num_sites), "mu": jnp.zeros(()), "log_tau": jnp.zeros(())},
        view_fn=lambda position: position["mu"] + jnp.exp(position["log_tau"]) * position["z"],
    )


def test_what_the_likelihood_sees_may_be_less_than_the_position():
    """Integrating the sites' means out leaves two numbers, whose posterior a grid gives."""
    rng, sites = np.random.default_rng(3), np.repeat(np.arange(4), 5)
    y = np.array([1.0, -0.5, 2.0, 0.3])[sites] + rng.normal(size=20)
    federation = fahmc.Federation.from_clients(
        [{"x": np.full((5, 1), float(site)), "y": y[sites == site]} for site in range(4)]
    )
    draws = sample(hierarchy(), federation)
    means, (mu, log_tau) = y.reshape(4, 5).mean(axis=1), np.meshgrid(np.linspace(-5, 6, 401), np.linspace(-6, 2.5, 401))
    variance = np.exp(2 * log_tau) + 1 / 5
    log_density = log_tau - np.exp(2 * log_tau) / 2 - mu**2 / 50
    log_density += sum(-((mean - mu) ** 2) / 2 / variance - np.log(variance) / 2 for mean in means)
    density = np.exp(log_density - log_density.max())
    for name, values in (("mu", mu), ("log_tau", log_tau)):
        expected = (density * values).sum() / density.sum()
        row = draws.summary().loc[name]
        assert abs(row["mean"] - expected) < threshold(2) * row["mcse_mean"] * 1.5  # NUTS's own error comes on top
    assert draws.cost["rounds"] <= 8


def squared(position, batch):
    return -((batch["y"] - position["a"] ** 2) ** 2) / 2


def mixture(position, batch):
    mu = position["a"]
    return jnp.logaddexp(-((batch["y"] - mu[0]) ** 2) / 2, -((batch["y"] - mu[1]) ** 2) / 2)


@pytest.mark.parametrize(("likelihood", "shape"), [(squared, ()), (mixture, (2,))])
def test_a_mode_that_no_draw_shows_is_noticed(likelihood, shape):
    model = fahmc.Model(
        likelihood,
        lambda position: -jnp.sum(position["a"] ** 2) / 50,
        init=lambda key: {"a": jax.random.normal(key, shape)},
    )
    rng = np.random.default_rng(0)
    y = 4 + rng.normal(size=80) if not shape else np.concatenate([rng.normal(-2, 1, 60), rng.normal(2, 1, 60)])
    draws = sample(model, deal(np.zeros((len(y), 1)), y))
    [doubt] = draws.account["doubts"]
    [mass] = re.findall("another mode there, of about (.*) times the mass", doubt)
    assert 0.8 < float(mass) < 1.25


FLAT = fahmc.models.logistic_regression(prior_scale=None, intercept_scale=None)


@pytest.mark.parametrize(("dtype", "intercept_scale"), [("float32", None), ("float64", 10.0)])
def test_data_without_a_posterior_are_refused(dtype, intercept_scale):
    """Also where the prior bounds another parameter, which hides nothing along the ray that it leaves free."""
    model = fahmc.models.logistic_regression(prior_scale=None, intercept_scale=intercept_scale)
    x = np.random.default_rng(0).normal(size=(60, 3))
    with pytest.raises(ModelError, match=r"no posterior to sample: the likelihood does not fall.*separable data"):
        sample(model, deal(x, (x[:, 0] > 0) * 1.0), dtype=dtype)
    y = (x[:, 0] + np.random.default_rng(1).normal(size=60) > 0) * 1.0
    with pytest.raises(ModelError, match="no posterior to sample: the rows leave a combination"):
        sample(model, deal(np.column_stack([x, x[:, 0] + x[:, 1]]), y), dtype=dtype)


def test_a_flat_prior_is_fine_where_rows_bound_the_posterior(logistic_study):
    assert sample(FLAT, logistic_study).account["doubts"] == []


def test_what_it_may_cost_is_kept_and_said():
    x = np.random.default_rng(0).normal(size=(60, 3))
    model, federation = fahmc.models.logistic_regression(10.0), deal(x, (x[:, 0] > 0) * 1.0)
    draws = sample(model, federation, fahmc.Auto(max_rounds=8))
    assert draws.cost["rounds"] <= 8
    assert "did not settle within" in draws.account["doubts"][0] and "max_rounds = 8" in draws.account["choices"][0]
    with pytest.raises(SettingsError, match="max_rounds = 2 is used up, and nothing is known of the posterior yet"):
        sample(model, federation, fahmc.Auto(max_rounds=2))
    draws = sample(model, federation, fahmc.Auto(budget_bytes=1e5))
    assert draws.cost["bytes_to_clients"] + draws.cost["bytes_to_server"] <= 1e5 and draws.account["doubts"]
    with pytest.raises(SettingsError, match="budget_bytes = 100,000 is used up, and nothing was drawn yet"):
        sample(model, federation, fahmc.Auto(budget_bytes=1e5, method="fahmc"))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: fahmc.Auto(target_ess=0), "target_ess is 0; it must be a whole number"),
        (lambda: fahmc.Auto(method=OTHER), "method is 'nuts'; it must be 'surrogate', .* or None"),
        (lambda: fahmc.Auto(budget_bytes=-1), "budget_bytes is -1"),
        (lambda: sample(FLAT, deal(np.ones((4, 1)), np.ones(4)), num_rounds=3), "num_rounds came with Auto"),
    ],
)
def test_wrong_settings_are_refused(make, words):
    with pytest.raises(SettingsError, match=words):
        make()


def test_a_run_taken_up_again_is_the_same_run(logistic_study, tmp_path, monkeypatch):
    """Killed on its way, the course is led through what is on disk, and decides the same."""
    options = {"num_chains": 2, "progress": False, "dtype": "float32"}
    model = fahmc.models.logistic_regression()
    whole = sample(model, logistic_study, **options)
    append = History.append
    blocks = iter(range(3))

    def dying(self, block, seconds):
        append(self, block, seconds)
        if next(blocks, None) is None:
            raise RuntimeError("killed")

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="killed"):
        patch.setattr(History, "append", dying)
        sample(model, logistic_study, checkpoint_dir=tmp_path, **options)
    again = sample(model, logistic_study, checkpoint_dir=tmp_path, **options)
    np.testing.assert_array_equal(again.flat(), whole.flat())
    assert again.account == whole.account
