"""Results go into folders of fahmc's own: nobody's files are replaced, and a run that was refused binds no folder."""

import json
import os

import numpy as np
import pytest
from test_app import SHORT, fails, invoke, without_report, write_study

import fahmc
from fahmc.cli.folder import ResultFolder
from fahmc.durable import PART
from fahmc.errors import CheckpointError, SettingsError
from fahmc.experiments.catalogue import FIGURES
from fahmc.experiments.reproduce import reproduce
from fahmc.own_folder import MARKER, own_folder


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_input_table_and_other_files_are_never_replaced(tmp_path):
    """The issue's case: the table is called as a result is, and the results shall go beside it."""
    write_study(tmp_path)
    (tmp_path / "rows.csv").rename(tmp_path / "summary.csv")
    for name in ("config.toml", "trace.png"):
        (tmp_path / name).write_text("somebody's own")
    (tmp_path / "study.toml").write_text(SHORT.replace("rows.csv", "summary.csv") + 'output = "."\n')
    before = contents(tmp_path)
    message = fails(2, "sample", tmp_path / "study.toml")
    assert "study.toml, line 22: the results shall go to" in message and "summary.csv with rows" in message
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    "command",
    [("sample", "study.toml", "-o"), ("demo", "-o"), ("bench", "W4", "--quick", "-o"),
     ("bench", "rounds", "--quick", "-o"), ("reproduce", "2", "--scale", "smoke", "-o")],
)  # fmt: skip
def test_every_command_refuses_a_folder_of_somebody_else(command, tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "notes.txt").write_text("somebody's own")
    config = write_study(tmp_path)
    arguments = [config if argument == "study.toml" else argument for argument in command]
    message = fails(4, *arguments, mine)
    assert f"{mine} holds files that are not fahmc's" in message and "Choose a new or an empty folder" in message
    assert contents(mine) == {"notes.txt": b"somebody's own"}


def few_draws(**settings):
    rows = {"x": np.ones((4, 1)), "y": np.array([0.0, 1.0, 2.0, 3.0])}
    settings = {"sampler": fahmc.FAHMC(0.01, 2), "num_rounds": 8, "num_chains": 2, **settings}
    return fahmc.sample(fahmc.models.linear_regression(), fahmc.Federation.from_clients([rows]), **settings)


def test_a_report_from_python_goes_into_a_folder_of_its_own(tmp_path):
    draws = few_draws()
    (tmp_path / "summary.csv").write_text("somebody's own")
    with pytest.raises(CheckpointError, match="not fahmc's"):
        fahmc.report.write_report(draws, tmp_path)
    assert contents(tmp_path) == {"summary.csv": b"somebody's own"}
    # Draws that lie among other files are reported elsewhere.
    draws.save(tmp_path / "draws.nc")
    assert "not fahmc's" in fails(4, "report", tmp_path)
    assert invoke("report", tmp_path, "--output", tmp_path / "report", "--quiet").exit_code == 0
    assert (tmp_path / "report" / "report.html").exists()
    with pytest.raises(CheckpointError, match="not fahmc's"):
        reproduce(FIGURES["2"], tmp_path, "smoke")


def test_which_folders_may_be_taken(tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    for folder in (empty, tmp_path / "new" / "one"):
        assert own_folder(folder, "fahmc bench") == folder
        assert own_folder(folder, "fahmc bench") == folder, "its own, once more"
        assert (folder / MARKER).read_text().startswith("fahmc bench\n")
        with pytest.raises(CheckpointError, match="holds results of `fahmc bench`; choose another"):
            own_folder(folder, "fahmc demo")
        own_folder(folder, "fahmc report")
    (tmp_path / "older").mkdir()
    (tmp_path / "older" / "results.json").touch()
    with pytest.raises(CheckpointError, match=r"put an empty file \.fahmc into it"):
        own_folder(tmp_path / "older", "fahmc bench")
    (tmp_path / "older" / MARKER).touch()
    own_folder(tmp_path / "older", "fahmc bench")
    for path in (tmp_path / "older" / "results.json", tmp_path / "a\0b", tmp_path / ("long" * 100)):
        with pytest.raises(SettingsError, match="cannot be a folder of results"):
            own_folder(path, "fahmc bench")


def test_of_two_who_take_a_folder_at_once_neither_fails(tmp_path, monkeypatch):
    """What the other one has begun to write is no file of somebody's, and its mark is as good."""
    (tmp_path / f".{MARKER}{PART}").write_text("fahmc be")
    rename = os.replace

    def rename_too_late(*paths):
        rename(*paths)
        rename(*paths)  # the other was faster

    monkeypatch.setattr("fahmc.durable.os.replace", rename_too_late)
    assert (own_folder(tmp_path, "fahmc bench") / MARKER).read_text().startswith("fahmc bench\n")


def test_a_run_of_an_older_fahmc_is_its_own(tmp_path, monkeypatch):
    without_report(monkeypatch)
    config = write_study(tmp_path)
    assert invoke("sample", config, "-q").exit_code == 0
    (tmp_path / "fahmc-run" / MARKER).unlink()
    assert invoke("sample", config, "-q").exit_code == 0
    assert (tmp_path / "fahmc-run" / MARKER).exists()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "job.json").write_text(json.dumps({"somebody": "else's"}))
    assert "cannot be read as a run" in fails(4, "sample", config, "-o", tmp_path / "other")


