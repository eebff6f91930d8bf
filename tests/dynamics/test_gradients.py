"""Gradients that ride along with draws: each is ∇f at its own draw, whichever way the draw has come."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fahmc
from fahmc.runs.plan import make_run

OPTIONS = {"num_chains": 2, "seed": 3, "dtype": "float64", "progress": False, "num_warmup_rounds": 2}
NOISY = fahmc.FAHMC(0.1, 2, gradient=fahmc.GaussianNoise(0.1), momentum_correlation=0.5, with_gradients=True)
SAMPLERS = {
    "trajectory": fahmc.FAHMC(0.1, 3, 2, with_gradients=True),
    "noisy": NOISY,
    "debiased, leapfrog": fahmc.DebiasedFAHMC(0.1, 3, 2, sync_unit="leapfrog", with_gradients=True),
    "split": fahmc.SplitHMC(2),
    "mhmc": fahmc.HMC(0.1, 3, metropolis=True),
}


def gradients_at(model: fahmc.Model, federation: fahmc.Federation, positions: np.ndarray) -> np.ndarray:
    """∇f of all clients together, by automatic differentiation of the pooled model."""
    run = make_run(model, federation, fahmc.FAHMC(1.0), 1, dtype=np.dtype("float64"))
    total = np.zeros_like(positions)
    for bucket in run.buckets:
        over_clients = jax.vmap(run.target.gradient, in_axes=(None, 0))
        parts = jax.vmap(jax.vmap(over_clients, in_axes=(0, None)), in_axes=(0, None))(
            jnp.asarray(positions), bucket.clients
        )
        total += np.einsum("c,ijcd->ijd", bucket.clients.weight, parts)
    return total


@pytest.mark.parametrize("name", SAMPLERS)
def test_each_draw_has_its_own_gradient(logistic_study, name):
    model = fahmc.models.logistic_regression(prior_scale=2.0)
    thin, sampler = 3 if name == "trajectory" else 1, SAMPLERS[name]
    if name == "split":  # or nothing is accepted
        sampler = replace(sampler, inverse_mass_matrix=(0.03,) * 4)
    draws = fahmc.sample(model, logistic_study, sampler, 6, thin=thin, **OPTIONS)
    assert draws.gradients is not None and draws.gradients.shape == draws.flat().shape == (2, 6 // thin, 4)
    expected = gradients_at(model, logistic_study, draws.flat())
    np.testing.assert_allclose(draws.gradients, expected, rtol=1e-9, atol=1e-9)
    assert len(np.unique(draws.gradients[0, :, 0])) > 1


def test_the_chain_is_the_same_a_round_behind(unlike_gaussians):
    study = unlike_gaussians
    draws = fahmc.sample(study.model, study.federation, SAMPLERS["trajectory"], 8, **OPTIONS)
    plain = fahmc.sample(
        study.model, study.federation, replace(SAMPLERS["trajectory"], with_gradients=False), 8, **OPTIONS
    )
    assert plain.gradients is None
    np.testing.assert_allclose(draws.flat()[:, 1:], plain.flat()[:, :-1], rtol=1e-12)
    vector = 2 * 8 * 2 * 3  # of two chains in double precision, from three clients
    assert draws.cost["bytes_to_server"] == plain.cost["bytes_to_server"] + 10 * vector
    assert draws.cost["bytes_to_clients"] == plain.cost["bytes_to_clients"]
    assert draws.cost["row_gradients"] > plain.cost["row_gradients"]
    fast = {"row_space": True, "num_rounds": 2}
    with pytest.raises(fahmc.errors.SettingsError, match="jitter, correction or gradients along with the draws"):
        fahmc.sample(study.model, study.federation, SAMPLERS["trajectory"], **fast)


def test_gradients_survive_a_pause_and_a_file(unlike_gaussians, tmp_path):
    name, study, settings = "debiased, leapfrog", unlike_gaussians, {**OPTIONS, "block_rounds": 2}
    whole = fahmc.sample(study.model, study.federation, SAMPLERS[name], 9, **settings)
    for num_rounds in (5, 9):
        draws = fahmc.sample(
            study.model, study.federation, SAMPLERS[name], num_rounds, checkpoint_dir=tmp_path / "run", **settings
        )
    draws.save(tmp_path / "draws.nc")
    loaded = fahmc.Draws.load(tmp_path / "draws.nc")
    for other in (draws, loaded):
        assert whole.gradients is not None and other.gradients is not None
        np.testing.assert_array_equal(other.gradients, whole.gradients)
        assert other.stats.keys() == whole.stats.keys()
