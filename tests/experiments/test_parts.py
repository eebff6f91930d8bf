"""What figures are made of: jobs, references, claims."""

import json
import math

import numpy as np
import pandas as pd
import pytest

from fahmc.errors import SettingsError
from fahmc.experiments import figure_1_local_steps as local_steps
from fahmc.experiments import figure_2
from fahmc.experiments.catalogue import choose
from fahmc.experiments.chains import run_chains, section_5
from fahmc.experiments.comparisons import Comparisons
from fahmc.experiments.outcome import Standing
from fahmc.experiments.simulated import LogisticStudy, mhmc_reference
from fahmc.experiments.work import Work
from fahmc.report.distances import marginal_error


def test_a_job_is_done_once(tmp_path):
    calls = []

    def compute(checkpoints):
        checkpoints.mkdir()
        calls.append(checkpoints)
        return {"value": float("nan"), "list": (1, 2)}

    first = Work(tmp_path).once({"a": 1}, compute)
    again = Work(tmp_path)
    assert again.once({"a": 1}, compute)["list"] == first["list"] == [1, 2]
    assert len(calls) == 1 and not calls[0].exists()
    assert again.seconds > 0
    Work(tmp_path).once({"a": 2}, compute)
    assert len(calls) == 2 and calls[0] != calls[1]


def test_a_torn_line_is_done_again(tmp_path):
    """A kill in the middle of writing costs that job, and no other."""
    for value in (1, 2):
        Work(tmp_path).once({"job": value}, lambda _, value=value: {"value": value})
    path = tmp_path / "results.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    done = []
    work = Work(tmp_path)
    for value in (1, 2):
        work.once({"job": value}, lambda _, value=value: done.append(value) or {"value": value})
    assert done == [2]
    again = Work(tmp_path)
    assert [again.once({"job": value}, lambda _: pytest.fail("not kept"))["value"] for value in (1, 2)] == [1, 2]


def test_progress_counts_jobs(tmp_path):
    seen = []
    work = Work(tmp_path, lambda *state: seen.append(state))
    work.expect(1)
    work.once({"a": 1}, lambda _: {}, "first")
    work.once({"a": 2}, lambda _: {}, "not announced")
    assert seen[0] == (0, 1, "") and seen[-1] == (2, 2, "not announced")


def test_reference_is_long_enough_and_kept(tmp_path):
    study = LogisticStudy(4, num_rows=60, num_clients=3)
    reference = mhmc_reference(study, 4000, Work(tmp_path))
    assert reference.facts["max_split_r_hat"] < 1.01 and reference.facts["acceptance_rate"] > 0.6
    assert reference.draws.shape == reference.independent.shape == (4000, 4)
    assert not np.array_equal(reference.draws, reference.independent)
    # The floor falls with the number of samples, and is what the independent run shows.
    assert reference.floor(4000) == marginal_error(reference.independent, reference.draws)
    assert reference.floor(50) > 2 * reference.floor(4000)

    (path,) = (tmp_path / "references").iterdir()
    written = path.stat().st_mtime_ns
    assert np.array_equal(mhmc_reference(study, 4000, Work(tmp_path)).draws, reference.draws)
    assert path.stat().st_mtime_ns == written
    path.write_bytes(b"not a reference")
    assert np.array_equal(mhmc_reference(study, 4000, Work(tmp_path)).draws, reference.draws)


def test_crossings():
    assert local_steps.first_round_below([10, 20, 40], [0.4, 0.2, 0.1], 0.2) == pytest.approx(20)
    # Log-linear: ME falls like 1/rounds here, so 0.15 is reached at 4/0.15.
    assert local_steps.first_round_below([10, 20, 40], [0.4, 0.2, 0.1], 0.15) == pytest.approx(4 / 0.15)
    assert local_steps.first_round_below([10, 20], [0.4, 0.2], 0.1) == math.inf
    looks = local_steps.looking_times(1000)
    assert looks[0] == 4 and looks[-1] == 1000 and np.all(np.diff(looks) > 0)
    rounds = np.arange(1, 50)
    assert figure_2.fitted_crossing(rounds, np.exp(-0.1 * rounds)) == pytest.approx((-10 * math.log(0.1), -0.1))


