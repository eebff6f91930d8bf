"""The rates against numbers worked by hand, and their exponents."""

from dataclasses import replace
from math import inf, log, sqrt

import pytest

from fahmc.dynamics.schedules import Stages
from fahmc.errors import SettingsError
from fahmc.theory import (
    Regime,
    contraction_factor,
    error_parts,
    iterations_lower_bound,
    iterations_to_accuracy,
    iterations_to_contract,
    rounds_to_accuracy,
    squared_distance_bound,
    stage_schedule,
    staged_iterations_bound,
    staged_iterations_to_accuracy,
    step_size_bound,
    vanilla_setting,
)

# d = 100, N = 4, K = 5, T = 2, rho = 0.9, sigma_g = 2: (1 - rho) N = 0.4 and sum_c w_c^2 sigma_g^2 = 4/4 = 1.
NOISY = Regime(
    dimension=100,
    weights=[0.25] * 4,
    smoothness=4.0,
    strong_convexity=1.0,
    num_leapfrog_steps=5,
    num_local_steps=2,
    momentum_correlation=0.9,
    relative_gradient_noise=2.0,
)
VANILLA = replace(NOISY, momentum_correlation=1.0, relative_gradient_noise=0.0)


def exponent(rate, regime, name, factor=16):
    """Measure a in rate ~ name^a."""
    larger = replace(regime, **{name: getattr(regime, name) * factor})
    return log(rate(larger) / rate(regime)) / log(factor)


# ---- Theorem 4.1


def test_step_size_terms_worked_by_hand():
    bound = step_size_bound(NOISY, accuracy=0.2)
    assert bound.terms == pytest.approx(
        {
            "smoothness": 1 / (25 * 4),
            "bias": 0.2 / (25 * 10 * 2),
            "correlation": 0.04 / (25 * 100 * 4 * 0.4),
            "stochastic_gradient": 0.04 / (5 * 100 * 1),
        }
    )
    assert bound.binding == "correlation"
    assert bound.step_size**2 == pytest.approx(1e-5)
    assert bound.gamma == pytest.approx(25e-5)
    assert step_size_bound(NOISY, 0.2, constant=9.0).step_size == pytest.approx(3 * bound.step_size)


def test_each_term_can_bind():
    assert step_size_bound(replace(NOISY, smoothness=1e6), 0.2).binding == "smoothness"
    assert step_size_bound(replace(NOISY, relative_gradient_noise=50.0), 0.2).binding == "stochastic_gradient"
    vanilla = step_size_bound(VANILLA, 0.2)
    assert vanilla.binding == "bias"
    assert vanilla.terms["correlation"] == vanilla.terms["stochastic_gradient"] == inf


def test_iterations_and_rounds_worked_by_hand():
    # d log(d / eps^2) / eps^2 = 2500 log 2500; T^2 (gamma + 0.4) + 1/K = 4 (0.00025 + 0.4) + 0.2 = 1.801
    assert iterations_to_accuracy(NOISY, 0.2) == pytest.approx(2500 * log(2500) * 1.801)
    assert rounds_to_accuracy(NOISY, 0.2) == pytest.approx(2500 * log(2500) * 1.801 / 2)
    assert rounds_to_accuracy(NOISY, 0.2, constant=3.0) == pytest.approx(3 * rounds_to_accuracy(NOISY, 0.2))


def test_rounds_are_u_shaped_in_local_steps_with_noisy_gradients():
    noisy = replace(NOISY, momentum_correlation=0.999, relative_gradient_noise=5.0)
    rounds = [rounds_to_accuracy(replace(noisy, num_local_steps=t), 0.2) for t in (1, 16, 1000)]
    assert rounds[1] < min(rounds[0], rounds[2])


def test_less_correlation_and_more_noise_cost_iterations():
    costs = [
        iterations_to_accuracy(replace(VANILLA, momentum_correlation=rho, relative_gradient_noise=noise), 0.2)
        for rho, noise in [(1.0, 0.0), (0.5, 0.0), (0.5, 5.0), (0.0, 5.0)]
    ]
    assert costs == sorted(costs)


def test_exponents_with_noise_are_those_of_langevin():
    """Up to the logarithm, t ~ d / eps^2 where the noise binds, and sqrt(d) T / eps where it is absent."""

    def rate(regime):
        return iterations_to_accuracy(regime, 1e-3) / log(regime.dimension / 1e-6)

    assert exponent(rate, NOISY, "dimension") == pytest.approx(1, abs=0.01)
    assert exponent(rate, VANILLA, "dimension") == pytest.approx(0.5)
    assert exponent(rate, VANILLA, "num_local_steps") == pytest.approx(1)
    assert exponent(rate, NOISY, "num_local_steps") == pytest.approx(2, abs=0.05)


