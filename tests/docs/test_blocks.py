"""What the pages show runs as printed: tutorials here, other pages in the files named here, the rest says why not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fahmc

ROOT = Path(__file__).parents[2]
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
RUN_BY = {
    "README.md": "test_readme.py",
    "docs/command-line.md": "test_readme.py",
    "docs/examples.md": "contract/contract_cases.py",  # whose files they are
    "docs/expectations.md": "test_readme.py",
    "docs/federation.md": "federation/test_walkthrough.py",
    "docs/fit.md": "test_readme.py",
    "docs/formula.md": "cli/test_formula_config.py",
    "docs/models.md": "models/test_documented_studies.py",
    "docs/numpyro.md": "test_numpyro_model.py",
    "docs/privacy.md": "test_readme.py",
    "docs/site-effects.md": "models/test_site_effects.py",
    "docs/tutorials/clinician.md": "docs/test_blocks.py",
    "docs/tutorials/researcher.md": "docs/test_blocks.py",
    "docs/tutorials/statistician.md": "docs/test_blocks.py",
}
BLOCK = re.compile(r"(<!-- notest: (?P<reason>.+) -->\n)?^```(?P<kind>\w+)[^\n]*\n(?P<text>.*?)^```$", re.M | re.S)


def blocks(page: str) -> list[re.Match]:
    return list(BLOCK.finditer((ROOT / page).read_text()))


def shown(page: str, kind: str) -> str:
    return "\n".join(block["text"] for block in blocks(page) if block["kind"] == kind and not block["reason"])


def assert_same_words(printed: str, expected: str) -> None:
    """Another processor may round the last digit differently."""
    assert NUMBER.sub("#", printed).split() == NUMBER.sub("#", expected).split()
    for value, said in zip(NUMBER.findall(printed), NUMBER.findall(expected), strict=True):
        digit = 10 ** -len(said.partition(".")[2])
        assert float(value) == pytest.approx(float(said), abs=1.1 * digit)


def test_every_block_of_python_is_run_or_says_why_not():
    pages = ["README.md", *(str(page.relative_to(ROOT)) for page in sorted((ROOT / "docs").rglob("*.md")))]
    for page in pages:
        needs_run = [block for block in blocks(page) if block["kind"] == "python" and not block["reason"]]
        assert not needs_run or page in RUN_BY, f"{page}: name the test that runs its blocks, or mark them notest"
    for page, test in RUN_BY.items():
        name = "own" if page.endswith("examples.md") else Path(page).stem if page != "README.md" else "README"
        assert name in (ROOT / "tests" / test).read_text(), f"{test} does not know {page}"


@pytest.mark.parametrize("page", ["docs/tutorials/statistician.md", "docs/tutorials/researcher.md"])
def test_a_tutorial_prints_what_it_says(page, tmp_path):
    (tmp_path / "page.py").write_text(shown(page, "python"))
    environment = os.environ | {"JAX_ENABLE_X64": "0"}
    run = subprocess.run(
        [sys.executable, tmp_path / "page.py"], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert_same_words(run.stdout, shown(page, "text"))


def test_the_clinics_tutorial_works_as_written(tmp_path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    page = "docs/tutorials/clinician.md"
    commands = shown(page, "sh")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    run = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=tmp_path,
        env=os.environ | {"PATH": path, "JAX_ENABLE_X64": "0", "COLUMNS": "100"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    printed = " ".join(NUMBER.sub("#", run.stdout).split())
    for block in blocks(page):
        if block["kind"] == "text":
            assert " ".join(NUMBER.sub("#", block["text"]).split()) in printed
    # The published log odds ratio, by maximum likelihood.
    draws = fahmc.Draws.load(tmp_path / "cream" / "fahmc-run" / "draws.nc").summary()
    treatment = draws.loc["coefficients[treatment[cream]]"]
    assert treatment["mean"] == pytest.approx(0.777, abs=0.05) and treatment["sd"] == pytest.approx(0.307, abs=0.03)
    assert (tmp_path / "cream" / "fahmc-run" / "report.html").exists()
