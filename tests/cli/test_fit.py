"""`fahmc check` and `fahmc loo`: what they print, what they put into the report, and how they end."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from test_app import SHORT, fails, invoke, without_report, write_study

import fahmc
from fahmc.cli import fit as fit_file
from fahmc.cli.folder import ResultFolder
from fahmc.draws import Draws
from fahmc.report.fit import FitReport, fit_section

# The second never makes a 1 where there are some.
OWN = """
import dataclasses, jax, jax.numpy as jnp
import fahmc

ready = fahmc.models.logistic_regression()
model = dataclasses.replace(
    ready,
    sample_fn=lambda key, position, batch: jax.random.bernoulli(key, ready.predict(position, batch)).astype("float32"),
)
wrong = dataclasses.replace(ready, sample_fn=lambda key, position, batch: jnp.zeros(len(batch["y"])))
silent = dataclasses.replace(ready, sample_fn=None)
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return folders of one run, and of two as if other models had been sampled: the last cannot make outcomes."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "own_fit.py").write_text(OWN)
    text = SHORT.replace('name = "logistic_regression"', 'object = "own_fit:model"')
    assert invoke("sample", write_study(folder, text), "-o", folder / "model", "--quiet").exit_code == 0
    for name in ("wrong", "silent"):
        shutil.copytree(folder / "model", folder / name)
        (folder / name / "config.toml").write_text(text.replace("own_fit:model", f"own_fit:{name}"))
    return folder


def test_a_run_in_one_process_says_whether_it_fits(runs):
    results = ResultFolder(runs / "model")
    draws = Draws.load(results.draws)
    fit = results.read_fit(draws)
    assert fit is not None and fit.fits and not fit.remarks
    assert fit.predictive is not None and fit.predictive.is_binary and fit.predictive.num_rows == 80
    page, markdown = (results.path / name for name in ("report.html", "summary.md"))
    assert "does not fit all of the rows" not in page.read_text()
    assert "<h2>Does it fit?</h2>" in page.read_text() and '<figure id="calibration">' in page.read_text()
    assert "## Does it fit?" in markdown.read_text() and "elpd_loo" in markdown.read_text()
    assert {"predictive.png", "calibration.png"} <= set(results.files())
    # It is of these draws, and of no others.
    other = fahmc.Draws({"b": np.zeros((2, 30))}, draws.stats, (), None, {}, {})
    assert results.read_fit(other) is None
    again = FitReport.from_text(fit.as_text())
    assert again == fit and list(fit_section(again).tables) == [
        "statistic",
        "chances of a 1",
        "leave-one-out cross-validation",
    ]


def test_check_says_so_and_its_exit_code_too(runs, monkeypatch):
    without_report(monkeypatch)
    result = invoke("check", runs / "model", "--strict")
    assert result.exit_code == 0, result.output
    for words in ("Posterior predictive check: 80 outcomes", "Brier score", "elpd_loo", "AUC"):
        assert words in result.stdout
    monkeypatch.undo()
    result = invoke("check", runs / "wrong", "--strict", "--json")
    page = (runs / "wrong" / "report.html").read_text()
    assert "Their model does not fit all of the rows" in page.split("<h2>All parameters</h2>")[0]
    without_report(monkeypatch)
    values = json.loads(result.stdout)
    assert result.exit_code == values["exit_code"] == 7 and not values["fits"]
    assert values["predictive"]["statistics"]["mean"][-1] < 0.005 and values["loo"]["num_rows"] == 80
    # What has no answer is told beside what has one.
    values = json.loads(invoke("check", runs / "silent", "--json").stdout)
    assert (
        values["predictive"] is None
        and "The predictive check was not computed. The model has no" in values["remarks"][0]
    )
    assert values["fits"] and values["loo"]["num_rows"] == 80


def test_loo_of_one_run_and_of_several(runs):
    values = json.loads(invoke("loo", runs / "model", "--json").stdout)
    draws, job, _ = fit_file._find(runs / "model")
    expected = draws.loo(job.federation, model=job.model)
    assert values["elpd_loo"] == pytest.approx(expected.elpd_loo) and list(values["sites"]) == ["north", "south"]
    compared = json.loads(invoke("loo", runs / "model", runs / "wrong", "--json").stdout)
    assert compared["table"]["model"]["elpd_loo"] == pytest.approx(expected.elpd_loo)
    assert set(compared["models"]) == {"model", "wrong"} and "predict about equally well" in compared["sentence"]


def test_refusals(runs, tmp_path):
    assert "holds no run of `fahmc sample`" in fails(4, "check", tmp_path)
    assert "named twice" in fails(2, "loo", runs / "model", runs / "model")
    (tmp_path / "job.json").write_bytes((runs / "model" / "job.json").read_bytes())
    (tmp_path / "config.toml").write_bytes((runs / "model" / "config.toml").read_bytes())
    assert "holds no draws.nc" in fails(4, "loo", tmp_path)
    (runs / "silent" / "fit.json").write_text("{")
    assert "fit.json cannot be read" in fails(4, "report", runs / "silent")
    Path(runs / "silent" / "fit.json").unlink()
