"""The bench of the certificate: what counts as wrong, and the two runs that were wrongly called good."""

import json

import numpy as np
import pytest

import fahmc
from fahmc.bench import certificate
from fahmc.bench.certificate import Case, Results, Trial, cases, run_case
from fahmc.bench.rounds.problems import Problem
from fahmc.bench.rounds.references import Reference
from fahmc.dynamics.debiased import DebiasedFAHMC
from fahmc.dynamics.fa_hmc import FAHMC


def trial(status="good", shift=0.01, excess=0.01):
    known: dict = {"shifts": [shift], "shift_errors": [0.01], "cv_shifts": [0.0], "excesses": [excess]}
    known |= {"excess_errors": [0.01], "true_shifts": [shift], "true_excesses": [excess]}
    return Trial("opt", "FAHMC(0.1, 5)", 100, status, converged=True, variance_ratio=10.0, **known)


def test_a_false_green_is_counted_and_shown(tmp_path):
    trials = [trial(), trial(shift=0.2), trial(excess=-0.2), trial("bad", shift=0.3), trial("unknown")]
    results = Results(trials, 1.0)
    facts = results.facts()
    assert (facts["false_greens"], facts["wrong"], facts["right"], facts["right_and_green"]) == (2, 3, 2, 1)
    assert facts["wrong_but_converged"] == 3 and facts["correlation_of_shifts"] == pytest.approx(1.0)
    results.write(tmp_path)
    assert (tmp_path / "table.md").read_text().count("good, wrongly") == 2
    assert json.loads((tmp_path / "results.json").read_text())["facts"]["runs"] == 5


def test_there_are_enough_runs_and_the_wrongly_green_ones_are_among_them():
    chosen = list(cases())
    assert len(chosen) >= 30 and len(set(chosen)) == len(chosen)
    labels = {(case.problem, case.label) for case in chosen}
    assert {("heart", "DebiasedFAHMC(0.03, 8)"), ("heart", "FAHMC(0.015, 5)")} <= labels
    assert {case.kind for case in chosen} == {FAHMC, DebiasedFAHMC} and any("FALD" in label for _, label in labels)


def unlike_clients():
    """Return a Gaussian posterior of two clients that pull apart, with its exact moments: an analogue that is quick."""
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(100, 2)), rng.normal(size=(100, 2)) @ np.diag([0.3, 2.0])]
    y = [
        rows @ np.array([1.0, -1.0]) + shift + rng.normal(size=100) for rows, shift in zip(x, (2.0, -2.0), strict=True)
    ]
    federation = fahmc.Federation.from_clients([{"x": a, "y": b} for a, b in zip(x, y, strict=True)])
    model = fahmc.Model(
        loglikelihood_fn=lambda position, batch: -0.5 * (batch["y"] - batch["x"] @ position["w"]) ** 2,
        init={"w": np.zeros(2)},
    )
    rows, outcomes = np.concatenate(x), np.concatenate(y)
    covariance = np.linalg.inv(rows.T @ rows)
    mean, sd = covariance @ rows.T @ outcomes, np.sqrt(np.diag(covariance))
    nothing = np.zeros(2)
    return Problem("unlike", model, federation, 1), Reference(mean, sd, nothing, nothing, 1e9, 1.0, 0, 0.0)


@pytest.mark.parametrize(
    ("kind", "step_size", "steps", "is_right"),
    [(FAHMC, 0.03, 6, False), (DebiasedFAHMC, 0.03, 4, True), (FAHMC, 0.01, 3, True)],
)
def test_chains_that_agree_on_a_wrong_posterior_are_not_green(monkeypatch, kind, step_size, steps, is_right):
    monkeypatch.setattr(certificate, "_NUM_CHAINS", 4)
    result = run_case(Case("unlike", kind, step_size, steps, 4000), *unlike_clients())
    assert result.converged, "R-hat and ESS see nothing"
    assert result.is_wrong != is_right and (result.status == "good") == is_right
    assert np.allclose(np.array(result.shifts, float), result.true_shifts, atol=0.02)
    assert np.allclose(np.array(result.excesses, float), result.true_excesses, atol=0.02)
