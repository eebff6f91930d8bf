"""Figure 2: rounds until W₂² < 0.1 against the dimension, on Gaussian clients that disagree.

Half the clients have the posterior N(20·1, I), half N(1·1, 4 I); together N(16.2·1, 1.6 I). K = 5, T = 10
leapfrog steps, η = 0.02/d^¼, start at 0. Two ways:

- the exact law: every round is affine and coordinates are independent and alike, so the law of one coordinate gives
  W₂² = d · W₂²(one coordinate), without a random number;
- simulation: many independent chains. All coordinates have one law, so its mean and variance are estimated from all
  chains and coordinates together, where the paper estimates each coordinate's.

With exact gradients and a shared momentum equal clients follow one path, so two clients stand for any even number.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
import pandas as pd

from fahmc.data.federation import Federation
from fahmc.density.model import Model
from fahmc.experiments.chains import run_chains, section_5
from fahmc.experiments.outcome import Claim, Outcome, Run, Scale, Table, judge
from fahmc.report.canvas import COLOURS, dress, panels
from fahmc.report.distances import wasserstein2_gaussians
from fahmc.theory import GaussianClients, laws_by_round

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

MEANS, VARIANCES = (20.0, 1.0), (1.0, 4.0)
POSTERIOR = (16.2, 1.6)
NUM_LEAPFROG_STEPS, NUM_LOCAL_STEPS, TARGET = 5, 10, 0.1
MIN_R2 = 0.98
# Normal deviates beyond it: 1 in 16,000.
MAX_Z = 4.0
_MOST_ROUNDS = 1_000_000
_SETTING = {
    "client_means": MEANS, "client_variances": VARIANCES, "num_leapfrog_steps": NUM_LEAPFROG_STEPS,
    "num_local_steps": NUM_LOCAL_STEPS, "target_w2_squared": TARGET, "start": 0.0,
}  # fmt: skip
# Simulated rounds are looked at so often in a window around where the exact law crosses, as shares of its rounds.
_LOOKS, _WINDOW = 200, (0.9, 1.1)


@dataclass(frozen=True)
class Budget:
    """How much is run at a scale."""

    dims: tuple[int, ...]
    simulated_dims: tuple[int, ...]
    num_chains: int
    """Simulated chains at least; as many more as make ``num_values`` values of a coordinate."""
    num_values: int


_PAPER_DIMS = (2, *range(50, 1001, 50))
BUDGETS: dict[Scale, Budget] = {
    "smoke": Budget((2, 25, 50, 75, 100), (2, 10), 1000, 10_000),
    "laptop": Budget((*_PAPER_DIMS, 2000, 5000, 10_000), (2, 25, 50, 100, 200), 500, 100_000),
    "paper": Budget((*_PAPER_DIMS, 2000, 5000, 10_000), _PAPER_DIMS, 2000, 400_000),
}


def step_size(dim: int) -> float:
    """Return η = 0.02/d^¼."""
    return 0.02 / dim**0.25


def make(run: Run) -> Outcome:
    """Compute the exact law, run the missing simulations, and lay the two over each other."""
    budget = BUDGETS[run.scale]
    dims = sorted({*budget.dims, *budget.simulated_dims})
    run.work.expect(len(dims) + len(budget.simulated_dims))
    rows = []
    for dim in dims:
        job = {"figure": "2", "way": "exact law", **_SETTING, "dim": dim, "step_size": step_size(dim)}
        exact = run.work.once(job, lambda _, dim=dim: {"rounds": exact_rounds(dim)}, f"exact law, d = {dim}")
        rows.append({"dim": dim, "way": "exact law", "step_size": step_size(dim), "rounds": exact["rounds"]})
    exact = {row["dim"]: row["rounds"] for row in rows}
    for dim in budget.simulated_dims:
        num_chains = max(budget.num_chains, -(-budget.num_values // dim))
        job = {"figure": "2", "way": "simulation", **_SETTING, "dim": dim, "step_size": step_size(dim)} | {
            "num_chains": num_chains, "looks": _LOOKS, "window": _WINDOW, "seed": 0
        }  # fmt: skip
        compute = partial(_simulate, dim, num_chains, exact[dim], is_durable=run.scale == "paper")
        rows.append(
            {"dim": dim, "way": "simulation", "step_size": step_size(dim), "num_chains": num_chains}
            | run.work.once(job, compute, f"simulation, d = {dim}, {num_chains} chains")
        )
    table: Table = pd.DataFrame(rows)
    slope, intercept, r2 = line_through_squares(table[(table["way"] == "exact law") & (table["dim"] <= 1000)])
    return Outcome(
        table=table,
        draw=partial(_draw, table, slope, intercept, r2),
        claims=_claims(table, r2),
        settings={
            "budget": asdict(budget), **_SETTING, "step_size": "0.02 / d^(1/4)",
            "line": {"slope": slope, "intercept": intercept, "r_squared": r2},
        },
        notes=[
            f"Line through d ≤ 1000, exact law: rounds² = {slope:.4g} d + {intercept:.4g}, R² = {r2:.4f}.",
            f"Beyond the paper's range the exact law goes on to d = {max(dims):,}. The curve bends above the line: "
            "rounds grow like √d log(d), and the logarithm is not in the line."
            if max(dims) > 1000
            else "The exact law goes to d = 10,000 at the other scales.",
            "Simulated W₂² comes from the mean and variance over all chains and coordinates; where it crosses 0.1 is "
            "read off a line through log W₂² from 10 % before to 10 % after the exact law's crossing.",
        ],
    )  # fmt: skip


def exact_rounds(dim: int) -> float:
    """Return the rounds, interpolated, at which d · W₂²(one coordinate, posterior) falls below the target."""
    clients = GaussianClients(np.array(MEANS)[:, None], 1 / np.array(VARIANCES)[:, None, None], np.array([0.5, 0.5]))
    sampler = section_5(step_size(dim), NUM_LEAPFROG_STEPS, NUM_LOCAL_STEPS)
    before = math.nan
    for index, law in enumerate(islice(laws_by_round(clients, sampler), _MOST_ROUNDS)):
        squared = dim * _w2_squared(law.mean[0], law.covariance[0, 0])
        if squared < TARGET:
            return crossing(index - 1, before, index, squared)
        before = squared
    return math.inf


def _w2_squared(mean: float, variance: float) -> float:
    return wasserstein2_gaussians([mean], variance, [POSTERIOR[0]], POSTERIOR[1]) ** 2


def crossing(round_a: float, squared_a: float, round_b: float, squared_b: float) -> float:
    """Return where W₂² passes the target between two rounds; its logarithm is nearly straight there."""
    share = math.log(squared_a / TARGET) / math.log(squared_a / squared_b)
    return round_a + (round_b - round_a) * share


def gaussian_study(dim: int) -> tuple[Model, Federation]:
    """Return the two clients, one row each."""
    clients = [
        {"mean": np.full((1, 1), mean, np.float32), "precision": np.full((1, 1), 1 / variance, np.float32)}
        for mean, variance in zip(MEANS, VARIANCES, strict=True)
    ]

    def loglikelihood_fn(position: Any, batch: Any) -> Any:
        # With one row a client, f_c is twice its row's loss; the half undoes it.
        return -jnp.sum(batch["precision"] * (position[None] - batch["mean"]) ** 2, axis=-1) / 2 / len(MEANS)

    return Model(loglikelihood_fn, init=np.zeros(dim)), Federation.from_clients(clients)


def _simulate(dim: int, num_chains: int, exact: float, checkpoints: Path, *, is_durable: bool) -> dict[str, Any]:
    model, federation = gaussian_study(dim)
    sampler = section_5(step_size(dim), NUM_LEAPFROG_STEPS, NUM_LOCAL_STEPS)
    # Simulation begins at the beginning; it is only looked at in the window.
    first, thin = int(_WINDOW[0] * exact), max(1, int((_WINDOW[1] - _WINDOW[0]) * exact / _LOOKS))
    draws = run_chains(
        model, federation, sampler, _LOOKS * thin, checkpoints if is_durable else None, num_warmup_rounds=first,
        num_chains=num_chains, thin=thin, seed=0, init=np.zeros((num_chains, dim), np.float32),
    )  # fmt: skip
    if draws is None:
        return {"rounds": None}
    values = np.asarray(draws.positions)
    squares = [
        dim * _w2_squared(*(float(moment(values[:, look], dtype=np.float64)) for moment in (np.mean, np.var)))
        for look in range(_LOOKS)
    ]
    rounds, slope = fitted_crossing(first + thin * np.arange(1, _LOOKS + 1), np.array(squares))
    # W₂² is nearly all d (mean − 16.2)², so by the delta method its error is that of the mean.
    error = 2 * math.sqrt(TARGET * POSTERIOR[1] / num_chains)
    return {"rounds": rounds, "standard_error": error / TARGET / abs(slope)}


def fitted_crossing(rounds: np.ndarray, squares: np.ndarray) -> tuple[float, float]:
    """Return where the line through log W₂² passes the target, and its slope.

    The first round below the target would come too early: of many noisy looks the lowest decides.
    """
    slope, intercept = np.polyfit(rounds, np.log(squares / TARGET), 1)
    return float(-intercept / slope), float(slope)


def line_through_squares(rows: Table) -> tuple[float, float, float]:
    """Return slope, intercept and R² of the least-squares line of rounds² in d."""
    x, y = rows["dim"].to_numpy(float), rows["rounds"].to_numpy(float) ** 2
    slope, intercept = np.polyfit(x, y, 1)
    residual = y - slope * x - intercept
    return float(slope), float(intercept), float(1 - residual @ residual / np.sum((y - y.mean()) ** 2))


def deviations(table: Table) -> Table:
    """Return how far each dimension's simulated rounds are from the exact ones: relative, and in standard errors."""
    exact = table[table["way"] == "exact law"].set_index("dim")["rounds"].astype(float)
    simulated = table[table["way"] == "simulation"].set_index("dim")
    gap = simulated["rounds"].astype(float) - exact.reindex(simulated.index)
    return pd.DataFrame(
        {"relative": gap / exact.reindex(simulated.index), "z": gap / simulated["standard_error"].astype(float)}
    )


