"""Priors by name: their densities are SciPy's and NumPyro's, files and recipes name them, and draws come from them."""

import json
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

import fahmc
from assertions import threshold
from fahmc import models, priors
from fahmc.cli.config import build, load_config
from fahmc.errors import ModelError, SettingsError
from fahmc.models.recipes import build_model, model_recipe, with_feature_names
from fahmc.priors import ByFeature, Flat, Horseshoe, Normal, StudentT
from fahmc.runs.plan import make_run

RNG = np.random.default_rng(8)
NAMES = ["age", "group[B]", "group[C]", "bmi"]
MIXED = ByFeature({"group": StudentT(4, 0.5), "group[C]": Normal(0.1), "age": Normal(2, mean=1)}, other=Flat())
X = RNG.normal(size=(6, 4))
ROWS = {"x": X, "y": np.array([0, 1, 1, 0, 1, 0])}
FEDERATION = fahmc.Federation.from_clients({"a": {k: v[:4] for k, v in ROWS.items()}, "b": ROWS})


def by_feature(beta):
    return (
        stats.norm.logpdf(beta[0], 1, 2).sum()
        + stats.t.logpdf(beta[1], 4, scale=0.5).sum()
        + stats.norm.logpdf(beta[2], 0, 0.1).sum()
    )


EACH_ALONE = {
    "normal": (Normal(0.7), lambda beta: stats.norm.logpdf(beta, 0, 0.7).sum()),
    "normal with a mean": (Normal(0.7, mean=-1), lambda beta: stats.norm.logpdf(beta, -1, 0.7).sum()),
    "student": (StudentT(3, 2.5, mean=0.5), lambda beta: stats.t.logpdf(beta, 3, 0.5, 2.5).sum()),
    "by feature": (MIXED.for_features(NAMES), by_feature),
    "flat": (Flat(), lambda beta: 0.0),
}


@pytest.mark.parametrize("name", EACH_ALONE)
@pytest.mark.parametrize("shape", [(4,), (4, 3)], ids=["numbers", "classes"])
def test_densities_are_scipys(name, shape):
    prior, expected = EACH_ALONE[name]
    a, b = RNG.normal(size=(2, *shape))
    found = prior.log_density({"coefficients": jnp.asarray(a)}) - prior.log_density({"coefficients": jnp.asarray(b)})
    np.testing.assert_allclose(found, expected(a) - expected(b), rtol=1e-12)


def test_the_horseshoe_is_that_of_the_paper():
    """β and the density of (z, λ, τ), the Jacobian of the logarithms taken off."""
    prior = Horseshoe(1.5, slab_scale=2.0, noise_scale=3.0).for_rows(100)
    tau_0 = 1.5 / (4 - 1.5) * 3 / 10
    sampled: Any = {"raw_coefficients": RNG.normal(size=(2, 4)), "log_local_scale": RNG.normal(size=(2, 4))}
    sampled |= {"log_global_scale": RNG.normal(size=2)}
    z, lam, tau = sampled["raw_coefficients"], *(np.exp(sampled[f"log_{part}_scale"]) for part in ("local", "global"))
    lam_tilde = np.sqrt(2.0**2 * lam**2 / (2.0**2 + tau[:, None] ** 2 * lam**2))
    np.testing.assert_allclose(jax.vmap(prior.coefficients)(sampled), z * tau[:, None] * lam_tilde, rtol=1e-12)
    natural = (
        dist.Normal(0, 1).log_prob(z).sum(axis=1)
        + dist.HalfCauchy(1.0).log_prob(lam).sum(axis=1)
        + dist.HalfCauchy(tau_0).log_prob(tau)
    )
    expected = natural + np.log(lam).sum(axis=1) + np.log(tau)
    found = jax.vmap(prior.log_density)(sampled)
    np.testing.assert_allclose(found[1] - found[0], expected[1] - expected[0], rtol=1e-12)


def test_the_horseshoe_hears_how_many_rows_there_are_and_the_rows_see_coefficients():
    made = models.logistic_regression(prior=Horseshoe(1), feature_names=NAMES)
    run = make_run(made, FEDERATION, fahmc.FAHMC(0.1), dtype=np.dtype(np.float64))
    recipe = run.model.recipe
    assert recipe is not None and recipe["prior"] == Horseshoe(1, num_rows=10)
    assert run.target.num_seen == 5 and run.dimension == 10 and run.model.linear is None
    again = build_model(json.loads(json.dumps(model_recipe(run.model))))
    at = run.target.unravel(jnp.asarray(RNG.normal(size=10)))
    assert again.logprior_fn(at) == run.model.logprior_fn(at)
    assert run.model.derived_fn is not None and run.model.derived_fn(at)["coefficients"].shape == (4,)
    np.testing.assert_array_equal(again.predict(at, {"x": X}), run.model.predict(at, {"x": X}))
    with pytest.raises(SettingsError, match="Give num_rows"):
        made.logprior_fn(at)


