"""The benchmark from end to end: check that contenders agree, let them race, keep what was found."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax

from fahmc.bench import fresh, peers
from fahmc.bench.agreement import check
from fahmc.bench.cases import NUMPY_PRODUCTS, XLA_PRODUCTS, FreshRun, Race, Workload
from fahmc.bench.results import Finding, Results
from fahmc.bench.timing import Spread, best, race, ratio
from fahmc.bench.workloads import FULL, QUICK, all_workloads
from fahmc.errors import SettingsError
from fahmc.experiments.machine import busy_share

Log = Callable[[str], None]

# Threads that wait for each other in every product, as those of BLAS and OpenMP do, slow down many times over when they
# lose a core to somebody else for a moment.
_BUSY = 0.1


def choose(names: Sequence[str], *, is_quick: bool = False) -> list[Workload]:
    """Return the workloads of these names, all without names, if everybody who takes part is installed."""
    workloads = {workload.name: workload for workload in all_workloads(QUICK if is_quick else FULL)}
    if unknown := [name for name in names if name not in workloads]:
        raise SettingsError(f"There is no workload {unknown[0]!r}; choose from {', '.join(workloads)}.")
    chosen = [workload for name, workload in workloads.items() if not names or name in names]
    peers.require(entrant.contender for workload in chosen for one in workload.races for entrant in one.entrants)
    return chosen


def run_suite(workloads: Sequence[Workload], *, repeats: int, seconds: float, log: Log) -> Results:
    """Measure all workloads, in single precision whatever JAX is set to."""
    results = Results({"workloads": [workload.name for workload in workloads], "repeats": repeats, "seconds": seconds})
    shares = []
    with jax.enable_x64(False):
        for workload in workloads:
            for one in workload.races:
                shares.append(busy_share())
                log(f"{workload.name} {one.title}: {', '.join(entrant.label for entrant in one.entrants)}")
                _run_race(workload, one, results)
            for run in workload.fresh_runs:
                log(f"{workload.name} {run.title}: {run.words}, in a process of its own")
                results.findings.append(_run_fresh(workload, run, repeats))
    if max(shares, default=0.0) > _BUSY:
        results.notes.append(
            f"Other processes used up to {100 * max(shares):.0f} % of the machine between the races. That hits some "
            "contenders harder than others: measure again in quiet."
        )
    return results


def _run_race(workload: Workload, one: Race, results: Results) -> None:
    # Entrants on the same case share its rows.
    cases = {make_case: make_case() for make_case in {entrant.case for entrant in one.entrants}}
    for label, contender, make_case in one.entrants:
        case = cases[make_case]
        if case.problem.note and case.problem.note not in results.notes:
            results.notes.append(case.problem.note)
        if contender not in (NUMPY_PRODUCTS, XLA_PRODUCTS):  # which compute nothing that could be right or wrong
            error = check(label, partial(peers.build, contender), case)
            results.errors.append(
                {"workload": workload.name, "case": one.title, "contender": label, "relative_error": error}
            )
    contenders: dict[str, Any] = {
        label: peers.build(contender, cases[make_case]) for label, contender, make_case in one.entrants
    }
    rates = race(contenders, repeats=results.settings["repeats"], seconds=results.settings["seconds"])
    results.add_rates(workload.name, one.title, rates)
    for words, of, over, aim in one.comparisons:
        ours, theirs = rates[of], best(rates, over)
        medians = statistics.median(ours), statistics.median(theirs)
        results.findings.append(
            Finding(workload.name, workload.title, one.title, words, ratio(ours, theirs), "x", aim, medians)
        )


def _run_fresh(workload: Workload, run: FreshRun, repeats: int) -> Finding:
    runs = [fresh.measure(run.measure, run.num_rounds) for _ in range(run.repeats or repeats)]
    spread = Spread.of(values.pop("value") for values in runs)
    return Finding(workload.name, workload.title, run.title, run.words, spread, run.unit, run.aim, details=runs[-1])
