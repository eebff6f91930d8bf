"""The ready-made models against SciPy and scikit-learn."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import bernoulli, norm, poisson
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier

import fahmc
from fahmc import models
from fahmc.errors import SettingsError

GENERATOR = np.random.default_rng(5)
X = GENERATOR.normal(size=(40, 3))
POSITION = {"coefficients": jnp.array([0.5, -1.0, 0.2]), "intercept": jnp.array(0.3)}
ETA = X @ np.asarray(POSITION["coefficients"]) + 0.3


def test_linear_likelihood_is_scipys():
    y = GENERATOR.normal(size=40)
    known = models.linear_regression(noise_scale=0.7)
    expected = norm.logpdf(y, ETA, 0.7)
    np.testing.assert_allclose(known.loglikelihood_fn(POSITION, {"x": X, "y": y}), expected)
    unknown = models.linear_regression()
    position = POSITION | {"log_noise": jnp.log(0.7)}
    np.testing.assert_allclose(unknown.loglikelihood_fn(position, {"x": X, "y": y}), expected)
    np.testing.assert_allclose(unknown.predict(position, {"x": X}), ETA)


def test_logistic_likelihood_is_scipys():
    y = (GENERATOR.random(40) < 0.5).astype(float)
    model = models.logistic_regression()
    chance = 1 / (1 + np.exp(-ETA))
    np.testing.assert_allclose(model.loglikelihood_fn(POSITION, {"x": X, "y": y}), bernoulli.logpmf(y, chance))
    np.testing.assert_allclose(model.predict(POSITION, {"x": X}), chance)


def test_poisson_likelihood_is_scipys():
    y = GENERATOR.poisson(2.0, size=40)
    model = models.poisson_regression()
    np.testing.assert_allclose(
        model.loglikelihood_fn(POSITION, {"x": X, "y": y}), poisson.logpmf(y, np.exp(ETA)), rtol=1e-6
    )
    np.testing.assert_allclose(model.predict(POSITION, {"x": X}), np.exp(ETA))


def test_softmax_probabilities_are_scikit_learns():
    y = np.arange(40) % 3
    fitted = LogisticRegression(C=10.0).fit(X, y)
    position = {"coefficients": jnp.asarray(fitted.coef_.T), "intercept": jnp.asarray(fitted.intercept_)}
    model = models.softmax_regression(3)
    expected = fitted.predict_proba(X)
    np.testing.assert_allclose(model.predict(position, {"x": X}), expected, rtol=1e-9)
    terms = model.loglikelihood_fn(position, {"x": X, "y": y})
    np.testing.assert_allclose(terms, np.log(expected[np.arange(40), y]), rtol=1e-9)


def test_network_probabilities_are_scikit_learns():
    y = np.arange(40) % 3
    fitted = MLPClassifier((5, 4), max_iter=3000, tol=1e-3, random_state=0).fit(X, y)
    position = [
        {"weights": jnp.asarray(weights), "biases": jnp.asarray(biases)}
        for weights, biases in zip(fitted.coefs_, fitted.intercepts_, strict=True)
    ]
    model = models.mlp(3, hidden=(5, 4))
    np.testing.assert_allclose(model.predict(position, {"x": X}), np.asarray(fitted.predict_proba(X)), rtol=1e-7)
    start = model.initial_position(jax.random.key(0), {"x": X, "y": y})
    assert jax.tree.map(jnp.shape, start) == jax.tree.map(jnp.shape, position)


def test_offsets_are_added_and_weights_multiply():
    """An offset is an intercept of the row's own, a weight so many rows alike; predictions know the offset alone."""
    offset, weight = GENERATOR.normal(size=40), GENERATOR.integers(0, 4, 40)
    y = GENERATOR.poisson(2.0, size=40)
    rows = {"x": X, "y": y, "offset": offset, "weight": weight}
    model = models.poisson_regression()
    expected = poisson.logpmf(y, np.exp(ETA + offset))
    np.testing.assert_allclose(model.loglikelihood_fn(POSITION, rows), weight * expected, rtol=1e-6)
    np.testing.assert_allclose(model.predict(POSITION, rows), np.exp(ETA + offset))
    repeated = {name: np.repeat(values, weight, axis=0) for name, values in rows.items() if name != "weight"}
    np.testing.assert_allclose(
        model.loglikelihood_fn(POSITION, rows).sum(), model.loglikelihood_fn(POSITION, repeated).sum(), rtol=1e-12
    )
    network = models.mlp(3, hidden=(2,))
    start, rows = network.initial_position(jax.random.key(0), {"x": X}), {"x": X, "y": y % 3}
    of_rows = np.asarray(network.loglikelihood_fn(start, rows))
    np.testing.assert_allclose(network.loglikelihood_fn(start, rows | {"weight": weight}), weight * of_rows)


