"""`fahmc reproduce`: what it prints, and how it ends when stopped or without data."""

import json
import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from fahmc.cli.app import app
from fahmc.experiments.catalogue import FIGURES

# The command, but before its first block of rounds it says so, and waits for a word after the signal.
WAITS_IN_A_RUN = """
import sys
from fahmc.cli.app import main
from fahmc.engines.in_process.engine import InProcessSession

advance = InProcessSession.advance

def wait_and_advance(*arguments):
    InProcessSession.advance = advance
    print("in a run", flush=True)
    sys.stdin.readline()
    return advance(*arguments)

InProcessSession.advance = wait_and_advance
main()
"""


@pytest.fixture
def nowhere(monkeypatch, tmp_path):
    """No data on this machine, and no network: a closed port is the only way out."""
    monkeypatch.setenv("FAHMC_DATA", str(tmp_path / "none"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for scheme in ("http", "https"):
        monkeypatch.setenv(f"{scheme}_proxy", "http://127.0.0.1:9")


def test_list_names_every_figure(nowhere):
    result = CliRunner().invoke(app, ["reproduce", "list", "--json"])
    figures = json.loads(result.stdout)["figures"]
    assert [figure["figure"] for figure in figures] == list(FIGURES) == "1a 1b 1c 1d 2 3 4 5 6 7".split()
    assert all(set(figure["takes"]) == {"smoke", "laptop", "paper"} and figure["needs"] for figure in figures)
    printed = CliRunner().invoke(app, ["reproduce", "list"]).stdout
    assert "rounds to reach ME" in printed and "Fashion-MNIST" in printed and "it will be" in printed
    assert [figure["figure"] for figure in figures if figure["is_here"]] == "1a 1b 1c 1d 2".split()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["9"], "There is no figure '9'; the figures are 1a, 1b, 1c, 1d, 2, 3, 4, 5, 6, 7, or all."),
        (["2", "--scale", "large"], "--scale is 'large'; it must be one of smoke, laptop, paper."),
        (["list", "2"], "reproduce list takes no figure"),
        (["5", "--hidden", "512,many"], "--hidden is '512,many'; it must be whole numbers with commas"),
        (["2", "--hidden", "8"], "--hidden is for the network of figure 5"),
    ],
)
def test_wrong_usage_gets_a_sentence(arguments, sentence):
    result = CliRunner().invoke(app, ["reproduce", *arguments])
    assert result.exit_code == 2 and sentence in result.stderr and not result.stdout


def test_missing_images_get_an_address_and_a_place(nowhere, tmp_path):
    result = CliRunner().invoke(app, ["reproduce", "3", "--out", str(tmp_path / "figures")])
    assert result.exit_code == 3
    for words in (
        "-images-idx3-ubyte.gz of the data set",
        "fashion-mnist.s3-website",
        str(tmp_path / "none"),
        "put it into",
    ):
        assert words in result.stderr
    assert not (tmp_path / "figures" / "index.md").exists()


def test_ctrl_c_keeps_finished_runs(tmp_path):
    """A real process, stopped by a real signal in the middle of a run, and gone on with."""
    results = tmp_path / ".work" / "smoke" / "results.jsonl"
    arguments = ["reproduce", "2", "--scale", "smoke", "--out", str(tmp_path)]
    process = subprocess.Popen(
        [sys.executable, "-c", WAITS_IN_A_RUN, *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "in a run\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate("go on\n", timeout=120)
    assert process.returncode == 130 and "the same command goes on from there" in errors
    kept = results.read_text(encoding="utf-8")
    # The six exact laws come first; the simulations after them are runs.
    assert len(kept.splitlines()) == 6 and not (tmp_path / "2" / "settings.json").exists()

    again = CliRunner().invoke(app, [*arguments, "--json"])
    assert again.exit_code == 0 and results.read_text(encoding="utf-8").startswith(kept)
    assert {claim["standing"] for claim in json.loads(again.stdout)["figures"]["2"]["claims"]} == {"reproduced"}
