"""`fahmc bench certificate`: what gradients say of a run's error, against what it is.

Every run is of a sampler without accept/reject step on a posterior whose moments are known from long chains of NUTS on
all rows (`rounds.references`). Predicted are `fahmc.Draws.bias` and the verdict; true are the distances of the same
run's means and standard deviations from the reference's. A **false green** is a good verdict on a run of which a mean
is off by more than `TOO_FAR` posterior standard deviations or a standard deviation by more than `TOO_WIDE` of itself,
which is somewhat more than a good verdict promises, as the reference has a Monte Carlo error too.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fahmc import tree
from fahmc.bench.rounds.hospitals import heart_disease
from fahmc.bench.rounds.problems import Problem, problem
from fahmc.bench.rounds.references import Reference, reference
from fahmc.data.federation import Federation
from fahmc.durable import write_atomically
from fahmc.dynamics.debiased import DebiasedFAHMC
from fahmc.dynamics.fa_hmc import FAHMC
from fahmc.errors import DivergenceError
from fahmc.experiments.machine import machine_facts
from fahmc.models import logistic_regression
from fahmc.report import judge, parameter_table, relative_drift
from fahmc.report.verdict import DRIFT_LIMIT, ESS_LIMIT, R_HAT_LIMIT
from fahmc.sample import sample
from fahmc.types import Position

TOO_FAR = 0.15
TOO_WIDE = 0.12
_NUM_CHAINS = 8
# Draws kept of each chain.
_NUM_DRAWS = 2000
# Columns of the heart disease table that all four hospitals have without holes in most rows, and where they lie.
_FIVE = [0, 1, 2, 7, 8]
# In their own units no step size fits all directions, and the way from afar takes too long: these are given a mass
# matrix, and begin at the mean.
_SCALED = ("poisson", "linear_scale")


class Case(NamedTuple):
    """One run."""

    problem: str
    kind: type[FAHMC]
    step_size: float
    num_leapfrog_steps: int
    num_rounds: int

    @property
    def label(self) -> str:
        """The sampler with its numbers; K = 1 is Langevin."""
        if self.num_leapfrog_steps == 1:
            return f"FALD({self.step_size:g})"
        return f"{self.kind.__name__}({self.step_size:g}, {self.num_leapfrog_steps})"


def cases() -> Iterator[Case]:
    """List the runs: each sampler from too long trajectories to short ones, with rounds enough for a good R-hat."""
    plain: dict[str, Sequence[tuple[float, int, int]]] = {
        "heart": [(0.015, 5, 12_000), (0.005, 5, 40_000), (0.01, 3, 40_000), (0.03, 6, 8000), (0.05, 1, 40_000)],
        "heart_five": [(0.015, 5, 12_000), (0.01, 5, 20_000), (0.03, 8, 6000)],
        "opt": [(0.05, 8, 10_000), (0.05, 5, 12_000), (0.02, 10, 16_000), (0.03, 4, 40_000), (0.1, 1, 40_000)],
        "student_t": [(0.02, 4, 8000), (0.01, 5, 10_000), (0.005, 5, 30_000), (0.003, 5, 60_000), (0.02, 1, 40_000)],
        "hierarchical_noncentred": [(0.1, 5, 20_000), (0.03, 5, 40_000), (0.1, 1, 40_000)],
        "poisson": [(0.25, 3, 8000), (0.2, 3, 12_000), (0.1, 3, 30_000), (0.25, 1, 30_000)],
        "linear_scale": [(0.02, 5, 20_000)],
        "logistic_50": [(0.1, 5, 8000), (0.02, 5, 30_000), (0.2, 1, 30_000)],
        "trauma": [(0.1, 5, 8000), (0.05, 4, 16_000), (0.1, 1, 40_000)],
        "nearly_separable": [(0.3, 4, 20_000), (0.3, 1, 60_000)],
    }
    debiased: dict[str, Sequence[tuple[float, int, int]]] = {
        "heart": [(0.03, 8, 8000), (0.02, 8, 12_000), (0.02, 4, 16_000)],
        "heart_five": [(0.03, 8, 8000), (0.02, 6, 12_000)],
        "opt": [(0.05, 5, 16_000), (0.03, 8, 16_000)],
        "student_t": [(0.01, 5, 10_000), (0.005, 5, 30_000)],
        "hierarchical_noncentred": [(0.05, 5, 30_000), (0.03, 5, 40_000)],
        "poisson": [(0.2, 3, 12_000)],
        "logistic_50": [(0.1, 5, 8000)],
        "trauma": [(0.05, 4, 16_000)],
    }
    for kind, settings in ((FAHMC, plain), (DebiasedFAHMC, debiased)):
        for name, numbers in settings.items():
            yield from (Case(name, kind, *number) for number in numbers)


@dataclass
class Trial:
    """What one run said of itself, and what is true."""

    problem: str
    sampler: str
    num_rounds: int
    status: str
    """Of the verdict; "diverged" where there are no draws to judge."""
    was_green: bool = False
    """Whether R-hat, ESS, divergences and drift alone, the verdict before there was a certificate, were good."""
    converged: bool = False
    """The same without the drift."""
    advice: str = ""
    shifts: list[float | None] = field(default_factory=list)
    """Predicted, of every parameter; None where it is not known."""
    shift_errors: list[float | None] = field(default_factory=list)
    true_shifts: list[float] = field(default_factory=list)
    cv_shifts: list[float | None] = field(default_factory=list)
    """How far the mean by control variates is off."""
    excesses: list[float | None] = field(default_factory=list)
    excess_errors: list[float | None] = field(default_factory=list)
    true_excesses: list[float] = field(default_factory=list)
    variance_ratio: float | None = None
    """How many times smaller control variates make the Monte Carlo variance of a mean: the median parameter."""

    @property
    def is_wrong(self) -> bool:
        """Whether the draws are off by more than a good verdict promises."""
        return largest(self.true_shifts) > TOO_FAR or largest(self.true_excesses) > TOO_WIDE

    @property
    def is_near(self) -> bool:
        """Whether draws are near enough that regression can tell by how much they are off."""
        return largest(self.true_shifts) < 1 and largest(self.true_excesses) < 1

    @property
    def is_false_green(self) -> bool:
        """Whether a good verdict was wrong."""
        return self.status == "good" and self.is_wrong


@dataclass
class Results:
    """All trials."""

    trials: list[Trial]
    seconds: float
    machine: dict[str, Any] = field(default_factory=machine_facts)

    def pairs(self, predicted: str, true: str) -> np.ndarray:
        """Return predicted and true numbers of all parameters whose error is told, in runs that are near, [2, n]."""
        values = [
            (a, b)
            for trial in self.trials
            for a, b in zip(getattr(trial, predicted), getattr(trial, true), strict=True)
            if a is not None and trial.is_near
        ]
        return np.array(values).T.reshape(2, -1)

    def facts(self) -> dict[str, Any]:
        """Return the counts and correlations."""
        shifts, excesses = self.pairs("shifts", "true_shifts"), self.pairs("excesses", "true_excesses")
        judged = [trial for trial in self.trials if trial.status != "diverged"]
        ratios = [trial.variance_ratio for trial in judged if trial.variance_ratio is not None]
        return {
            "runs": len(self.trials),
            "diverged": len(self.trials) - len(judged),
            "correlation_of_shifts": float(np.corrcoef(shifts)[0, 1]),
            "correlation_of_sds": float(np.corrcoef(excesses)[0, 1]),
            "median_miss_of_shifts": float(np.median(np.abs(shifts[0] - shifts[1]))),
            "median_miss_of_sds": float(np.median(np.abs(excesses[0] - excesses[1]))),
            "wrong": sum(trial.is_wrong for trial in judged),
            "wrong_but_converged": sum(trial.is_wrong and trial.converged for trial in judged),
            "wrong_but_was_green": sum(trial.is_wrong and trial.was_green for trial in judged),
            "false_greens": sum(trial.is_false_green for trial in judged),
            "right": sum(not trial.is_wrong and trial.converged for trial in judged),
            "right_and_green": sum(not trial.is_wrong and trial.status == "good" for trial in judged),
            "near": sum(trial.is_near for trial in judged),
            "variance_ratio_of_control_variates": float(np.median(ratios)),
            "largest_shift_of_control_variates": max(largest(trial.cv_shifts) for trial in judged if trial.is_near),
        }

    def table(self) -> str:
        """Return everything as Markdown."""
        head = "| problem | sampler | rounds | largest shift: predicted | true | largest sd error: predicted | true | "
        head += "verdict | by R-hat and ESS alone | true shift of `mean_cv` |"
        lines = [head, "|---|---|---:|---:|---:|---:|---:|---|---|---:|"]
        for trial in self.trials:
            cells = [trial.problem, f"`{trial.sampler}`", f"{trial.num_rounds:,}"]
            if trial.status != "diverged":
                cells += [_worst(trial.shifts, trial.shift_errors, 2), f"{largest(trial.true_shifts):.2f}"]
                cells += [_worst(trial.excesses, trial.excess_errors, 2), f"{largest(trial.true_excesses):.2f}"]
            else:
                cells += [""] * 4
            cells += [f"**{trial.status}, wrongly**" if trial.is_false_green else trial.status]
            cells += ["good" if trial.converged else "", f"{largest(trial.cv_shifts):.3f}" if trial.cv_shifts else ""]
            lines.append(f"| {' | '.join(cells)} |")
        return "\n".join(lines) + "\n"

    def write(self, folder: Path) -> dict[str, str]:
        """Write results.json and table.md."""
        folder.mkdir(parents=True, exist_ok=True)
        values = {"facts": self.facts(), **asdict(self)}
        texts = {"results.json": json.dumps(values, indent=1), "table.md": self.table()}
        for name, text in texts.items():
            write_atomically(folder / name, text.encode())
        return {name: str(folder / name) for name in texts}


def measure_certificate(log: Callable[[str], None], *, is_quick: bool = False) -> Results:
    """Run all cases, or a few short ones."""
    began, trials = time.perf_counter(), []
    chosen = list(cases())
    if is_quick:
        chosen = [case._replace(num_rounds=2000) for case in chosen if case.problem == "opt"][:3]
    problems: dict[str, tuple[Problem, Reference]] = {}
    for case in chosen:
        if case.problem not in problems:
            made = five_columns() if case.problem == "heart_five" else problem(case.problem)
            problems[case.problem] = made, reference(made)
        trial = run_case(case, *problems[case.problem])
        trials.append(trial)
        log(f"{case.problem} {case.label}: {trial.status}")
    return Results(trials, time.perf_counter() - began)


def run_case(case: Case, posed: Problem, truth: Reference) -> Trial:
    """Sample, and hold what the run says of itself against the truth."""
    settings: dict[str, Any] = {"num_leapfrog_steps": case.num_leapfrog_steps, "with_gradients": True}
    init = None
    if case.problem in _SCALED:
        settings["inverse_mass_matrix"], init = truth.sd**2, _position(posed, truth.mean)
    try:
        draws = sample(
            posed.model,
            posed.federation,
            case.kind(case.step_size, **settings),
            case.num_rounds,
            num_warmup_rounds=case.num_rounds // 4,
            num_chains=_NUM_CHAINS,
            init=init,
            thin=max(1, case.num_rounds // _NUM_DRAWS),
            progress=False,
        )
    except DivergenceError:
        return Trial(case.problem, case.label, case.num_rounds, "diverged")
    table: Any = parameter_table(draws)
    verdict = judge(draws, table)
    flat = draws.flat().astype(np.float64)
    is_met = table["r_hat"].max() <= R_HAT_LIMIT and table[["ess_bulk", "ess_tail"]].min(axis=None) >= ESS_LIMIT
    converged = bool(is_met and not draws.stats["diverging"].any())
    return Trial(
        case.problem,
        case.label,
        case.num_rounds,
        verdict.status,
        was_green=converged and not relative_drift(draws) > DRIFT_LIMIT,
        converged=converged,
        advice=verdict.advice,
        shifts=_known(table["mean_shift"]),
        shift_errors=_known(table["mean_shift_error"]),
        true_shifts=((flat.mean(axis=(0, 1)) - truth.mean) / truth.sd).tolist(),
        cv_shifts=_known((table["mean_cv"] - truth.mean) / truth.sd),
        excesses=_known(table["sd_excess"]),
        excess_errors=_known(table["sd_excess_error"]),
        variance_ratio=float(np.nanmedian((table["mcse_mean"] / table["mcse_cv"]) ** 2)),
        true_excesses=(flat.std(axis=(0, 1)) / truth.sd - 1).tolist(),
    )


def five_columns() -> Problem:
    """Return heart disease by age, sex, chest pain, heart rate and angina."""
    clients = {name: {"x": rows["x"][:, _FIVE], "y": rows["y"]} for name, rows in heart_disease().items()}
    return Problem("heart_five", logistic_regression(2.5), Federation.from_clients(clients), limit=8)


def _position(posed: Problem, flat: np.ndarray) -> Position:
    """Return a position from its coordinates."""
    template = posed.model.initial_position(jax.random.key(0), posed.federation.pooled().rows[0])
    return jax.tree.map(lambda leaf: leaf[0], tree.unflatten_draws(flat[None], template))


def largest(values: Sequence[float | None]) -> float:
    """Return the largest size of those that are known; NaN if none is."""
    known = [abs(value) for value in values if value is not None]
    return max(known, default=float("nan"))


def _known(values: Any) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]


def _worst(values: Sequence[float | None], errors: Sequence[float | None], digits: int) -> str:
    """Write the largest with its error, and whether others are not known."""
    known = [(abs(value), error) for value, error in zip(values, errors, strict=True) if value is not None]
    if not known:
        return "not known"
    value, error = max(known)
    missing = len(values) - len(known)
    return f"{value:.{digits}f} ± {error or 0:.{digits}f}" + (f" ({missing} not known)" if missing else "")
