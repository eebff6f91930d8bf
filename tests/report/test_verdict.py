"""The verdict's words follow from the numbers, and good is a promise."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from fahmc.report import judge, parameter_table
from fahmc.report.verdict import chains_lost


def with_stats(draws, **stats):
    return dataclasses.replace(draws, stats={**draws.stats, **stats})


def with_sampler(draws, **settings):
    return dataclasses.replace(draws, settings={**draws.settings, "sampler": settings})


def verdict_of(draws, **kwargs):
    return judge(draws, parameter_table(draws, **kwargs))


def test_a_good_run(certified):
    verdict = verdict_of(certified)
    table = parameter_table(certified)
    assert verdict.is_good and verdict.status == "good"
    assert (verdict.faults, verdict.advice, verdict.setting, verdict.remarks) == ((), "", {}, ())
    assert verdict.headline.startswith("The chains agree")
    assert f"worst R-hat {table['r_hat'].max():.3f} ({table['r_hat'].idxmax()})" in verdict.headline
    assert f"{table[['ess_bulk', 'ess_tail']].min().min():,.0f}" in verdict.headline
    assert "no divergences" in verdict.headline and "(estimated from gradients)" in verdict.headline


def test_agreement_alone_is_not_good(federated):
    verdict = verdict_of(federated)
    assert verdict.status == "unknown" and not verdict.is_good
    assert verdict.headline.startswith("The chains agree, but their error is not known")
    assert "no accept/reject step" in verdict.faults[0]
    assert (verdict.advice, verdict.setting) == ("Set with_gradients = true.", {"with_gradients": True})
    unadjusted = verdict_of(with_sampler(federated, name="HMC", metropolis=False, step_size=0.1))
    assert unadjusted.setting == {"metropolis": True}
    assert verdict_of(with_sampler(federated, name="MySampler")).advice == ""


def test_a_metropolis_run_is_not_told_of_a_bias_it_has_not(pooled):
    verdict = verdict_of(pooled)
    assert verdict.is_good and verdict.remarks == () and "the sampler is exact" in verdict.headline
    assert "acceptance rate 0.85" in verdict.headline


@pytest.mark.parametrize("shift", [0.2, 0.4, -0.9])
def test_a_shift_asks_for_a_step_size_that_is_enough(make_draws, shift):
    verdict = verdict_of(make_draws(seed=1, shift=shift, with_gradients=True))
    assert verdict.status == "bad" and "is off by more than 0.12 posterior standard deviations" in verdict.faults[0]
    # The shift falls with the square of the step, 0.02 here.
    assert 0.03 < abs(shift) * (verdict.setting["step_size"] / 0.02) ** 2 < 0.1
    assert verdict.advice == f"Set step_size = {verdict.setting['step_size']}."


@pytest.mark.parametrize("spread", [0.8, 1.2])
def test_a_wrong_spread_is_no_good_though_all_means_are_right(make_draws, spread):
    verdict = verdict_of(make_draws(seed=1, num_draws=4000, spread=spread, autocorrelation=0.0, with_gradients=True))
    assert verdict.status == "bad" and f"off by more than 10 %: {'+-'[spread < 1]}2" in verdict.faults[0]
    assert list(verdict.setting) == ["step_size"]


def test_advice_is_one_setting_and_never_another_sampler(make_draws):
    worst = make_draws(seed=1, num_draws=60, shift=0.5, spread=1.3, with_gradients=True)
    worst.stats["diverging"][0, 0] = True
    worst.settings["sampler"]["name"] = "DebiasedFAHMC"
    verdict = verdict_of(worst)
    assert len(verdict.faults) > 2 and len(verdict.setting) == 1 and verdict.setting == {"step_size": 0.01}
    assert "Debiased" not in " ".join([*verdict.words, *verdict.remarks])


def test_alternating_draws_say_nothing_of_the_sd(make_draws):
    verdict = verdict_of(make_draws(seed=1, autocorrelation=-0.8, spread=0.83, with_gradients=True))
    assert verdict.status == "bad" and "standard deviation" in verdict.faults[0]
    assert "opposite sides of the mean" in verdict.remarks[0] and "resonance" in verdict.remarks[0]


def test_draws_far_from_the_posterior_are_told_by_their_width(make_draws):
    draws = make_draws(seed=1, num_draws=400, spread=3.0, with_gradients=True)
    # Gradients that a far draw makes larger still: the regression has nothing to hold on to.
    draws = dataclasses.replace(draws, gradients=draws.gradients**3)
    verdict = verdict_of(draws)
    assert verdict.status == "bad" and list(verdict.setting) == ["step_size"]


def test_what_gradients_do_not_explain_is_not_known(make_draws, certified):
    noise = np.random.default_rng(0).normal(size=certified.gradients.shape) + certified.gradients * 0.3
    draws = dataclasses.replace(certified, gradients=noise)
    assert verdict_of(draws).status != "good"
    few = make_draws(seed=1, num_draws=50, with_gradients=True)
    assert any("too few draws to tell" in fault for fault in verdict_of(few).faults)


def test_chains_that_have_not_met(make_draws):
    verdict = verdict_of(make_draws(num_draws=100, autocorrelation=0.98))
    assert verdict.status == "bad"
    assert verdict.headline.startswith("Do not use these draws yet")
    assert "have not met" in verdict.faults[0]
    assert "effective draws are too few" in verdict.faults[1]
    assert verdict.setting["num_rounds"] > 1000


def test_chains_in_different_modes_are_not_told_to_run_longer(make_draws):
    draws = make_draws(seed=1)
    draws.positions["intercept"][3] += 10.0
    verdict = verdict_of(draws)
    assert verdict.status == "bad" and "intercept of chain 3" in verdict.faults[0]
    assert "num_rounds" not in verdict.setting


def test_few_but_good_draws_ask_for_more_rounds(make_draws):
    verdict = verdict_of(make_draws(num_draws=60, autocorrelation=0.0, seed=4))
    assert 60 < verdict.setting["num_rounds"] < 1000


@pytest.mark.parametrize(("count", "words"), [(1, "1 divergence."), (7, "7 divergences.")])
def test_divergences_are_counted(certified, count, words):
    diverging = np.zeros((4, 1000), dtype=bool)
    diverging[2, :count] = True
    verdict = verdict_of(with_stats(certified, diverging=diverging))
    assert not verdict.is_good
    assert verdict.headline.endswith(words)
    assert f"{count} of 4,000 draws" in verdict.faults[0] and verdict.setting == {"step_size": 0.01}


def test_one_chain_is_not_called_converged(make_draws):
    verdict = verdict_of(make_draws(num_chains=1, num_draws=4000))
    assert not verdict.is_good
    assert "no R-hat" in verdict.headline
    assert verdict.advice == "Set num_chains = 4."


def test_a_parameter_that_never_moved_is_named(certified):
    stuck = dataclasses.replace(
        certified, positions={**certified.positions, "intercept": np.zeros((4, 1000), dtype=np.float32)}
    )
    verdict = verdict_of(stuck)
    assert not verdict.is_good
    assert any("no R-hat for intercept" in fault for fault in verdict.faults)


def weighted(draws, k_hat=0.3, ess=2000.0, **account):
    ess, sds = np.full(12, ess), draws.flat().std(axis=(0, 1))
    weights = {"k_hat": k_hat, "ess": ess.tolist(), "mcse": (sds / np.sqrt(ess)).tolist(), "num_points": 4000}
    weights["mcse_sd"] = (sds / np.sqrt(2 * ess)).tolist()
    account = {"choices": ["Weights: chosen as the posterior is near a Gaussian."], "weights": weights, **account}
    settings = {"sampler": {"name": "Auto", "target_ess": 400}, "num_rounds": 6}
    stats = {"log_weight": np.zeros(draws.flat().shape[:2])}
    return dataclasses.replace(draws, account=account, stats=stats, settings=settings)


def test_weights_are_good_without_doubts(make_draws):
    draws = make_draws(autocorrelation=0.0, seed=1)
    verdict = verdict_of(weighted(draws))
    assert verdict.is_good and verdict.headline.startswith("The weights are good: k-hat 0.30")
    assert verdict.remarks == ("Weights: chosen as the posterior is near a Gaussian.",)
    assert verdict_of(weighted(draws, k_hat=0.8)).status == "bad"
    doubt = verdict_of(weighted(draws, doubts=["NUTS at the server did not mix."]))
    assert doubt.status == "bad" and doubt.faults == ("NUTS at the server did not mix.",)
    assert verdict_of(weighted(draws, ess=100.0)).setting == {"target_ess": 2000}


def test_the_reference_is_called_equal_only_when_it_is(federated, pooled, make_draws):
    assert verdict_of(federated, reference=pooled).remarks[0].startswith("No mean differs from the pooled run")
    biased = verdict_of(make_draws(seed=1, shift=0.3), reference=pooled).remarks[0]
    assert biased.startswith("Some means differ from the pooled run")
    assert "posterior standard deviations" in biased
    poor = make_draws(seed=3, num_draws=100, autocorrelation=0.98)
    assert any("a poor reference" in remark for remark in verdict_of(federated, reference=poor).remarks)


def test_what_may_be_chance_asks_for_rounds_not_for_a_smaller_step(federated, pooled):
    verdict = verdict_of(federated, reference=pooled)
    assert verdict.status == "unknown" and "may be off" in verdict.faults[0]
    assert list(verdict.setting) == ["num_rounds"] and verdict.setting["num_rounds"] > federated.num_draws


def test_an_exact_reference_tells_the_bias(federated, pooled, make_draws):
    long, exact = (make_draws(seed=seed, num_draws=6000, is_metropolis=seed == 2) for seed in (1, 2))
    assert "by comparison with the reference" in verdict_of(long, reference=exact).headline
    assert verdict_of(make_draws(seed=1, shift=0.3), reference=pooled).status == "bad"
    assert verdict_of(federated, reference=make_draws(seed=2)).status == "unknown"


@pytest.mark.parametrize(("chains", "words"), [([1], "Every draw of chain 1 comes"), ([0, 3], "of 2 of 4 chains")])
def test_chains_that_diverged_all_along_are_no_result_though_finite(certified, chains, words):
    diverging = np.zeros((4, 1000), dtype=bool)
    diverging[chains] = True
    lost = with_stats(certified, diverging=diverging)
    verdict = verdict_of(lost)
    assert chains_lost(lost) == chains and not chains_lost(certified)
    assert verdict.status == "bad" and words in verdict.faults[0] and "these numbers mean nothing" in verdict.faults[0]
    assert verdict.setting == {"step_size": 0.002}, "half a step would hardly do"