# ---- Proposition 4.2 and Theorem C.1


def test_vanilla_setting_worked_by_hand():
    setting = vanilla_setting(NOISY, 0.2)
    assert setting.gamma == pytest.approx(0.2 / 20)
    assert setting.step_size == pytest.approx(0.1 / 5)
    assert setting.min_momentum_correlation == pytest.approx(1 - 0.01 / 4)
    assert setting.max_relative_gradient_noise**2 == pytest.approx(5 * 0.01)
    assert setting.rounds == pytest.approx(10 * log(2500) / 0.2)
    assert setting.iterations == pytest.approx(2 * setting.rounds)
    assert setting.gamma == pytest.approx(step_size_bound(VANILLA, 0.2).gamma)
    assert setting.iterations == pytest.approx(iterations_to_accuracy(VANILLA, 0.2))


def test_vanilla_setting_is_where_noise_stops_mattering():
    setting = vanilla_setting(VANILLA, 0.2)
    at_the_limit = replace(
        VANILLA,
        momentum_correlation=setting.min_momentum_correlation,
        relative_gradient_noise=setting.max_relative_gradient_noise,
    )
    ratio = iterations_to_accuracy(at_the_limit, 0.2) / iterations_to_accuracy(VANILLA, 0.2)
    assert 1 < ratio < 3


def test_lower_bound_meets_the_vanilla_rate():
    assert iterations_lower_bound(100, 2, 0.2) == pytest.approx(10 * 2 * log(500) / 0.2)
    for dimension, accuracy in [(10, 0.1), (10_000, 0.1), (100, 1e-4)]:
        upper = vanilla_setting(replace(VANILLA, dimension=dimension), accuracy).iterations
        assert 1 <= upper / iterations_lower_bound(dimension, 2, accuracy) <= 2


# ---- Theorem 4.4


def test_contraction_worked_by_hand():
    assert contraction_factor(NOISY, 0.04) == pytest.approx(1 - 0.2**2 / 4)
    assert contraction_factor(NOISY, 0.1) == pytest.approx(1 - 0.25 / 4)  # K eta = 1/sqrt(L), the largest
    assert iterations_to_contract(NOISY, 0.1, 0.5) == 11  # 0.9375^10 = 0.524, 0.9375^11 = 0.492
    assert iterations_to_contract(NOISY, 0.1, 2.0) == 0


def test_error_parts_worked_by_hand():
    parts = error_parts(NOISY, 0.04, [100.0, 200.0, 300.0, 400.0], drift_constant=2.0, noise_constant=3.0)
    assert parts.bias == pytest.approx(2 * 4 * 25 * (250 / 4) * 0.04)
    assert parts.correlation == pytest.approx(2 * 4 * 25 * 0.4 / 4 * 100)
    assert parts.stochastic_gradient == pytest.approx(3 * 5 * 1 * 100)
    assert parts.total == pytest.approx(500 + 2000 + 1500)
    vanilla = error_parts(VANILLA, 0.04, [100.0, 200.0, 300.0, 400.0])
    assert vanilla.correlation == vanilla.stochastic_gradient == 0


def test_squared_distance_falls_to_the_error():
    def bound(num_iterations):
        return squared_distance_bound(
            NOISY, 0.04, num_iterations, initial_squared_distance=50.0, gradient_bounds=[400.0] * 4
        )

    floor = 0.04**2 * error_parts(NOISY, 0.04, [400.0] * 4).total
    assert bound(0) == pytest.approx(50 + floor)
    assert bound(3) == pytest.approx(50 * 0.99**3 + floor)
    assert bound(10_000) == pytest.approx(floor)


def test_theorem_4_1_step_size_balances_the_error_of_theorem_4_4():
    """With B_c = L d and L = 1, the error at that step is of order eps^2: each of three terms at most eps^2."""
    for regime in (NOISY, VANILLA, replace(NOISY, relative_gradient_noise=50.0)):
        regime = replace(regime, smoothness=1.0)
        step_size = step_size_bound(regime, 0.2).step_size
        parts = error_parts(regime, step_size, [100.0] * 4)
        assert 0.99 <= step_size**2 * parts.total / 0.2**2 <= 3


# ---- Proposition 4.5


