"""Whatever the family: without an effect, z = 0 or τ → 0, both forms are the model without, and keep its supports."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fahmc import models, registry
from fahmc.density.local import at_sites
from fahmc.density.supports import positive
from fahmc.registry import parameters_of

RNG = np.random.default_rng(8)
Y = np.array([0, 1, 2, 1, 0, 2])
ROWS = {"x": RNG.normal(size=(6, 2)), "y": Y, "site": np.array([0, 1, 0, 1, 1, 0])}
WEIGHTS = jnp.array([1.0, 1.0, 0.5, 2.0, 1.0, 0.0])
SETTINGS: dict[str, dict[str, Any]] = {
    "logistic_regression": {"y": Y % 2},
    "softmax_regression": {"num_classes": 3},
    "ordered_regression": {"num_classes": 3},
    "binomial_regression": {"trials": Y + 1},
    "student_t_regression": {"degrees": None},
    "piecewise_exponential": {"cuts": [0.5, 1.5]},
} | {name: {"y": Y + 0.4} for name in ("gamma_regression", "exponential_survival", "weibull_survival")}
NAMES = [name for name, family in registry.choices("model").items() if "site_effects" in parameters_of(family)]


@pytest.mark.parametrize("name", NAMES)
def test_without_an_effect_it_is_the_family(name):
    family: Any = getattr(models, name)
    rows = ROWS | {key: value for key, value in SETTINGS.get(name, {}).items() if key in ("y", "trials")}
    if name == "piecewise_exponential":
        rows |= {"y": Y + 0.4}
    settings = {key: value for key, value in SETTINGS.get(name, {}).items() if key not in rows}
    plain = family(**settings)
    forms = ["intercept"] if name == "softmax_regression" else ["intercept", "private intercept"]
    shared, *private = [at_sites(family(site_effects=form, **settings), ("a", "b")) for form in forms]
    for model in (shared, *private):
        assert dict(model.supports or {}) == {**(plain.supports or {}), "site_sd": positive}

    @jax.jit
    def densities(key):
        position = plain.initial_position(key, rows)
        spread = {"site_sd": jnp.asarray(0.7)}
        z = jnp.zeros((2, 3) if name == "softmax_regression" else 2)
        in_shared = position | spread | {"site_z": z}
        at_none = [
            jnp.sum(model.weighted_loglikelihoods(model.view(position | {"site_sd": jnp.asarray(1e-9)}), rows, WEIGHTS))
            for model in private
        ]
        by_row = plain.row_loglikelihoods(position, rows)
        of_priors = shared.logprior_fn(in_shared) - plain.logprior_fn(position)
        return by_row, shared.row_loglikelihoods(in_shared, rows), at_none, of_priors

    by_row, of_shared, at_none, of_priors = jax.device_get(densities(jax.random.key(0)))
    np.testing.assert_allclose(of_shared, by_row, rtol=1e-12)
    np.testing.assert_allclose(at_none, [np.sum(by_row * WEIGHTS)] * len(at_none), rtol=1e-8)
    # The effects' own: τ ~ N⁺(0, 1) and z ~ N(0, 1) at 0.7 and 0.
    np.testing.assert_allclose(of_priors, -(0.7**2) / 2, rtol=1e-12)
