"""Figures 3 to 7: how well the averaged predictive does on images, against communication rounds.

Softmax regression on Fashion-MNIST for several K (figure 3) and T (4), a network with two hidden layers (5), softmax or
logistic regression on KMNIST and on two classes of CIFAR-10 for several K (6) and T (7). Every round gives one sample;
the predicted probabilities of all samples so far are averaged and scored on the test images. Runs of one K-sweep have
equal numbers of rounds and of leapfrog steps, since T counts leapfrog steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple

import pandas as pd

from fahmc.experiments.comparisons import Comparisons
from fahmc.experiments.image_runs import NUM_CLIENTS, SCORES, TUNING_SEED, Budget, Runner, Target, images_of
from fahmc.experiments.outcome import Claim, Figure, Outcome, Run, Scale, Table, out_of_reach
from fahmc.report.canvas import COLOURS, LINE_STYLES, dress, legend_below_title, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

LEAPFROG_STEPS, LOCAL_STEPS, FEW_LOCAL_STEPS = (1, 10, 50, 100), (1, 10, 20, 50, 100), (1, 10, 50)
HIDDEN = (512, 512)
_ALL, _THREE = tuple(SCORES), ("accuracy", "brier", "ece")

FASHION = Target("fashion-mnist", "Fashion-MNIST")
NETWORK = Target(
    "fashion-mnist", "Fashion-MNIST", HIDDEN, prior_scale=0.1, step_factors=(1 / 16, 1 / 8, 1 / 4, 1 / 2, 1)
)
KMNIST = Target("kmnist", "KMNIST")
# 3072 pixels that are rarely dark: their square sum, hence the curvature, is an order above that of grey clothes.
CIFAR = Target("cifar2", "CF2", step_factors=(1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2))


class Sweep(NamedTuple):
    """Settings of which one varies, on one target."""

    target: Target
    varied: Literal["K", "T"]
    values: tuple[int, ...]
    fixed: int

    def up_to(self, largest: int) -> Sweep:
        """Leave out larger values, and hold nothing fixed above them."""
        values = tuple(value for value in self.values if value <= largest)
        return self._replace(values=values, fixed=min(self.fixed, largest))

    def settings(self) -> list[tuple[int, int]]:
        """Return all (K, T)."""
        return [(value, self.fixed) if self.varied == "K" else (self.fixed, value) for value in self.values]


@dataclass(frozen=True)
class Predictions:
    """One of the figures."""

    name: str
    title: str
    sweeps: tuple[Sweep, ...]
    scores: tuple[str, ...]
    budgets: dict[Scale, Budget]
    judge_fn: Callable[[Comparisons], list[Claim]]

    def make(self, run: Run) -> Outcome:
        """Tune, run, score."""
        budget = self.budgets[run.scale]
        if run.hidden is not None:
            budget = replace(budget, hidden=run.hidden)
        sweeps = [sweep.up_to(budget.max_value) for sweep in self.sweeps]
        # Tuning runs; then at least one shown run a setting, and more where scores want different step sizes.
        run.work.expect(sum(len(sweep.values) for sweep in sweeps) * (budget.tried[1] - budget.tried[0] + 1))
        notes, rows = [], []
        for sweep in sweeps:
            runner = Runner(sweep.target, images_of(sweep.target, budget, run.scale), budget, run)
            notes += [note for note in runner.notes if note not in notes]
            for steps, local_steps in sweep.settings():
                label = {"target": sweep.target.label, "varied": sweep.varied, "K": steps, "T": local_steps}
                rows += [label | row for row in runner.tuned(steps, local_steps, self.scores)]
        table: Table = pd.DataFrame(rows)
        shown = table[table["phase"] == "shown"]
        claims = self.judge_fn(Comparisons(shown))
        if run.scale == "smoke":
            claims = [out_of_reach(claim.statement, claim.found) for claim in claims]
        return Outcome(
            table=table,
            draw=partial(self._draw, sweeps, shown, budget),
            claims=claims,
            settings={
                "budget": asdict(budget),
                "num_clients": NUM_CLIENTS,
                "sweeps": [sweep._asdict() | {"target": asdict(sweep.target)} for sweep in sweeps],
                "tuning_seed": TUNING_SEED,
                "shown_seed": budget.shown_seed,
            },
            notes=[*notes, *_notes(sweeps, budget, table)],
        )

    def _draw(self, sweeps: list[Sweep], shown: Table, budget: Budget) -> Picture:
        pairs = [(sweep, score) for sweep in sweeps for score in self.scores]
        columns = len(self.scores) if len(sweeps) > 1 else min(2, len(self.scores))
        figure, axes = panels(
            len(pairs), f"Figure {self.name}: {self.title}", num_columns=columns, panel=(4.2, 3.0), has_legend=True
        )
        for axis, (sweep, score) in zip(axes, pairs, strict=True):
            for i, value in enumerate(sweep.values):
                rows = shown[
                    (shown["target"] == sweep.target.label) & (shown["varied"] == sweep.varied)
                    & (shown[sweep.varied] == value) & (shown["score"] == score)
                ].sort_values("round")  # fmt: skip
                colour = COLOURS[i % len(COLOURS)]
                axis.plot(
                    rows["round"], rows["mean"], color=colour, linestyle=LINE_STYLES[i % len(LINE_STYLES)],
                    label=f"{sweep.varied} = {value}",
                )  # fmt: skip
                if budget.num_runs > 1:
                    low, high = rows["mean"] - rows["sd"], rows["mean"] + rows["sd"]
                    axis.fill_between(rows["round"], low, high, color=colour, alpha=0.2, linewidth=0)
            axis.set_xlabel("communication rounds")
            axis.set_ylabel(SCORES[score].label)
            dress(axis, f"{sweep.target.label}, {'T' if sweep.varied == 'K' else 'K'} = {sweep.fixed}")
            if len({s.varied for s in sweeps}) > 1:
                axis.legend(fontsize=8, frameon=False)
        if len({s.varied for s in sweeps}) == 1:
            legend_below_title(figure, axes[0])
        return figure


def _notes(sweeps: list[Sweep], budget: Budget, table: Table) -> list[str]:
    spread = "one chain"
    if budget.num_runs > 1:
        spread = f"mean and standard deviation over {budget.num_runs} independent chains"
    steps = [budget.num_rounds * local_steps for sweep in sweeps for _, local_steps in sweep.settings()]
    grids = table[table["phase"] == "tuning"].groupby("target")["step_size"].unique()
    grid_words = "; ".join(
        f"{target}: {', '.join(f'{eta:g}' for eta in sorted(etas))}" for target, etas in grids.items()
    )
    judges = "the chain itself" if budget.num_runs == 1 else f"{budget.tuning_runs} other chains"
    notes = [
        f"{budget.num_rounds} rounds, one sample every {budget.thin}, the first included; {spread}. That is "
        f"{' to '.join(dict.fromkeys((f'{min(steps):,}', f'{max(steps):,}')))} leapfrog steps a chain.",
        f"Step sizes tried: {grid_words}. Chosen for each setting and score by the last score of {judges}, on the test "
        "images as in the paper; all rows are in the table.",
    ]
    if edges := _at_an_edge(table):
        notes.append(f"The best step size was the smallest or largest tried, so a wider grid might do better: {edges}.")
    return notes


def _at_an_edge(table: Table) -> str:
    """Name the settings whose best step size lies at an edge of the grid."""
    chosen = table[table["phase"] == "shown"].drop_duplicates(["target", "varied", "K", "T", "score"])
    tried = table[table["phase"] == "tuning"].groupby("target")["step_size"]
    low, high = tried.min(), tried.max()
    cases: dict[str, list[str]] = {}
    for row in chosen.to_dict("records"):
        if row["step_size"] in (low[row["target"]], high[row["target"]]):
            case = f"{row['target']}, K = {row['K']}, T = {row['T']}, η = {row['step_size']:g}"
            cases.setdefault(case, []).append(SCORES[row["score"]].label)
    return "; ".join(f"{case} ({', '.join(dict.fromkeys(labels))})" for case, labels in cases.items())


def _claims_3(scores: Comparisons) -> list[Claim]:
    at = (FASHION.label, "K")
    return [
        *(scores.best_is(*at, score, 50) for score in ("accuracy", "brier", "nll")),
        *(scores.worst_is(*at, score, 1) for score in ("brier", "ece", "nll")),
        scores.better(*at, "ece", 50, 1),
        scores.gain(*at, "ece", 1, 26),
        scores.gain(*at, "nll", 1, 2),
    ]


def _claims_4(scores: Comparisons) -> list[Claim]:
    at = (FASHION.label, "T")
    return [
        *(scores.worst_is(*at, score, 1) for score in SCORES),
        scores.best_is(*at, "brier", 50),
        scores.best_is(*at, "nll", 20),
    ]


def _claims_5(scores: Comparisons) -> list[Claim]:
    by_k, by_t = (NETWORK.label, "K"), (NETWORK.label, "T")
    return [
        scores.best_is(*by_k, "accuracy", 10),
        scores.best_is(*by_k, "ece", 10),
        scores.best_is(*by_k, "brier", 1),
        *(scores.best_is(*by_t, score, 50) for score in _THREE),
        *(scores.worst_is(*by_t, score, 1) for score in _THREE),
    ]


def _claims_6(scores: Comparisons) -> list[Claim]:
    cifar = (CIFAR.label, "K")
    return [
        *(scores.beaten_by_some(t, "K", score, 1, f"{t}: ") for t in scores.targets() for score in _THREE),
        *(scores.best_is(*cifar, score, 10, "CF2: ") for score in ("accuracy", "brier")),
        scores.best_is(*cifar, "ece", _best_of(scores, *cifar, "ece", (50, 100)), "CF2, a K above 10 is best: "),
    ]


def _best_of(scores: Comparisons, target: str, varied: str, score: str, values: tuple[int, ...]) -> int:
    """Return the best of some values; the first where none was run."""
    return next((value for value in scores.order(target, varied, score) if value in values), values[0])


def _claims_7(scores: Comparisons) -> list[Claim]:
    claims = [
        scores.beaten_by_some(t, "T", score, 1, f"{t}: ")
        for t in scores.targets()
        for score in _THREE
        if (t, score) != (CIFAR.label, "accuracy")
    ]
    return [*claims, scores.best_is(CIFAR.label, "T", "accuracy", 1, f"{CIFAR.label}: ")]


_SMOKE = Budget(4, 1, 1, (1, 2), batch_size=20, num_images=(400, 100), max_value=10, hidden=(16, 16))
_LAPTOP = Budget(16, 6, 2, reuse_gradient=True)
_LAPTOP_PAIR = Budget(12, 4, 2, reuse_gradient=True)
_LAPTOP_NETWORK = Budget(6, 1, 1, (2, 4), reuse_gradient=True)
_PAPER = Budget(2000, 5, 1, thin=5)
_FASHION_MNIST, _TWO = "Fashion-MNIST", "KMNIST, CIFAR-10"

_BY_K = Predictions(
    "3",
    "Fashion-MNIST, softmax regression, by K",
    (Sweep(FASHION, "K", LEAPFROG_STEPS, 50),),
    _ALL,
    {"smoke": replace(_SMOKE, num_runs=2, tuning_runs=2, tried=(0, 2)), "laptop": _LAPTOP, "paper": _PAPER},
    _claims_3,
)
_BY_T = Predictions(
    "4",
    "Fashion-MNIST, softmax regression, by T",
    (Sweep(FASHION, "T", LOCAL_STEPS, 10),),
    _ALL,
    {"smoke": _SMOKE, "laptop": _LAPTOP, "paper": _PAPER},
    _claims_4,
)
_NETWORK = Predictions(
    "5",
    "Fashion-MNIST, network with two hidden layers",
    (Sweep(NETWORK, "K", LEAPFROG_STEPS, 50), Sweep(NETWORK, "T", FEW_LOCAL_STEPS, 10)),
    _THREE,
    {"smoke": _SMOKE, "laptop": _LAPTOP_NETWORK, "paper": replace(_PAPER, num_runs=1)},
    _claims_5,
)
_PAIR_BY_K = Predictions(
    "6",
    "CF2 and KMNIST, by K",
    (Sweep(CIFAR, "K", LEAPFROG_STEPS, 50), Sweep(KMNIST, "K", LEAPFROG_STEPS, 50)),
    _THREE,
    {"smoke": _SMOKE, "laptop": _LAPTOP_PAIR, "paper": _PAPER},
    _claims_6,
)
_PAIR_BY_T = Predictions(
    "7",
    "CF2 and KMNIST, by T",
    (Sweep(CIFAR, "T", FEW_LOCAL_STEPS, 10), Sweep(KMNIST, "T", FEW_LOCAL_STEPS, 10)),
    _THREE,
    {"smoke": _SMOKE, "laptop": _LAPTOP_PAIR, "paper": _PAPER},
    _claims_7,
)

FIGURES = [
    Figure(study.name, study.title, needs, study.make, tuple({sweep.target.images: None for sweep in study.sweeps}))
    for needs, studies in [(_FASHION_MNIST, (_BY_K, _BY_T, _NETWORK)), (_TWO, (_PAIR_BY_K, _PAIR_BY_T))]
    for study in studies
]