def test_stage_schedule_worked_by_hand():
    # Delta~ = 100 * 1.801 as above; (K eta)^2 = D / (8 c_d Delta~ L) with D = 50, c_d = 2.
    schedule = stage_schedule(NOISY, 0.2, 50.0, log_factor=2.0)
    length_squared = 50 / (8 * 2 * 180.1 * 4)
    assert schedule.step_size == pytest.approx(sqrt(length_squared) / 5)
    rounds = -log(8) / (2 * log(1 - length_squared / 4))
    assert schedule.first_stage == 2 * (int(rounds) + 1)
    by_default = stage_schedule(NOISY, 0.2, 50.0)
    assert by_default.step_size == pytest.approx(schedule.step_size * sqrt(2.0) / log(100))


def test_stages_double_and_steps_shrink():
    schedule = Stages(step_size=1.0, first_stage=6)
    expected = [1.0] * 6 + [1 / sqrt(2)] * 12 + [1 / 2] * 24 + [1 / sqrt(8)]
    assert [schedule(t) for t in range(43)] == pytest.approx(expected)
    assert [schedule.end_of_stage(s) for s in range(4)] == [0, 6, 18, 42]


def test_stages_halve_the_error():
    """Follow the recursion that the proposition assumes: after stage s the bound is at most D / 2^s."""
    start, noise = 50.0, 2.0 * 180.1 * 4.0
    schedule = stage_schedule(NOISY, 0.2, start, log_factor=2.0)
    error = start
    for stage in range(8):
        step_size = float(schedule(schedule.end_of_stage(stage)))
        length = schedule.end_of_stage(stage + 1) - schedule.end_of_stage(stage)
        error = contraction_factor(NOISY, step_size) ** length * error + noise * (5 * step_size) ** 2
        assert error <= start / 2 ** (stage + 1)


def test_staged_iterations():
    schedule = stage_schedule(NOISY, 0.2, 0.04 * 8)
    assert staged_iterations_to_accuracy(NOISY, 0.2, 0.04 * 8) == 7 * schedule.first_stage
    assert staged_iterations_to_accuracy(NOISY, 0.2, 0.03) == 0
    assert staged_iterations_bound(NOISY, 0.2, log_factor=1.0) == pytest.approx(2500 * 1.801)
    assert staged_iterations_bound(NOISY, 0.2) == pytest.approx(log(100) ** 2 * 2500 * 1.801)


def test_staged_iterations_stay_below_the_bound_with_the_constant_of_the_proof():
    """t_1 2^s <= 2 t_1 D/eps^2 and t_1 <= 4 log 8 / (mu (K eta)^2) + T, so C = 64 log 8 L/mu, plus 2 T D/eps^2."""
    for accuracy in (0.5, 0.1, 0.01):
        total = staged_iterations_to_accuracy(NOISY, accuracy, 100.0)
        bound = staged_iterations_bound(NOISY, accuracy, constant=64 * log(8) * 4)
        assert total <= bound + 2 * 2 * 100.0 / accuracy**2


def test_stage_schedule_respects_the_contraction():
    """A large D asks for K eta beyond 1/sqrt(L), where nothing is proved."""
    assert stage_schedule(NOISY, 0.2, 1e9).step_size == pytest.approx(0.1)


# ---- refusals


@pytest.mark.parametrize(
    "wrong",
    [
        {"dimension": 0},
        {"weights": [0.5, 0.6]},
        {"weights": []},
        {"smoothness": 0.0},
        {"strong_convexity": 5.0},
        {"num_leapfrog_steps": 0},
        {"momentum_correlation": -0.1},
        {"relative_gradient_noise": -1.0},
    ],
)
def test_regime_refuses(wrong):
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        replace(NOISY, **wrong)


def test_bounds_refuse():
    with pytest.raises(SettingsError, match="accuracy"):
        step_size_bound(NOISY, 0.0)
    with pytest.raises(SettingsError, match="accuracy"):
        iterations_to_accuracy(NOISY, 10.0)
    with pytest.raises(SettingsError, match="accuracy"):
        vanilla_setting(NOISY, -0.1)
    with pytest.raises(SettingsError, match="at most"):
        contraction_factor(NOISY, 0.11)
    with pytest.raises(SettingsError, match="strong_convexity is None"):
        contraction_factor(replace(NOISY, strong_convexity=None), 0.1)
    with pytest.raises(SettingsError, match="gradient_bounds"):
        error_parts(NOISY, 0.1, [1.0])
    with pytest.raises(SettingsError, match="log_factor"):
        stage_schedule(replace(NOISY, dimension=1), 0.2, 1.0)
