"""Models and samplers come back from JSON as they were; code does not go in, and unknown names do not come out."""

import json
import sys
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fahmc
from fahmc import FAHMC, FALD, HMC, DebiasedFAHMC, GaussianNoise, Minibatch
from fahmc.engines.recipes import (
    READY_MADE,
    build_model,
    build_sampler,
    model_recipe,
    sampler_recipe,
    with_feature_names,
)
from fahmc.errors import FederationError, ModelError, SettingsError


def sent(recipe: dict[str, Any]) -> dict[str, Any]:
    """Return what arrives at the other end of a connection that carries JSON."""
    return json.loads(json.dumps(recipe, allow_nan=False))


@pytest.mark.parametrize(
    "sampler",
    [
        FAHMC(0.1),
        FAHMC(1 / 3, 7, 2, 0.25, Minibatch(5), "leapfrog", reuse_gradient=True),
        FALD(float(np.float32(0.1)), momentum_correlation=0, gradient=GaussianNoise(0.1 + 0.2)),
        DebiasedFAHMC(0.1, num_local_steps=3, gradient=GaussianNoise(2, of=Minibatch(9))),
        DebiasedFAHMC(fahmc.schedules.Stages(1 / 7, 12), sync_unit="leapfrog"),
        FAHMC(fahmc.schedules.Stages(0.3, 5), gradient=GaussianNoise(0.0, of=fahmc.FullGradient())),
    ],
    ids=str,
)
def test_samplers_come_back(sampler):
    again = build_sampler(sent(sampler_recipe(sampler)))
    assert type(again) is type(sampler) and again == sampler


@pytest.mark.parametrize(
    "mass",
    [
        np.array([0.1 + 0.2, 1e-300, 3.0]),
        np.array([[2, 1], [1, 3]], np.float32),
        jnp.array([1.5, 2.5]),
        {"coefficients": np.array([1.0, 2.0]), "intercept": np.float64(1 / 3)},
        [{"weights": np.ones((2, 1)), "biases": np.full(1, 0.5)}],
        [1.0, 2.0],
    ],
    ids=["vector", "matrix", "JAX", "dict", "layers", "list"],
)
def test_mass_matrices_come_back(mass):
    sampler = FAHMC(0.1, inverse_mass_matrix=mass)
    found = build_sampler(sent(sampler_recipe(sampler))).inverse_mass_matrix
    assert jax.tree.structure(found) == jax.tree.structure(mass)
    for leaf, expected in zip(jax.tree.leaves(found), jax.tree.leaves(mass), strict=True):
        assert np.asarray(leaf).dtype == np.asarray(expected).dtype
        np.testing.assert_array_equal(leaf, expected)


class Louder(FAHMC):
    """A sampler of the user's own."""


@pytest.mark.parametrize(
    ("sampler", "words"),
    [
        (FAHMC(lambda t: 0.1), r"step_size is <function .* cannot be sent to sites: .* but no Python functions\."),
        (FAHMC(0.1, inverse_mass_matrix=[{1, 2}]), r"inverse_mass_matrix is \{1, 2\}, which cannot be sent"),
        (HMC(0.1), "HMC runs on one machine; a federation takes FAHMC, FALD or DebiasedFAHMC"),
        (Louder(0.1), r"sampler is .*, which cannot be sent to sites"),
        (object(), "sampler is <object"),
    ],
    ids=["function", "set", "HMC", "own class", "object"],
)
def test_samplers_that_cannot_be_sent_are_refused(sampler, words):
    with pytest.raises(SettingsError, match=words):
        sampler_recipe(sampler)


@pytest.mark.parametrize(
    ("recipe", "error", "words"),
    [
        ({"class": "HMC", "step_size": 0.1}, FederationError, "names 'HMC', which is not among FAHMC, DebiasedFAHMC"),
        ({"class": "FAHMC", "step_size": {"class": "eval"}}, FederationError, "The job names 'eval', which is not am"),
        ({"step_size": 0.1}, FederationError, "The job names None, which is not among"),
        ({"class": "Minibatch", "size": 3}, FederationError, "recipe 'Minibatch' is not a sampler that a site can run"),
        ({"class": "FAHMC", "step_size": -1.0}, SettingsError, r"step_size is -1\.0; it must be a positive number"),
        ({"class": "FAHMC", "step_size": 1.0, "gradient": "all"}, SettingsError, "gradient is 'all'; use FullGradient"),
    ],
)
def test_recipes_of_no_sampler_are_refused(recipe, error, words):
    with pytest.raises(error, match=words):
        build_sampler(recipe)


