"""The curvature correction: on Gaussian clients no federation bias for any K and T; elsewhere little, or a refusal."""

from dataclasses import replace

import numpy as np
import pytest

import fahmc
from fahmc import registry, theory
from fahmc.dynamics.curvature import start_around
from gaussian_study import Study

OPTIONS = {"num_chains": 3, "seed": 4, "dtype": "float64", "progress": False}
SETTINGS = {
    "one step": fahmc.FAHMC(0.4, 1, correction="curvature"),
    "a long way": fahmc.FAHMC(0.3, 9, 4, correction="curvature"),
    "averaged inside": fahmc.FAHMC(0.3, 5, 3, sync_unit="leapfrog", correction="curvature"),
    "own metric": fahmc.FAHMC(0.3, 5, 3, inverse_mass_matrix=(0.5, 1.5), correction="curvature"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_gaussian_clients_travel_as_one(unlike_gaussians, name):
    """With one momentum for all, the chain is that of a single client with the posterior's own potential."""
    study, sampler = unlike_gaussians, SETTINGS[name]
    draws = fahmc.sample(study.model, study.federation, sampler, 12, **OPTIONS)
    mean, covariance = study.clients.posterior()
    precision = np.linalg.inv(covariance)
    pooled = Study(means=mean[None], precisions=precision[None], weights=np.ones(1))
    start = start_around({"center": mean, "curvature": precision}, 3, OPTIONS["seed"])
    metric = covariance if sampler.inverse_mass_matrix is None else sampler.inverse_mass_matrix
    alone = fahmc.sample(
        pooled.model, pooled.federation, replace(sampler, correction=None, inverse_mass_matrix=metric), 12, init=start,
        **OPTIONS,
    )  # fmt: skip
    np.testing.assert_allclose(draws.flat(), alone.flat(), atol=1e-10)
    assert draws.cost["rounds"] == 14  # one expansion at the start, one where its Newton step ends
    # What the correction takes away: the same settings without it have another law, with it that of one client.
    plain = replace(sampler, correction=None, inverse_mass_matrix=None, step_size=0.3)
    if name == "a long way":
        gap = theory.w2_to_posterior(study.clients, theory.stationary_law(study.clients, plain))
        own = theory.w2_to_posterior(pooled.clients, theory.stationary_law(pooled.clients, plain))
        assert gap > 10 * own


def test_nothing_more_crosses_in_a_round(unlike_gaussians):
    study, sampler = unlike_gaussians, SETTINGS["one step"]
    expansion = {"center": np.ones(2), "gradient": np.array([0.1, 0.2]), "curvature": np.eye(2)}
    known = replace(sampler, expansion=expansion)
    plain = replace(sampler, correction=None)
    costs = [fahmc.sample(study.model, study.federation, each, 3, **OPTIONS).cost for each in (known, plain)]
    assert costs[0]["rounds"] == 3 and "row_gradients" not in costs[0]
    for way in ("bytes_to_clients", "bytes_to_server"):
        assert costs[0][way] == costs[1][way]
    again = registry.decode("sampler", registry.encode(known))
    np.testing.assert_array_equal(again.expansion["curvature"], np.eye(2))


def test_the_bias_is_gone_where_clients_are_not_gaussian(logistic_study):
    """Trajectories of a quarter period in one round, with gradients that tell of the bias (Stein)."""
    sampler = fahmc.FAHMC(0.2, 8, correction="curvature", with_gradients=True)
    model = fahmc.models.logistic_regression(prior_scale=2.0)
    draws = fahmc.sample(
        model, logistic_study, sampler, 300, num_warmup_rounds=5, num_chains=8, seed=1, dtype="float64", progress=False,
    )  # fmt: skip
    positions, gradients = draws.flat().reshape(-1, 4), draws.gradients
    assert gradients is not None
    covariance = np.cov(positions, rowvar=False)
    shift = covariance @ gradients.reshape(-1, 4).mean(axis=0) / np.sqrt(np.diag(covariance))
    assert np.abs(shift).max() < 0.1
    assert float(draws.summary()["ess_bulk"].to_numpy().min()) > 400


def test_a_client_that_throws_chains_out_is_named():
    generator = np.random.default_rng(5)
    x = generator.normal(size=(400, 8))
    y = (generator.random(400) < 1 / (1 + np.exp(-3 * x[:, 0]))).astype(float)
    rows = {"large": {"x": x[3:], "y": y[3:]}, "tiny": {"x": 3 * x[:3], "y": y[:3]}}
    sampler = fahmc.FAHMC(0.1, 16, correction="curvature")
    with pytest.raises(fahmc.errors.DivergenceError, match=r"at client 'tiny'.*Use SplitHMC.*client with few rows"):
        fahmc.sample(
            fahmc.models.logistic_regression(), fahmc.Federation.from_clients(rows), sampler, 200, num_chains=8,
            progress=False,
        )  # fmt: skip


def test_what_has_no_mode_is_refused():
    federation = fahmc.Federation.from_clients({"a": {"y": np.zeros(3)}, "b": {"y": np.ones(2)}})
    model = fahmc.Model(lambda position, batch: -((position[0] - batch["y"]) ** 2), init=np.zeros(2))
    with pytest.raises(fahmc.errors.SettingsError, match="eigenvalue 0; correction='curvature' needs all"):
        fahmc.sample(model, federation, SETTINGS["one step"], 2, progress=False)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"correction": "all"}, "correction is 'all'; it must be 'anchor', 'curvature' or None"),
        ({"expansion": {}}, "only correction='curvature' has a use for it"),
        ({"jitter": 1.0}, "jitter is 1.0; it must be a number of at least 0 and below 1"),
    ],
)
def test_other_settings_are_refused(settings, words):
    with pytest.raises(fahmc.errors.SettingsError, match=words):
        fahmc.FAHMC(0.1, **settings)
    with pytest.raises(fahmc.errors.SettingsError, match="DebiasedFAHMC is FA-HMC with correction='anchor'"):
        fahmc.DebiasedFAHMC(0.1, correction="curvature")


def test_the_anchor_is_a_setting_too(unlike_gaussians):
    study, options = unlike_gaussians, {**OPTIONS, "init": np.array([5.0, -7.0])}
    by_name = fahmc.sample(study.model, study.federation, fahmc.DebiasedFAHMC(0.2, 3, 2), 5, **options)
    as_setting = fahmc.sample(study.model, study.federation, fahmc.FAHMC(0.2, 3, 2, correction="anchor"), 5, **options)
    np.testing.assert_array_equal(by_name.flat(), as_setting.flat())
    assert by_name.cost["rounds"] == as_setting.cost["rounds"] == 6