@pytest.mark.parametrize("name", ["normal", "student", "by feature", "horseshoe"])
def test_draws_from_priors_have_their_laws(name):
    """By the probability transform, as some laws have no moments; at a stated rate of false alarms."""
    keys = jax.random.split(jax.random.key(2), 4000)
    if name == "horseshoe":
        prior: Any = Horseshoe(1, num_rows=16)
        drawn: Any = jax.jit(jax.vmap(lambda key: prior.draw(key, (4,))))(keys)
        tau_0 = 1 / 3 / 4
        u = [
            stats.norm.cdf(drawn["raw_coefficients"]),
            stats.halfcauchy.cdf(np.exp(drawn["log_local_scale"])),
            stats.halfcauchy.cdf(np.exp(drawn["log_global_scale"]) / tau_0)[:, None],
        ]
    else:
        prior = MIXED if name == "by feature" else EACH_ALONE[name][0]
        if name == "by feature":
            prior = ByFeature(MIXED.priors, other=Normal(3)).for_features(NAMES)
        beta = np.asarray(jax.jit(jax.vmap(lambda key: prior.draw(key, (4,))))(keys)["coefficients"])
        u = {
            "normal": lambda: [stats.norm.cdf(beta / 0.7)],
            "student": lambda: [stats.t.cdf((beta - 0.5) / 2.5, 3)],
            "by feature": lambda: [
                stats.norm.cdf(beta[:, :1], 1, 2),
                stats.t.cdf(beta[:, 1:2] / 0.5, 4),
                stats.norm.cdf(beta[:, 2:] / np.array([0.1, 3.0])),
            ],
        }[name]()
    u = np.concatenate(u, axis=1)
    # Mean 1/2 and variance 1/12; the variance's own is (1/80 − 1/144) / n.
    z = np.stack([(u.mean(axis=0) - 0.5) * np.sqrt(12), (u.var(axis=0) - 1 / 12) / np.sqrt(1 / 80 - 1 / 144)])
    assert np.abs(z * np.sqrt(len(keys))).max() < threshold(z.size)


def test_recipes_and_files_name_them(tmp_path):
    made = models.logistic_regression(prior=MIXED, feature_names=NAMES)
    again = build_model(json.loads(json.dumps(model_recipe(made))))
    assert again.recipe is not None and again.recipe["prior"] == MIXED and again.prior_words == made.prior_words
    (tmp_path / "rows.csv").write_text(
        "site,y,age,bmi\n" + "\n".join(f"{'ab'[i % 2]},{i % 3 % 2},{i},{i * i}" for i in range(24))
    )
    study = """
[model]
name = "logistic_regression"
prior = PRIOR

[data]
file = "rows.csv"
site_column = "site"
outcome = "y"
features = ["age", "bmi"]
"""

    def model_of(prior: str) -> fahmc.Model:
        (tmp_path / "study.toml").write_text(study.replace("PRIOR", prior))
        return build(load_config(tmp_path / "study.toml")).model

    def prior_of(prior: str) -> Any:
        return (model_of(prior).recipe or {})["prior"]

    assert prior_of('"flat"') == Flat()
    assert prior_of('{name = "horseshoe", num_relevant = 1, slab_scale = 2}') == Horseshoe(1, slab_scale=2)
    own = '{name = "by_feature", other = {name = "student_t", df = 4}, priors.age = {name = "normal", scale = 0.5}}'
    assert prior_of(own) == ByFeature({"age": Normal(0.5)}, other=StudentT(4))
    assert model_of(own).prior_words == {
        "coefficients": "age: N(0, 0.5²); others: t_4(0, 1²)", "intercept": "N(0, 10²)",
    }  # fmt: skip
    for prior, words in {
        '{name = "by_feature", priors.bmj = {name = "normal", scale = 1}}': "'bmj' is not known, did you mean 'bmi'",
        '{name = "by_feature", priors.bmi = {name = "normal", scales = 1}}': "model.prior.priors.bmi.scales is not",
        '{name = "normal", scale = -1}': "scale is -1",
        '"normall"': "'normall' is not known, did you mean 'normal'",
        "2.5": "model.prior is 2.5; it must be None or a table with name = one of normal",
    }.items():
        with pytest.raises(SettingsError, match=rf"study\.toml, line 4: .*{words}"):
            model_of(prior)


