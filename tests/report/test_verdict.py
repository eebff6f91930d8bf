"""The verdict's words follow from the numbers."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from fahmc.report import judge, parameter_table


def with_stats(draws, **stats):
    return dataclasses.replace(draws, stats={**draws.stats, **stats})


def verdict_of(draws, **kwargs):
    return judge(draws, parameter_table(draws, **kwargs))


def test_a_good_run(federated):
    verdict = verdict_of(federated)
    table = parameter_table(federated)
    assert verdict.is_good
    assert verdict.advice == ()
    assert verdict.headline.startswith("The chains agree")
    assert f"worst R-hat {table['r_hat'].max():.3f} ({table['r_hat'].idxmax()})" in verdict.headline
    assert f"{table[['ess_bulk', 'ess_tail']].min().min():,.0f}" in verdict.headline
    assert "no divergences" in verdict.headline
    assert "no accept/reject step" in verdict.remarks[-1]


def test_a_metropolis_run_is_not_told_of_a_bias_it_has_not(pooled):
    assert verdict_of(pooled).remarks == ()


def test_chains_that_have_not_met(make_draws):
    verdict = verdict_of(make_draws(num_draws=100, autocorrelation=0.98))
    assert not verdict.is_good
    assert verdict.headline.startswith("Do not use these draws yet")
    assert "have not met" in verdict.advice[0]
    assert "effective draws are too few" in verdict.advice[1]


def test_few_but_good_draws_ask_for_more_rounds(make_draws):
    verdict = verdict_of(make_draws(num_draws=60, autocorrelation=0.0, seed=4))
    assert any("times as many rounds" in advice for advice in verdict.advice)


@pytest.mark.parametrize(("count", "words"), [(1, "1 divergence."), (7, "7 divergences.")])
def test_divergences_are_counted(federated, count, words):
    diverging = np.zeros((4, 1000), dtype=bool)
    diverging[2, :count] = True
    verdict = verdict_of(with_stats(federated, diverging=diverging))
    assert not verdict.is_good
    assert verdict.headline.endswith(words)
    assert f"{count} of 4,000 draws" in verdict.advice[0]


def test_one_chain_is_not_called_converged(make_draws):
    verdict = verdict_of(make_draws(num_chains=1, num_draws=4000))
    assert not verdict.is_good
    assert "no R-hat" in verdict.headline
    assert "num_chains" in verdict.advice[0]


def test_a_parameter_that_never_moved_is_named(federated):
    stuck = dataclasses.replace(
        federated, positions={**federated.positions, "intercept": np.zeros((4, 1000), dtype=np.float32)}
    )
    verdict = verdict_of(stuck)
    assert not verdict.is_good
    assert "no R-hat for intercept" in verdict.advice[0]


def test_the_reference_is_called_equal_only_when_it_is(federated, pooled, make_draws):
    assert verdict_of(federated, reference=pooled).remarks[0].startswith("No mean differs from the pooled run")
    biased = verdict_of(make_draws(seed=1, shift=0.3), reference=pooled).remarks[0]
    assert biased.startswith("Some means differ from the pooled run")
    assert "posterior standard deviations" in biased
    poor = make_draws(seed=3, num_draws=100, autocorrelation=0.98)
    assert any("a poor reference" in remark for remark in verdict_of(federated, reference=poor).remarks)