OWN_MODEL = """
import fahmc, jax.numpy as jnp
def model():
    return fahmc.Model(lambda q, batch: batch["y"] * jnp.log(q[0]), lambda q: 0.0 * q[0], init=lambda key: jnp.zeros(1))
"""


WRONG = [
    ("thin = 1", "thin = 100", 2),
    ("num_chains = 2", "num_chains = 1\nstop_when = {r_hat = 1.01, every = 20}", 2),
    ('name = "logistic_regression"', 'object = "starts_badly:model"', 2),
    ("step_size = 0.2", "step_size = 1e18", 5),
    ("step_size = 0.2", "step_size = 0.2\ninverse_mass_matrix = [1.0, 2.0, 3.0, 4.0, 5.0]", 2),
]


def test_after_refusals_the_folder_takes_the_corrected_run(tmp_path, monkeypatch):
    without_report(monkeypatch)
    (tmp_path / "starts_badly.py").write_text(OWN_MODEL)
    for right, wrong, code in WRONG:
        fails(code, "sample", write_study(tmp_path, SHORT.replace(right, wrong, 1)))
        assert not ResultFolder(tmp_path / "fahmc-run").has_job(), f"nothing to resume after {wrong}"
    assert invoke("sample", write_study(tmp_path), "--quiet").exit_code == 0
    assert fahmc.Draws.load(tmp_path / "fahmc-run" / "draws.nc").num_draws == 60
    # From the first round on, they bind.
    assert "thin = 1, but now it is 100" in fails(4, "sample", write_study(tmp_path, SHORT.replace(*WRONG[0][:2])))


def test_a_kill_before_the_first_round_binds_no_folder(tmp_path, monkeypatch):
    def killed(*arguments, **settings):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("fahmc.cli.runs.sample", killed)
        assert invoke("sample", write_study(tmp_path)).exit_code == 130
    assert ResultFolder(tmp_path / "fahmc-run").has_job()
    other = write_study(tmp_path, SHORT.replace("step_size = 0.2", "step_size = 0.1"))
    without_report(monkeypatch)
    assert invoke("sample", other, "--quiet").exit_code == 0


FEDERATED = """
[model]
name = "logistic_regression"
[data]
outcome = "ill"
[federation]
server = "localhost:8002"
sites = ["north", "south"]
[run]
seed = 1
"""


def test_sites_that_were_not_reached_bind_no_folder(tmp_path, monkeypatch):
    """Then `fahmc resume` goes on as it was, and `fahmc sample` with other settings."""
    seeds = []

    def not_reached(*arguments, seed, **settings):
        seeds.append(seed)
        raise fahmc.errors.FederationError("The server localhost:8002 cannot be reached.")

    monkeypatch.setattr("fahmc.cli.runs.sample", not_reached)
    monkeypatch.setattr("fahmc.cli.config._check_kit", lambda config, kit: None)  # making one takes seconds
    config = tmp_path / "study.toml"
    config.write_text(FEDERATED)
    assert "`fahmc resume" in fails(6, "sample", config, "--federation", tmp_path / "kit")
    fails(6, "resume", tmp_path / "fahmc-run")
    config.write_text(FEDERATED.replace("seed = 1", "seed = 2"))
    fails(6, "sample", config, "--federation", tmp_path / "kit")
    fails(6, "resume", tmp_path / "fahmc-run")
    assert seeds == [1, 1, 2, 2]


def test_a_checkpoint_without_rounds_takes_other_settings(tmp_path):
    with pytest.raises(fahmc.errors.DivergenceError):
        few_draws(sampler=fahmc.FAHMC(1e18, 2), checkpoint_dir=tmp_path)
    assert few_draws(checkpoint_dir=tmp_path).num_draws == 8
    with pytest.raises(CheckpointError, match=r"sampler\.step_size = 0\.01, but now it is 0\.02"):
        few_draws(sampler=fahmc.FAHMC(0.02, 2), checkpoint_dir=tmp_path)
