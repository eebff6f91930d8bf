"""`fahmc bench rounds` from end to end: references, runs, rivals, and what is kept of them in a folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fahmc.bench.rounds.kept import Kept
from fahmc.bench.rounds.measure import Measured, measure
from fahmc.bench.rounds.problems import SIMULATED, UNSEEN, Problem, names, problem
from fahmc.bench.rounds.references import Reference, reference
from fahmc.bench.rounds.results import Judged, Results
from fahmc.bench.rounds.rivals import RIVALS, Contest, contest
from fahmc.errors import DataError, SettingsError

Log = Callable[[str], None]

_QUICK_PROBLEMS = ("linear_scale",)
_QUICK_DRAWS = 200


@dataclass(frozen=True)
class Plan:
    """What to run."""

    problems: tuple[str, ...] = ()
    """All if there are none."""
    num_seeds: int = 10
    num_data_seeds: int = 1
    """Of problems whose rows are simulated."""
    with_rivals: bool = False
    is_quick: bool = False
    """Show that everything works, in seconds: one small problem, one seed, short references in the folder itself."""

    def __post_init__(self):
        if unknown := [name for name in self.problems if name not in names()]:
            raise SettingsError(f"There is no problem {unknown[0]!r}; choose from {', '.join(names())}.")

    @property
    def chosen(self) -> tuple[str, ...]:
        """The problems, in their order."""
        all_of_them = _QUICK_PROBLEMS if self.is_quick else names()
        return tuple(name for name in names() if name in (self.problems or all_of_them))


def run_plan(plan: Plan, folder: Path, log: Log) -> Results:
    """Run what is not yet kept in the folder, and put all of it together."""
    folder.mkdir(parents=True, exist_ok=True)
    runs = Kept(folder / "runs.jsonl", Measured, ("problem", "data_seed", "seed"))
    contests = Kept(folder / "rivals.jsonl", Contest, ("problem", "rival"))
    if num_kept := len(runs) + len(contests):
        words = "1 run is" if num_kept == 1 else f"{num_kept} runs are"
        log(f"{words} kept in {folder} and not made again; another folder begins anew.")
    results = Results({"seeds": plan.num_seeds, "data_seeds": plan.num_data_seeds, "is_quick": plan.is_quick})
    for name in plan.chosen:
        for data_seed in range(plan.num_data_seeds if name in SIMULATED else 1):
            try:
                made = problem(name, data_seed)
            except (DataError, SettingsError) as error:
                if plan.problems:
                    raise
                # A table that is not here stops nobody who asked for everything.
                results.notes.append(f"{name} was left out. {error}")
                log(results.notes[-1])
                continue
            judged = _judge(plan, made, data_seed, runs, folder, log)
            results.judged.append(judged)
            if plan.with_rivals and data_seed == 0:
                results.contests += _let_compete(made, judged.reference, contests, log)
    return results


def _judge(plan: Plan, made: Problem, data_seed: int, runs: Kept[Measured], folder: Path, log: Log) -> Judged:
    title = made.name if data_seed == 0 else f"{made.name}, rows {data_seed}"
    log(f"{title}: the posterior of all rows")
    against = (
        reference(made, data_seed, folder / "references", num_draws=_QUICK_DRAWS)
        if plan.is_quick
        else reference(made, data_seed)
    )
    measured = []
    for seed in range(1 if plan.is_quick else plan.num_seeds):
        one = runs.get(made.name, data_seed, seed) or runs.add(measure(made, against, seed, data_seed=data_seed))
        measured.append(one)
        log(f"{title}, seed {seed}: {one.rounds:.0f} rounds" + "".join(f"; {fault}" for fault in one.faults))
    return Judged(made.name, data_seed, made.limit, against, measured, is_unseen=made.name in UNSEEN)


def _let_compete(made: Problem, against: Reference, contests: Kept[Contest], log: Log) -> list[Contest]:
    found = []
    for rival in RIVALS.get(made.name, ()):
        one = contests.get(made.name, rival.name) or contests.add(contest(rival, made, against))
        found.append(one)
        log(f"{made.name}, {rival.name}: {one.words}")
    return found
