"""The stage schedule of Proposition 4.5: each stage twice as long as the last, at a step size smaller by sqrt(2).

Reference: Liang, Zhang, Deng, Song and Lin (2024), arXiv:2407.06935, Proposition 4.5 and supplement H.
"""

from __future__ import annotations

from math import ceil, log, log2, sqrt

from fahmc.dynamics.schedules import Stages
from fahmc.theory.bounds import contraction_factor, step_size_bound
from fahmc.theory.checks import require, require_positive
from fahmc.theory.regime import Regime


def stage_schedule(
    regime: Regime,
    accuracy: float,
    initial_squared_distance: float,
    *,
    log_factor: float | None = None,
    step_constant: float = 1.0,
) -> Stages:
    r"""Return the schedule of Proposition 4.5, which rids the rate of log(d/epsilon^2); `FAHMC` takes it as step_size.

    $$
    (K\eta)^2 = \frac{D}{8 c_d \tilde\Delta L},\quad
    t_1 = T\Bigl\lceil\frac{-\log 8}{T\log(1-\mu(K\eta)^2/4)}\Bigr\rceil,\quad
    \tilde\Delta = d\Bigl(T^2\bigl(\gamma+(1-\rho)N\bigr)+\frac{\sum_c w_c^2\sigma_g^2}{K}\Bigr)
    $$

    with D = E||theta_0 - theta_0^pi||^2 and gamma that of `step_size_bound`. K eta is cut at 1/sqrt(L), where the
    contraction of Theorem 4.4 ends; a smaller step only lowers the error of a stage.

    Notes
    -----
    The proof treats a family: (K eta)^2 = D/(2 a c_d Delta~ L), t_1 from log(2a), eta divided by a^(1/4) from stage to
    stage. The numbers above (8, log 8, sqrt 2) are a = 4, although the text says a = 2. They do what is claimed.
    Stage s adds c_d Delta~ L (K eta_s)^2 = D/2^(s-1)/8, and shrinks what was there to less than 1/6: to 1/8 in the
    first stage and to 8^(-x/log(1/(1-x))) at worst in later ones, x = mu (K eta)^2/4 <= 1/4. So D/2^(s-1) becomes less
    than (1/6 + 1/8) D/2^(s-1) < D/2^s.

    Parameters
    ----------
    log_factor
        c_d; log^2 d unless told.
    step_constant
        C of `step_size_bound`, which enters through gamma.
    """
    require_positive("initial_squared_distance", initial_squared_distance)
    gamma = step_size_bound(regime, accuracy, constant=step_constant).gamma
    noise = _dimension_factor(regime, log_factor) * regime.error_rate(gamma) * regime.smoothness
    length_squared = min(initial_squared_distance / (8 * noise), 1 / regime.smoothness)
    step_size = sqrt(length_squared) / regime.num_leapfrog_steps
    num_rounds = -log(8) / (regime.num_local_steps * log(contraction_factor(regime, step_size)))
    return Stages(step_size, ceil(num_rounds) * regime.num_local_steps)


def staged_iterations_to_accuracy(
    regime: Regime,
    accuracy: float,
    initial_squared_distance: float,
    *,
    log_factor: float | None = None,
    step_constant: float = 1.0,
) -> int:
    """Return how many trajectories `stage_schedule` takes until D/2^s <= epsilon^2, s stages: t_1 (2^s - 1)."""
    schedule = stage_schedule(
        regime, accuracy, initial_squared_distance, log_factor=log_factor, step_constant=step_constant
    )
    # A ratio such as 8.000000000000002 is three stages, not four.
    num_stages = ceil(log2(initial_squared_distance / accuracy**2) - 1e-9)
    return schedule.end_of_stage(max(0, num_stages))


def staged_iterations_bound(
    regime: Regime,
    accuracy: float,
    *,
    log_factor: float | None = None,
    step_constant: float = 1.0,
    constant: float = 1.0,
) -> float:
    r"""Bound the trajectories that the stage schedule needs (Proposition 4.5).

    $$
    t \le C\, \frac{c_d\, d}{\epsilon^2}
        \Bigl(T^2\bigl(\gamma+(1-\rho)N\bigr)+\frac{\sum_c w_c^2\sigma_g^2}{K}\Bigr),\qquad c_d = \log^2 d
    $$
    """
    gamma = step_size_bound(regime, accuracy, constant=step_constant).gamma
    return constant * _dimension_factor(regime, log_factor) * regime.error_rate(gamma) / accuracy**2


def _dimension_factor(regime: Regime, log_factor: float | None) -> float:
    factor = log(regime.dimension) ** 2 if log_factor is None else log_factor
    require(factor > 0, "log_factor", factor, "greater than 0; log^2 d is 0 in one dimension, so give a number there")
    return factor
