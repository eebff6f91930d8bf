"""Figure 1c: rounds until the marginal error falls to ε, against the number T of leapfrog steps between averagings.

K = 100, η = 0.01, noisy gradients. The ME is that of all samples so far, from the first round on. Large T spends
computation to save rounds, until the clients drift so far apart in a round that their average is biased.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from fahmc.density.gradient import GaussianNoise
from fahmc.experiments.chains import run_chains, section_5
from fahmc.experiments.figure_1_step_size import NOISE
from fahmc.experiments.online_error import OnlineMarginalError
from fahmc.experiments.outcome import Claim, Outcome, Run, Scale, Table, judge, out_of_reach
from fahmc.experiments.simulated import LogisticStudy, mhmc_reference
from fahmc.report.canvas import COLOURS, LINE_STYLES, MARKERS, dress, label_decades, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

STEP_SIZE, NUM_LEAPFROG_STEPS = 0.01, 100
PAPER_EPSILON, PAPER_BEST_T, PAPER_GAIN = 0.101, 70, 65
_SEED = 2
# The ME is looked at after each 5 % more samples; in between the rounds are interpolated.
_GROWTH = 1.05
_MIN_SAMPLES = 4
# Two T differ if their rounds are so many standard errors apart; 1 in 700 by chance.
_MIN_Z = 3.0
_CLEARLY_MORE = 1.05


@dataclass(frozen=True)
class Budget:
    """How much is run at a scale."""

    local_steps: tuple[int, ...]
    num_steps: int
    """Leapfrog steps of a chain at least."""
    num_rounds: int
    """Rounds of a chain at least, so that every T can be seen to arrive late."""
    num_chains: int
    epsilons: tuple[float, ...]
    reference_draws: int
    dim: int = 1000
    num_rows: int = 1000
    num_clients: int = 20

    def rounds_of(self, num_local_steps: int) -> int:
        """Return the rounds of a chain."""
        return max(self.num_steps // num_local_steps, self.num_rounds)


_EVERY_TEN = tuple(range(10, 101, 10))
BUDGETS: dict[Scale, Budget] = {
    "smoke": Budget((1, 20, 100), 4000, 50, 2, (0.4, 0.3), 4000, dim=50, num_rows=100, num_clients=5),
    "laptop": Budget((1, 2, 5, *_EVERY_TEN), 60_000, 2000, 8, (0.2, 0.15, PAPER_EPSILON, 0.08, 0.065), 20_000),
    "paper": Budget(
        (1, 2, 5, *_EVERY_TEN),
        600_000,
        20_000,
        4,
        (0.2, 0.15, PAPER_EPSILON, 0.08, 0.06, 0.05, 0.04, 0.03, 0.02),
        100_000,
    ),
}


def thin_for(num_local_steps: int) -> int:
    """Return the rounds from one sample to the next: 10 leapfrog steps, a tenth of a trajectory, or one round."""
    return max(1, 10 // num_local_steps)


def make(run: Run) -> Outcome:
    """Run what is missing, and look at all of it."""
    budget = BUDGETS[run.scale]
    study = LogisticStudy(budget.dim, budget.num_rows, budget.num_clients)
    reference = mhmc_reference(study, budget.reference_draws, run.work)
    run.work.expect(len(budget.local_steps))
    error = OnlineMarginalError(reference.draws)
    table, curves = [], []
    for local_steps in budget.local_steps:
        result = _run_one(run, budget, study, reference.settings, error, local_steps)
        curves += [
            {"num_local_steps": local_steps, "round": round_, "me": float(np.mean(errors))}
            for round_, errors in zip(result["rounds"], zip(*result["errors"], strict=True), strict=True)
        ]
        for epsilon in budget.epsilons:
            crossings = [first_round_below(result["rounds"], errors, epsilon) for errors in result["errors"]]
            table.append(
                {
                    "num_local_steps": local_steps,
                    "epsilon": epsilon,
                    **_crossing_row(crossings, result["rounds"][-1]),
                    "rounds_run": result["rounds"][-1],
                    "steps_per_second": result["steps_per_second"],
                }
            )
    table: Table = pd.DataFrame(table)
    fewest = budget.rounds_of(max(budget.local_steps))
    floor, rates = reference.floor(fewest), table.groupby("num_local_steps")["steps_per_second"].first()
    return Outcome(
        table=table,
        draw=partial(_draw, table, budget),
        claims=claims_of(table, run.scale),
        settings={
            "budget": asdict(budget), "study": asdict(study), "gradient_noise": NOISE,
            "step_size": STEP_SIZE, "num_leapfrog_steps": NUM_LEAPFROG_STEPS,
        },
        notes=[
            f"Reference: MHMC on all rows, {reference.facts['draws']:,} draws, largest split R-hat "
            f"{reference.facts['max_split_r_hat']:.4f}; floor for the {fewest:,} samples of the largest T: "
            f"{floor:.4f}.",
            f"{budget.num_chains} chains of at least {budget.num_steps:,} leapfrog steps and {budget.num_rounds:,} "
            "rounds for each T; R_ε is the chains' mean of the first round at which the ME of all samples so far is at "
            "most ε. Chains start near 0 and no round is left out. One sample every round, or every 10 leapfrog steps "
            "where T < 10.",
            f"T = {NUM_LEAPFROG_STEPS} equals K: it averages only where a trajectory ends and the momentum is drawn "
            "anew, which no other T above 50 does.",
            "Measured rates, chain-leapfrog steps a second, compilation included: "
            + ", ".join(f"T = {t}: {rate:,.0f}" for t, rate in rates.items())
            + ".",
        ],
        tables={"curves": pd.DataFrame(curves)},
    )  # fmt: skip


def _run_one(
    run: Run,
    budget: Budget,
    study: LogisticStudy,
    reference: dict[str, Any],
    error: OnlineMarginalError,
    local_steps: int,
) -> dict[str, Any]:
    num_rounds, thin = budget.rounds_of(local_steps), thin_for(local_steps)
    job = {
        "study": asdict(study), "reference": reference, "num_steps": num_rounds * local_steps,
        "num_chains": budget.num_chains, "num_local_steps": local_steps, "thin": thin, "step_size": STEP_SIZE,
        "num_leapfrog_steps": NUM_LEAPFROG_STEPS, "noise": NOISE, "seed": _SEED, "looks": [_MIN_SAMPLES, _GROWTH],
    }  # fmt: skip

    def compute(checkpoints: Path) -> dict[str, Any]:
        sampler = section_5(STEP_SIZE, NUM_LEAPFROG_STEPS, local_steps, GaussianNoise(NOISE))
        draws = run_chains(
            study.model, study.federation, sampler, num_rounds, checkpoints if run.scale == "paper" else None,
            num_chains=budget.num_chains, thin=thin, seed=_SEED,
        )  # fmt: skip
        if draws is None:
            return {"rounds": [num_rounds], "errors": [[math.inf]] * budget.num_chains, "steps_per_second": math.nan}
        looks = looking_times(draws.num_draws)
        return {
            "rounds": [look * thin for look in looks],
            "errors": [online_errors(error, chain, looks) for chain in draws.flat()],
            "steps_per_second": budget.num_chains * num_rounds * local_steps / draws.cost["seconds"],
        }

    return run.work.once(job, compute, f"T = {local_steps}")


def looking_times(num_samples: int) -> list[int]:
    """Return the sample sizes at which the error is looked at, the last one included."""
    sizes, size = [], float(_MIN_SAMPLES)
    while size < num_samples:
        sizes.append(int(size))
        size = max(size * _GROWTH, size + 1)
    return [*sizes, num_samples]


def online_errors(error: OnlineMarginalError, samples: np.ndarray, looks: list[int]) -> list[float]:
    """Return the ME of the first samples, for each of the sample sizes."""
    error.reset()
    values, seen = [], 0
    for look in looks:
        error.add(samples[seen:look])
        values.append(error.value())
        seen = look
    return values


def first_round_below(rounds: list[int], errors: list[float], epsilon: float) -> float:
    """Return where the error first is at most epsilon, log-linearly between two looks; infinite if it never is."""
    is_below = np.asarray(errors) <= epsilon
    if not is_below.any():
        return math.inf
    first = int(is_below.argmax())
    if first == 0:
        return float(rounds[0])
    (before, after), (high, low) = np.log(rounds[first - 1 : first + 1]), np.log(errors[first - 1 : first + 1])
    return float(np.exp(before + (after - before) * (high - np.log(epsilon)) / (high - low)))


def _crossing_row(crossings: list[float], rounds_run: int) -> dict[str, float]:
    """Return the mean over chains and its standard error; with a chain that did not get there, a lower bound."""
    reached = np.minimum(crossings, rounds_run)
    return {
        "rounds": float(np.mean(reached)),
        "standard_error": float(np.std(reached, ddof=1) / len(reached) ** 0.5),
        "is_bound": bool(np.isinf(crossings).any()),
    }


def claims_of(table: Table, scale: Scale) -> list[Claim]:
    """Judge the paper's claims."""
    statements = [
        "R_ε is U-shaped in T: too few and too many local steps both cost rounds",
        f"The best T is {PAPER_BEST_T}",
        f"At ε ≈ {PAPER_EPSILON} the best T needs more than {PAPER_GAIN} times fewer rounds than T = 1",
        "A smaller ε makes the best T gain more over the largest",
    ]
    if scale == "smoke":
        return [out_of_reach(statement, "a smaller problem was run") for statement in statements]
    curves = {epsilon: rows.set_index("num_local_steps").sort_index() for epsilon, rows in table.groupby("epsilon")}
    decided = {epsilon: curve for epsilon, curve in curves.items() if _is_decided(curve)}
    if not decided:
        found = "at no ε did all T reach it, or run at least as long as the best one needed"
        return [out_of_reach(statement, found) for statement in statements]
    smallest = min(decided)
    curve = decided[smallest]
    best, last = _best(curve), curve.index.max()
    rounds = f"at ε = {smallest:g}: " + ", ".join(f"T = {t}: {_in_rounds(row)}" for t, row in curve.iterrows())
    is_u = 1 < best < last and _z(curve, best, last) > _MIN_Z
    if 1 < best < last and not is_u:
        u_shape = out_of_reach(
            statements[0], f"{rounds}; T = {best} and T = {last} are within {_MIN_Z:g} standard errors"
        )
    else:
        u_shape = judge(statements[0], rounds, is_u)
    return [
        u_shape,
        _best_claim(statements[1], decided),
        _gain_claim(statements[2], curves),
        _gains_claim(statements[3], decided),
    ]


