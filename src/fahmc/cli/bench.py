"""`fahmc bench`: tables on standard output, files in a folder."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from fahmc.bench.results import HEADINGS, Finding, Results, row
from fahmc.bench.suite import choose, run_suite
from fahmc.cli.output import Output
from fahmc.report.quantities import in_time

_COLOURS = {None: "", True: "green", False: "yellow"}


def run_bench(
    names: Sequence[str], folder: Path, *, is_quick: bool, repeats: int, seconds: float, output: Output
) -> None:
    """Measure, write the files, and print the tables."""
    began = time.perf_counter()
    workloads = choose(names, is_quick=is_quick)
    folder.mkdir(parents=True, exist_ok=True)
    results = run_suite(workloads, repeats=repeats, seconds=seconds, log=output.log)
    if is_quick:
        results.findings = [replace(finding, aim=None) for finding in results.findings]
        results.notes.append("A quick run: small sizes that show that everything works; its ratios mean nothing.")
    files = results.write(folder)
    output.show(
        *tables(results),
        *map(escape, results.notes),
        escape(results.conclusion()),
        f"Done in {in_time(time.perf_counter() - began)}. Numbers, tables and figure: {escape(str(folder))}/",
    )
    output.result({"command": "bench", "status": "complete", "exit_code": 0, "files": files} | results.as_values())


def tables(results: Results) -> list[Table]:
    """Build one printed table per workload."""
    groups: dict[str, list[Finding]] = {}
    for finding in results.findings:
        groups.setdefault(finding.workload, []).append(finding)
    return [_table(name, findings) for name, findings in groups.items()]


def _table(name: str, findings: list[Finding]) -> Table:
    printed = Table(title=escape(f"{name}: {findings[0].title}"), title_justify="left")
    for heading in HEADINGS:
        is_text = heading in ("case", "compared", "aim", "verdict")
        printed.add_column(heading, justify="left" if is_text else "right")
    for finding in findings:
        printed.add_row(*map(escape, row(finding)), style=_COLOURS[finding.is_met])
    return printed
