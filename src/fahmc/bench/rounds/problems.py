"""The posteriors that are asked for, and the rounds that each may cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fahmc.bench.rounds import families, hospitals, simulated, tables
from fahmc.data.federation import Federation
from fahmc.data.trial import load_opt_trial
from fahmc.density.model import Model
from fahmc.errors import SettingsError
from fahmc.models import logistic_regression, poisson_regression, softmax_regression
from fahmc.types import Position


class Coordinates(NamedTuple):
    """The same posterior as another model has it."""

    model: Model
    back: Callable[[Position], Position]
    """From the other model's position to the problem's own."""


@dataclass(frozen=True)
class Problem:
    """A posterior: a model, and who holds which rows."""

    name: str
    model: Model
    federation: Federation
    limit: int
    """Rounds that are allowed, warm-up included."""
    easier: Coordinates | None = None
    """In which long chains find their way; a reference is made there."""


# Whose rows come from a seed: another seed makes another problem of the same kind.
SIMULATED = (
    "logistic_50",
    "logistic_200",
    "student_t",
    "linear_scale",
    "nearly_separable",
    "hierarchical_centred",
    "hierarchical_noncentred",
    "poisson",
    "softmax",
)
# Tables that nobody looked at while the sampler was made; nothing may be tuned on them. Limits are those of their kind.
UNSEEN = ("diabetes", "breast_cancer", "wine")

_Made = tuple[Model, Mapping[str, Any] | Sequence[Any]] | tuple[Model, Mapping[str, Any] | Sequence[Any], Coordinates]
_MAKERS: dict[str, tuple[int, Callable[[int], _Made]]] = {}


def names() -> tuple[str, ...]:
    """Return the names of all problems."""
    return tuple(_MAKERS)


def problem(name: str, seed: int = 0) -> Problem:
    """Return a problem; the seed is that of its rows, where they are simulated or dealt at random."""
    if name not in _MAKERS:
        raise SettingsError(f"There is no problem {name!r}; choose from {', '.join(_MAKERS)}.")
    limit, make = _MAKERS[name]
    model, clients, *easier = make(seed)
    return Problem(name, model, Federation.from_clients(clients), limit, *easier)


def _problem(limit: int) -> Callable[[Callable[[int], _Made]], Callable[[int], _Made]]:
    def add(make: Callable[[int], _Made]) -> Callable[[int], _Made]:
        _MAKERS[make.__name__] = (limit, make)
        return make

    return add


@_problem(limit=8)
def opt(seed: int) -> _Made:
    """Preterm births at four clinics: the model of `fahmc demo`."""
    study = load_opt_trial()
    return logistic_regression(2.5, feature_names=study.feature_names), study.clients


@_problem(limit=8)
def opt_horseshoe(seed: int) -> _Made:
    """Preterm births again, under a prior that is far from Gaussian."""
    study = load_opt_trial()
    num_rows = sum(len(rows["y"]) for rows in study.clients.values())
    return families.horseshoe(len(study.feature_names), num_rows), study.clients


@_problem(limit=8)
def heart(seed: int) -> _Made:
    """Heart disease at four hospitals that differ much."""
    return logistic_regression(2.5), hospitals.heart_disease()


@_problem(limit=8)
def trauma(seed: int) -> _Made:
    """Deaths at three hospitals; prior precision 0.01 on everything."""
    return logistic_regression(10.0, intercept_scale=10.0), hospitals.trauma()


@_problem(limit=12)
def logistic_50(seed: int) -> _Made:
    """20 clients that each hold as many rows as there are coefficients."""
    return logistic_regression(1.0, intercept=False), simulated.logistic(50, seed)


@_problem(limit=12)
def logistic_200(seed: int) -> _Made:
    """20 clients that each hold a quarter as many rows as there are coefficients."""
    return logistic_regression(1.0, intercept=False), simulated.logistic(200, seed)


@_problem(limit=12)
def a9a(seed: int) -> _Made:
    """Census income at ten clients, some of them tiny."""
    return logistic_regression(1.0, intercept_scale=1.0), tables.a9a(seed)


@_problem(limit=30)
def student_t(seed: int) -> _Made:
    """Regression with heavy tails and an unknown scale."""
    return families.student_t(), simulated.student_t(seed)


@_problem(limit=30)
def linear_scale(seed: int) -> _Made:
    """Regression in the columns' own units, at clients that were sorted by the outcome."""
    return families.linear_with_scale(), simulated.linear(seed)


@_problem(limit=300)
def nearly_separable(seed: int) -> _Made:
    """Coefficients that rows and prior hardly bound: long tails to one side."""
    return logistic_regression(10.0, intercept_scale=10.0), simulated.nearly_separable(seed)


@_problem(limit=15)
def hierarchical_centred(seed: int) -> _Made:
    """Site intercepts in a funnel."""
    rows = simulated.sites(seed)
    model, other = (
        families.site_intercepts(rows[0]["x"].shape[1], len(rows), is_centred=is_centred)
        for is_centred in (True, False)
    )
    return model, rows, Coordinates(other, families.centred)


@_problem(limit=15)
def hierarchical_noncentred(seed: int) -> _Made:
    """Site intercepts in other coordinates: the same posterior."""
    rows = simulated.sites(seed)
    return families.site_intercepts(rows[0]["x"].shape[1], len(rows), is_centred=False), rows


@_problem(limit=30)
def poisson(seed: int) -> _Made:
    """Rows of very unequal exposure."""
    return poisson_regression(1.0), simulated.poisson(seed)


@_problem(limit=30)
def softmax(seed: int) -> _Made:
    """Five classes."""
    return softmax_regression(5, 1.0), simulated.softmax(seed)


@_problem(limit=30)
def diabetes(seed: int) -> _Made:
    """Regression with an unknown scale, at clients that were sorted by the outcome."""
    return families.linear_with_scale(), tables.diabetes()


@_problem(limit=12)
def breast_cancer(seed: int) -> _Made:
    """Thirty columns that nearly determine each other, and outcomes that they nearly separate."""
    return logistic_regression(2.5), tables.breast_cancer()


@_problem(limit=30)
def wine(seed: int) -> _Made:
    """Three classes that the columns separate, so that the prior alone bounds the coefficients."""
    return softmax_regression(3, 1.0), tables.wine()
