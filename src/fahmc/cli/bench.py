"""`fahmc bench`: tables on standard output, files in a folder."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from fahmc.bench.federation import measure_federation
from fahmc.bench.results import HEADINGS, Finding, row
from fahmc.bench.rounds.results import HEADINGS as HEADINGS_OF_ROUNDS
from fahmc.bench.rounds.results import RIVAL_HEADINGS
from fahmc.bench.rounds.suite import Plan, run_plan
from fahmc.bench.suite import choose, run_suite
from fahmc.cli.exits import NOT_GOOD
from fahmc.cli.output import Output
from fahmc.errors import SettingsError
from fahmc.own_folder import own_folder
from fahmc.report.quantities import in_time

_COLOURS = {None: "", True: "green", False: "yellow"}


def run_bench(
    workloads: Sequence[str] | None,
    folder: Path,
    repeats: int | None,
    seconds: float | None,
    problems: Sequence[str] | None,
    num_seeds: int | None,
    num_data_seeds: int | None,
    with_rivals: bool,
    is_quick: bool,
    output: Output,
) -> None:
    """Measure, write the files, and print the tables."""
    names = workloads or []
    alone = next((name for name in names if name in ("federation", "rounds", "certificate", "models")), None)
    if alone is not None and len(names) > 1:
        raise SettingsError(f"{alone} is measured by itself; leave the other workloads to a run of their own.")
    timing = {"--repeats": repeats, "--seconds": seconds}
    choosing = {"--problem": problems or None}
    counting = {
        "--seeds": num_seeds,
        "--data-seeds": num_data_seeds,
        "--rivals": with_rivals or None,
    }
    if alone is not None:
        _refuse(timing, f"{alone} takes no turns")
    if alone != "rounds":
        _refuse(counting if alone == "models" else choosing | counting, "it is for `fahmc bench rounds`")
    if alone == "models":
        return _bench_models(problems or (), folder, is_quick, output)
    chosen = () if alone is not None else choose(names, is_quick=is_quick)
    plan = Plan(tuple(problems or ()), num_seeds or 10, num_data_seeds or 1, with_rivals, is_quick)
    own_folder(folder, "fahmc bench")
    if alone == "rounds":
        return _bench_rounds(plan, folder, output)
    if alone == "federation":
        return _bench_federation(folder, is_quick, output)
    if alone == "certificate":
        return _bench_certificate(folder, is_quick, output)
    began = time.perf_counter()
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


def _refuse(options: Mapping[str, Any], reason: str) -> None:
    """Refuse options that would be ignored."""
    if given := [name for name, value in options.items() if value is not None]:
        raise SettingsError(f"{given[0]} says nothing here: {reason}. Leave it out.")


def _bench_rounds(plan: Plan, folder: Path, output: Output) -> None:
    """Count rounds, write the files, and print the tables."""
    began = time.perf_counter()
    try:
        results = run_plan(plan, folder, output.log)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"the runs done so far are kept in {folder}; the same command goes on") from None
    files = results.write(folder)
    tables = [_table_of_rounds("A posterior without settings", HEADINGS_OF_ROUNDS)]
    for one in results.judged:
        tables[0].add_row(*map(escape, one.row()), style="green" if one.is_good else "yellow")
    if rows := results.rival_rows():
        tables.append(_table_of_rounds("By the same yardstick", RIVAL_HEADINGS))
        for cells in rows:
            tables[-1].add_row(*map(escape, cells))
    output.show(
        *tables,
        *map(escape, (*results.notes, *results.faults())),
        "A quick run shows that everything works; its numbers mean nothing." if plan.is_quick else results.conclusion(),
        f"Done in {in_time(time.perf_counter() - began)}. Numbers and tables: {escape(str(folder))}/",
    )
    output.result(files=files, **results.as_values())


def _table_of_rounds(title: str, headings: Sequence[str]) -> Table:
    printed = Table(title=title, title_justify="left")
    for heading in headings:
        printed.add_column(heading, no_wrap=heading == "problem")
    return printed


def _bench_federation(folder: Path, is_quick: bool, output: Output) -> None:
    """Measure rounds between processes, write the files, and print the table."""
    began = time.perf_counter()
    results = measure_federation(output.log, is_quick=is_quick)
    files = results.write(folder)
    headings = ("message", "bare call", "plain round", "to bare", "masked round", "to plain")
    printed = Table(*headings, title="Rounds of 4 sites, mutual TLS, loopback; ratios with quartiles")
    for entry in results.times:
        bare, plain, masked = (f"{1e3 * seconds:.1f} ms" for seconds in (entry.bare, entry.plain, entry.masked))
        printed.add_row(entry.size, bare, plain, str(entry.ratio), masked, str(entry.mask_ratio))
    memory = ", ".join(f"{size / 1e6:.0f} MB after {rounds:,}" for rounds, size in results.memory)
    output.show(
        printed,
        f"Server's memory by rounds: {memory}.",
        "A quick run shows that everything works; its numbers mean nothing." if is_quick else results.conclusion(),
        f"Done in {in_time(time.perf_counter() - began)}. Numbers and tables: {escape(str(folder))}/",
    )
    output.result(files=files, **asdict(results))


def _bench_certificate(folder: Path, is_quick: bool, output: Output) -> None:
    """Hold what runs say of their own error against the truth, write the files, and print the table."""
    from fahmc.bench.certificate import largest, measure_certificate

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


def _bench_models(cases: Sequence[str], folder: Path, is_quick: bool, output: Output) -> None:
    """Hold models against NumPyro's, write the files, print the table; a good verdict that is wrong is an error."""
    from fahmc.bench.models.cases import check_names
    from fahmc.bench.models.results import HEADINGS as HEADINGS_OF_MODELS
    from fahmc.bench.models.suite import run_cases

    check_names(cases)
    own_folder(folder, "fahmc bench")
    results = run_cases(cases, is_quick=is_quick, log=output.log)
    files = results.write(folder)
    printed = Table(title="Next to NumPyro on pooled rows", title_justify="left")
    for heading in HEADINGS_OF_MODELS:
        printed.add_column(heading, no_wrap=heading == "model")
    for one in results.compared:
        colour = "red" if one.is_false_green else "green" if one.verdict == "good" else "yellow"
        printed.add_row(*map(escape, one.row()), style=colour)
    output.show(
        printed,
        *map(escape, results.notes()),
        "A quick run shows that everything works; its numbers mean nothing." if is_quick else results.conclusion(),
        f"Done in {in_time(results.seconds)}. Numbers and table: {escape(str(folder))}/",
    )
    exit_code = NOT_GOOD if results.false_greens and not is_quick else 0
    output.result(exit_code=exit_code, files=files, conclusion=results.conclusion(), **results.as_values())
    output.end(exit_code)


def _table(name: str, findings: list[Finding]) -> Table:
    printed = Table(title=escape(f"{name}: {findings[0].title}"), title_justify="left")
    for heading in HEADINGS:
        is_text = heading in ("case", "compared", "aim", "verdict")
        printed.add_column(heading, justify="left" if is_text else "right")
    for finding in findings:
        printed.add_row(*map(escape, row(finding)), style=_COLOURS[finding.is_met])
    return printed
