"""`fahmc compare`, and `--strict`: verdicts as exit codes."""

import dataclasses
import json

import numpy as np
import pytest
from typer.testing import CliRunner

from fahmc.cli.app import app
from fahmc.cli.folder import ResultFolder
from fahmc.draws import Draws


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def made(seed=0, shift=0.0, spread=1.0, with_gradients=True, num_draws=1000):
    """Return draws near a standard normal of three parameters."""
    values = shift + spread * np.random.default_rng(seed).normal(size=(4, num_draws, 3))
    stats = {"diverging": np.zeros(values.shape[:2], bool)}
    settings = {"sampler": {"name": "FAHMC", "step_size": 0.1, "num_leapfrog_steps": 5}, "num_rounds": num_draws}
    settings |= {"ended": "complete"}
    cost = {"rounds": 1500.0, "seconds": 1.0, "bytes_to_clients": 12e3, "bytes_to_server": 24e3}
    draws = Draws({"w": values}, stats, ("a", "b"), None, settings, cost)
    return dataclasses.replace(draws, gradients=values) if with_gradients else draws


@pytest.fixture
def runs(tmp_path):
    """Return paths: the same law twice, a moved one, a wider one; the first as a folder."""
    (tmp_path / "first").mkdir()
    made(1).save(tmp_path / "first" / "draws.nc")
    for name, draws in {"same": made(2), "moved": made(3, shift=0.2), "wide": made(4, spread=1.2)}.items():
        draws.save(tmp_path / f"{name}.nc")
    return tmp_path


def test_runs_of_one_law_agree(runs):
    result = invoke("compare", runs / "first", runs / "same.nc", "--strict")
    assert result.exit_code == 0, result.output
    words = " ".join(result.stdout.split())
    assert "No mean differs by more than chance" in words and "No standard deviation differs" in words
    assert "in 99 of 100 comparisons" in words and "1,500 rounds, 12.0 kB to clients, 24.0 kB back" in words


@pytest.mark.parametrize(("name", "part"), [("moved", "means_agree"), ("wide", "sds_agree")])
def test_runs_that_differ_are_told_apart(runs, name, part):
    result = invoke("compare", runs / "first", runs / f"{name}.nc", "--json", "--strict")
    assert result.exit_code == 7
    values = json.loads(result.stdout)
    assert values["exit_code"] == 7 and not values["agree"]
    assert [key for key in ("means_agree", "sds_agree") if not values[key]] == [part]
    assert values["parameters"].keys() == {"w[0]", "w[1]", "w[2]"} and values["false_alarm"] == 0.01
    assert values["runs"]["second"]["cost"]["rounds"] == 1500
    row = values["parameters"]["w[0]"]
    assert row["sd_ratio"] == pytest.approx(row["sd"] / row["other_sd"])
    assert invoke("compare", runs / "first", runs / f"{name}.nc", "--quiet").exit_code == 0


def test_chance_alone_rarely_differs():
    from fahmc.cli.compare import comparison_table, conclude

    runs = [made(seed, num_draws=250) for seed in range(40)]
    verdicts = [conclude(comparison_table(*pair)) for pair in zip(runs[::2], runs[1::2], strict=True)]
    assert sum(not verdict["agree"] for verdict in verdicts) <= 2


def test_what_cannot_be_compared(runs, tmp_path):
    other = dataclasses.replace(made(5), positions={"v": np.ones((4, 1000, 1))}, gradients=None)
    other.save(tmp_path / "other.nc")
    result = invoke("compare", runs / "first", tmp_path / "other.nc")
    assert result.exit_code == 3 and "compare runs of one model" in result.stderr
    assert invoke("compare", runs / "first", tmp_path / "absent.nc").exit_code == 4
    assert "no draws.nc" in invoke("compare", runs, runs / "same.nc").stderr


def test_a_strict_report_fails_unless_good(runs, monkeypatch):
    monkeypatch.setattr(ResultFolder, "write_report", lambda self, *arguments: self.report.touch())
    assert invoke("report", runs / "same.nc", "--strict").exit_code == 0
    result = invoke("report", runs / "moved.nc", "--strict", "--json")
    values = json.loads(result.stdout)
    assert result.exit_code == values["exit_code"] == 7
    assert (values["verdict"]["status"], list(values["verdict"]["setting"])) == ("bad", ["step_size"])
    assert values["bias_found_by"] == "gradients"
    assert values["parameters"]["w[0]"]["mean_shift"] == pytest.approx(0.2, abs=0.1)
    made(1, with_gradients=False).save(runs / "unknown.nc")
    assert invoke("report", runs / "unknown.nc", "--strict", "--quiet").exit_code == 7
    assert invoke("report", runs / "unknown.nc", "--quiet").exit_code == 0
