"""Whether contenders compute the same thing: asked of each before its time counts for anything.

All clients start from one position with one momentum, take a few leapfrog steps with exact gradients, and are averaged.
Where that ends is compared with NumPy in double precision. The error is measured against what the gradients did, that
is the distance to free flight, so that a wrong gradient cannot hide behind a small step size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import numpy as np

from fahmc.bench.cases import Case
from fahmc.bench.oracle import Probe, averaged_end
from fahmc.bench.ours import first_momentum
from fahmc.bench.problems import Problem
from fahmc.errors import FahmcError

_STEP_SIZE, _NUM_STEPS = 0.01, 5
# Single precision loses 1e-7 an operation; thousands of terms and a few steps make 1e-5 of it.
_TOLERANCE = 1e-3
# Rows of a client: more would prove no more, and take NumPy minutes.
_MAX_ROWS = 100
# A standard deviation from n normal draws has a relative error of 1 / √(2 n); six of these happen once in 10⁹ times.
_NOISE_SCORES = 6.0


class AgreementError(FahmcError):
    """A contender does not do the work that it would be timed for."""


class Answering(Protocol):
    """A contender that can be asked where one round ends."""

    is_pooled: bool
    """Whether all rows lie at one client."""

    def answer(self, probe: Probe) -> np.ndarray:
        """Return the averaged positions [chain, dim]."""
        ...


def check(label: str, build: Callable[[Case], Answering], case: Case) -> float:
    """Compare a contender with NumPy on the first rows of a case; return the relative error, or refuse it."""
    case = replace(case, problem=case.problem.cut(_MAX_ROWS))
    contender = build(case)
    problem = _pooled(case.problem) if contender.is_pooled else case.problem
    probe = _probe(case)
    free_flight = probe.position + probe.num_steps * probe.step_size * probe.momentum
    expected = averaged_end(problem, probe)
    error = float(np.linalg.norm(contender.answer(probe) - expected) / np.linalg.norm(expected - free_flight))
    if not error <= _TOLERANCE:
        raise AgreementError(
            f"{label} does not compute the same round as NumPy: after {_NUM_STEPS} leapfrog steps it is off by "
            f"{error:.2g} of what the gradients moved (allowed: {_TOLERANCE:g}), so its speed would mean nothing."
        )
    if case.noise_scale:
        _check_noise(label, contender, case.noise_scale, problem, probe)
    return error


def _check_noise(label: str, contender: Answering, scale: float, problem: Problem, probe: Probe) -> None:
    """Look at the noise after one step, where it is −η²/2 Σ_c w_c ξ_c."""
    probe = probe._replace(num_steps=1, is_noisy=True)
    noise = (contender.answer(probe) - averaged_end(problem, probe)) / (probe.step_size**2 / 2)
    weights = np.array([len(rows["y"]) for rows in problem.clients.values()]) / problem.num_rows
    expected = scale * np.linalg.norm(weights)
    if not abs(noise.std() / expected - 1) <= _NOISE_SCORES / (2 * noise.size) ** 0.5:
        raise AgreementError(
            f"{label} adds noise of standard deviation {noise.std():.3g} to the averaged gradient instead of "
            f"{expected:.3g}, so its speed would mean nothing."
        )


def _probe(case: Case) -> Probe:
    rng = np.random.default_rng(1)
    shape = (case.num_chains, case.problem.dimension)
    return Probe(0.1 * rng.normal(size=shape), first_momentum(*shape), _STEP_SIZE, _NUM_STEPS)


def _pooled(problem: Problem) -> Problem:
    return replace(problem, clients={"all": problem.pooled()})
