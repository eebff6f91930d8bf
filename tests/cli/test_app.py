"""The commands: what they print, what they leave behind, and how they end."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import pytest
from filelock import FileLock
from typer.testing import CliRunner

import fahmc
from assertions import assert_same_mean
from fahmc.cli import demo, runs
from fahmc.cli.app import app
from fahmc.cli.folder import ResultFolder

CONFIG = """\
[model]
name = "logistic_regression"

[data]
file = "rows.csv"
site_column = "site"
outcome = "ill"
outcome_positive = "yes"

[sampler]
name = "FAHMC"
step_size = 0.2
num_leapfrog_steps = 3

[run]
num_rounds = {num_rounds}
num_warmup_rounds = 20
num_chains = 2
thin = {thin}
seed = 5
dtype = "float32"
"""
SHORT = CONFIG.format(num_rounds=60, thin=1)
# As it is before any test: real federations take XLA's flags out of it, and processes that compile otherwise than this
# one would draw other bits.
ENVIRONMENT = dict(os.environ)
# Long enough that a signal comes in time, thin enough that its report is quick.
LONG = CONFIG.format(num_rounds=40_000, thin=100)
REPORT_FILES = {"report.html", "summary.md", "summary.csv", "forest.png", "marginals.png", "trace.png", "drift.png"}


def write_study(folder, text=SHORT):
    rng = np.random.default_rng(0)
    rows = ["site,dose,sex,ill"]
    for site, shift in (("north", 0.5), ("south", -0.5)):
        for dose in rng.normal(shift, 1.0, 40):
            sex, is_ill = rng.choice(["f", "m"]), rng.random() < 1 / (1 + np.exp(-dose))
            rows.append(f"{site},{dose:.4f},{sex},{'yes' if is_ill else 'no'}")
    (folder / "rows.csv").write_text("\n".join(rows) + "\n")
    config = folder / "study.toml"
    config.write_text(text)
    return config


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def fails(code, *arguments):
    """Run a command that must end with a code, and return its one sentence."""
    result = invoke(*arguments)
    assert result.exit_code == code, result.output
    assert result.stdout == "" and result.stderr.startswith("fahmc: error: ") and "Traceback" not in result.stderr
    return result.stderr


def start(*arguments):
    command = [sys.executable, "-m", "fahmc.cli.app", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)


def without_report(monkeypatch):
    """Leave out what takes seconds, where it is not what is tested."""
    monkeypatch.setattr(ResultFolder, "write_report", lambda self, *arguments: self.report.touch())
    monkeypatch.setattr(runs, "check_cheaply", lambda *arguments: None)


def run(*arguments):
    """Run the real command to its end, in a process that is set up as a user's is: tests change JAX's settings."""
    process = start(*arguments)
    printed, errors = process.communicate(timeout=120)
    return process.returncode, printed, errors


def stop_in_the_middle(folder, number, *options):
    """Start the long run and send it a signal once some draws are on disk."""
    process = start("sample", folder / "study.toml", "--output", folder / "out", *options)
    deadline = time.monotonic() + 60
    while sum(int(np.load(file)["rounds"]) for file in (folder / "out" / "checkpoint").glob("block-*.npz")) < 300:
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.01)
    process.send_signal(number)
    return process


def same_draws(one, other):
    one, other = fahmc.Draws.load(one), fahmc.Draws.load(other)
    # The drift is a sum over rounds in float32, block by block: where blocks end decides its last digits.
    assert np.allclose(one.client_drift, other.client_drift, rtol=1e-4)
    same_stats = all(one.stats[name].tobytes() == other.stats[name].tobytes() for name in one.stats)
    return same_stats and one.flat().tobytes() == other.flat().tobytes()


@pytest.fixture(scope="module")
def short_run(tmp_path_factory):
    """Return a finished run through the real command, and the JSON it printed."""
    folder = tmp_path_factory.mktemp("short")
    code, printed, errors = run("sample", write_study(folder), "--json")
    assert code == 0, errors
    return folder / "fahmc-run", json.loads(printed)


@pytest.fixture(scope="module")
def long_run(tmp_path_factory):
    """Return the draws of the long run, undisturbed."""
    folder = tmp_path_factory.mktemp("long")
    with pytest.MonkeyPatch.context() as patch:
        without_report(patch)
        result = invoke("sample", write_study(folder, LONG), "--output", folder / "out", "--quiet")
    assert result.exit_code == 0 and result.output == ""
    return folder / "out" / "draws.nc"


def test_help_and_version():
    assert run("--version") == (0, f"fahmc {version('fahmc')}\n", "")
    text = " ".join(invoke("--help").stdout.split())
    assert all(command in text for command in ("demo", "sample", "resume", "report"))
    assert "0 success; 1 unexpected error; 2 wrong usage" in text and "130 interrupted" in text


def test_help_does_not_wait_for_heavy_imports():
    code = "import sys, fahmc.cli.app; print([m for m in ('arviz', 'pandas', 'matplotlib') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_wrong_usage():
    assert invoke("sample").exit_code == 2
    assert invoke("sampel").exit_code == 2


@pytest.mark.parametrize("is_found", [True, False])
def test_what_to_type_next_is_what_the_shell_finds(is_found, tmp_path, monkeypatch):
    command = tmp_path / "environment" / "bin" / "fahmc"
    command.parent.mkdir(parents=True)
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [str(command)])
    monkeypatch.setenv("PATH", str(command.parent) if is_found else str(tmp_path))
    steps = demo._next_steps(Path("fahmc-demo"))
    if is_found:
        assert steps[2].startswith("  fahmc sample study.toml") and "activate" not in steps[-1]
    else:
        assert steps[2].startswith("  environment/bin/fahmc sample") and "environment/bin/activate" in steps[-1]


one_demo = pytest.mark.xdist_group("one demo")


@pytest.fixture(scope="module")
def demo_run(tmp_path_factory):
    """Return the folder of a demo, and what it printed."""
    folder = tmp_path_factory.mktemp("demo")
    result = invoke("demo", "--output", folder)
    assert result.exit_code == 0, result.stderr
    return folder, result


@one_demo
def test_demo_end_to_end(demo_run):
    folder, result = demo_run
    for words in ("log odds ratio", "odds ratio (median)", "R-hat", "effective sample size", "bytes that would leave",
                  "education[over 12 years]", "rounds of communication", "surrogate posterior", "FA-HMC",
                  "Odds ratio of preterm birth for treatment: 0.8", "Next:\n  fahmc sample study.toml"):  # fmt: skip
        assert words in result.stdout
    files = {"draws.nc", "fa-hmc.nc", "pooled.nc"} | REPORT_FILES - {"drift.png"}  # Auto's clients stay together
    assert files <= {file.name for file in folder.iterdir()}
    draws, paper, pooled = (fahmc.Draws.load(folder / f"{name}.nc") for name in ("draws", "fa-hmc", "pooled"))
    assert draws.settings["sampler"]["name"] == "Auto" and pooled.settings["sampler"]["metropolis"]
    assert draws.settings["seed"] != pooled.settings["seed"]
    assert draws.cost["rounds"] <= 8 and paper.cost["rounds"] <= 700 and pooled.cost["bytes_to_server"] == 0
    assert_same_mean(draws, pooled)
    assert_same_mean(paper, pooled, allowance=0.1)

    again = invoke("report", folder, "--json")
    values = json.loads(again.stdout)
    assert again.exit_code == 0 and "difference_mcse" in values["parameters"]["coefficients[treatment]"]
    page = (folder / "report.html").read_text()
    assert "Periodontal" in page and "Odds ratio of preterm birth for treatment: 0.8" in page


@one_demo
def test_demo_prints_json(demo_run, tmp_path, monkeypatch):
    without_report(monkeypatch)
    made = iter([fahmc.Draws.load(demo_run[0] / f"{name}.nc") for name in ("draws", "fa-hmc", "pooled")])
    monkeypatch.setattr(demo, "sample", lambda *arguments, **settings: next(made))
    result = invoke("demo", "--output", tmp_path / "demo", "--json", "--quiet")
    assert result.exit_code == 0 and result.stderr == ""
    values = json.loads(result.stdout)
    effect = values["treatment"]["odds_ratio"]["federated"]
    assert effect["2.5%"] < effect["median"] < effect["97.5%"]
    assert values["largest_difference"]["in_posterior_sd"] > 0 and values["seconds"] > 0


@one_demo
def test_an_interrupted_demo_keeps_its_draws(demo_run, tmp_path, monkeypatch):
    draws = fahmc.Draws.load(demo_run[0] / "draws.nc")
    draws.settings["ended"] = "interrupted"
    monkeypatch.setattr(demo, "sample", lambda *arguments, **settings: draws)
    result = invoke("demo", "--output", tmp_path)
    assert result.exit_code == 130 and f"so far are in {tmp_path / 'draws.nc'}" in result.stderr
    assert fahmc.Draws.load(tmp_path / "draws.nc").num_draws == draws.num_draws


def test_sample_from_a_file(short_run):
    folder, values = short_run
    assert {"draws.nc", "config.toml", "job.json", "checkpoint"} | REPORT_FILES <= {f.name for f in folder.iterdir()}
    draws = fahmc.Draws.load(folder / "draws.nc")
    assert (draws.num_chains, draws.num_draws, draws.client_names) == (2, 60, ("north", "south"))
    assert values["status"] == "complete" and values["files"]["draws.nc"] == str(folder / "draws.nc")
    assert list(values["parameters"]) == ["coefficients[dose]", "coefficients[sex[m]]", "intercept"]
    assert np.isclose(values["parameters"]["intercept"]["mean"], draws.named()["intercept"].mean())
    page = (folder / "report.html").read_text()
    assert '<th scope="row">south</th><td data-label="rows">40</td>' in page and "Logistic regression." in page


def test_a_file_without_sampler_and_run_gets_a_posterior(tmp_path):
    """Also in a folder of its own, with an exit code that the verdict decides, and nothing to resume."""
    code, printed, errors = run("sample", write_study(tmp_path, SHORT.split("[sampler]")[0]), "--strict", "--json")
    values = json.loads(printed)
    assert code == 0 and values["verdict"]["status"] == "good", errors
    assert values["cost"]["rounds"] <= 8 and values["settings"]["sampler"]["name"] == "Auto"
    assert "surrogate posterior" in (tmp_path / "fahmc-run" / "report.html").read_text()
    assert "is complete; there is nothing to resume" in invoke("resume", tmp_path / "fahmc-run").stderr


def test_sample_prints_a_table(short_run, tmp_path):
    folder, _ = short_run
    result = invoke("report", folder / "draws.nc", "--output", tmp_path)
    assert result.exit_code == 0 and result.stderr == ""
    assert re.search(r"coefficients\[dose\] .*\[-?\d+\.\d+, -?\d+\.\d+\]", result.stdout)
    assert "R-hat" in result.stdout and str(tmp_path) in result.stdout.replace("\n", "")
    assert {file.name for file in tmp_path.iterdir()} >= REPORT_FILES


def test_a_finished_run_has_nothing_to_resume(short_run):
    folder, values = short_run
    for target in (folder, folder / "checkpoint"):
        result = invoke("resume", target)
        assert result.exit_code == 0 and "is complete; there is nothing to resume" in result.stderr
    resumed = json.loads(invoke("resume", folder, "--json").stdout)
    strict = invoke("resume", folder, "--json", "--strict")
    assert strict.exit_code == json.loads(strict.stdout)["exit_code"] == 7, "60 rounds are too few to be good"
    assert resumed["status"] == "complete" and resumed["parameters"].keys() == values["parameters"].keys()
    for name, numbers in values["parameters"].items():
        assert resumed["parameters"][name] == pytest.approx(numbers, rel=1e-4)  # float32, summed in another order


def test_a_folder_is_not_taken_from_another_run(short_run, tmp_path):
    folder, _ = short_run
    config = write_study(tmp_path, SHORT.replace("step_size = 0.2", "step_size = 0.1"))
    assert "sampler.step_size = 0.2, but now it is 0.1" in fails(4, "sample", config, "--output", folder)
    shorter = write_study(tmp_path, SHORT.replace("num_rounds = 60", "num_rounds = 50"))
    assert "would shorten it" in fails(4, "sample", shorter, "--output", folder)
    assert "holds results of `fahmc sample`; choose another" in fails(4, "demo", "--output", folder)


def test_more_rounds_extend_a_run(tmp_path, monkeypatch):
    without_report(monkeypatch)
    assert invoke("sample", write_study(tmp_path)).exit_code == 0
    longer = write_study(tmp_path, SHORT.replace("num_rounds = 60", "num_rounds = 90"))
    assert invoke("sample", longer).exit_code == 0
    assert fahmc.Draws.load(tmp_path / "fahmc-run" / "draws.nc").num_draws == 90


def test_resume_after_a_kill_gives_the_undisturbed_draws(tmp_path, long_run, monkeypatch):
    write_study(tmp_path, LONG)
    process = stop_in_the_middle(tmp_path, signal.SIGKILL, "--watch")
    assert process.wait() == -signal.SIGKILL and not (tmp_path / "out" / "draws.nc").exists()
    # The page of the run outlives it, says what happened, and ends when that has been seen.
    assert process.stderr is not None
    address = next(line.strip() for line in process.stderr if line.startswith("http"))
    with urlopen(f"{address}state") as answer:
        state = json.load(answer)
    assert state["is_over"] and state["words"].startswith("Killed") and state["rounds"] >= 300
    assert process.communicate(timeout=60) == ("", ""), "nobody writes into its pipes any more"
    assert "`fahmc resume` finishes its run" in fails(4, "report", tmp_path / "out")
    # The run goes on from its own copy of the configuration, with relative paths as they were, from anywhere.
    (tmp_path / "study.toml").unlink()
    monkeypatch.chdir("/")
    without_report(monkeypatch)
    result = invoke("resume", tmp_path / "out")
    assert result.exit_code == 0 and "R-hat" in result.stdout, result.stderr
    assert same_draws(tmp_path / "out" / "draws.nc", long_run)


def test_resume_after_an_interrupt_gives_the_undisturbed_draws(tmp_path, long_run, monkeypatch):
    write_study(tmp_path, LONG)
    process = stop_in_the_middle(tmp_path, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (
        process.returncode == 130
        and "fahmc: interrupted: " in errors
        and "goes on" in errors
        and "Traceback" not in errors
    )
    partial = fahmc.Draws.load(tmp_path / "out" / "draws.nc")
    assert partial.settings["ended"] == "interrupted" and 0 < partial.num_draws < 400
    without_report(monkeypatch)
    assert invoke("resume", tmp_path / "out", "--quiet").exit_code == 0
    assert same_draws(tmp_path / "out" / "draws.nc", long_run)


def test_two_processes_do_not_share_a_folder(short_run):
    folder, _ = short_run
    with FileLock(folder / ".lock"):
        assert "Another process is sampling" in fails(4, "resume", folder)


def test_a_divergence_keeps_the_draws_before_it(tmp_path):
    config = write_study(
        tmp_path, SHORT.replace("step_size = 0.2", "step_size = 4").replace("rounds = 20", "rounds = 0")
    )
    result = invoke("sample", config, "--output", tmp_path / "out", "--json")
    assert result.exit_code == 5 and re.match(r"fahmc: error: Chain \d diverged in round \d+", result.stderr)
    assert str(tmp_path / "out" / "draws.nc") in result.stderr
    values = json.loads(result.stdout)
    assert (values["exit_code"], values["kind"]) == (5, "DivergenceError")
    assert fahmc.Draws.load(tmp_path / "out" / "draws.nc").settings["ended"] == "diverged"


def test_errors_of_settings_model_and_data(tmp_path):
    misspelled = write_study(tmp_path, SHORT.replace("step_size", "stepsize"))
    assert "study.toml, line 12: sampler.stepsize is not known" in fails(2, "sample", misspelled)
    assert "cannot be read" in fails(2, "sample", tmp_path / "absent.toml")
    (tmp_path / "own.py").write_text(
        "import fahmc\nmodel = fahmc.Model(loglikelihood_fn=lambda position, batch: 0.0)\n"
    )
    own = write_study(tmp_path, SHORT.replace('name = "logistic_regression"', 'object = "own:model"'))
    assert "The model has no init" in fails(2, "sample", own)
    assert "no column 'sight'" in fails(3, "sample", write_study(tmp_path, SHORT.replace('"site"', '"sight"')))
    config = write_study(tmp_path)
    assert "cannot be a folder" in fails(2, "sample", config, "--output", config / "out")


def test_errors_of_checkpoints(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    assert "the same fahmc.sample(...) call with the same checkpoint_dir continues it" in fails(4, "resume", tmp_path)
    assert "does not exist" in fails(4, "resume", tmp_path / "absent")
    (tmp_path / "draws.nc").write_text("no draws")
    assert "not a file written by Draws.save" in fails(4, "report", tmp_path)
    assert "does not exist" in fails(4, "report", tmp_path / "absent.nc")


def test_unexpected_errors(tmp_path, monkeypatch):
    def fail(**arguments):
        raise error

    monkeypatch.setattr(demo, "run_demo", fail)
    error = OSError("no space left on device")
    assert "cannot be read or written: no space left on device. Check" in fails(4, "demo")
    error = RuntimeError("a fault of fahmc itself")
    result = invoke("demo")
    assert result.exit_code == 1 and result.exception is error  # left to Python, which prints the traceback
    result = invoke("demo", "--json")
    assert result.exit_code == 1 and result.exception is error
    assert json.loads(result.stdout) == {
        "command": "demo", "status": "error", "exit_code": 1, "kind": "RuntimeError", "message": str(error)
    }  # fmt: skip
    error = BrokenPipeError("nobody reads")
    result = invoke("demo", "--json")
    assert result.exit_code == 1 and result.stdout == ""


def test_a_full_disk_says_where_and_what_is_kept(tmp_path, monkeypatch):
    def full(self, *arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ResultFolder, "write_report", full)
    config = write_study(tmp_path)
    for command in (("sample", config), ("resume", tmp_path / "fahmc-run")):
        message = fails(4, *command)
        assert f"a file in {tmp_path / 'fahmc-run'} cannot be read or written: " in message
        assert "No space left on device" in message and "up to the last checkpoint are kept" in message


def test_errors_of_data_and_settings_from_outside(tmp_path):
    rows = write_study(tmp_path, SHORT.replace("rows.csv", "rows.npz"))
    np.savez(tmp_path / "rows.npz", site=np.ones(50))
    (tmp_path / "rows.npz").write_bytes((tmp_path / "rows.npz").read_bytes()[:200])
    assert "cannot be read as npz arrays" in fails(3, "sample", rows)
    mass = SHORT.replace("num_leapfrog_steps = 3", 'inverse_mass_matrix = [[1,0],[0,"a"]]')
    assert "study.toml, line 13: " in fails(2, "sample", write_study(tmp_path, mass))


def test_quiet_silences_the_loggers_of_other_libraries(tmp_path):
    config = write_study(tmp_path, SHORT.replace("num_chains = 2", "num_chains = 1"))
    assert run("sample", config, "--quiet") == (0, "", "")
