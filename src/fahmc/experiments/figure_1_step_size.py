"""Figures 1a, 1b and 1d: the marginal error of FA-HMC and of FA-LD against the step size.

FA-HMC takes K = ⌊π/(3η)⌋ leapfrog steps for η ≤ 0.01; above, K > 1 is the one of a written grid with the smallest ME.
FA-LD is K = 1. T = 10 leapfrog steps lie between two averagings, so all runs have the same number of rounds and of
gradients. Several independent runs give the mean ME and its standard error; a run is one chain or, at paper scale,
several whose samples are joined. K is chosen by runs of one seed and shown by those of another, since the smallest of
several noisy numbers is too small.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from fahmc.density.gradient import FullGradient, GaussianNoise
from fahmc.experiments.chains import run_chains, section_5
from fahmc.experiments.online_error import OnlineMarginalError
from fahmc.experiments.outcome import Claim, Outcome, Run, Scale, Table, judge, out_of_reach
from fahmc.experiments.simulated import LogisticStudy, Reference, mhmc_reference
from fahmc.report.canvas import COLOURS, MARKERS, dress, label_decades, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

LARGEST_STEP_SIZE_OF_RULE = 0.01
NOISE = 10.0  # the paper's σ² = 100
PAPER_STEPS, PAPER_GAIN = 20_000_000, 5
METHODS = ("FA-HMC", "FA-LD")
_TUNING_SEED, _SHOWN_SEED = 1, 2
# "Decent": an ME of at most this much times the method's smallest. A claim must hold for both.
_DECENT = (1.5, 2.0)
# Two means differ if they are this many standard errors apart; 1 in 700 by chance.
_Z = 3.0


@dataclass(frozen=True)
class Budget:
    """How much is run at a scale."""

    step_sizes: tuple[float, ...]
    tried_leapfrog_steps: tuple[int, ...]
    num_steps: int
    """Leapfrog steps of a chain; samples come from the second half."""
    num_runs: int
    thin: int
    """Rounds from one sample to the next."""
    reference_draws: int
    chains_per_run: int = 1
    """Chains whose samples are joined: more of them run faster than one that is as long as they are together."""
    num_local_steps: int = 10
    num_rows: int = 1000
    num_clients: int = 20
    high_dim: int = 1000

    @property
    def num_rounds(self) -> int:
        """Rounds of a chain."""
        return self.num_steps // self.num_local_steps

    @property
    def num_chains(self) -> int:
        """Chains of a setting."""
        return self.num_runs * self.chains_per_run

    @property
    def run_steps(self) -> int:
        """Leapfrog steps of a run."""
        return self.chains_per_run * self.num_steps

    @property
    def num_samples(self) -> int:
        """Samples of a run."""
        return self.chains_per_run * (self.num_rounds // 2 // self.thin)


_STEP_SIZES = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
BUDGETS: dict[Scale, Budget] = {
    "smoke": Budget((0.01, 0.2), (2, 5), 2000, 2, 1, 4000, num_rows=100, num_clients=5, high_dim=50),
    "laptop": Budget(_STEP_SIZES, (2, 5, 10, 20, 50, 100), 40_000, 8, 2, 20_000),
    "paper": Budget(
        (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.4),
        (2, 3, 5, 7, 10, 15, 20, 30, 50, 100), 2_500_000, 2, 100, 100_000, chains_per_run=8,
    ),
}  # fmt: skip
_SMALL_DIM = 10


@dataclass(frozen=True)
class StepSizes:
    """One of the three figures."""

    name: str
    is_stochastic: bool
    is_small: bool = False

    def make(self, run: Run) -> Outcome:
        """Run what is missing, and look at all of it."""
        budget = BUDGETS[run.scale]
        dim = _SMALL_DIM if self.is_small else budget.high_dim
        study = LogisticStudy(dim, budget.num_rows, budget.num_clients)
        reference = mhmc_reference(study, budget.reference_draws, run.work)
        table = self._measure(run, budget, study, reference)
        shown = table[table["shown"]]
        floor = reference.floor(budget.num_samples)
        return Outcome(
            table=table,
            draw=partial(self._draw, shown, floor, dim),
            claims=self._claims(shown, reference, budget, run),
            settings={"budget": asdict(budget), "study": asdict(study), "gradient_noise": NOISE * self.is_stochastic},
            notes=self._notes(table, floor, reference, budget),
        )

    def _measure(self, run: Run, budget: Budget, study: LogisticStudy, reference: Reference) -> Table:
        tuned = [eta for eta in budget.step_sizes if eta > LARGEST_STEP_SIZE_OF_RULE]
        run.work.expect(2 * len(budget.step_sizes) + len(tuned) * len(budget.tried_leapfrog_steps))
        error = OnlineMarginalError(reference.draws)

        def measure(eta: float, steps: int, seed: int, **marks: Any) -> dict[str, Any]:
            gradient = GaussianNoise(NOISE) if self.is_stochastic else FullGradient()
            sampler = section_5(eta, steps, budget.num_local_steps, gradient)
            job = {
                "study": asdict(study), "reference": reference.settings, "noise": NOISE * self.is_stochastic,
                "step_size": eta, "num_leapfrog_steps": steps, "num_local_steps": budget.num_local_steps,
                "num_steps": budget.num_steps, "num_runs": budget.num_runs, "chains_per_run": budget.chains_per_run,
                "thin": budget.thin, "seed": seed,
            }  # fmt: skip

            def compute(checkpoints: Path) -> dict[str, Any]:
                half = budget.num_rounds // 2
                draws = run_chains(
                    study.model, study.federation, sampler, half, checkpoints if run.scale == "paper" else None,
                    num_warmup_rounds=budget.num_rounds - half, num_chains=budget.num_chains, thin=budget.thin,
                    seed=seed,
                )  # fmt: skip
                if draws is None:
                    return {"errors": None}
                rate = budget.num_chains * budget.num_steps / draws.cost["seconds"]
                runs = draws.flat().reshape(budget.num_runs, -1, study.dim)
                return {"errors": [_error(error, samples) for samples in runs], "steps_per_second": rate}

            method = METHODS[0] if steps > 1 else METHODS[1]
            result = run.work.once(job, compute, f"{method}, η = {eta:g}, K = {steps}")
            errors = result["errors"] or [math.inf]
            return {"method": method, "step_size": eta, "num_leapfrog_steps": steps, "seed": seed} | {
                "me": float(np.mean(errors)),
                "standard_error": float(np.std(errors, ddof=1) / len(errors) ** 0.5) if result["errors"] else math.nan,
                "steps_per_second": result.get("steps_per_second", math.nan),
                **marks,
            }

        rows = [measure(eta, 1, _SHOWN_SEED, shown=True) for eta in budget.step_sizes]
        for eta in budget.step_sizes:
            if eta <= LARGEST_STEP_SIZE_OF_RULE:
                rows.append(measure(eta, math.floor(math.pi / (3 * eta)), _SHOWN_SEED, shown=True))
                continue
            tries = [measure(eta, steps, _TUNING_SEED, shown=False) for steps in budget.tried_leapfrog_steps]
            best = min(tries, key=lambda row: row["me"])
            rows += [*tries, measure(eta, best["num_leapfrog_steps"], _SHOWN_SEED, shown=True)]
        return pd.DataFrame(rows)

    def _claims(self, shown: Table, reference: Reference, budget: Budget, run: Run) -> list[Claim]:
        claims = [_smallest_error(shown)]
        if self.is_small:
            claims += [_gap_by_step_size(shown), _advantage_by_dimension(run.others("1b"), shown)]
        else:
            claims += [_size_of_gain(shown, budget), _width_of_range(shown), _small_step_size(shown, reference, budget)]
        if run.scale == "smoke":
            return [out_of_reach(claim.statement, claim.found) for claim in claims]
        return claims

    def _notes(self, table: Table, floor: float, reference: Reference, budget: Budget) -> list[str]:
        facts = reference.facts
        rates = table.groupby("method")["steps_per_second"].median()
        chains = f", each {budget.chains_per_run} chains" if budget.chains_per_run > 1 else ""
        notes = [
            f"Reference: MHMC on all rows, {facts['draws']:,} draws of {facts['num_chains']} chains, largest split "
            f"R-hat {facts['max_split_r_hat']:.4f}, acceptance rate {facts['acceptance_rate']:.2f}.",
            f"Floor: {budget.num_samples:,} independent MHMC draws have an ME of {floor:.4f} against it.",
            f"{budget.num_runs} runs of {budget.run_steps:,} leapfrog steps for each setting (paper: {PAPER_STEPS:,})"
            f"{chains}, samples from the second half, one every {budget.thin} rounds. ME: mean over runs ± its "
            "standard error.",
            "Measured rates, chain-leapfrog steps a second (median over settings, compilation included): "
            + ", ".join(f"{method} {rate:,.0f}" for method, rate in rates.items())
            + ".",
            "K was chosen on other seeds than those shown.",
        ]
        shown = table[
            table["shown"] & (table["step_size"] > LARGEST_STEP_SIZE_OF_RULE) & (table["method"] == METHODS[0])
        ]
        if at_edge := list(shown.loc[shown["num_leapfrog_steps"] == max(budget.tried_leapfrog_steps), "step_size"]):
            etas = ", ".join(f"{eta:g}" for eta in at_edge)
            notes.append(f"The largest K tried was the best at η = {etas}, so a larger one might do better there.")
        diverged = table[np.isinf(table["me"])]
        if len(diverged):
            cases = "; ".join(
                f"{r.method}, η = {r.step_size:g}, K = {r.num_leapfrog_steps}" for r in diverged.itertuples()
            )
            notes.append(f"Diverged: {cases}.")
        return notes

    def _draw(self, shown: Table, floor: float, dim: int) -> Picture:
        gradients = "stochastic gradients" if self.is_stochastic else "exact gradients"
        figure, (axis,) = panels(
            1, f"Figure {self.name}: d = {dim}, {gradients}", num_columns=1, panel=(5.6, 3.8), has_legend=False
        )
        for method, colour, marker in zip(METHODS, COLOURS, MARKERS, strict=False):
            rows = shown[(shown["method"] == method) & np.isfinite(shown["me"])].sort_values("step_size")
            axis.errorbar(
                rows["step_size"],
                rows["me"],
                2 * rows["standard_error"],
                label=method,
                color=colour,
                marker=marker,
                capsize=2,
            )
        axis.axhline(floor, color="0.5", linestyle=":", label="floor (exact draws)")
        label_decades(axis, "x", "y")
        axis.set_xlabel("step size η")
        axis.set_ylabel("marginal error")
        axis.legend(fontsize=9, frameon=False)
        dress(axis)
        return figure


def _by_method(shown: Table) -> tuple[Table, Table]:
    """Return the rows of FA-HMC and of FA-LD."""
    hmc, langevin = (shown[shown["method"] == method] for method in METHODS)
    return hmc, langevin


def _smallest_error(shown: Table) -> Claim:
    best, rival = (rows.loc[rows["me"].idxmin()] for rows in _by_method(shown))
    z = (rival["me"] - best["me"]) / math.hypot(best["standard_error"], rival["standard_error"])
    found = (
        f"FA-HMC {_in_me(best)} at η = {best['step_size']:g}, K = {best['num_leapfrog_steps']}; FA-LD {_in_me(rival)} "
        f"at η = {rival['step_size']:g}: {100 * improvement(shown):.1f} % lower, {z:.1f} standard errors"
    )
    statement = "FA-HMC's smallest ME is below FA-LD's"
    return judge(statement, found, z > 0) if abs(z) > _Z else out_of_reach(statement, found)


def _size_of_gain(shown: Table, budget: Budget) -> Claim:
    statement, gain = f"It is lower by about {PAPER_GAIN} %", 100 * improvement(shown)
    found = f"{gain:.1f} % after {budget.run_steps:,} leapfrog steps (about as much: from half to twice)"
    if budget.run_steps < PAPER_STEPS:
        short = f"{found}; the paper has {PAPER_STEPS:,}, and slow mixing costs less the longer a run is"
        return out_of_reach(statement, short)
    return judge(statement, found, PAPER_GAIN / 2 <= gain <= 2 * PAPER_GAIN)


def _width_of_range(shown: Table) -> Claim:
    widths = [[_decades(rows, share) for rows in _by_method(shown)] for share in _DECENT]
    found = "; ".join(
        f"ME at most {share:g} times the method's smallest over {hmc:.1f} decades of η with FA-HMC, {langevin:.1f} "
        "with FA-LD"
        for share, (hmc, langevin) in zip(_DECENT, widths, strict=True)
    )
    holds = all(hmc > langevin for hmc, langevin in widths)
    return judge("FA-HMC is good over a wider range of step sizes than FA-LD", found, holds)


def _decades(rows: Table, share: float) -> float:
    """Return how many decades of step sizes are decent, between the smallest and the largest on the grid that is."""
    decent = rows.loc[rows["me"] <= share * rows["me"].min(), "step_size"]
    return float(np.log10(decent.max() / decent.min()))


def _small_step_size(shown: Table, reference: Reference, budget: Budget) -> Claim:
    statement = "A small step size usually does well with FA-HMC"
    hmc, langevin = _by_method(shown)
    smallest, best, decent = shown["step_size"].min(), hmc["me"].min(), max(_DECENT)
    found = (
        f"at η = {smallest:g} FA-HMC's ME is {_at(hmc, smallest) / best:.2f} times its smallest; FA-LD's is "
        f"{_at(langevin, smallest) / langevin['me'].min():.2f} times its own"
    )
    steps = int(hmc.loc[hmc["step_size"] == smallest, "num_leapfrog_steps"].iloc[0])
    num_trajectories = budget.run_steps // 2 // steps
    attainable = reference.floor(num_trajectories)
    if attainable > decent * best:
        return out_of_reach(
            statement,
            f"{found}; but samples come from {num_trajectories} trajectories only, and as many independent draws would "
            f"have an ME of {attainable:.2f}",
        )
    return judge(statement, found, _at(hmc, smallest) <= decent * best)


def _gap_by_step_size(shown: Table) -> Claim:
    hmc, langevin = (rows.set_index("step_size")["me"] for rows in _by_method(shown))
    ratios = (langevin / hmc).replace([np.inf, -np.inf], np.nan).dropna().sort_index()
    found = "FA-LD's ME over FA-HMC's: " + ", ".join(f"{ratio:.2f} at η = {eta:g}" for eta, ratio in ratios.items())
    return judge("The gap is larger for smaller step sizes", found, ratios.idxmax() == shown["step_size"].min())


def _advantage_by_dimension(high: Table | None, low: Table) -> Claim:
    statement = "FA-HMC's advantage is larger in d = 1000 (figure 1b) than in d = 10"
    if high is None:
        return out_of_reach(statement, "figure 1b is not here at this scale; make it, and this figure again")
    gains = [improvement(high[high["shown"]]), improvement(low)]
    found = f"its smallest ME is {100 * gains[0]:.1f} % below FA-LD's against {100 * gains[1]:.1f} %"
    return judge(statement, found, gains[0] > gains[1])


def improvement(shown: Table) -> float:
    """Return by which share FA-HMC's smallest ME is below FA-LD's."""
    best, rival = (shown.loc[shown["method"] == method, "me"].min() for method in METHODS)
    return 1 - best / rival


def _in_me(row: Any) -> str:
    """Write an ME and its standard error."""
    return f"{row['me']:.4f} ± {row['standard_error']:.4f}"


def _error(error: OnlineMarginalError, samples: np.ndarray) -> float:
    error.reset()
    error.add(samples)
    return error.value()


def _at(rows: Table, step_size: float) -> float:
    return float(rows.loc[rows["step_size"] == step_size, "me"].iloc[0])
