"""The rates of FA-HMC: step size, number of trajectories and rounds, and what the error is made of.

The theorems hold up to constants that depend on L, L/mu and L_H^2/L^3 and, where the order is written O~, on powers of
log d. Every such constant is a keyword, 1 unless told: the numbers returned here compare settings with each other
and say what limits them; they are no promise for one setting. "Iteration" is the theorems' word for one trajectory of
K leapfrog steps.

Reference: Liang, Zhang, Deng, Song and Lin (2024), arXiv:2407.06935, section 4 and supplement C, E, G.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf, log, sqrt
from typing import NamedTuple

from fahmc.errors import SettingsError
from fahmc.theory.checks import require, require_positive
from fahmc.theory.regime import Regime

# ---- Theorem 4.1: constant step size, any correlation, any gradient noise


class StepSizeBound(NamedTuple):
    """A step size, and which of the four terms decided it."""

    step_size: float
    gamma: float
    """(K eta)^2, the squared length of a trajectory."""
    terms: dict[str, float]
    """What eta^2 could be if only this term mattered; infinite where the term is absent."""
    binding: str
    """Name of the smallest term."""


def step_size_bound(regime: Regime, accuracy: float, *, constant: float = 1.0) -> StepSizeBound:
    r"""Return the step size at which FA-HMC reaches W_2 <= epsilon (Theorem 4.1).

    $$
    \eta^2 = C \min\Bigl\{\frac{1}{K^2 L},\ \frac{\epsilon}{K^2 \sqrt d\, T},
        \ \frac{\epsilon^2}{K^2 d\, T^2 (1-\rho) N},\ \frac{\epsilon^2}{K d \sum_c w_c^2 \sigma_g^2}\Bigr\}
    $$

    The terms, in this order, are called ``smoothness``, ``bias``, ``correlation`` and ``stochastic_gradient``.

    Examples
    --------
    >>> step_size_bound(Regime(dimension=100, weights=[0.5, 0.5], smoothness=1.0), accuracy=0.1).binding
    'bias'
    """
    require_positive("accuracy", accuracy)
    require_positive("constant", constant)
    d, k, t = regime.dimension, regime.num_leapfrog_steps, regime.num_local_steps
    terms = {
        "smoothness": constant / (k**2 * regime.smoothness),
        "bias": constant * accuracy / (k**2 * sqrt(d) * t),
        "correlation": constant * _ratio(accuracy**2, k**2 * d * t**2 * regime.momentum_disagreement),
        "stochastic_gradient": constant * _ratio(accuracy**2, k * d * regime.averaged_noise),
    }
    binding = min(terms, key=lambda name: terms[name])
    return StepSizeBound(sqrt(terms[binding]), k**2 * terms[binding], terms, binding)


def iterations_to_accuracy(
    regime: Regime, accuracy: float, *, step_constant: float = 1.0, constant: float = 1.0
) -> float:
    r"""Return the number of trajectories t_epsilon after which W_2 <= epsilon (Theorem 4.1).

    $$
    t_\epsilon = \frac{d \log(d/\epsilon^2)}{\epsilon^2}\,
        C\Bigl(T^2\bigl(\gamma + (1-\rho)N\bigr) + \frac{\sum_c w_c^2 \sigma_g^2}{K}\Bigr),
    $$

    with gamma = (K eta)^2 of `step_size_bound`, whose constant is ``step_constant``. Where the smoothness term binds,
    the formula falls below log(d/epsilon^2)/gamma, which `iterations_to_contract` gives: it is meant for small epsilon.
    """
    log_ratio = _log_ratio(regime.dimension, accuracy, power=2)
    gamma = step_size_bound(regime, accuracy, constant=step_constant).gamma
    return constant * log_ratio * regime.error_rate(gamma) / accuracy**2


def rounds_to_accuracy(regime: Regime, accuracy: float, **constants: float) -> float:
    """Return `iterations_to_accuracy` in rounds, t_epsilon / T (Theorem 4.1): U-shaped in T with noise."""
    return iterations_to_accuracy(regime, accuracy, **constants) / regime.num_local_steps


# ---- Proposition 4.2: almost common momentum, almost exact gradients


class VanillaSetting(NamedTuple):
    """What makes the rate sqrt(d)/epsilon instead of d/epsilon^2."""

    step_size: float
    gamma: float
    """(K eta)^2."""
    min_momentum_correlation: float
    """The smallest rho that does not slow the sampler down."""
    max_relative_gradient_noise: float
    """The largest sigma_g that does not slow the sampler down."""
    iterations: float
    """t_epsilon, in trajectories."""
    rounds: float
    """t_epsilon / T: free of T."""


def vanilla_setting(
    regime: Regime,
    accuracy: float,
    *,
    constant: float = 1.0,
    correlation_constant: float = 1.0,
    noise_constant: float = 1.0,
    iteration_constant: float = 1.0,
) -> VanillaSetting:
    r"""Return the setting of vanilla FA-HMC and its rate (Proposition 4.2); the regime's rho and sigma_g are not used.

    $$
    \gamma = C\min\Bigl\{\frac1L, \frac{\epsilon}{T\sqrt d}\Bigr\},\quad \rho = 1 - O(\gamma/N),\quad
    \sigma_g^2 = O(K\gamma),\qquad t_\epsilon = \frac{\sqrt d \log(d/\epsilon^2)}{\epsilon}\,\tilde O(T)
    $$
    """
    require_positive("constant", constant)
    log_ratio = _log_ratio(regime.dimension, accuracy, power=2)
    d, k, t = regime.dimension, regime.num_leapfrog_steps, regime.num_local_steps
    gamma = constant * min(1 / regime.smoothness, accuracy / (t * sqrt(d)))
    rounds = iteration_constant * sqrt(d) * log_ratio / accuracy
    return VanillaSetting(
        step_size=sqrt(gamma) / k,
        gamma=gamma,
        min_momentum_correlation=max(0.0, 1 - correlation_constant * gamma / regime.num_clients),
        max_relative_gradient_noise=sqrt(noise_constant * k * gamma),
        iterations=rounds * t,
        rounds=rounds,
    )


def iterations_lower_bound(dimension: int, num_local_steps: int, accuracy: float, *, constant: float = 1.0) -> float:
    """Return C sqrt(d) T log(d/epsilon) / epsilon: some target needs that many trajectories (Theorem C.1).

    It holds for exact Hamiltonian flow and a common momentum, so no step size can beat it; `vanilla_setting` meets it.
    """
    log_ratio = _log_ratio(dimension, accuracy, power=1)
    return constant * sqrt(dimension) * num_local_steps * log_ratio / accuracy


# ---- Theorem 4.4: the distance to a chain of exact HMC that shares the averaged momentum


class ErrorParts(NamedTuple):
    """The three parts of Delta."""

    bias: float
    correlation: float
    stochastic_gradient: float

    @property
    def total(self) -> float:
        """Delta."""
        return sum(self)


def contraction_factor(regime: Regime, step_size: float) -> float:
    """Return 1 - mu (K eta)^2 / 4, by which one trajectory shrinks the squared distance; needs K eta <= 1/sqrt(L)."""
    if regime.strong_convexity is None:
        raise SettingsError(
            "strong_convexity is None; a contraction needs mu > 0. Give Regime the smallest curvature of the clients."
        )
    require_positive("step_size", step_size)
    largest = 1 / (regime.num_leapfrog_steps * sqrt(regime.smoothness))
    fits = step_size <= largest * (1 + 1e-12)  # 1/(K sqrt(L)) itself is allowed, however the caller rounded it
    require(fits, "step_size", step_size, f"at most 1/(K sqrt(L)) = {largest:.6g}; shorten it or take fewer leapfrogs")
    return 1 - regime.strong_convexity * (regime.num_leapfrog_steps * step_size) ** 2 / 4


def iterations_to_contract(regime: Regime, step_size: float, ratio: float) -> int:
    """Return the smallest t with (1 - mu (K eta)^2 / 4)^t <= ratio; Theorem 4.1 uses epsilon^2 / (2 D)."""
    require_positive("ratio", ratio)
    return max(0, ceil(log(ratio) / log(contraction_factor(regime, step_size))))


def error_parts(
    regime: Regime,
    step_size: float,
    gradient_bounds: Sequence[float],
    *,
    drift_constant: float = 1.0,
    noise_constant: float = 1.0,
) -> ErrorParts:
    r"""Return the three parts of Delta (Theorem 4.4).

    $$
    \Delta = C_1 T^2 K^2 \sum_c \Bigl(\underbrace{\frac{w_c B_c}{L}(K\eta)^2}_{\text{bias}}
        + \underbrace{\frac{1-\rho}{L} d}_{\text{correlation}}\Bigr)
        + C_2 K \underbrace{\sum_c w_c^2 \sigma_g^2 d}_{\text{stochastic gradient}}
    $$

    Parameters
    ----------
    gradient_bounds
        B_c = sup_t E ||grad f_c||^2 at the start of client c's trajectories; of order L d for a sensible start.
    drift_constant, noise_constant
        C_1 and C_2; the proof's hold c_d = log^2 d.
    """
    num_bounds, num_clients = len(gradient_bounds), regime.num_clients
    require(num_bounds == num_clients, "number of gradient_bounds", num_bounds, f"the number of clients {num_clients}")
    d, k, t = regime.dimension, regime.num_leapfrog_steps, regime.num_local_steps
    drift = drift_constant * (t * k) ** 2 / regime.smoothness
    mean_bound = sum(w * b for w, b in zip(regime.weights, gradient_bounds, strict=True))
    return ErrorParts(
        bias=drift * mean_bound * (k * step_size) ** 2,
        correlation=drift * regime.momentum_disagreement * d,
        stochastic_gradient=noise_constant * k * regime.averaged_noise * d,
    )


def squared_distance_bound(
    regime: Regime,
    step_size: float,
    num_iterations: int,
    *,
    initial_squared_distance: float,
    gradient_bounds: Sequence[float],
    **constants: float,
) -> float:
    r"""Bound E||theta_t - theta_t^pi||^2 after t trajectories (Theorem 4.4), hence W_2^2 of their laws.

    $$
    \mathbb E\|\theta_t - \theta^\pi_t\|^2 \le
        \Bigl(1-\frac{\mu(K\eta)^2}{4}\Bigr)^t\, \mathbb E\|\theta_0-\theta^\pi_0\|^2 + \eta^2 \Delta
    $$

    The theorem writes the power t beside theta_{t+1}; its proof contracts once a trajectory, as here. Of a
    non-increasing schedule, ``step_size`` is the last value. Delta and its constants are those of `error_parts`.
    """
    remaining = contraction_factor(regime, step_size) ** num_iterations
    delta = error_parts(regime, step_size, gradient_bounds, **constants).total
    return remaining * initial_squared_distance + step_size**2 * delta


def _log_ratio(dimension: int, accuracy: float, power: int) -> float:
    """Return log(d / epsilon^power), which must be positive: the start is at squared distance of order d."""
    require_positive("accuracy", accuracy)
    largest = dimension ** (1 / power)
    require(accuracy < largest, "accuracy", accuracy, f"below {largest:.6g}, the order of the distance at the start")
    return log(dimension / accuracy**power)


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator > 0 else inf
