"""Whether a budget can buy anything, from public numbers alone, so that nothing is spent to find out.

At best features fill their bounds evenly and half of the outcomes are 1: then the information about every coefficient
of u is λ = n / 12. With noise of variance s² in the score and t² in the information, what is left is λ² / Σ with

    Σ = λ + s² + ½ t² (d + 1) Σ / λ²         (`noise_aware`, with V = Σ / λ² on the diagonal)

and intervals are √(Σ / λ) times as wide as without noise: as wide as with n λ / Σ rows.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.optimize import brentq

from fahmc.adaptive.private_answer import PrivateAnswer
from fahmc.errors import SettingsError
from fahmc.privacy import Budget, draws_allowed

# Where a search for enough rows, or enough ε, ends.
_MOST_ROWS, _MOST_EPSILON = 1e12, 100.0


def widening(question: PrivateAnswer, num_rows: float, num_clients: int) -> float:
    """Return how many times as wide intervals are at best; infinite where nothing is left."""
    size, columns = question.size, len(question.bounds)
    spread = min(1 / 3, (question.radius**2 - question.has_intercept) / columns)
    if spread <= 0:
        return math.inf
    s, t = question.deviations_at(np.zeros(size), num_clients)
    information = num_rows * spread / 4
    left = 1 - 0.5 * t**2 * (size + 1) / information**2
    return math.inf if left <= 0 else math.sqrt((1 + s**2 / information) / left)


def check_worth(question: PrivateAnswer, budget: Budget, num_rows: int, num_clients: int, most: float) -> None:
    """Refuse what noise would drown."""
    wide = widening(question, num_rows, num_clients)
    if wide <= most:
        return
    rows = _enough(lambda log: widening(question, math.exp(log), num_clients), most, math.log(_MOST_ROWS))

    def with_epsilon(log: float) -> float:
        factor = Budget(math.exp(log), budget.delta).mu / budget.mu
        richer = replace(question, mu_score=factor * question.mu_score, mu_information=factor * question.mu_information)
        return widening(richer, num_rows, num_clients)

    epsilon = _enough(with_epsilon, most, math.log(_MOST_EPSILON), math.log(budget.epsilon))
    worth = "nothing at all" if math.isinf(wide) else f"what {num_rows / wide**2:,.0f} rows tell without it"
    times = "" if math.isinf(wide) else f", in intervals {wide:.1f} times as wide"
    sites = f" of each of {num_clients} sites" if question.noise == "own" and num_clients > 1 else ""
    needs = [f"{_rounded_up(rows):,} rows"] if rows else []
    needs += [f"epsilon = {epsilon:.2g}"] if epsilon else []
    others = ["fewer features", "a smaller radius"] + (['noise = "shared"'] if sites else [])
    raise SettingsError(
        f"With {budget} the noise{sites} would leave of {num_rows:,} rows and {question.size} coefficients {worth}"
        f"{times}, and that at best; max_widening = {most:g} is allowed. It takes about {' or '.join(needs)}; or "
        f"{', or '.join(others)}. Nothing was spent."
    )


def draws_of_a_chain(budget: Budget, num_columns: int, radius: float | None, num_rows: int) -> float:
    """Return how many effective draws a private chain could make in place of this, at best."""
    bound = radius or (num_columns + 1) ** 0.5
    return draws_allowed(budget, bound, (12 / num_rows) ** 0.5)


def _enough(wide: Any, most: float, end: float, begin: float = 0.0) -> float | None:
    """Return where a widening that falls comes down to the most that is allowed."""
    if wide(end) > most:
        return None
    cut = 10 * most  # a root finder takes no infinity
    return math.exp(brentq(lambda log: min(wide(log), cut) - most, begin, end, xtol=1e-3))  # type: ignore


def _rounded_up(rows: float) -> int:
    step = 10 ** max(0, math.floor(math.log10(rows)) - 1)
    return int(math.ceil(rows / step) * step)
