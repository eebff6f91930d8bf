"""FA-HMC that tunes itself: its rules are those of the exact law, and its draws are as good as it says."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import fahmc
from fahmc import registry, theory
from fahmc.adaptive import metric
from fahmc.adaptive.tuned import Steps, look
from fahmc.errors import SettingsError

MODEL = fahmc.models.logistic_regression(prior_scale=2.0)
OPTIONS = {"num_chains": 8, "seed": 2, "dtype": "float64", "progress": False}


def shift_of(steps: Steps, difference: float) -> float:
    """The exact shift of the mean of a unit Gaussian, made of two clients whose slopes and curvatures differ."""
    precisions = 1 + np.array([1, -1]) * difference
    slopes = np.array([1, -1]) * difference  # at 0, the posterior mean
    clients = theory.GaussianClients((-slopes / precisions)[:, None], precisions[:, None, None])
    sampler = fahmc.FAHMC(steps.step_size, steps.num_steps)
    return abs(float(theory.stationary_law(clients, sampler).mean[0]))


@pytest.mark.parametrize("steps", [Steps(0.8, 1), Steps(0.3, 2), Steps(0.6, 2), Steps(0.39, 4), Steps(0.2, 8)])
def test_the_rules_are_those_of_the_exact_law(steps):
    """With clients 1 ± δ in slope and curvature, X = δ² to first order."""
    one = theory.GaussianClients(np.zeros((1, 1)), np.ones((1, 1, 1)))
    sampler = fahmc.FAHMC(steps.step_size, steps.num_steps)
    variance = theory.stationary_law(one, sampler).covariance[0, 0]
    assert steps.spread == pytest.approx(variance - 1, rel=1e-9)
    assert np.cos(steps.angle) == pytest.approx(theory.round_law(one, sampler).matrix[0, 0], abs=1e-12)
    delta = 1e-3
    assert steps.shift == pytest.approx(shift_of(steps, delta) / delta**2, rel=1e-3, abs=1e-6)


def test_draws_are_as_good_as_they_say(logistic_study):
    draws = fahmc.sample(MODEL, logistic_study, fahmc.Tuned(target_ess=200), **OPTIONS)
    reference = fahmc.sample(MODEL, logistic_study, fahmc.SurrogatePosterior(target_ess=100), **OPTIONS)
    summary, account = draws.summary(), draws.account
    assert draws.gradients is not None and draws.gradients.shape == draws.flat().shape
    assert draws.cost["rounds"] < 400 and not account["doubts"]
    assert float(summary["ess_bulk"].to_numpy().min()) >= 200
    sds = reference.summary()["sd"].to_numpy()
    errors = (summary["mean"].to_numpy() - reference.summary()["mean"].to_numpy()) / sds
    assert np.abs(account["shift"]).max() <= 0.1
    np.testing.assert_allclose(account["shift"], errors, atol=0.08)
    sampler = registry.decode("sampler", account["sampler"])
    assert isinstance(sampler, fahmc.FAHMC) and sampler.correction is None and sampler.with_gradients
    again = fahmc.sample(MODEL, logistic_study, sampler, 4, num_chains=2, progress=False)
    assert again.gradients is not None


@dataclass
class Mortal:
    """An engine that does so many blocks and no more."""

    num_blocks: int

    def start(self, run) -> Any:
        session, mortal = fahmc.engines.InProcess(threads=1).start(run), self

        class Session:
            path = session.path

            def advance(self, *arguments: Any):
                if not mortal.num_blocks:
                    raise InterruptedError
                mortal.num_blocks -= 1
                return session.advance(*arguments)

        return Session()


def test_a_tuned_run_goes_on_where_it_was_killed(logistic_study, tmp_path):
    leader = fahmc.Tuned(target_ess=50, max_bias=0.3)
    engine = fahmc.engines.InProcess(threads=1)
    whole = fahmc.sample(MODEL, logistic_study, leader, engine=engine, **OPTIONS)
    durably = {**OPTIONS, "checkpoint_dir": tmp_path}
    with pytest.raises(InterruptedError):
        fahmc.sample(MODEL, logistic_study, leader, engine=Mortal(8), **durably)
    resumed = fahmc.sample(MODEL, logistic_study, leader, engine=engine, **durably)
    np.testing.assert_array_equal(resumed.flat(), whole.flat())
    assert resumed.account == whole.account


def test_tune_returns_a_sampler_that_can_be_written(logistic_study):
    sampler = fahmc.tune(MODEL, logistic_study, "FALD", target_ess=50, max_bias=0.3, dtype="float64", progress=False)
    assert sampler.num_leapfrog_steps == 1 and sampler.inverse_mass_matrix.shape == (4, 4)
    again = registry.decode("sampler", registry.encode(sampler))
    np.testing.assert_array_equal(again.inverse_mass_matrix, sampler.inverse_mass_matrix)


def test_many_parameters_have_a_diagonal_metric(logistic_study, monkeypatch):
    monkeypatch.setattr(metric, "MOST_DENSE", 2)
    leader = fahmc.Tuned(target_ess=50, max_bias=0.3)
    draws = fahmc.sample(MODEL, logistic_study, leader, **OPTIONS)
    sampler = registry.decode("sampler", draws.account["sampler"])
    reference = fahmc.sample(MODEL, logistic_study, fahmc.SurrogatePosterior(target_ess=100), **OPTIONS)
    variances = reference.flat().reshape(-1, 4).var(axis=0)
    assert "diagonal" in draws.account["choices"][0]
    assert (np.abs(np.log(sampler.inverse_mass_matrix / variances)) < np.log(2)).all()


def test_a_shift_is_seen_and_told_from_noise():
    rng, size = np.random.default_rng(0), (8, 100, 5)
    positions = rng.normal(size=size)
    true = look(positions, positions, np.eye(5), rate=1.0)
    assert not true.is_shifted(0.1) and not true.is_spread(0.1) and true.ess > 400
    shifted = look(positions + 0.5, positions + 0.5, np.eye(5), rate=1.0)
    assert shifted.is_shifted(0.1) and not shifted.is_spread(0.1)
    wide = look(1.3 * positions, 1.3 * positions, np.eye(5), rate=1.0)
    assert wide.is_spread(0.1)
    # Eight chains that stand still are eight draws, however often they are counted.
    still = np.repeat(positions[:, :1], 100, axis=1) + 1e-3 * positions
    assert not look(still, still, np.eye(5), rate=0.0).is_shifted(0.1)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_bias": 0.0}, "max_bias is 0.0; it must be a number above 0 and at most 1"),
        ({"method": "HMC"}, "method is 'HMC'; it must be 'FAHMC' or 'FALD'"),
        ({"target_ess": 0}, "target_ess is 0"),
    ],
)
def test_settings_are_checked(settings, words):
    with pytest.raises(SettingsError, match=words):
        fahmc.Tuned(**settings)


def test_too_few_rounds_are_refused(logistic_study):
    with pytest.raises(SettingsError, match="max_rounds = 9 is used up, and nothing was drawn yet"):
        fahmc.sample(MODEL, logistic_study, fahmc.Tuned(max_rounds=9), **OPTIONS)
