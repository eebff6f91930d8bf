"""Runs on images: a posterior, its chains, and the scores of the averaged predictive after each round.

The step size is tuned for each setting and each score, as the paper does: the one of a written grid whose last score is
best in chains of one seed; chains of another seed are shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fahmc import models
from fahmc.data import partition
from fahmc.data.federation import Federation
from fahmc.density.gradient import FullGradient, Gradient, Minibatch
from fahmc.density.model import Model
from fahmc.draws import Draws
from fahmc.experiments.chains import run_chains, section_5
from fahmc.experiments.image_sets import ImageSet, is_available, load_images, stand_in
from fahmc.experiments.outcome import Run, Scale
from fahmc.report import predictive

NUM_CLIENTS, BATCH_SIZE = 10, 1000
TUNING_SEED, _SHOWN_SEED = 1, 2
_SPLIT_SEED = 0


class Score(NamedTuple):
    """A statistic of predicted probabilities."""

    label: str
    function: Callable[[Any, Any], float]
    sign: int
    """1 if large is good, −1 if small is."""


SCORES = {
    "accuracy": Score("accuracy", predictive.accuracy, 1),
    "brier": Score("Brier score", predictive.brier_score, -1),
    "ece": Score("ECE", predictive.expected_calibration_error, -1),
    "nll": Score("NLL", predictive.negative_log_likelihood, -1),
}


@dataclass(frozen=True)
class Target:
    """A posterior on images."""

    images: str
    label: str
    hidden: tuple[int, ...] = ()
    prior_scale: float = 1.0
    temperature: float = 1.0
    step_factors: tuple[float, ...] = (1 / 8, 1 / 4, 1 / 2, 1, 2)
    """The grid of step sizes, in units of √(temperature / rows): a posterior's width goes like that."""

    def model(self, num_classes: int) -> Model:
        """Return the network if there are hidden layers, else the regression."""
        if self.hidden:
            return models.mlp(num_classes, self.hidden, self.prior_scale, temperature=self.temperature)
        if num_classes == 2:
            return models.logistic_regression(
                self.prior_scale, intercept_scale=self.prior_scale, temperature=self.temperature
            )
        return models.softmax_regression(
            num_classes, self.prior_scale, intercept_scale=self.prior_scale, temperature=self.temperature
        )

    def step_sizes(self, num_rows: int, factors: Sequence[float]) -> list[float]:
        """Return the grid, to two digits."""
        return [float(f"{factor * (self.temperature / num_rows) ** 0.5:.2g}") for factor in factors]


@dataclass(frozen=True)
class Budget:
    """How much is run at a scale."""

    num_rounds: int
    num_runs: int
    """Chains shown."""
    tuning_runs: int
    tried: tuple[int, int] = (0, 5)
    """Which step sizes of the grid are tried: from the first place up to the second."""
    thin: int = 1
    """Rounds from one sample to the next."""
    reuse_gradient: bool = False
    batch_size: int = BATCH_SIZE
    num_images: tuple[int, int] | None = None
    """Train and test images; by default all."""
    max_value: int = 100
    """K and T of the sweeps go up to it."""
    hidden: tuple[int, ...] | None = None
    """Units of the network's layers, if not the paper's."""

    @property
    def shown_seed(self) -> int:
        """The seed of the chains shown. A single chain is the one that was tuned, as in the paper's figure 5."""
        return TUNING_SEED if self.num_runs == 1 else _SHOWN_SEED


