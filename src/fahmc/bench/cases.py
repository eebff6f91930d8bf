"""What a workload is made of: cases, the races between contenders on them, and aims."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from fahmc.bench.problems import Problem
from fahmc.density.gradient import GaussianNoise
from fahmc.dynamics.fa_hmc import FAHMC

FAHMC_ITSELF, TORCH, BLACKJAX, NUMPYRO = "fahmc", "PyTorch loop", "BlackJAX", "NumPyro (pooled)"
NUMPY_PRODUCTS, XLA_PRODUCTS = "products (NumPy)", "products (XLA)"
CEILING = "matrix products alone"
"""The better of the two in every repeat: which one that is depends on shapes, and on how busy the machine is."""


class Aim(NamedTuple):
    """A bound on a number."""

    bound: float
    is_lower: bool

    def is_met_by(self, value: float) -> bool:
        """Whether a value keeps to the bound."""
        return value >= self.bound if self.is_lower else value <= self.bound

    def __str__(self) -> str:
        return f"at {'least' if self.is_lower else 'most'} {self.bound:g}"


def at_least(bound: float) -> Aim:
    """Aim at this much or more."""
    return Aim(bound, is_lower=True)


def at_most(bound: float) -> Aim:
    """Aim at this much or less."""
    return Aim(bound, is_lower=False)


@dataclass(frozen=True)
class Case:
    """A posterior and how it is sampled."""

    problem: Problem
    sampler: FAHMC
    num_chains: int
    thin: int = 1

    @property
    def step_size(self) -> float:
        """The sampler's step size, which is a constant in all cases."""
        assert isinstance(self.sampler.step_size, float)
        return self.sampler.step_size

    @property
    def noise_scale(self) -> float:
        """Standard deviation of the Gaussian noise on gradients, 0 without."""
        gradient = self.sampler.gradient
        return gradient.scale if isinstance(gradient, GaussianNoise) else 0.0


class Entrant(NamedTuple):
    """Who takes part in a race, and on what."""

    label: str
    contender: str
    case: Callable[[], Case]
    """Makes the rows when they are needed: all workloads at once would fill the memory."""


class Comparison(NamedTuple):
    """The rate of one entrant over that of another, or over the best of several."""

    words: str
    of: str
    over: tuple[str, ...]
    aim: Aim | None


class Race(NamedTuple):
    """Entrants that are timed turn by turn."""

    title: str
    entrants: tuple[Entrant, ...]
    comparisons: tuple[Comparison, ...]


class FreshRun(NamedTuple):
    """A number that a process of its own measures about itself (see `fresh`)."""

    title: str
    words: str
    unit: str
    aim: Aim
    measure: str
    num_rounds: int
    repeats: int | None = None
    """None: as often as races are repeated."""


class Workload(NamedTuple):
    """A group of measurements with a name on the command line."""

    name: str
    title: str
    races: tuple[Race, ...] = ()
    fresh_runs: tuple[FreshRun, ...] = ()