@pytest.mark.parametrize(
    ("model", "extra", "message"),
    [
        (models.linear_regression(), {"offset": [0.0, np.inf]}, "offset must be a finite number, but row 1 has inf"),
        (models.linear_regression(), {"offset": [[0.0], [1.0]]}, r"offset must be \[row\], but it has shape \(2, 1\)"),
        (models.poisson_regression(), {"offset": [0.0, 365.0]}, "offset of row 1 is 365, with which .* the logarithm"),
        (models.weibull_survival(), {"offset": [365.0, 0.0]}, "offset of row 0 is 365, with which .* the logarithm"),
        (models.linear_regression(), {"weight": [-1, 1]}, "weight must be .* 0 or more, but row 0 has -1"),
        (models.linear_regression(), {"weight": [1.0, np.nan]}, "weight must be a finite number, 0 or more, but row 1"),
        (models.softmax_regression(2), {"offset": [0.0, 1.0]}, "would be added to every class"),
        (models.mlp(2), {"weight": [1.0, -2.0]}, "weight must be a finite number"),
        (models.logistic_regression(), {"event": [0, 1]}, "'event', which is for survival models"),
        (models.poisson_regression(), {"trials": [3, 4]}, "'trials', which is for binomial_regression"),
    ],
)  # fmt: skip
def test_rows_that_a_model_cannot_have_are_refused(model, extra, message):
    rows = {"x": np.zeros((2, 3)), "y": np.array([0, 1])} | {name: np.array(entry) for name, entry in extra.items()}
    assert re.search(message, model.validate_fn(rows))


def test_priors_are_normal_up_to_a_constant():
    model = models.linear_regression(prior_scale=2.0, intercept_scale=3.0)
    a, b = (
        POSITION | {"log_noise": jnp.array(0.4)},
        jax.tree.map(jnp.zeros_like, POSITION | {"log_noise": jnp.array(0.0)}),
    )

    def density(position):
        return (
            norm.logpdf(position["coefficients"], 0, 2).sum()
            + norm.logpdf(position["intercept"], 0, 3)
            + norm.logpdf(position["log_noise"])
        )

    np.testing.assert_allclose(model.logprior_fn(a) - model.logprior_fn(b), density(a) - density(b), rtol=1e-6)
    assert models.logistic_regression(prior_scale=None, intercept_scale=None).logprior_fn(POSITION) == 0


def test_conjugate_linear_regression_has_its_closed_form_posterior():
    """MHMC on a Gaussian posterior: mean (X′X/s² + I)⁻¹ X′y/s², through the whole library."""
    y = X @ np.array([1.0, 0.0, -1.0]) + GENERATOR.normal(size=40)
    clients = fahmc.partition.equal({"x": X, "y": y}, 3, seed=0)
    precision = X.T @ X + np.eye(3)
    mean = np.linalg.solve(precision, X.T @ y)
    draws = fahmc.sample(
        models.linear_regression(prior_scale=1.0, noise_scale=1.0, intercept=False),
        fahmc.Federation.from_clients(clients),
        fahmc.HMC(0.1, 8, metropolis=True),
        2000, num_warmup_rounds=200, seed=1, progress=False,
    )  # fmt: skip
    table = draws.summary()
    assert table["ess_bulk"].to_numpy().min() > 400
    np.testing.assert_array_less(np.abs(table["mean"] - mean) / table["mcse_mean"], 5)
    np.testing.assert_allclose(table["sd"], np.sqrt(np.diag(np.linalg.inv(precision))), rtol=0.1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: models.logistic_regression(prior_scale=0.0), "prior_scale is 0.0"),
        (lambda: models.linear_regression(noise_scale=-1.0), "noise_scale is -1.0"),
        (lambda: models.softmax_regression(1), "num_classes is 1"),
        (lambda: models.mlp(3, hidden=(0,)), r"hidden\[0\] is 0; it must be a whole number from 1"),
        (lambda: models.logistic_regression(temperature=0.0), "temperature is 0.0"),
    ],
)
def test_nonsense_is_refused(call, message):
    with pytest.raises(fahmc.errors.SettingsError, match=message):
        call()


def test_a_setting_that_a_family_does_not_have_is_refused_in_its_name():
    with pytest.raises(
        SettingsError, match=r"logistic_regression\(prior_scal=...\) is not known, did you mean 'prior_"
    ):
        models.logistic_regression(prior_scal=2.0)  # type: ignore
    with pytest.raises(SettingsError, match=r"poisson_regression\(outputs=...\) is not known"):
        models.poisson_regression(outputs=(2,))  # type: ignore
