"""Verdicts: each claim with numbers that bear it out, that do not, and that cannot tell."""

import math
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from fahmc.experiments import figure_1_local_steps as local_steps
from fahmc.experiments import figure_1_step_size as step_size
from fahmc.experiments import figures_3_to_7 as images
from fahmc.experiments.comparisons import Comparisons
from fahmc.experiments.outcome import Standing

YES, NO, UNKNOWN = Standing.REPRODUCED, Standing.NOT_REPRODUCED, Standing.OUT_OF_REACH
ETAS = (0.002, 0.02, 0.1, 0.4)


def errors_by_step_size(hmc, langevin):
    """The rows shown in figures 1a, 1b and 1d."""
    rows = [
        {"method": method, "step_size": eta, "num_leapfrog_steps": steps, "me": me}
        for method, steps, errors in (("FA-HMC", 50, hmc), ("FA-LD", 1, langevin))
        for eta, me in zip(ETAS, errors, strict=True)
    ]
    return pd.DataFrame(rows).assign(standard_error=0.001, shown=True)


# FA-HMC wins by 8 %, is decent over more of the range, and its lead grows as η falls.
GOOD = errors_by_step_size([0.12, 0.09, 0.1, 0.2], [0.9, 0.4, 0.098, 0.21])
# FA-LD wins, and by more at small η.
BAD = errors_by_step_size([0.9, 0.4, 0.1, 0.2], [0.12, 0.09, 0.1, 0.21])


def test_smallest_error():
    assert step_size._smallest_error(GOOD).standing == YES
    assert step_size._smallest_error(BAD).standing == NO
    assert step_size._smallest_error(GOOD.assign(standard_error=0.1)).standing == UNKNOWN
    assert "8.2 % lower" in step_size._smallest_error(GOOD).found


def test_size_of_gain():
    paper, laptop = step_size.BUDGETS["paper"], step_size.BUDGETS["laptop"]
    assert paper.run_steps == step_size.PAPER_STEPS
    assert step_size._size_of_gain(GOOD, paper).standing == YES
    assert step_size._size_of_gain(GOOD, laptop).standing == UNKNOWN
    half = errors_by_step_size([0.05] * 4, [0.1] * 4)
    assert step_size._size_of_gain(half, paper).standing == NO


def test_width_of_range():
    assert step_size._width_of_range(GOOD).standing == YES
    assert step_size._width_of_range(BAD).standing == NO
    # Wider by one threshold only.
    assert step_size._width_of_range(errors_by_step_size([1, 1.2, 3, 9], [1, 1.7, 3, 9])).standing == NO


def test_small_step_size():
    budget = step_size.BUDGETS["laptop"]
    reference: Any = SimpleNamespace(floor=lambda num_samples: 0.1)
    short: Any = SimpleNamespace(floor=lambda num_samples: 0.5)
    assert step_size._small_step_size(GOOD, reference, budget).standing == YES
    assert step_size._small_step_size(BAD, reference, budget).standing == NO
    too_few = step_size._small_step_size(GOOD, short, budget)
    assert too_few.standing == UNKNOWN and "400 trajectories only" in too_few.found


def test_gap_by_step_size():
    assert step_size._gap_by_step_size(GOOD).standing == YES
    assert step_size._gap_by_step_size(BAD).standing == NO
    diverged = errors_by_step_size([0.12, 0.09, 0.1, 0.2], [0.9, 0.4, 0.1, math.inf])
    assert step_size._gap_by_step_size(diverged).standing == YES


def test_advantage_by_dimension():
    assert step_size._advantage_by_dimension(GOOD, BAD).standing == YES
    assert step_size._advantage_by_dimension(BAD, GOOD).standing == NO
    assert step_size._advantage_by_dimension(None, GOOD).standing == UNKNOWN


def rounds_by_local_steps(rounds_fn, rounds_run=10**9, relative_error=0.001):
    """Figure 1c's table; T that did not get there in ``rounds_run`` carry a bound."""
    budget = local_steps.BUDGETS["laptop"]
    rows = []
    for t in budget.local_steps:
        for epsilon in budget.epsilons:
            needed, run = rounds_fn(t, epsilon), rounds_run // t
            rows.append(
                {
                    "num_local_steps": t,
                    "epsilon": epsilon,
                    "rounds": min(needed, run),
                    "standard_error": relative_error * needed,
                    "is_bound": needed > run,
                }
            )
    return pd.DataFrame(rows)


def standings(table):
    return [claim.standing for claim in local_steps.claims_of(table, "laptop")]


