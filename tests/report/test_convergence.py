"""Diagnostics: that ArviZ is asked the right question, and the stopping rule stops when it should."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import kstest

from fahmc._arviz import arviz
from fahmc.errors import DataError, SettingsError
from fahmc.report import RHatBelow, difference_in_mcse, ess, max_r_hat, mcse, r_hat


def chains(seed=0, shape=(4, 400, 3), shift=0.0):
    return np.random.default_rng(seed).normal(size=shape) + shift


def apart():
    """Three parameters whose chains overlap and one whose first chain sits elsewhere."""
    values = chains(shape=(4, 400, 4))
    values[0, :, 2] += 2.0
    return values


def test_each_scalar_has_arviz_s_value():
    x = chains()
    for method in ("rank", "split"):
        expected = [arviz.rhat(x[..., i], method=method) for i in range(3)]
        np.testing.assert_allclose(r_hat({"x": x}, method=method)["x"], expected)
    tails = [arviz.ess(x[..., i], method="tail", prob=(0.05, 0.95)) for i in range(3)]
    np.testing.assert_allclose(ess(x, method="tail")["position"], tails)
    np.testing.assert_allclose(mcse(x)["position"], [arviz.mcse(x[..., i]) for i in range(3)])


def test_names_and_shapes_follow_the_variables(federated):
    values = r_hat(federated)
    assert {name: value.shape for name, value in values.items()} == {"coefficients": (11,), "intercept": ()}
    nested = ess({"layer": [chains(), chains(1, (4, 400))]})
    assert {name: value.shape for name, value in nested.items()} == {"layer.0": (3,), "layer.1": ()}


def test_mcse_is_the_spread_of_the_mean_over_repeated_runs():
    runs = [chains(seed, (4, 100)) for seed in range(100)]
    claimed = np.mean([mcse(run)["position"] for run in runs])
    seen = np.std([run.mean() for run in runs], ddof=1)
    assert claimed == pytest.approx(seen, rel=0.25)  # 100 runs know a standard deviation to 7 %: over 3 times that


def test_max_r_hat_sees_one_bad_parameter_and_lets_no_nan_hide():
    assert max_r_hat(chains()) < 1.01
    assert max_r_hat({"good": chains(), "bad": apart()}) > 1.2
    assert np.isnan(max_r_hat({"good": chains(), "constant": np.ones((4, 400))}))


def test_too_little_to_judge_gives_nan_not_a_crash():
    assert np.isnan(r_hat(chains(shape=(1, 400)))["position"])
    assert np.isnan(r_hat(chains(shape=(4, 3)))["position"])
    assert np.isnan(ess(chains(shape=(4, 3)))["position"])
    assert ess(chains(shape=(1, 400)))["position"] > 100


def test_more_chains_than_draws_is_no_warning():
    assert max_r_hat(chains(shape=(16, 8, 2))) > 0.9


@pytest.mark.parametrize("diagnostic", [ess, r_hat, mcse])
def test_draws_whose_squares_overflow_are_no_warning(diagnostic):
    """Of a step size that is far too large: the verdict says so, ArviZ's warnings in between would not."""
    diagnostic(chains(shape=(4, 40, 1)) * 1e200)


def test_the_rule_stops_on_agreement_only():
    rule = RHatBelow(threshold=1.05, every=50)
    assert rule({"x": chains()}) is True
    assert rule({"x": apart()}) is False
    assert rule({"x": chains(), "constant": np.zeros((4, 400))}) is False
    assert rule({"x": np.full((4, 400), np.nan)}) is False
    assert rule({"x": chains(shape=(4, 3))}) is False


def test_the_rule_s_method_matters():
    """Chains with equal means and unequal spreads: Gelman's split R-hat is blind to it, the rank version is not."""
    x = chains(shape=(4, 1000))
    x[0] *= 5
    assert RHatBelow(threshold=1.01, method="split")(x) is True
    assert RHatBelow(threshold=1.01, method="rank")(x) is False


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"threshold": 1.0}, "threshold is 1.0"),
        ({"threshold": float("nan")}, "threshold is nan"),
        ({"threshold": float("inf")}, "threshold is inf"),
        ({"every": 3}, "every is 3"),
        ({"every": 10.5}, "every is 10.5"),
        ({"method": "gelman"}, "choose one of rank, split"),
    ],
)
def test_nonsense_settings_are_refused(settings, words):
    with pytest.raises(SettingsError, match=words):
        RHatBelow(**settings)


def test_the_rule_refuses_one_chain_at_once():
    with pytest.raises(SettingsError, match="only 1"):
        RHatBelow()(chains(shape=(1, 400)))


def test_unusable_arrays_are_named():
    with pytest.raises(DataError, match=r"a \[4, 400\], b \[4, 300\]"):
        r_hat({"a": chains(shape=(4, 400)), "b": chains(shape=(4, 300))})
    with pytest.raises(DataError, match="no draws"):
        r_hat({})
    with pytest.raises(DataError, match=r"\[chain, draw"):
        ess(np.zeros(10))
    with pytest.raises(SettingsError, match="ess has no method"):
        ess(chains(), method="front")


def test_differences_of_equal_laws_are_standard_normal_and_of_unequal_ones_are_not():
    a, b = chains(1, (4, 500, 300)), chains(2, (4, 250, 300))
    scores = difference_in_mcse({"x": a}, {"x": b})["x"]
    assert kstest(scores, "norm").pvalue > 1e-6
    assert kstest(difference_in_mcse(a, b + 0.05)["position"], "norm").pvalue < 1e-6
    # Known by hand: MCSE of independent draws is sd / sqrt(n).
    moved = difference_in_mcse(a + 10, b)["position"]
    np.testing.assert_allclose(moved, 10 / np.sqrt(1 / 2000 + 1 / 1000), rtol=0.35)
    assert (moved > 0).all()


def test_differences_of_constants_and_of_unlike_runs():
    one = {"x": np.ones((2, 50)), "y": np.ones((2, 50))}
    two = {"x": np.ones((2, 50)), "y": np.zeros((2, 50))}
    scores = difference_in_mcse(one, two)
    assert scores["x"] == 0
    assert scores["y"] == np.inf
    with pytest.raises(DataError, match="different parameters"):
        difference_in_mcse(one, {"x": np.ones((2, 50))})


def test_two_runs_can_be_compared_as_draws(federated, pooled, make_draws):
    agree = difference_in_mcse(federated, pooled)
    assert max(np.abs(value).max() for value in agree.values()) < 4.5
    moved = difference_in_mcse(make_draws(seed=5, shift=0.5), pooled)
    assert min(value.min() for value in moved.values()) > 4.5