ROWS = {"x": np.random.default_rng(2).normal(size=(5, 2)), "y": np.array([0, 1, 1, 0, 1])}
MODELS = {
    "linear_regression": fahmc.models.linear_regression(
        None, noise_scale=1 / 3, intercept=False, feature_names=("a", "b")
    ),
    "logistic_regression": fahmc.models.logistic_regression(0.1 + 0.2, intercept_scale=None, temperature=0.5),
    "poisson_regression": fahmc.models.poisson_regression(prior_scale=2, feature_names=["a", "b"]),
    "softmax_regression": fahmc.models.softmax_regression(3, np.float64(0.7)),
    "mlp": fahmc.models.mlp(2, (4, 3), 0.5, temperature=2.0),
}


@pytest.mark.parametrize("name", READY_MADE)
def test_ready_made_models_come_back(name):
    model = MODELS[name]
    again = build_model(sent(model_recipe(model)))
    assert again.temperature == model.temperature and again.coords == model.coords and again.dims == model.dims
    shapes, shapes_again = (jax.eval_shape(made.initial_position, jax.random.key(0), ROWS) for made in (model, again))
    assert shapes == shapes_again
    rng = np.random.default_rng(4)
    position = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), shapes)
    # In one program: compiling costs more than the rest of these tests.
    densities = jax.jit(lambda at: [(made.loglikelihood_fn(at, ROWS), made.logprior_fn(at)) for made in (model, again)])
    (likelihood, prior), (likelihood_again, prior_again) = jax.device_get(densities(position))
    np.testing.assert_array_equal(likelihood_again, likelihood)
    assert prior_again == prior and np.isfinite(likelihood).all()


def test_a_model_made_of_functions_is_refused():
    model = fahmc.Model(lambda position, batch: batch["y"] * position, init=np.zeros(()))
    with pytest.raises(ModelError, match=r"made of Python functions, .*sample fahmc\.Model\.named\(\"module:attribute"):
        model_recipe(model)


@pytest.fixture
def study_module(monkeypatch):
    module = types.ModuleType("a_study_s_module")
    vars(module)["model"] = fahmc.models.logistic_regression()
    vars(module)["build"] = lambda: fahmc.models.mlp(2, (3,))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def test_models_of_a_site_s_own_are_imported_only_if_it_lists_them(study_module):
    recipe = sent(model_recipe(fahmc.Model.named("a_study_s_module:build")))
    assert recipe == {"object": "a_study_s_module:build"}
    listed = build_model(recipe, ["a_study_s_module:model", "a_study_s_module:build"])
    assert listed.recipe == recipe and callable(listed.init)
    del sys.modules[study_module.__name__]  # what is not listed is refused before anything is imported
    for own_models in ((), ("a_study_s_module:model",), ("a_study_s_module",)):
        with pytest.raises(FederationError, match=r'is not ready-made and not listed .*own_models = \["a_study_s_modu'):
            build_model(recipe, own_models)


@pytest.mark.parametrize("name", ["forest", "_build", "annotations", None, "Model"])
def test_a_model_that_is_not_ready_made_is_refused(name):
    with pytest.raises(FederationError, match=f"There is no ready-made model {name!r}; there are linear_regression, "):
        build_model({"name": name})


def test_coefficients_are_named_unless_the_user_did(study_module):
    model = fahmc.models.softmax_regression(3, 0.7, temperature=2.0)
    named = with_feature_names(model, ("age", "group[B]"))
    assert named.coords == {"feature": ["age", "group[B]"]} and named.temperature == 2.0
    assert named.recipe == dict(model.recipe or {}) | {"feature_names": ["age", "group[B]"]}
    for other in (
        fahmc.models.logistic_regression(feature_names=["a", "b"]),
        fahmc.models.mlp(2),  # has no coefficients of columns
        fahmc.Model.named("a_study_s_module:model"),
        fahmc.Model(lambda position, batch: batch["y"] * position),
    ):
        assert with_feature_names(other, ("age", "group[B]")) is other
