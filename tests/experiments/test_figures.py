"""Every figure at smoke scale: whole folders, finite tables, and what is certain of them."""

import json
import xml.etree.ElementTree as ET

import numpy as np
import pandas as pd
import pytest
from matplotlib.image import imread

from fahmc.errors import SettingsError
from fahmc.experiments import figure_2
from fahmc.experiments.catalogue import FIGURES
from fahmc.experiments.outcome import Standing
from fahmc.experiments.reproduce import reproduce

# Settings of each sweep at smoke scale, and rows of the table that belong to one of them. 1d is 1a in 10 dimensions.
SHAPES = {
    "1a": {"method": 2, "step_size": 2, "num_leapfrog_steps": 4},
    "1b": {"method": 2, "step_size": 2, "num_leapfrog_steps": 4},
    "1c": {"num_local_steps": 3, "epsilon": 2},
    "2": {"way": 2, "dim": 6},
    "3": {"K": 2, "T": 1, "score": 4, "phase": 2, "round": 4, "step_size": 2},
    "4": {"K": 1, "T": 2, "score": 4, "phase": 2, "round": 4, "step_size": 1},
    "5": {"varied": 2, "K": 2, "T": 2, "score": 3, "phase": 2, "round": 4},
    "6": {"target": 2, "K": 2, "T": 1, "score": 3, "phase": 2, "round": 4},
    "7": {"target": 2, "K": 1, "T": 2, "score": 3, "phase": 2, "round": 4},
}

# In one process, which has one such folder.
pytestmark = pytest.mark.xdist_group("figures")


@pytest.fixture(scope="session")
def out(tmp_path_factory):
    """One folder for all figures, which share references and runs."""
    return tmp_path_factory.mktemp("figures")


@pytest.fixture
def without_data(monkeypatch, tmp_path):
    """No images on this machine: simulated ones stand in."""
    monkeypatch.setenv("FAHMC_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_smoke(name, out, without_data):
    outcome, _ = reproduce(FIGURES[name], out, "smoke")
    folder = out / name

    table = pd.read_csv(folder / "table.csv")
    assert {column: table[column].nunique() for column in SHAPES[name]} == SHAPES[name]
    numbers = {"1c": ["rounds_run"], "2": ["rounds"]}.get(name, ["me"] if name[0] == "1" else ["mean"])
    assert np.isfinite(table[numbers]).all(axis=None)

    assert imread(folder / "figure.png").shape[0] > 300
    assert ET.parse(folder / "figure.svg").getroot().tag.endswith("svg")
    verdict = (folder / "verdict.md").read_text(encoding="utf-8")
    settings = json.loads((folder / "settings.json").read_text(encoding="utf-8"))
    assert outcome.claims and len(settings["claims"]) == len(outcome.claims)
    assert all(claim.statement in verdict and claim.standing in verdict for claim in outcome.claims)
    assert all(note in verdict for note in outcome.notes)
    assert settings["scale"] == "smoke" and settings["machines"][0]["date"] in verdict and settings["runs"]
    if name != "2":
        assert {claim.standing for claim in outcome.claims} == {Standing.OUT_OF_REACH}
    if name in "34567":
        assert "Simulated images" in verdict and "temperature 1" in verdict
    assert f"[{name}: " in (out / "index.md").read_text(encoding="utf-8")


def test_small_steps_hurt_langevin_more(out, without_data):
    """K = 104 steps of 0.01 cross the posterior; 104 refreshed ones make a random walk a tenth as long."""
    table = reproduce(FIGURES["1a"], out, "smoke")[0].table
    error = table[table["step_size"] == 0.01].set_index("method")["me"]
    assert error["FA-LD"] > 1.2 * error["FA-HMC"]


def test_figure_2_agrees_with_the_exact_law(out):
    outcome, _ = reproduce(FIGURES["2"], out, "smoke")
    assert [claim.standing for claim in outcome.claims] == [Standing.REPRODUCED] * 2
    table = outcome.table
    assert (figure_2.deviations(table)["z"].abs() < figure_2.MAX_Z).all()

    wrong = table.copy()
    wrong.loc[wrong["way"] == "simulation", "rounds"] *= 1.15
    assert not (figure_2.deviations(wrong)["z"].abs() < figure_2.MAX_Z).any()


def test_rounds_squared_are_linear_in_the_dimension():
    dims = [2, 100, 400, 1000]
    table = pd.DataFrame({"dim": dims, "rounds": [figure_2.exact_rounds(dim) for dim in dims]})
    slope, _, r2 = figure_2.line_through_squares(table)
    assert r2 > 0.98 and slope > 0
    # Rounds that grow like d itself, as with η ∝ d^-½, must not pass.
    assert figure_2.line_through_squares(table.assign(rounds=table["rounds"] ** 2))[2] < 0.98


def test_a_larger_scale_is_not_replaced(out):
    reproduce(FIGURES["2"], out, "smoke")
    path = out / "2" / "settings.json"
    content = path.read_text(encoding="utf-8")
    try:
        path.write_text(content.replace('"scale": "smoke"', '"scale": "laptop"'), encoding="utf-8")
        with pytest.raises(SettingsError, match="holds this figure at laptop scale"):
            reproduce(FIGURES["2"], out, "smoke")
        # What cannot be read is no reason to refuse, nor to fail.
        path.write_text("{", encoding="utf-8")
        reproduce(FIGURES["2"], out, "smoke")
    finally:
        path.write_text(content, encoding="utf-8")


def test_finished_runs_are_not_repeated(tmp_path, monkeypatch):
    """A figure that is stopped goes on where it was, and comes to the same numbers."""
    budget = figure_2.Budget(dims=(1, 2, 3, 4, 5, 6), simulated_dims=(2,), num_chains=500, num_values=1000)
    monkeypatch.setitem(figure_2.BUDGETS, "smoke", budget)
    whole = reproduce(FIGURES["2"], tmp_path / "whole", "smoke")[0].table
    done = []

    def stop_at_five(number, total, doing):
        done.append(number)
        if number == 5:
            raise KeyboardInterrupt

    other = tmp_path / "stopped"
    with pytest.raises(KeyboardInterrupt):
        reproduce(FIGURES["2"], other, "smoke", stop_at_five)
    results = other / ".work" / "smoke" / "results.jsonl"
    before = results.read_text(encoding="utf-8")
    table = reproduce(FIGURES["2"], other, "smoke")[0].table
    pd.testing.assert_frame_equal(table, whole)
    after = results.read_text(encoding="utf-8")
    assert len(before.splitlines()) == 5 and after.startswith(before) and len(after.splitlines()) == len(table)