def test_local_steps_of_the_paper():
    """A term in T² that weighs more the smaller ε is: a U around T = 70."""
    table = rounds_by_local_steps(lambda t, e: (5000 / t + 0.00729 * (0.065 / e) ** 2 * t**2) / e)
    claims = local_steps.claims_of(table, "laptop")
    assert [claim.standing for claim in claims] == [YES, YES, NO, YES]
    assert "ε = 0.2: T = 100" in claims[1].found and "ε = 0.065: T = 70" in claims[1].found
    # Bias that sets in at once, past T = 70.
    steep = rounds_by_local_steps(lambda t, e: (5000 / t + 3.57 * (t / 70) ** 20) / e**2)
    assert standings(steep)[:3] == [YES, YES, YES]


def test_falling_rounds_are_no_u():
    """Nor if the runs with large T were too short to see them arrive."""

    def falling(t, e):
        return 49000 / t**0.95 * (0.065 / e) ** 2

    assert standings(rounds_by_local_steps(falling)) == [NO, NO, YES, NO]
    cut_off = standings(rounds_by_local_steps(falling, rounds_run=60_000))
    assert cut_off[0] == NO and YES not in (cut_off[1], cut_off[3])
    assert standings(rounds_by_local_steps(falling, rounds_run=3000)) == [UNKNOWN] * 4


def test_a_u_within_noise_is_none():
    table = rounds_by_local_steps(lambda t, e: (5000 / t if t < 90 else 60) / e, relative_error=0.1)
    assert standings(table)[0] == UNKNOWN and standings(table)[1] == UNKNOWN


def test_a_bound_can_suffice():
    """T = 1 did not get there, but ran more than 65 times as long as the best T needed."""
    table = rounds_by_local_steps(lambda t, e: 1e6 if t == 1 else 100 / e, rounds_run=100_000)
    assert standings(table)[2] == YES
    table = rounds_by_local_steps(lambda t, e: 1e6 if t == 1 else 100 / e, rounds_run=10_000)
    assert standings(table)[2] == UNKNOWN


def test_gain_over_the_largest_by_a_bound():
    """At small ε T = 100 never arrives, after many times the rounds that the best T needs."""
    table = rounds_by_local_steps(lambda t, e: 5000 / t / e if t < 100 or e > 0.1 else 1e9, rounds_run=10**7)
    claim = local_steps.claims_of(table, "laptop")[3]
    assert claim.standing == YES and "more than" in claim.found


def test_smoke_judges_nothing():
    table = rounds_by_local_steps(lambda t, e: 1 / t / e)
    assert {claim.standing for claim in local_steps.claims_of(table, "smoke")} == {UNKNOWN}


def scores_of(means, sd=0.001, runs=6, varied="K", target="Fashion-MNIST"):
    """Last rounds of a sweep, after an earlier round that must not count."""
    rows = [
        {varied: value, "score": score, "round": round_, "mean": mean if round_ == 2 else 0.9}
        for score, by_value in means.items()
        for value, mean in by_value.items()
        for round_ in (1, 2)
    ]
    other = {"T": 50} if varied == "K" else {"K": 10}
    spread = sd if runs > 1 else math.nan
    return Comparisons(pd.DataFrame(rows).assign(target=target, varied=varied, sd=spread, runs=runs, **other))


SWEEP = {"nll": {1: 0.7, 10: 0.5, 50: 0.6}, "accuracy": {1: 0.7, 10: 0.9, 50: 0.8}}
AT = ("Fashion-MNIST", "K")


@pytest.mark.parametrize("score", SWEEP)
def test_best_and_worst(score):
    scores = scores_of(SWEEP)
    assert scores.order(*AT, score) == [10, 50, 1]
    assert [scores.best_is(*AT, score, value).standing for value in (10, 50)] == [YES, NO]
    assert [scores.worst_is(*AT, score, value).standing for value in (1, 50)] == [YES, NO]
    assert [scores.beaten_by_some(*AT, score, value).standing for value in (1, 10)] == [YES, NO]
    assert [scores.better(*AT, score, a, b).standing for a, b in ((10, 1), (1, 50))] == [YES, NO]


def test_noise_decides_nothing():
    noisy = scores_of(SWEEP, sd=0.2)
    for claim in (noisy.best_is(*AT, "nll", 10), noisy.worst_is(*AT, "nll", 1), noisy.beaten_by_some(*AT, "nll", 1)):
        assert claim.standing == UNKNOWN and "standard errors apart" in claim.found


def test_one_chain_is_judged_by_its_order():
    one = scores_of(SWEEP, runs=1)
    assert one.best_is(*AT, "nll", 10).standing == YES and "one chain each" in one.best_is(*AT, "nll", 10).found
    assert scores_of({"nll": {1: 0.5, 10: 0.5}}, runs=1).best_is(*AT, "nll", 1).standing == UNKNOWN


