"""(ε, δ) against an accountant of others; its numbers, and how they were made: make_accountant_numbers.py."""

import json
from pathlib import Path

import pytest

import fahmc
from fahmc.privacy import Budget, composed, delta_of, draws_allowed, epsilon_of

ORACLE = json.loads(Path(__file__).with_name("accountant_numbers.json").read_text())


@pytest.mark.parametrize("case", ORACLE["cases"], ids=lambda case: f"{case['deviations']}, {case['delta']}")
def test_epsilon_of_composed_releases_is_the_accountants(case):
    mu = composed(1 / deviation for deviation in case["deviations"])
    # The accountant rounds up; its interval is known to cost less than this here.
    assert case["epsilon"] == pytest.approx(epsilon_of(mu, case["delta"]), rel=1e-6)
    # And back.
    assert Budget(case["epsilon"], case["delta"]).mu == pytest.approx(mu, rel=1e-6)
    assert delta_of(mu, case["epsilon"]) == pytest.approx(case["delta"], rel=1e-4)


def test_the_oracles_replace_one_is_understood():
    """Its PLD accountant doubles the sensitivity for replaced rows, its RDP accountant does not; ours is told 2C."""
    trap = ORACLE["replace_one"]
    assert trap["pld"] == pytest.approx(epsilon_of(2 / trap["deviation"], trap["delta"]), rel=1e-6)
    assert trap["rdp"] == trap["rdp_add_or_remove_one"] < trap["pld"]


def test_a_chain_pays_for_its_draws_whatever_its_step():
    """R Langevin steps of size η, of which an effective draw takes 4σ²/η², spend ηC√R in all."""
    budget, bound, sd = Budget(3.0, 1e-6), 2.0, 0.01
    for step_size in (1e-3, 1e-4):
        steps = (budget.mu / (step_size * bound)) ** 2
        assert draws_allowed(budget, bound, sd) == pytest.approx(steps * step_size**2 / (4 * sd**2), rel=1e-12)


@pytest.mark.parametrize("epsilon, delta", [(0.0, 1e-6), (-1.0, 1e-6), (1.0, 0.0), (1.0, 1.0), (float("nan"), 0.1)])
def test_what_is_no_budget_is_refused_in_a_sentence(epsilon, delta):
    with pytest.raises(fahmc.errors.SettingsError, match=r"(epsilon|delta) is .* it must be"):
        Budget(epsilon, delta)