def _claims(table: Table, r2: float) -> list[Claim]:
    gaps = deviations(table).abs()
    agrees = bool((gaps["z"] < MAX_Z).all())  # a missing one is NaN, which is not below
    simulated = table[table["way"] == "simulation"].assign(rounds=lambda rows: rows["rounds"].astype(float))
    simulated_r2 = line_through_squares(simulated)[2] if len(simulated) > 2 else math.nan
    return [
        judge(
            "(rounds)² to reach W₂² < 0.1 is about proportional to d",
            f"R² = {r2:.4f} of the line through d ≤ 1000",
            r2 > MIN_R2,
        ),
        judge(
            "Simulated rounds show it",
            (f"R² = {simulated_r2:.4f}; " if len(simulated) > 2 else "")
            + f"over {len(gaps)} dimensions at most {100 * gaps['relative'].max():.2f} % and {gaps['z'].max():.1f} "
            "standard errors from the exact law",
            agrees and not simulated_r2 <= MIN_R2,
        ),
    ]  # fmt: skip


def _draw(table: Table, slope: float, intercept: float, r2: float) -> Picture:
    figure, (axis,) = panels(
        1,
        "Figure 2: rounds to reach $W_2^2 < 0.1$ against dimension",
        num_columns=1,
        panel=(6.0, 4.2),
        has_legend=False,
    )
    shown = table[table["dim"] <= 1000]
    exact, simulated = (shown[shown["way"] == way] for way in ("exact law", "simulation"))
    axis.plot(exact["dim"], exact["rounds"] ** 2, "o-", color=COLOURS[0], label="exact law", markersize=4)
    rounds, error = simulated["rounds"].astype(float), simulated["standard_error"].astype(float)
    axis.errorbar(
        simulated["dim"], rounds**2, 2 * (2 * rounds * error), fmt="x", color=COLOURS[1], capsize=3,
        label="simulation ± 2 standard errors", markersize=8, markeredgewidth=2, zorder=3,
    )  # fmt: skip
    line = np.array([0.0, exact["dim"].max()])
    axis.plot(line, slope * line + intercept, ":", color="0.4", label=f"line, R² = {r2:.4f}")
    axis.set_xlabel("dimension d")
    axis.set_ylabel("(communication rounds)²")
    axis.legend(fontsize=9, frameon=False)
    dress(axis)
    return figure