def test_diverged_settings_decide_nothing():
    for runs in (1, 6):
        nothing = scores_of({"ece": {1: math.nan, 10: math.nan}}, runs=runs)
        assert nothing.best_is(*AT, "ece", 1).standing == UNKNOWN and "diverged" in nothing.words(*AT, "ece")
        assert nothing.gain(*AT, "ece", 1, 26).standing == UNKNOWN
        assert nothing.best_is(*AT, "ece", 50).standing == UNKNOWN  # was not run at all


def test_gain():
    assert scores_of({"ece": {1: 0.1, 10: 0.075}}).gain(*AT, "ece", 1, 26).standing == YES
    assert scores_of({"ece": {1: 0.1, 10: 0.03}}).gain(*AT, "ece", 1, 26).standing == NO
    assert scores_of({"ece": {1: 0.1, 10: 0.11}}).gain(*AT, "ece", 1, 26).standing == NO


# The paper's words, as numbers.
BY_K = {
    "accuracy": {1: 0.82, 10: 0.83, 50: 0.84, 100: 0.81},
    "brier": {1: 0.26, 10: 0.25, 50: 0.24, 100: 0.25},
    "ece": {1: 0.030, 10: 0.025, 50: 0.024, 100: 0.0222},
    "nll": {1: 0.510, 10: 0.508, 50: 0.5, 100: 0.505},
}
BY_T = {
    "accuracy": {1: 0.7, 10: 0.8, 20: 0.81, 50: 0.82, 100: 0.83},
    "brier": {1: 0.4, 10: 0.3, 20: 0.29, 50: 0.28, 100: 0.3},
    "ece": {1: 0.2, 10: 0.1, 20: 0.1, 50: 0.1, 100: 0.1},
    "nll": {1: 0.9, 10: 0.6, 20: 0.5, 50: 0.6, 100: 0.6},
}


def flipped(means):
    """Best becomes worst."""
    return {score: {value: 1 - mean for value, mean in by_value.items()} for score, by_value in means.items()}


def test_figures_3_and_4_as_the_paper_has_them():
    assert {claim.standing for claim in images._claims_3(scores_of(BY_K, sd=1e-4))} == {YES}
    assert {claim.standing for claim in images._claims_4(scores_of(BY_T, sd=1e-4, varied="T"))} == {YES}
    assert YES not in {claim.standing for claim in images._claims_3(scores_of(flipped(BY_K), sd=1e-4))}
    assert YES not in {claim.standing for claim in images._claims_4(scores_of(flipped(BY_T), sd=1e-4, varied="T"))}


def both(first, second):
    return Comparisons(pd.concat([first._last, second._last]))


def test_figure_5_as_the_paper_has_it():
    by_k = {"accuracy": {1: 0.8, 10: 0.9, 50: 0.85}, "brier": {1: 0.1, 10: 0.2}, "ece": {1: 0.2, 10: 0.1}}
    by_t = {
        "accuracy": {1: 0.7, 10: 0.8, 50: 0.9},
        "brier": {1: 0.3, 10: 0.2, 50: 0.1},
        "ece": {1: 0.3, 10: 0.2, 50: 0.1},
    }
    claims = images._claims_5(both(scores_of(by_k, runs=1), scores_of(by_t, runs=1, varied="T")))
    assert len(claims) == 9 and {claim.standing for claim in claims} == {YES}
    claims = images._claims_5(both(scores_of(flipped(by_k), runs=1), scores_of(flipped(by_t), runs=1, varied="T")))
    assert {claim.standing for claim in claims} == {NO}


def test_figures_6_and_7_as_the_paper_has_them():
    by_k = {
        "accuracy": {1: 0.7, 10: 0.8, 50: 0.75},
        "brier": {1: 0.4, 10: 0.3, 50: 0.35},
        "ece": {1: 0.3, 10: 0.2, 50: 0.1},
    }
    claims = images._claims_6(both(scores_of(by_k, target="CF2"), scores_of(by_k, target="KMNIST")))
    assert len(claims) == 9 and {claim.standing for claim in claims} == {YES}
    wrong = flipped(by_k)
    claims = images._claims_6(both(scores_of(wrong, target="CF2"), scores_of(wrong, target="KMNIST")))
    assert {claim.standing for claim in claims} == {NO}

    by_t = {"accuracy": {1: 0.7, 10: 0.8}, "brier": {1: 0.4, 10: 0.3}, "ece": {1: 0.3, 10: 0.2}}
    cifar = by_t | {"accuracy": {1: 0.8, 10: 0.7}}
    claims = images._claims_7(
        both(scores_of(cifar, target="CF2", varied="T"), scores_of(by_t, target="KMNIST", varied="T"))
    )
    assert len(claims) == 6 and {claim.standing for claim in claims} == {YES}
