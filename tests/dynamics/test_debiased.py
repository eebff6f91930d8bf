"""How de-biased rounds begin: corrected towards the start by default, towards the origin as the paper prints it."""

import numpy as np
import pytest

import fahmc


@pytest.mark.parametrize("first_anchor", ["start", "origin"])
def test_first_round_is_that_of_shifted_clients(unlike_gaussians, first_anchor):
    """g_c(θ) − g_c(a) + g = A_c (θ − m) with m = a − A_c⁻¹ g: plain FA-HMC on clients that all pull alike at a.

    At the start a = θ_0 the mean gradient g is the exact one; Algorithm B.2 sets a = g = 0.
    """
    study, start = unlike_gaussians, np.array([50.0, -70.0])
    options = {"num_chains": 1, "seed": 2, "dtype": "float64", "progress": False, "init": start}
    sampler = fahmc.DebiasedFAHMC(0.2, 3, 2, first_anchor=first_anchor)
    first = fahmc.sample(study.model, study.federation, sampler, 1, **options)
    gradients = np.einsum("cij,cj->ci", study.precisions, start - study.means)
    anchor, gradient = (start, study.weights @ gradients) if first_anchor == "start" else (0 * start, 0 * start)
    means = anchor - np.linalg.solve(study.precisions, np.tile(gradient, (3, 1))[..., None])[..., 0]
    shifted = type(study)(means=means, precisions=study.precisions, weights=study.weights)
    plain = fahmc.sample(shifted.model, shifted.federation, fahmc.FAHMC(0.2, 3, 2), 1, **options)
    np.testing.assert_allclose(first.flat(), plain.flat(), rtol=1e-12)
    assert first.cost["rounds"] == (2 if first_anchor == "start" else 1)


def test_a_start_far_from_zero_is_survived():
    """A regression whose noise starts far too large: at the origin it is small, and ∇f_c there is enormous."""
    rng = np.random.default_rng(3)
    clients = []
    for shift in (0.0, 1.0):
        x = rng.normal(size=(30, 2)) + shift
        clients.append({"x": x, "y": 1000 * (x @ np.array([1.0, -1.0]) + rng.normal(size=30))})
    model, federation = fahmc.models.linear_regression(1000.0), fahmc.Federation.from_clients(clients)
    init = {"coefficients": np.array([1000.0, -1000.0]), "intercept": np.array(0.0), "log_noise": np.array(7.0)}
    settings = {"num_rounds": 20, "num_chains": 2, "init": init, "progress": False}
    draws = fahmc.sample(model, federation, fahmc.DebiasedFAHMC(0.1, 3), **settings)
    assert np.isfinite(draws.flat()).all() and not draws.stats["diverging"].any()
    with pytest.raises(fahmc.errors.DivergenceError, match="diverged in round 0"):
        fahmc.sample(model, federation, fahmc.DebiasedFAHMC(0.1, 3, first_anchor="origin"), **settings)


def test_another_anchor_is_refused():
    with pytest.raises(fahmc.errors.SettingsError, match="first_anchor is 'zero'; it must be 'start' or 'origin'"):
        fahmc.DebiasedFAHMC(0.1, first_anchor="zero")  # type: ignore