def _is_decided(curve: Table) -> bool:
    """Whether the best T is known: every other one got there, or ran at least as many rounds as the best needed."""
    reached = curve[~curve["is_bound"]]
    return len(reached) > 0 and bool((curve.loc[curve["is_bound"], "rounds"] > reached["rounds"].min()).all())


def _best(curve: Table) -> int:
    return int(curve.loc[~curve["is_bound"], "rounds"].idxmin())


def _z(curve: Table, better: int, worse: int) -> float:
    """Return by how many standard errors one T needs fewer rounds than another."""
    return (curve.loc[worse, "rounds"] - curve.loc[better, "rounds"]) / math.hypot(
        curve.loc[better, "standard_error"], curve.loc[worse, "standard_error"]
    )


def _in_rounds(row: Table) -> str:
    return f"{'more than ' if row['is_bound'] else ''}{row['rounds']:.0f}"


def _best_claim(statement: str, decided: dict[float, Table]) -> Claim:
    found = "; ".join(f"ε = {e:g}: T = {_best(c)} ({c.loc[_best(c), 'rounds']:.0f} rounds)" for e, c in decided.items())
    curve = decided[min(decided)]
    best = _best(curve)
    if best != PAPER_BEST_T and _z(curve, best, PAPER_BEST_T) <= _MIN_Z:
        return out_of_reach(statement, f"{found}; T = {PAPER_BEST_T} is within {_MIN_Z:g} standard errors of the best")
    return judge(statement, found, best == PAPER_BEST_T)