def test_exact_rounds_end_below_the_target():
    """Iterating the law of both coordinates together gives the same rounds as one coordinate twice."""
    from fahmc import theory

    clients = theory.GaussianClients(
        np.array(figure_2.MEANS)[:, None] * np.ones(2),
        np.eye(2) / np.array(figure_2.VARIANCES)[:, None, None],
        np.array([0.5, 0.5]),
    )
    assert np.allclose(clients.posterior().mean, 16.2) and np.allclose(clients.posterior().covariance, 1.6 * np.eye(2))
    dynamics = theory.Dynamics(figure_2.step_size(2), 5, 10, sync_unit="leapfrog")
    rounds = math.ceil(figure_2.exact_rounds(2))
    before, after = (
        theory.w2_to_posterior(clients, theory.law_after(clients, dynamics, number)) ** 2
        for number in (rounds - 1, rounds)
    )
    assert after < figure_2.TARGET <= before


def test_diverged_chains_are_told_apart():
    study = LogisticStudy(5, num_rows=40, num_clients=2)
    assert run_chains(study.model, study.federation, section_5(50.0, 5, 10), 20, None, num_chains=2) is None


def test_comparisons():
    rows = [
        {"target": "A", "varied": "K", "K": k, "T": 50, "score": score, "round": r, "mean": mean - r / 100, "sd": 0.01}
        for score, means in {"accuracy": [0.7, 0.9, 0.8], "nll": [0.7, 0.5, 0.6]}.items()
        for k, mean in zip((1, 10, 50), means, strict=True)
        for r in (1, 2)
    ]
    scores = Comparisons(pd.DataFrame(rows))
    assert scores.order("A", "K", "accuracy") == [10, 50, 1] == scores.order("A", "K", "nll")
    assert scores.best_is("A", "K", "nll", 10).standing == Standing.REPRODUCED
    assert scores.best_is("A", "K", "nll", 50).standing == Standing.NOT_REPRODUCED
    assert scores.worst_is("A", "K", "accuracy", 1).standing == Standing.REPRODUCED
    assert scores.best_is_not("A", "K", "accuracy", 10).standing == Standing.NOT_REPRODUCED
    assert scores.gain_over("A", "K", "nll", 1) == pytest.approx(1 - 0.48 / 0.68)
    assert "K = 10: 0.8800 ± 0.0100, K = 50: 0.7800" in scores.words("A", "K", "accuracy")


def test_a_setting_that_diverged_is_worst():
    rows = [
        {"target": "A", "varied": "T", "K": 10, "T": t, "score": "ece", "round": 1, "mean": mean, "sd": math.nan}
        for t, mean in ((1, 0.3), (10, math.nan))
    ]
    assert Comparisons(pd.DataFrame(rows)).order("A", "T", "ece") == [1, 10]


def test_local_step_claims():
    """Rounds like 5000/T + 0.02 T² have their smallest value at T = 50."""
    budget = local_steps.BUDGETS["laptop"]
    rows = [
        {"num_local_steps": t, "epsilon": e, "rounds": (5000 / t + 0.02 * t**2) / e, "standard_error": 1.0}
        for t in budget.local_steps
        for e in budget.epsilons
    ]
    claims = local_steps._claims(pd.DataFrame(rows), budget, "laptop")
    assert [claim.standing == Standing.REPRODUCED for claim in claims] == [True, False, False, False]
    assert "T = 50" in claims[1].found and "33.3 times fewer" in claims[2].found
    # Without bias the largest T is best, and there is no U.
    falling = pd.DataFrame(rows).assign(rounds=lambda table: 5000 / table["num_local_steps"] / table["epsilon"])
    claims = local_steps._claims(falling, budget, "laptop")
    assert [claim.standing == Standing.REPRODUCED for claim in claims] == [False, False, True, False]


def test_unknown_figures_get_a_sentence():
    with pytest.raises(SettingsError, match="no figure '8'; the figures are 1a, 1b"):
        choose(["8"])
    assert [figure.name for figure in choose(["2", "1a"])] == ["1a", "2"] and len(choose(["all"])) == 10


def test_results_are_json(tmp_path):
    Work(tmp_path).once({"η": 0.1}, lambda _: {"me": [0.5]})
    (line,) = (tmp_path / "results.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(line)["job"] == {"η": 0.1}