def test_names_that_come_late_are_held_against_the_prior():
    """As where sites of a federation tell what their columns are."""
    made = models.logistic_regression(prior=MIXED)
    named = with_feature_names(made, NAMES)
    assert np.isfinite(float(named.logprior_fn({"coefficients": jnp.ones(4), "intercept": jnp.ones(())})))
    with pytest.raises(SettingsError, match="prior: the feature 'group' is not known"):
        with_feature_names(made, ["age", "bmi"])
    with pytest.raises(SettingsError, match=r"features group, group\[C\], age, but what .* feature_names"):
        make_run(made, FEDERATION, fahmc.FAHMC(0.1), dtype=np.dtype(np.float64))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: models.logistic_regression(2.0, prior=Normal(1.0)),
            "prior is Normal.* and prior_scale is 2.0.*one of",
        ),
        (lambda: models.logistic_regression(prior=2.0), "prior is 2.0"),  # type: ignore
        (lambda: ByFeature({"a": Horseshoe(1)}), "'a' is Horseshoe.*several coefficients together"),
        (lambda: StudentT(0.0), "df is 0.0"),
        (lambda: Horseshoe(4, num_rows=9).global_scale(4), "num_relevant is 4, but there are 4 coefficients"),
    ],
)
def test_nonsense_is_refused(call, words):
    with pytest.raises(SettingsError, match=words):
        call()


@fahmc.register("prior")
@dataclass(frozen=True)
class Laplace(priors.Prior):
    """A prior of somebody's own."""

    scale: float = 1.0

    def log_density(self, sampled):
        return -jnp.sum(jnp.abs(sampled["coefficients"])) / self.scale

    def draw(self, key, shape):
        return {"coefficients": self.scale * jax.random.laplace(key, shape)}

    def words(self):
        return f"Laplace(0, {self.scale:g})"


def test_a_prior_of_ones_own_runs_where_the_models_code_is_listed():
    made = models.logistic_regression(prior=Laplace(2.0))
    recipe = json.loads(json.dumps(model_recipe(made)))
    reference = recipe["prior"]["object"]
    assert reference.endswith("test_priors:Laplace")
    again = build_model(recipe, own_models=[reference])
    at = {"coefficients": jnp.array([1.0, -3.0]), "intercept": jnp.zeros(())}
    assert again.logprior_fn(at) == made.logprior_fn(at) == -2.0
    with pytest.raises(fahmc.errors.FederationError, match=r"own_models = \[\".*Laplace\"\]"):
        build_model(recipe)


def test_the_prior_expects_outcomes():
    """Outcomes have the prior's mean and variance; those of one site, where sites have effects, are more alike."""

    def unit_noise(**settings: Any) -> fahmc.Model:
        return models.generalized_linear(
            lambda mean, position, batch: -(mean**2) / 2, lambda mean: mean, prior=Normal(0.3), intercept_scale=0.2,
            sample_row=lambda key, mean, position, batch: mean + jax.random.normal(key, mean.shape), **settings,
        )  # fmt: skip

    drawn = fahmc.sample_prior(unit_noise(feature_names=NAMES), FEDERATION, 4000, seed=1)
    assert drawn.outcomes["y"].shape == (4000, 10) and drawn.positions["coefficients"].shape == (4000, 4)
    x = np.concatenate([X[:4], X])
    variance = 0.3**2 * (x**2).sum(axis=1) + 0.2**2 + 1
    z = [
        drawn.outcomes["y"].mean(axis=0) / np.sqrt(variance),
        (drawn.outcomes["y"].var(axis=0) / variance - 1) / 2**0.5,
    ]
    assert (np.abs(z) * np.sqrt(4000) < threshold(20)).all()
    data: Any = drawn.to_arviz()
    assert list(data.prior["feature"].values) == NAMES and data.prior_predictive["y"].shape == (1, 4000, 10)
    for form in ("intercept", "private intercept"):
        with_effects = fahmc.sample_prior(unit_noise(site_effects=form, site_scale=2.0), FEDERATION, 300)
        assert ("site_effect" in with_effects.positions) == (form == "intercept")
        outcomes = with_effects.outcomes["y"]
        within = np.corrcoef(outcomes[:, 5], outcomes[:, 6])[0, 1]
        assert within > np.corrcoef(outcomes[:, 0], outcomes[:, 5])[0, 1] + 0.15, "rows of a site are more alike"
    with pytest.raises(ModelError, match="coefficients is flat, so nothing can be drawn"):
        fahmc.sample_prior(models.logistic_regression(None), ROWS)
    with pytest.raises(ModelError, match=r"Model\(prior_fn=...\)"):
        fahmc.sample_prior(fahmc.Model(lambda q, rows: rows["y"] * q, init=0.0), ROWS)