def _gain_claim(statement: str, curves: dict[float, Table]) -> Claim:
    curve = curves[PAPER_EPSILON]
    if curve["is_bound"].all():
        return out_of_reach(statement, f"no T reached ε = {PAPER_EPSILON}")
    best = _best(curve)
    gain = curve.loc[1, "rounds"] / curve.loc[best, "rounds"]
    found = (
        f"{_in_rounds(curve.loc[1])} rounds for T = 1, {curve.loc[best, 'rounds']:.0f} for T = {best}: "
        f"{gain:.1f} times fewer{' or better' if curve.loc[1, 'is_bound'] else ''}"
    )
    if curve.loc[1, "is_bound"] and gain <= PAPER_GAIN:
        return out_of_reach(statement, found)
    return judge(statement, found, gain > PAPER_GAIN)


def _gains_claim(statement: str, decided: dict[float, Table]) -> Claim:
    """Compare what the best T gains over the largest at small and at large ε; one that did not arrive gives a bound."""
    curves = sorted(decided.items(), reverse=True)
    gains = [curve["rounds"].iloc[-1] / curve.loc[_best(curve), "rounds"] for _, curve in curves]
    if len(gains) < 2 or curves[0][1]["is_bound"].iloc[-1]:
        return out_of_reach(statement, "the largest T did not arrive at the largest ε, or one ε alone is decided")
    found = f"rounds of T = {curves[0][1].index.max()} over the best's: " + ", ".join(
        f"{'more than ' if curve['is_bound'].iloc[-1] else ''}{gain:.2f} at ε = {epsilon:g}"
        for gain, (epsilon, curve) in zip(gains, curves, strict=True)
    )
    return judge(statement, found, min(gains) >= gains[0] and max(gains) > _CLEARLY_MORE * gains[0])


def _draw(table: Table, budget: Budget) -> Picture:
    title = f"Figure 1c: rounds until ME = ε (d = {budget.dim})"
    figure, (axis,) = panels(1, title, num_columns=1, panel=(6.2, 4.0), has_legend=False)
    for i, epsilon in enumerate(budget.epsilons):
        rows = table[table["epsilon"] == epsilon]
        reached, late = rows[~rows["is_bound"]], rows[rows["is_bound"]]
        if reached.empty:
            continue
        colour = COLOURS[i % len(COLOURS)]
        axis.errorbar(
            reached["num_local_steps"], reached["rounds"], 2 * reached["standard_error"], label=f"ε = {epsilon:g}",
            color=colour, marker=MARKERS[i % len(MARKERS)], linestyle=LINE_STYLES[i % len(LINE_STYLES)], capsize=2,
            markersize=4,
        )  # fmt: skip
        axis.plot(late["num_local_steps"], late["rounds"], "^", color=colour, fillstyle="none", markersize=7)
    if table["is_bound"].any():
        axis.plot([], [], "^", color="0.4", fillstyle="none", markersize=7, label="not reached by then")
    label_decades(axis, "y")
    axis.set_xlabel("local steps T")
    axis.set_ylabel("rounds $R_ε$")
    axis.legend(fontsize=9, frameon=False)
    dress(axis)
    return figure
