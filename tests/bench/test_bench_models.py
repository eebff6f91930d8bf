"""`fahmc bench models`: one case from end to end, and what becomes of a wrong verdict."""

import json
from dataclasses import replace

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

from fahmc import registry
from fahmc.bench.models import cases, suite
from fahmc.bench.models.results import Compared, Results
from fahmc.cli.app import app

GOOD = Compared("here", 5, 3000.0, 0.02, 1.01, "good", 0.01)


@pytest.fixture
def _as_users_have_it():
    """Let JAX be set as it is by default."""
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"), jax.debug_key_reuse(False):
        yield


def bench(*arguments):
    return CliRunner().invoke(app, ["bench", "models", *arguments])


@pytest.mark.usefixtures("_as_users_have_it")
def test_the_command_compares_with_numpyro(tmp_path):
    done = bench("--quick", "--json", "--out", str(tmp_path))
    assert done.exit_code == 0, done.stderr
    [found] = json.loads(done.stdout)["models"]
    # A hundred draws a chain: errors of some twentieths of an sd are NumPyro's own.
    assert found["model"] == "exponential_survival" and found["verdict"] == "good"
    assert found["mean_error"] < 0.3 and 0.7 < found["sd_ratio"] < 1.3
    assert {file.name for file in tmp_path.iterdir()} == {".fahmc", "results.json", "table.md"}


def test_every_regression_has_a_case():
    assert set(registry.choices("model")) - {"mlp"} <= set(cases.names())


@pytest.mark.parametrize(
    ("change", "is_wrong"),
    [
        ({}, False),
        ({"mean_error": 0.16}, True),
        ({"sd_ratio": 0.85}, True),
        ({"sd_ratio": np.nan}, True),
        ({"mean_error": 0.5, "verdict": "unknown"}, False),
    ],
)
def test_a_good_verdict_on_a_wrong_posterior_ends_with_7(change, is_wrong, tmp_path, monkeypatch):
    results = Results(compared=[GOOD, replace(GOOD, model="there", **change)])
    monkeypatch.setattr(suite, "run_cases", lambda chosen, *, is_quick, log: results)
    done = bench("--problem", "exponential_survival", "--out", str(tmp_path))
    assert done.exit_code == (7 if is_wrong else 0)
    assert f"; {int(is_wrong)} of these are wrong" in (tmp_path / "table.md").read_text()


def test_a_run_that_fails_is_told(tmp_path):
    text = Results(compared=[Compared("here", error="There is no posterior.")]).as_markdown()
    assert "here: There is no posterior." in text and "| here | nan | nan |" in text


def test_other_cases_and_options_are_refused(tmp_path):
    done = bench("--problem", "heat", "--out", str(tmp_path))
    assert done.exit_code == 2 and "There is no case 'heat'; choose from linear_regression" in done.stderr
    done = bench("--seeds", "2", "--out", str(tmp_path))
    assert done.exit_code == 2 and "it is for `fahmc bench rounds`" in done.stderr
