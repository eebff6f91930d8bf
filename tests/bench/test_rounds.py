"""Problems, references and the runner of `fahmc bench rounds`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from fahmc.bench.rounds import families, simulated
from fahmc.bench.rounds.problems import names, problem
from fahmc.errors import SettingsError

# Clients and length of a flat position of what needs no file.
SHAPES = {
    "opt": (4, 13),
    "opt_horseshoe": (4, 26),
    "logistic_50": (20, 50),
    "logistic_200": (20, 200),
    "student_t": (6, 11),
    "linear_scale": (5, 8),
    "nearly_separable": (4, 8),
    "hierarchical_centred": (4, 16),
    "hierarchical_noncentred": (4, 16),
    "poisson": (5, 20),
    "softmax": (5, 35),
}


@pytest.mark.parametrize("name", SHAPES)
def test_problems_have_one_finite_likelihood_a_row_and_a_prior(name):
    made = problem(name)
    rows = made.federation.pooled().rows[0]
    position = made.model.initial_position(jax.random.key(0), rows)
    fits = made.model.row_loglikelihoods(position, jax.tree.map(jnp.asarray, rows))
    assert (made.federation.num_clients, len(ravel_pytree(position)[0])) == SHAPES[name]
    assert fits.shape == (made.federation.num_rows,)
    assert np.isfinite(fits).all() and np.isfinite(made.model.logprior_fn(position))


def test_a_seed_makes_the_same_rows_and_another_seed_others():
    first, again, other = (problem("student_t", seed).federation.rows[0]["y"] for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_an_unknown_problem_is_refused():
    with pytest.raises(SettingsError, match="There is no problem 'heat'; choose from opt, "):
        problem("heat")
    assert set(SHAPES) < set(names())


def test_both_coordinates_of_the_hierarchy_are_one_posterior():
    """The log densities differ by the Jacobian of a -> μ + τ a, which is τ for every site."""
    [rows, *_] = simulated.sites(seed=0)
    rows = jax.tree.map(jnp.asarray, rows)
    centred, other = (families.site_intercepts(10, 4, is_centred=is_centred) for is_centred in (True, False))
    position = other.initial_position(jax.random.key(1), rows)
    sites = position["mean"] + jnp.exp(position["log_scale"]) * position["sites"]

    def log_density(model, at):
        return jnp.sum(model.row_loglikelihoods(at, rows)) + model.logprior_fn(at)

    difference = log_density(other, position) - log_density(centred, position | {"sites": sites})
    np.testing.assert_allclose(difference, 4 * position["log_scale"], rtol=1e-10)


def test_the_horseshoe_shrinks_to_the_slab():
    """β → z τ λ for small τ λ, and z c for large ones, where the prior is the slab's N(0, c²)."""
    model = families.horseshoe(2, num_rows=100, num_relevant=1, slab_scale=2.5)
    row = {"x": jnp.array([[1.0, 0.0]]), "y": jnp.array([1.0])}
    shared = {"z": jnp.array([1.0, 1.0]), "log_global": jnp.array(0.0), "intercept": jnp.array(0.0)}
    for log_local, coefficient in ((-20.0, 0.0), (20.0, 2.5)):
        fit = model.row_loglikelihoods(shared | {"log_local": jnp.full(2, log_local)}, row)
        np.testing.assert_allclose(fit, -np.log1p(np.exp(-coefficient)), atol=1e-7)
