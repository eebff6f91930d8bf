"""`fahmc bench`: tables on standard output, files in a folder."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from fahmc.bench.federation import measure_federation
from fahmc.bench.results import HEADINGS, Finding, row
from fahmc.bench.suite import choose, run_suite
from fahmc.cli.output import Output
from fahmc.errors import SettingsError
from fahmc.report.quantities import in_time

_COLOURS = {None: "", True: "green", False: "yellow"}


def run_bench(
    workloads: Sequence[str] | None,
    folder: Path,
    repeats: int | None,
    seconds: float | None,
    is_quick: bool,
    output: Output,
) -> None:
    """Measure, write the files, and print the tables."""
    names = workloads or []
    if "federation" in names:
        return _bench_federation(names, folder, is_quick, output)
    if "certificate" in names:
        return _bench_certificate(names, folder, is_quick, output)
    began = time.perf_counter()
    chosen = choose(names, is_quick=is_quick)
    folder.mkdir(parents=True, exist_ok=True)
    defaults = (2, 0.02) if is_quick else (5, 1.0)
    results = run_suite(chosen, repeats=repeats or defaults[0], seconds=seconds or defaults[1], log=output.log)
    if is_quick:
        results.findings = [replace(finding, aim=None) for finding in results.findings]
        results.notes.append("A quick run: small sizes that show that everything works; its ratios mean nothing.")
    files = results.write(folder)
    groups: dict[str, list[Finding]] = {}
    for finding in results.findings:
        groups.setdefault(finding.workload, []).append(finding)
    output.show(
        *(_table(name, findings) for name, findings in groups.items()),
        *map(escape, results.notes),
        escape(results.conclusion()),
        f"Done in {in_time(time.perf_counter() - began)}. Numbers, tables and figure: {escape(str(folder))}/",
    )
    output.result(files=files, **results.as_values())


def _bench_federation(names: Sequence[str], folder: Path, is_quick: bool, output: Output) -> None:
    """Measure rounds between processes, write the files, and print the table."""
    if len(names) > 1:
        raise SettingsError("federation is measured by itself; leave the other workloads to a run of their own.")
    began = time.perf_counter()
    results = measure_federation(output.log, is_quick=is_quick)
    files = results.write(folder)
    headings = ("message", "bare call", "round", "ratio (quartiles)")
    printed = Table(*headings, title="Rounds of 4 sites, mutual TLS, loopback")
    for entry in results.times:
        low, high = entry.ratio_range
        ratio = f"{entry.ratio:.2f} ({low:.2f} to {high:.2f})"
        printed.add_row(entry.size, f"{1e3 * entry.bare:.1f} ms", f"{1e3 * entry.round:.1f} ms", ratio)
    memory = ", ".join(f"{size / 1e6:.0f} MB after {rounds:,}" for rounds, size in results.memory)
    output.show(
        printed,
        f"Server's memory by rounds: {memory}.",
        "A quick run shows that everything works; its numbers mean nothing." if is_quick else results.conclusion(),
        f"Done in {in_time(time.perf_counter() - began)}. Numbers and tables: {escape(str(folder))}/",
    )
    output.result(files=files, **asdict(results))


def _bench_certificate(names: Sequence[str], folder: Path, is_quick: bool, output: Output) -> None:
    """Hold what runs say of their own error against the truth, write the files, and print the table."""
    from fahmc.bench.certificate import largest, measure_certificate

    if len(names) > 1:
        raise SettingsError("certificate is measured by itself; leave the other workloads to a run of their own.")
    results = measure_certificate(output.log, is_quick=is_quick)
    files, facts = results.write(folder), results.facts()
    headings = ("problem", "sampler", "predicted shift", "true", "predicted sd error", "true", "verdict")
    printed = Table(*headings, title="Largest errors, in posterior sds and as a share of the sd", title_justify="left")
    for trial in results.trials:
        numbers = (trial.shifts, trial.true_shifts, trial.excesses, trial.true_excesses)
        colour = "red" if trial.is_false_green else "green" if trial.status == "good" else ""
        cells = (f"{largest(values):.2f}" for values in numbers)
        printed.add_row(trial.problem, escape(trial.sampler), *cells, trial.status, style=colour)
    output.show(
        printed,
        f"Correlation of predicted and true shifts {facts['correlation_of_shifts']:.3f}, of errors of the sds "
        f"{facts['correlation_of_sds']:.3f}. {facts['wrong']} of {facts['runs']} runs are off by too much; by R-hat "
        f"and ESS {facts['wrong_but_converged']} of them look good, by the verdict {facts['false_greens']}. Of "
        f"{facts['right']} that are not, {facts['right_and_green']} are green.",
        f"Done in {in_time(results.seconds)}. Numbers and table: {escape(str(folder))}/",
    )
    output.result(files=files, facts=facts, **asdict(results))


def _table(name: str, findings: list[Finding]) -> Table:
    printed = Table(title=escape(f"{name}: {findings[0].title}"), title_justify="left")
    for heading in HEADINGS:
        is_text = heading in ("case", "compared", "aim", "verdict")
        printed.add_column(heading, justify="left" if is_text else "right")
    for finding in findings:
        printed.add_row(*map(escape, row(finding)), style=_COLOURS[finding.is_met])
    return printed
