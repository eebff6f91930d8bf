"""(ε, δ)-differential privacy by Gaussian noise: what it costs, and what it can buy.

Let a statistic move by at most Δ, in the Euclidean norm, when one row is replaced by any other. Released with noise
N(0, s²) on each of its numbers it is μ-private with μ = Δ / s, which is (ε, δ)-differential privacy for every pair with

    δ = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ)                      (Balle and Wang 2018, arXiv:1805.06530, Theorem 8)

and of releases, each asked for in the light of those before it, μ² adds up (Dong, Roth and Su 2022, arXiv:1905.02383,
Corollary 3.3). Neighbouring data differ in one row that is replaced: how many rows there are is public. Nothing else is
needed, so there is no accountant here but these two lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, TypeAlias

import numpy as np
from annotated_types import Interval
from scipy.optimize import brentq
from scipy.special import log_ndtr

from fahmc import door
from fahmc.errors import SettingsError
from fahmc.hints import NotNegative, Positive

Delta: TypeAlias = Annotated[float, Interval(gt=0, lt=1)]

# Noise a million times the sensitivity, and a millionth of it: nobody asks for more or less.
_LEAST, _MOST = 1e-6, 1e6


@dataclass(frozen=True)
class Budget:
    """What may be spent on answers about a row.

    Parameters
    ----------
    epsilon, delta
        But for a probability δ, no answer is more than e^ε times as likely, or less likely, with one row than with any
        other in its place. Usual are ε from 0.1 to 3, and a δ far below one over the number of rows.

    Examples
    --------
    >>> round(Budget(epsilon=3.0, delta=1e-6).mu, 4)
    0.6477
    """

    epsilon: Positive
    delta: Delta

    def __post_init__(self):
        door.check(self)
        if not delta_of(_LEAST, self.epsilon) < self.delta < delta_of(_MOST, self.epsilon):
            raise SettingsError(
                f"epsilon = {self.epsilon:g} with delta = {self.delta:g} is no budget that noise can keep to."
            )

    @property
    def mu(self) -> float:
        """Sensitivity over standard deviation of the one Gaussian release that spends all of it."""
        return _root(lambda mu: delta_of(mu, self.epsilon) - self.delta, _LEAST, _MOST)

    def __str__(self) -> str:
        return f"epsilon = {self.epsilon:g}, delta = {self.delta:g}"


@door.checked()
def delta_of(mu: Positive, epsilon: NotNegative) -> float:
    """Return the least δ for which a μ-private release is (ε, δ)-differentially private."""
    log_first, log_second = log_ndtr(mu / 2 - epsilon / mu), epsilon + log_ndtr(-mu / 2 - epsilon / mu)
    return float(-np.exp(log_first) * np.expm1(log_second - log_first))


@door.checked()
def epsilon_of(mu: Positive, delta: Delta) -> float:
    """Return the least ε for which a μ-private release is (ε, δ)-differentially private."""
    if delta_of(mu, 0.0) <= delta:
        return 0.0
    most = mu * (mu / 2 + 40.0)  # forty standard deviations out: δ is below what a float can say
    return _root(lambda epsilon: delta_of(mu, epsilon) - delta, 0.0, most)


def composed(mus: Iterable[float]) -> float:
    """Return the μ of several releases together."""
    return float(np.sqrt(np.sum(np.square(list(mus)))))


@door.checked()
def draws_allowed(budget: Budget, row_gradient: Positive, posterior_sd: Positive) -> float:
    """Return how many effective draws of all chains a private chain can make: fewer than it takes, nearly always.

    Langevin's step θ′ = θ − (η²/2) G + η p with p ~ N(0, 1) is itself a Gaussian release, of the gradient G under noise
    of standard deviation 2 / η. With 2C how far G moves when a row is replaced, it spends μ = ηC, and R steps
    ηC√R. An effective draw takes 4σ²/η² steps. So the total of effective draws is at most (μ / 2Cσ)², whatever η.

    Parameters
    ----------
    row_gradient
        C, a bound on the gradient of one row's log likelihood: for logistic regression the largest norm of a row.
    posterior_sd
        σ, the posterior standard deviation of the parameter that is to be learned, in the same units.

    Examples
    --------
    With a million rows of norm 1, and a parameter known to 0.005:

    >>> round(draws_allowed(Budget(epsilon=3.0, delta=1e-6), row_gradient=1.0, posterior_sd=0.005))
    4195
    >>> round(draws_allowed(Budget(epsilon=3.0, delta=1e-6), row_gradient=3.5, posterior_sd=0.25), 2)
    0.14
    """
    return (budget.mu / (2 * row_gradient * posterior_sd)) ** 2


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    return float(brentq(function, low, high, xtol=1e-14))  # type: ignore[arg-type]
