"""Folders of results with something in them already: whatever a command does there, nobody else's file changes.

The commands are real but for what takes time: sampling is a stand-in that refuses, is killed, keeps a block or ends,
and the report is its files without content.
"""

from __future__ import annotations

import functools
import json
import random
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import typer

from fahmc.cli import runs
from fahmc.cli.folder import ResultFolder
from fahmc.cli.output import Output
from fahmc.draws import Draws
from fahmc.errors import CheckpointError, DivergenceError, FederationError, ModelError, SettingsError
from fahmc.own_folder import MARKER, REPORT, own_folder
from harness import part

_STUDY = """\
[model]
name = "linear_regression"

[data]
file = "{rows}"
site_column = "site"
outcome = "y"

[sampler]
name = "FAHMC"
step_size = {step_size}
num_leapfrog_steps = 2

[run]
num_rounds = 5
num_chains = 2
output = "{output}"
"""
_REPORT = ("report.html", "summary.csv", "summary.md", "trace.png", "marginals.png", "forest.png", "drift.png")
# What users have lying about, some of it called as results are.
_NAMES = (*_REPORT, "config.toml", "job.json", "report.json", "draws.nc", "pooled.nc", "results.json", "table.md",
          "notes", "checkpoint/run.json", ".lock",
          "checkpoint/block-000000-0123456789abcdef.npz", "checkpoint", "sub/draws.nc",
          "index.md", "2/table.csv", "rows.tmp", "x.nc.tmp")  # fmt: skip
_OUTPUT = Output("sample", as_json=False, is_quiet=True)
_COMMANDS = ("fahmc demo", "fahmc bench", "fahmc reproduce", REPORT)


@part("folders")
def try_one(rng: random.Random, folder: Path) -> str:
    """Put things into a folder, and let commands write there, one after the other."""
    rows = rng.choice(("rows.csv", "rows.csv", "rows.csv", "summary.csv", "out/rows.csv", "out/summary.csv"))
    output = rng.choice(("out", "out", "out", ".", "./out/", "out/deeper"))
    (folder / "out").mkdir()
    (folder / rows).write_text("site,x,y\na,1,2\na,2,3\nb,1,1\nb,3,2\n")
    for name in rng.sample(_NAMES, rng.choice((0, 0, 0, 1, 2, 5))):
        _put(rng, folder / "out" / name)
    if rng.random() < 0.1 and not (folder / "out" / MARKER).exists():
        own_folder(folder / "empty", rng.choice(("fahmc sample", *_COMMANDS)))
        output = "empty"
    before = _contents(folder)
    ends = []
    for _ in range(rng.randint(1, 3)):
        step_size = rng.choice((0.1, 0.1, 0.2))
        (folder / "study.toml").write_text(_STUDY.format(rows=rows, step_size=step_size, output=output))
        ends.append(_attempt(rng, folder, folder / output))
        after = _contents(folder)
        changed = [name for name, content in before.items() if after.get(name) != content]
        assert not changed, f"{changed} after {ends}"
    return ends[-1]


def _attempt(rng: random.Random, folder: Path, output: Path) -> str:
    stand_in = functools.partial(_sample, rng)
    with (
        mock.patch.object(runs, "sample", stand_in),
        mock.patch.object(runs, "check_cheaply"),
        mock.patch.object(runs, "_conclude", _conclude),
    ):
        return _run(rng, folder, output)


def _run(rng: random.Random, folder: Path, output: Path) -> str:
    command = rng.choice(("sample", "sample", "sample", "resume", "report", "own"))
    try:
        if command == "sample":
            runs.run_config(folder / "study.toml", None, None, False, False, rng.random() < 0.2, _OUTPUT)
        elif command == "resume":
            runs.resume_run(output, False, _OUTPUT)
        elif command == "report":
            runs.remake_report(output, rng.choice((None, folder / "out", folder / "new")), False, _OUTPUT)
        else:
            own_folder(output, rng.choice(_COMMANDS))
    except (SettingsError, CheckpointError, ModelError, DivergenceError, FederationError) as error:
        if command == "sample":
            _check_binding(output, error)
        return f"{command} refused"
    except (KeyboardInterrupt, typer.Exit):
        return f"{command} ended early"
    return f"{command} done"


def _check_binding(output: Path, error: Exception) -> None:
    """Refused for its settings, a run leaves nothing behind that would bind the folder to them."""
    if isinstance(error, SettingsError | ModelError) and "stand-in" in str(error):
        assert ResultFolder(output).has_rounds() or not ResultFolder(output).has_job()


def _sample(rng: random.Random, *arguments: Any, checkpoint_dir: Path, **settings: Any) -> Draws:
    """Stand in for `fahmc.sample`."""
    if rng.random() < 0.3:
        raise rng.choice((SettingsError, ModelError, FederationError))("Refused by the stand-in.")
    if rng.random() < 0.2:
        raise DivergenceError("The stand-in diverged.", rng.choice((None, _draws())))
    if rng.random() < 0.1:
        raise KeyboardInterrupt("the stand-in was stopped")
    checkpoint_dir.mkdir(exist_ok=True)
    (checkpoint_dir / "block-000000-0123456789abcdef.npz").write_bytes(b"a block")
    return _draws()


class _Saved(Draws):
    """Draws whose file is made once."""

    def save(self, path: Any) -> None:
        Path(path).write_bytes(_file())


@functools.cache
def _file() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        Draws.save(_draws(), Path(folder, "draws.nc"))
        return Path(folder, "draws.nc").read_bytes()


@functools.cache
def _draws() -> Draws:
    numbers = np.random.default_rng(0)
    return _Saved(
        positions={"x": numbers.normal(size=(2, 8))},
        stats={"diverging": np.zeros((2, 8), bool)},
        client_names=("a", "b"),
        client_drift=None,
        settings={"ended": "complete", "num_rounds": 5},
        cost={"rounds": 5, "seconds": 1.0},
    )


def _conclude(draws: Draws, results: ResultFolder, *others: Any) -> int:
    for name in _REPORT:
        (own_folder(results.path, REPORT) / name).write_text("a report")
    return 0


def _put(rng: random.Random, path: Path) -> None:
    """Leave a file of somebody's own, a folder or a link, unless something is there."""
    if path.exists() or path.is_symlink() or (path.parent.exists() and not path.parent.is_dir()):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = rng.randrange(5)
    if kind == 0:
        path.mkdir()
    elif kind == 1:
        (path.parent.parent / "elsewhere").write_text("somebody's own")
        path.symlink_to(path.parent.parent / "elsewhere")
    elif kind == 2:
        path.write_text(json.dumps({"format": 1, "config_folder": str(path.parent), "config_name": "study.toml"}))
    else:
        path.write_text("somebody's own")


def _contents(folder: Path) -> dict[str, bytes]:
    """Return all files but those that the commands made, as their marker shows."""
    own = {marker.parent for marker in folder.rglob(MARKER)}
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "study.toml"]
    return {str(path): path.read_bytes() for path in files if not own & {path.parent, *path.parents}}
