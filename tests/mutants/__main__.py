"""Break fahmc in one line at a time, and see that its tests notice: ``python tests/mutants [AREA ...]``.

Prints a table with the survivors marked, and ends with 1 if there are any. The tests that the table names run once as
they are, and must pass; then against every mutant, and one must fail: that fahmc cannot be imported is not enough.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from mutant_table import MUTANTS, Mutant

_ROOT = Path(__file__).parents[2]
_PACKAGE = _ROOT / "src" / "fahmc"
# Some mutants loop for ever.
_SECONDS = 300


class Verdict(NamedTuple):
    """What came of a mutant: ``"killed"`` is what should."""

    word: str
    seconds: float
    output: str


def main() -> int:
    """Try the mutants that the command line asks for."""
    arguments = argparse.ArgumentParser(description=__doc__)
    areas = sorted({mutant.area for mutant in MUTANTS})
    arguments.add_argument("areas", nargs="*", metavar="AREA", help=f"of {', '.join(areas)}; all by default")
    arguments.add_argument("--processes", type=int, default=os.cpu_count())
    asked = arguments.parse_args()
    if unknown := set(asked.areas) - set(areas):
        arguments.error(f"there is no area {', '.join(sorted(unknown))}")
    chosen = [mutant for mutant in MUTANTS if not asked.areas or mutant.area in asked.areas]
    with tempfile.TemporaryDirectory(prefix="fahmc-mutants-") as folder:
        began = time.perf_counter()
        tests = sorted({test for mutant in chosen for test in mutant.tests.split()})
        whole = _run(tests, _ROOT / "src", Path(folder), "-n", str(asked.processes))
        if whole.returncode:
            print(whole.stdout)
            print("The tests do not pass as they are.", file=sys.stderr)
            return 1
        print(f"{len(tests)} tests pass without a mutant, {time.perf_counter() - began:.0f} s\n", flush=True)
        print(f"{'area':<12}{'':<10}{'s':>4}  mutant")
        with ThreadPoolExecutor(asked.processes) as pool:
            verdicts = list(pool.map(_try, range(len(chosen)), chosen, [Path(folder)] * len(chosen)))
    lost = [(mutant, verdict) for mutant, verdict in zip(chosen, verdicts, strict=True) if verdict.word != "killed"]
    for mutant, verdict in lost:
        print(f"\n{verdict.word}: {mutant.file}: {mutant.after}\n{verdict.output[-2000:]}", file=sys.stderr)
    killed, seconds = len(chosen) - len(lost), time.perf_counter() - began
    print(f"\n{killed} of {len(chosen)} mutants killed, {len(lost)} not, {seconds:.0f} s")
    return 1 if lost else 0


def _try(number: int, mutant: Mutant, folder: Path) -> Verdict:
    began = time.perf_counter()
    source = folder / str(number)
    overlay(mutant, source)
    try:
        # A failing test is 1; an error while tests are collected, so that nothing was tested, is another code.
        ended = _run(mutant.tests.split(), source, folder, "-x", "-n", "0", timeout=_SECONDS)
        has_failed = ended.returncode == 1 and re.search(r"\d+ failed", ended.stdout)
        word = "killed" if has_failed else "SURVIVED" if ended.returncode == 0 else "BROKEN"
        verdict = Verdict(word, time.perf_counter() - began, ended.stdout + ended.stderr)
    except subprocess.TimeoutExpired:
        verdict = Verdict("HANGS", time.perf_counter() - began, "")
    what = f"{mutant.file}: {mutant.before.strip()} -> {mutant.after.strip()}"
    print(f"{mutant.area:<12}{verdict.word:<10}{verdict.seconds:>4.0f}  {what}", flush=True)
    return verdict


def overlay(mutant: Mutant, source: Path) -> None:
    """Make a package of links, but for the file that is changed and the folders above it."""
    content = (_PACKAGE / mutant.file).read_text(encoding="utf-8")
    assert content.count(mutant.before) == 1, f"{mutant.file} does not have once: {mutant.before}"
    *folders, file = Path(mutant.file).parts
    place, original = source / "fahmc", _PACKAGE
    for inside in [*folders, file]:
        place.mkdir(parents=True)
        for entry in original.iterdir():
            if entry.name not in (inside, "__pycache__"):
                (place / entry.name).symlink_to(entry)
        place, original = place / inside, original / inside
    place.write_text(content.replace(mutant.before, mutant.after), encoding="utf-8")


def _run(
    tests: list[str], source: Path, folder: Path, *options: str, timeout: float | None = None
) -> subprocess.CompletedProcess[str]:
    cache = {"JAX_COMPILATION_CACHE_DIR": os.environ.get("JAX_COMPILATION_CACHE_DIR", str(folder / "cache"))}
    # Nothing compiled beside the sources: two mutants of one file may be equally long and equally old.
    environment = os.environ | cache | {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    quiet = ["-q", "--tb=short", "-p", "no:cacheprovider", "--no-header"]
    command = [sys.executable, "-m", "pytest", *quiet, *options, *(f"tests/{test}" for test in tests)]
    return subprocess.run(command, cwd=_ROOT, env=environment, capture_output=True, text=True, timeout=timeout)


if __name__ == "__main__":
    sys.exit(main())
