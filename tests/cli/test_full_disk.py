"""A disk that is full at each write of a run in turn, and standard streams that are full or closed."""

import contextlib
import io
import resource
import subprocess
import sys

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache
from typer.testing import CliRunner

import fahmc
from fahmc.cli.app import app
from fahmc.cli.exits import standard_streams

CONFIG = """\
[model]
name = "linear_regression"
noise_scale = 1.0

[data]
file = "rows.csv"
site_column = "site"
outcome = "y"

[sampler]
name = "FAHMC"
step_size = 0.1

[run]
num_rounds = 300
num_chains = 2
"""


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


class LimitedFiles:
    """No file may be larger than so many bytes: what is left of a disk, as far as a writer can tell."""

    def __init__(self, folder):
        self.folder = folder

    @contextlib.contextmanager
    def limited(self, size):
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class SmallDisk:
    """A file system of so many bytes."""

    def __init__(self, folder):
        self.folder = folder
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", folder], capture_output=True, check=True)

    @contextlib.contextmanager
    def limited(self, size):
        subprocess.run(["mount", "-o", f"remount,size={size}", self.folder], check=True)
        yield

    def close(self):
        subprocess.run(["umount", self.folder], check=True)


@pytest.fixture
def disk(tmp_path):
    """A real one where that is allowed."""
    folder = tmp_path / "disk"
    folder.mkdir()
    try:
        disk = SmallDisk(folder)
    except (OSError, subprocess.CalledProcessError):
        yield LimitedFiles(folder)
    else:
        with contextlib.closing(disk):
            yield disk


@pytest.fixture
def no_compilation_cache():
    """Compiled programs are kept in files as well, whose trouble is not ours."""
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    yield
    jax.config.update("jax_enable_compilation_cache", True)
    compilation_cache.reset_cache()


@pytest.mark.usefixtures("no_compilation_cache")
def test_every_write_may_meet_a_full_disk(tmp_path, disk):
    """The disk grows a little whenever the run has stopped: each kind of file is the one that does not fit in turn."""
    rng = np.random.default_rng(0)
    rows = [f"{site},{x:.3f},{x + rng.normal():.3f}" for site in "ab" for x in rng.normal(size=9)]
    (tmp_path / "rows.csv").write_text("\n".join(["site,x,y", *rows]) + "\n")
    (tmp_path / "study.toml").write_text(CONFIG)
    study, out = tmp_path / "study.toml", disk.folder / "out"
    size, stops = 100 if isinstance(disk, LimitedFiles) else 4 * 1024, []
    while True:
        with disk.limited(size):
            result = invoke(*(["resume", out] if (out / "job.json").exists() else ["sample", study, "-o", out]))
        if result.exit_code == 0:
            break
        stops.append({file.name for file in out.rglob("*") if file.is_file()})
        assert result.exit_code == 4 and result.stderr.startswith("fahmc: error: "), result.output
        assert "Traceback" not in result.stderr and size < 2**24
        assert not [file for file in disk.folder.rglob("*") if file.name.endswith(("part", "tmp"))]
        size *= 3
    # It stopped before and after the draws were written, and never lost one.
    assert any("draws.nc" not in files and "run.json" in files for files in stops)
    assert any("draws.nc" in files and "report.html" not in files for files in stops)
    assert invoke("sample", study, "-o", tmp_path / "undisturbed").exit_code == 0
    ours, undisturbed = (fahmc.Draws.load(folder / "draws.nc") for folder in (out, tmp_path / "undisturbed"))
    np.testing.assert_array_equal(ours.flat(), undisturbed.flat())


@pytest.mark.parametrize(
    ("command", "where"),
    [
        ("--version", "> /dev/full"),
        ("reproduce list", ">&-"),
        ("reproduce list --json", "> /dev/full"),
    ],
)
def test_output_that_cannot_be_written_is_told(command, where):
    ended = shell(command.split(), where)
    assert ended.returncode == 4 and "Traceback" not in ended.stderr
    assert ended.stderr.startswith("fahmc: error: standard output cannot be written") and ended.stderr.count("\n") == 1


@pytest.mark.parametrize("where", ["2>&-", "<&-"])
def test_other_streams_are_not_needed(where):
    assert shell(["--version"], where).stdout.startswith("fahmc ")


def test_letters_without_a_code_do_not_end_a_command(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, "ascii"))
    with standard_streams():
        print("Zürich ≥ 1")
    assert written.getvalue() == rb"Z\xfcrich \u2265 1" + b"\n"


def test_an_early_interrupt_is_told_like_any_other(capfd):
    with pytest.raises(SystemExit) as ended, standard_streams():
        raise KeyboardInterrupt
    assert ended.value.code == 130 and capfd.readouterr().err == "fahmc: interrupted: nothing was begun\n"


def test_a_refusal_keeps_its_code_when_nobody_can_read_it():
    ended = shell(["sample", "nowhere.toml", "--json"], "> /dev/full")
    assert ended.returncode == 2 and "nowhere.toml" in ended.stderr and "standard output" in ended.stderr


def shell(arguments, where):
    command = f'"$0" -m fahmc.cli.app "$@" {where}'
    return subprocess.run(["sh", "-c", command, sys.executable, *arguments], capture_output=True, text=True)