class Runner:
    """Runs settings on one target."""

    def __init__(self, target: Target, images: ImageSet, budget: Budget, run: Run):
        if budget.hidden and target.hidden:
            target = replace(target, hidden=budget.hidden)
        self._target, self._images, self._budget, self._run = target, images, budget, run
        self._num_rows = len(images.train["y"]) // NUM_CLIENTS * NUM_CLIENTS
        self._model = target.model(images.num_classes)
        train = {name: values[: self._num_rows] for name, values in images.train.items()}
        self._federation = Federation.from_clients(partition.equal(train, NUM_CLIENTS, seed=_SPLIT_SEED))

    @property
    def _gradient(self) -> Gradient:
        client_rows = self._num_rows // NUM_CLIENTS
        return Minibatch(self._budget.batch_size) if client_rows > self._budget.batch_size else FullGradient()

    @property
    def notes(self) -> list[str]:
        """What a reader should know of the posterior and its gradients."""
        target, client_rows = self._target, self._num_rows // NUM_CLIENTS
        gradients = f"all {client_rows:,} rows in every gradient"
        if isinstance(self._gradient, Minibatch):
            evaluations = "one" if self._budget.reuse_gradient else "two"
            gradients = (
                f"batches of {self._budget.batch_size:,} of {client_rows:,} rows, {evaluations} a leapfrog step"
                + " (its last gradient is the next step's first)" * self._budget.reuse_gradient
            )
        start = "at He's initialisation" if target.hidden else "with coefficients from N(0, 0.1²)"
        network = f"hidden layers of {' and '.join(map(str, target.hidden))} units, " * bool(target.hidden)
        about = (
            f"{target.label}: {network}prior N(0, {target.prior_scale:g}²), temperature {target.temperature:g}; "
            f"{NUM_CLIENTS} equal random clients, {gradients}. Chains start {start}."
        )
        return [about, self._images.note] if self._images.note else [about]

    def tuned(self, steps: int, local_steps: int, scores: Sequence[str]) -> list[dict[str, Any]]:
        """Try all step sizes with one seed, and show each score's best with another."""
        budget = self._budget
        factors = self._target.step_factors[slice(*budget.tried)]
        tries = {
            eta: self._scored(steps, local_steps, eta, budget.tuning_runs, TUNING_SEED)
            for eta in self._target.step_sizes(self._num_rows, factors)
        }
        rows = []
        for eta, result in tries.items():
            rows += _rows(result, scores, step_size=eta, phase="tuning")
        for score in scores:
            best = max(tries, key=lambda eta, score=score: _last(tries[eta], score))
            shown = self._scored(steps, local_steps, best, budget.num_runs, budget.shown_seed)
            rows += _rows(shown, (score,), step_size=best, phase="shown")
        return rows

    def _scored(self, steps: int, local_steps: int, eta: float, num_runs: int, seed: int) -> dict[str, Any]:
        """Return the rounds, and for each score its values [run][round]; None for the scores of a run that diverged."""
        budget, target = self._budget, self._target
        job = {
            "images": target.images, "note": self._images.note, "num_clients": NUM_CLIENTS, "split_seed": _SPLIT_SEED,
            "num_rows": self._num_rows,
            "num_test": len(self._images.test["y"]), "hidden": target.hidden, "prior_scale": target.prior_scale,
            "temperature": target.temperature, "batch_size": budget.batch_size, "reuse_gradient": budget.reuse_gradient,
            "num_rounds": budget.num_rounds, "thin": budget.thin, "K": steps, "T": local_steps, "step_size": eta,
            "num_runs": num_runs, "seed": seed,
        }  # fmt: skip

        def compute(checkpoints: Path) -> dict[str, Any]:
            sampler = section_5(eta, steps, local_steps, self._gradient, reuse_gradient=budget.reuse_gradient)
            draws = run_chains(
                self._model, self._federation, sampler, budget.num_rounds,
                checkpoints if self._run.scale == "paper" else None,
                num_chains=num_runs, thin=budget.thin, seed=seed,
            )  # fmt: skip
            if draws is None:
                return {"rounds": [budget.num_rounds], "scores": None}
            rounds = [budget.thin * (i + 1) for i in range(draws.num_draws)]
            return {"rounds": rounds, "scores": score_so_far(draws, self._model, self._images.test)}

        label = f"{target.label}, K = {steps}, T = {local_steps}, η = {eta:g}"
        return self._run.work.once(job, compute, label)


def score_so_far(draws: Draws, model: Model, test: dict[str, np.ndarray]) -> dict[str, list[list[float]]]:
    """Score, after each draw, the mean of the predicted probabilities of all draws so far: [run][draw]."""
    values: dict[str, list[list[float]]] = {name: [[] for _ in range(draws.num_chains)] for name in SCORES}
    rows = {name: jnp.asarray(values) for name, values in test.items()}
    predict = jax.jit(model.predict)
    for chain in range(draws.num_chains):
        total: Any = 0.0
        for count in range(1, draws.num_draws + 1):
            position = jax.tree.map(lambda leaf, chain=chain, count=count: leaf[chain, count - 1], draws.positions)
            # Summed in double precision, so that the mean over many draws still sums to 1.
            probabilities = np.asarray(predict(position, rows), np.float64)
            total = total + probabilities
            for name, score in SCORES.items():
                values[name][chain].append(score.function(total / count, test["y"]))
    return values


def images_of(target: Target, budget: Budget, scale: Scale) -> ImageSet:
    """Return the images; a smoke run without them takes simulated ones."""
    if scale == "smoke" and budget.num_images:
        if not is_available(target.images):
            return stand_in(target.images, *budget.num_images)
        return load_images(target.images, download=False).first(*budget.num_images)
    return load_images(target.images)


def _last(result: dict[str, Any], score: str) -> float:
    """Return how good the last score is, large is good; −∞ if it diverged."""
    if result["scores"] is None:
        return -math.inf
    last = SCORES[score].sign * float(np.mean([run[-1] for run in result["scores"][score]]))
    return last if math.isfinite(last) else -math.inf


def _rows(result: dict[str, Any], scores: Sequence[str], **marks: Any) -> list[dict[str, Any]]:
    """Return one row for each score and round: mean and standard deviation over runs."""
    rows = []
    for score in scores:
        if result["scores"] is None:
            unknown = {"mean": math.nan, "sd": math.nan, "runs": 0}
            rows.append({**marks, "score": score, "round": result["rounds"][-1], **unknown})
            continue
        values = np.array(result["scores"][score])
        # A label that was given probability 0 makes the NLL infinite, and its spread unknown.
        with np.errstate(invalid="ignore"):
            sds = values.std(axis=0, ddof=1) if len(values) > 1 else np.full(values.shape[1], math.nan)
        rows += [
            {**marks, "score": score, "round": round_, "mean": float(mean), "sd": float(sd), "runs": len(values)}
            for round_, mean, sd in zip(result["rounds"], values.mean(axis=0), sds, strict=True)
        ]
    return rows
