"""What every family of models keeps: its recipe makes it again, and its potential is finite with a finite gradient."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fahmc
from fahmc import registry
from fahmc.data.buckets import single_client
from fahmc.density.target import build_target
from fahmc.errors import DataError, FederationError
from fahmc.models.recipes import build_model, model_recipe, with_feature_names
from negative_binomial import negative_binomial_regression

COUNTS = np.array([0, 3, 1, 7, 0, 2])
FAMILIES = {
    "linear": (fahmc.models.linear_regression(2.0), COUNTS / 3.0),
    "logistic": (fahmc.models.logistic_regression(intercept=False), COUNTS % 2),
    "softmax": (fahmc.models.softmax_regression(3), COUNTS % 3),
    "poisson": (fahmc.models.poisson_regression(None, temperature=2.0), COUNTS),
    "mlp": (fahmc.models.mlp(2, (4,)), COUNTS % 2),
    "ordered": (fahmc.models.ordered_regression(4), COUNTS % 4),
    "piecewise": (fahmc.models.piecewise_exponential([1.0, 2.0]), COUNTS + 0.5),
    "negative binomial": (negative_binomial_regression(dispersion_scale=0.5), COUNTS),
}


def one_client(model: fahmc.Model, y: np.ndarray):
    """The model's target, where a chain starts, and a client."""
    x = np.random.default_rng(0).normal(size=(len(y), 3))
    client = single_client(fahmc.Federation.from_clients({"only": {"x": x, "y": y}}), 0, np.dtype("float64"))
    position = jax.jit(model.initial_position)(jax.random.key(0), client.rows)
    flat = jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(position)])
    return build_target(model, position, client, "only"), flat, client


def values_of(model: fahmc.Model, y: np.ndarray):
    """f_c, ∇f_c, and ∇f_c from the gradients of rows and prior."""
    target, position, client = one_client(model, y)

    @jax.jit
    def values(position, client):
        rows = jnp.sum(target.row_gradients(position, client), axis=0)
        return *target.value_and_gradient(position, client), client.scale * rows + jax.grad(target.prior)(position)

    return values(position, client)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_recipe_makes_the_model_again(name):
    model, y = FAMILIES[name]
    recipe = json.loads(json.dumps(model_recipe(model)))
    own = registry.references(recipe)
    assert bool(own) == (name == "negative binomial")
    value, gradient, from_rows = values_of(model, y)
    assert np.isfinite(value) and np.isfinite(gradient).all()
    np.testing.assert_allclose(from_rows, gradient, rtol=1e-12, atol=1e-12)
    jax.tree.map(np.testing.assert_array_equal, values_of(build_model(recipe, own), y), (value, gradient, from_rows))


def test_a_family_of_ones_own_is_built_only_where_it_is_listed():
    recipe = model_recipe(negative_binomial_regression())
    assert recipe == {"object": "negative_binomial:negative_binomial_regression"}
    with pytest.raises(FederationError, match="not listed here"):
        build_model(recipe)


def test_a_family_of_ones_own_names_features_and_checks_rows():
    model = with_feature_names(negative_binomial_regression(), ["a", "b", "c"])
    assert model.coords == {"feature": ["a", "b", "c"]}
    rows = {"x": np.zeros((2, 3)), "y": np.array([1.0, -1.0])}
    with pytest.raises(DataError, match="y must be a count"):
        fahmc.sample(model, fahmc.Federation.from_clients({"only": rows}), fahmc.FAHMC(0.1), 1)


def test_negative_binomial_agrees_with_scipy():
    from scipy.stats import nbinom

    target, position, client = one_client(*FAMILIES["negative binomial"])
    where = jax.tree.map(np.asarray, target.unravel(position))
    mean, r = np.exp(client.rows["x"] @ where["coefficients"] + where["intercept"]), np.exp(where["log_dispersion"])
    np.testing.assert_allclose(
        target.row_losses(position, client), -nbinom.logpmf(COUNTS, r, r / (r + mean)), rtol=1e-10
    )
