"""Split HMC: each trajectory and decision to rounding, the law that they keep, and what breaks it.

Velocities derive from indices, so a test can draw them too and say in NumPy where every chain has to go.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import fahmc
from assertions import FALSE_ALARM, assert_covariance, assert_mean
from fahmc import keys
from fahmc.dynamics.split_hmc import next_step
from fahmc.engines.run import Run, begin
from fahmc.errors import DivergenceError, SettingsError
from fahmc.runs.plan import make_run
from fahmc.types import ChainKeys
from gaussian_study import Study

WEIGHTS = np.array([0.5, 0.2, 0.3])
PRECISIONS = np.array([[[2.0, 0.5], [0.5, 1.0]], [[1.0, -0.3], [-0.3, 4.0]], [[0.5, 0.1], [0.1, 0.6]]])
STUDY = Study(np.array([[1.0, -2.0], [0.0, 3.0], [-1.0, 0.5]]), PRECISIONS, WEIGHTS)
PRECISION = np.einsum("c,cij->ij", WEIGHTS, PRECISIONS)
COVARIANCE = np.linalg.inv(PRECISION)
MEAN = COVARIANCE @ np.einsum("c,cij,cj->i", WEIGHTS, PRECISIONS, STUDY.means)
RIGHT = {"center": MEAN, "inverse_mass_matrix": COVARIANCE}
# Off in place, size and shape: about one of twelve proposals is rejected.
WRONG = {"center": MEAN + 0.5, "inverse_mass_matrix": COVARIANCE * 2.2 + np.array([[0.2, 0.3], [0.3, 0.8]])}
QUIET: dict[str, Any] = {"dtype": "float64", "progress": False}
NUM_CHAINS, NUM_TRAJECTORIES = 50_000, 3


class Warm:
    """An engine whose programs outlive a run: settings are numbers, so runs of as many chains share them."""

    def __init__(self):
        self._sessions: dict[int, Any] = {}

    def start(self, run: Run) -> Any:
        if run.num_chains not in self._sessions:
            engine = fahmc.engines.InProcess(threads=2)
            self._sessions[run.num_chains] = engine.start(replace(run, num_rounds=32, thin=1))
        return self._sessions[run.num_chains]


WARM_GAUSSIAN, WARM_LOGISTIC = Warm(), Warm()


def velocities(run: Run, num_draws: int, num_steps: int) -> np.ndarray:
    """The velocities with which the trajectories of a run begin, [draw, chain, dim]."""

    def draw(chain_keys: ChainKeys, round_index: int) -> np.ndarray:
        key_of = jax.vmap(lambda chain: keys.shared_momentum(chain, jnp.int32(round_index)))
        normal = jax.vmap(lambda key: jax.random.normal(key, (run.dimension,)))
        return np.asarray(normal(key_of(chain_keys)))

    # The first is drawn in the round before the first, each other when the one before it ends.
    ends = [num_steps * (index + 1) - 1 for index in range(num_draws - 1)]
    return np.stack([draw(run.chain_keys(run.phases[0]), 0), *(draw(run.chain_keys(run.phases[1]), r) for r in ends)])


def trajectory(start, velocity, metric, angle, num_steps: int, signs=(1, 1), is_stale: bool = False):
    """K steps on the Gaussian study, for chains in rows; ``signs`` of the two kicks and ``is_stale`` make it wrong."""
    factor = np.linalg.cholesky(metric["inverse_mass_matrix"])
    angle = np.reshape(angle, (-1, 1))

    def rest(place):
        return (place @ factor.T + metric["center"] - MEAN) @ PRECISION @ factor - place

    place = (start - metric["center"]) @ np.linalg.inv(factor).T
    for _ in range(num_steps):
        before = rest(place)
        velocity = velocity - signs[0] * angle / 2 * before
        place, velocity = (
            place * np.cos(angle) + velocity * np.sin(angle),
            velocity * np.cos(angle) - place * np.sin(angle),
        )
        velocity = velocity - signs[1] * angle / 2 * (before if is_stale else rest(place))
    return metric["center"] + place @ factor.T, velocity


def energy(position: np.ndarray, velocity: np.ndarray) -> np.ndarray:
    gap = position - MEAN
    return np.sum(gap @ PRECISION * gap, axis=-1) / 2 + np.sum(velocity**2, axis=-1) / 2


def sample(sampler: fahmc.SplitHMC, num_rounds: int, init: np.ndarray, **options: Any) -> fahmc.Draws:
    return fahmc.sample(
        STUDY.model, STUDY.federation, sampler, num_rounds, num_chains=len(init), init=init, seed=3,
        engine=WARM_GAUSSIAN, **QUIET, **options,
    )  # fmt: skip


def path_and_velocities(sampler: fahmc.SplitHMC, start: np.ndarray, num_draws: int) -> tuple[fahmc.Draws, Any, Any]:
    draws = sample(sampler, num_draws * sampler.num_steps, start)
    run = make_run(
        STUDY.model, STUDY.federation, sampler, 1, num_chains=len(start), seed=3, dtype=np.dtype("float64")
    )  # fmt: skip
    path = np.concatenate([start[None], draws.flat().swapaxes(0, 1)])
    return draws, path, velocities(run, num_draws, sampler.num_steps)


@pytest.mark.parametrize("num_steps", [1, 3])
def test_with_the_right_metric_a_trajectory_is_a_turn_and_nothing_is_rejected(num_steps):
    start = np.random.default_rng(0).normal(size=(200, 2)) * 3
    sampler = fahmc.SplitHMC(num_steps, step_size=0.7, jitter=0, **RIGHT)
    draws, path, velocity = path_and_velocities(sampler, start, 4)
    np.testing.assert_allclose(draws.stats["energy_error"], 0, atol=1e-12)
    np.testing.assert_allclose(draws.stats["acceptance_rate"], 1, atol=1e-12)
    angle = 0.7 * num_steps
    turned = MEAN + (path[:-1] - MEAN) * np.cos(angle) + velocity @ np.linalg.cholesky(COVARIANCE).T * np.sin(angle)
    np.testing.assert_allclose(path[1:], turned, atol=1e-12)


def test_by_default_a_trajectory_is_a_quarter_turn_so_draws_are_independent():
    _, path, velocity = path_and_velocities(fahmc.SplitHMC(jitter=0, **RIGHT), np.full((200, 2), 5.0), 3)
    np.testing.assert_allclose(path[1:], MEAN + velocity @ np.linalg.cholesky(COVARIANCE).T, atol=1e-12)


def test_with_a_wrong_metric_every_trajectory_and_decision_is_that_of_the_equations():
    start = MEAN + np.random.default_rng(1).normal(size=(200, 2)) @ np.linalg.cholesky(COVARIANCE).T
    draws, path, velocity = path_and_velocities(fahmc.SplitHMC(2, jitter=0, **WRONG), start, 5)
    end, end_velocity = zip(
        *(trajectory(q, v, WRONG, np.pi / 4, 2) for q, v in zip(path, velocity, strict=False)), strict=True
    )
    error = energy(np.stack(end), np.stack(end_velocity)) - energy(path[:-1], velocity)
    np.testing.assert_allclose(draws.stats["energy_error"].T, error, atol=1e-10)
    np.testing.assert_allclose(draws.stats["acceptance_rate"].T, np.exp(np.minimum(0, -error)), atol=1e-10)
    has_moved = (path[1:] != path[:-1]).any(axis=-1)
    assert 0.8 < has_moved.mean() < 0.98
    np.testing.assert_allclose(path[1:][has_moved], np.stack(end)[has_moved], atol=1e-10)
    assert has_moved[error <= 0].all()


class Replicas(NamedTuple):
    positions: np.ndarray  # [chain, dim], after some trajectories that began in exact draws
    rates: np.ndarray


def exact_draws() -> np.ndarray:
    return MEAN + np.random.default_rng(5).normal(size=(NUM_CHAINS, 2)) @ np.linalg.cholesky(COVARIANCE).T


def replicas_of_fahmc() -> Replicas:
    draws = sample(fahmc.SplitHMC(2, **WRONG), 2 * NUM_TRAJECTORIES, exact_draws())
    return Replicas(draws.flat()[:, -1], draws.stats["acceptance_rate"])


def replicas_of_numpy(decides: bool = True, **fault: Any) -> Replicas:
    generator, positions, rates = np.random.default_rng(6), exact_draws(), []
    for _ in range(NUM_TRAJECTORIES):
        velocity, angle = generator.normal(size=(NUM_CHAINS, 2)), np.pi / 4 * generator.uniform(0.9, 1.1, NUM_CHAINS)
        end, end_velocity = trajectory(positions, velocity, WRONG, angle, 2, **fault)
        rates.append(np.exp(np.minimum(0, energy(positions, velocity) - energy(end, end_velocity))))
        is_accepted = (generator.random(NUM_CHAINS) < rates[-1]) | (not decides)
        positions = np.where(is_accepted[:, None], end, positions)
    return Replicas(positions, np.stack(rates))


def check_law(found: Replicas) -> None:
    """Exact draws stay exact draws. By chance the two fail once in half a million."""
    assert_mean(found.positions, MEAN, COVARIANCE)
    assert_covariance(found.positions, COVARIANCE)


@pytest.mark.parametrize("replicas", [replicas_of_fahmc, replicas_of_numpy])
def test_exact_draws_stay_exact_under_a_wrong_metric(replicas):
    found = replicas()
    check_law(found)
    assert 0.9 < found.rates.mean() < 0.95


@pytest.mark.parametrize(
    "fault",
    [{"decides": False}, {"signs": (1, -1)}, {"signs": (-1, 1)}, {"is_stale": True}],
    ids=["no decision", "second kick backwards", "first kick backwards", "stale gradient"],
)
def test_what_is_not_exact_fails_the_same_check(fault):
    with pytest.raises(AssertionError, match="off by z"):
        check_law(replicas_of_numpy(**fault))


def test_both_kicks_backwards_are_exact_too_but_rarely_accepted():
    """Any common force makes a reversible map that keeps volume; the right one keeps the energy."""
    found = replicas_of_numpy(signs=(-1, -1))
    check_law(found)
    assert found.rates.mean() < replicas_of_numpy().rates.mean() - 0.2


# A skewed posterior of one coefficient: five rows at two clients, prior N(0, 2²).
ROWS = [(np.array([0.5, 1.5, 2.0]), np.array([1, 1, 1])), (np.array([-1.0, 0.4]), np.array([0, 0]))]
LOGISTIC = fahmc.models.logistic_regression(2.0, intercept=False)
CLIENTS = fahmc.Federation.from_clients([{"x": x[:, None], "y": y} for x, y in ROWS])


def log_posterior(theta: np.ndarray) -> np.ndarray:
    fits = sum(-np.logaddexp(0, np.outer(theta, x * (1 - 2 * y))).sum(axis=1) for x, y in ROWS)
    return fits - theta**2 / 8


GRID = np.linspace(-8, 14, 200_001)
MASS = np.exp(log_posterior(GRID))
CUMULATIVE = np.cumsum(MASS) / MASS.sum()


def check_quadrature(replicas: np.ndarray) -> None:
    """Independent replicas fill 40 bins of equal probability equally, by χ²."""
    counts, _ = np.histogram(np.interp(replicas, GRID, CUMULATIVE), bins=40, range=(0, 1))
    assert stats.chisquare(counts).pvalue > FALSE_ALARM, f"bins are filled {counts / counts.mean()}"


def test_a_skewed_posterior_agrees_with_quadrature():
    """With a metric that is much too wide."""
    sampler = fahmc.SplitHMC(2, center=np.array([1.0]), inverse_mass_matrix=np.array([5.0]))
    draws = fahmc.sample(
        LOGISTIC, CLIENTS, sampler, 30, thin=30, num_chains=20_000, init={"coefficients": np.zeros(1)},
        engine=WARM_LOGISTIC, **QUIET,
    )  # fmt: skip
    check_quadrature(draws.flat()[:, -1, 0])


def test_a_normal_law_with_the_same_mean_and_variance_does_not():
    mean = np.average(GRID, weights=MASS)
    sd = np.average((GRID - mean) ** 2, weights=MASS) ** 0.5
    with pytest.raises(AssertionError, match="bins are filled"):
        check_quadrature(np.random.default_rng(0).normal(mean, sd, size=20_000))


def test_a_trajectory_is_reversible_and_keeps_volume():
    """As the server takes it, on a posterior that is not Gaussian."""
    x, y, factor = jnp.array([[0.5, 1.0], [1.5, -0.3], [-1.0, 0.8]]), jnp.array([1.0, 1.0, 0.0]), 0.9
    numbers = fahmc.SplitHMC(9, 0.8, (0.3, -0.2), (factor**2, factor**2), jitter=0).numbers(
        np.zeros(2), np.dtype("float64")
    )
    chain_keys = keys.chain_keys(0, 1)
    chain_keys = ChainKeys(chain_keys.shared[0], chain_keys.private[0])

    def potential(theta):
        return jnp.sum(jnp.logaddexp(0.0, x @ theta) - y * (x @ theta)) + theta @ theta / 8

    def half_kick(theta, sign):
        return sign * 0.8 / 2 * (factor * jax.grad(potential)(theta) - (theta - numbers["center"]) / factor)

    def flow(start):
        """Four steps; a round of the server is one, but for half a kick that it takes from the one into the next."""
        theta, velocity = start[:2], start[2:]
        exchange = fahmc.SplitHMC().exchange(2)
        state = exchange.begin({"position": theta}) | {"angle": jnp.float64(0.8), "steps_left": jnp.int32(9)}
        state["velocity"] = velocity + half_kick(theta, 1.0)
        for round_index in range(4):
            value, gradient = jax.value_and_grad(potential)(state["point"])
            reply = {"potential": value, "gradient": gradient, "num_failures": jnp.int32(0)}
            state = next_step(chain_keys, jnp.int32(round_index), state, reply, numbers)
        return jnp.concatenate([state["point"], state["velocity"] - half_kick(state["point"], 1.0)])

    flip, start = np.array([1.0, 1.0, -1.0, -1.0]), np.array([0.4, -1.0, 1.2, -0.7])
    end = jax.jit(flow)(start)
    assert np.abs(end - start).max() > 0.5
    np.testing.assert_allclose(flip * jax.jit(flow)(flip * end), start, atol=1e-13)
    assert np.linalg.det(jax.jit(jax.jacfwd(flow))(start)) == pytest.approx(1, abs=1e-13)


def test_a_proposal_that_is_not_finite_is_rejected():
    """Beyond 1 the potential of one client is infinite, and that of the other is not a number."""
    wall = fahmc.Model(
        lambda q, rows: jnp.where(q < 1, -(q**2) / 4, jnp.where(rows > 0, -jnp.inf, jnp.nan)), init=np.zeros(())
    )
    federation = fahmc.Federation.from_clients([np.zeros(1), np.ones(1)])
    draws = fahmc.sample(wall, federation, fahmc.SplitHMC(3), 150, num_chains=20, **QUIET)
    path, is_out = np.concatenate([np.zeros((20, 1)), draws.flat()[..., 0]], axis=1), draws.stats["diverging"]
    assert 0.05 < is_out.mean() < 0.95 and (path < 1).all()
    assert (draws.stats["acceptance_rate"][is_out] == 0).all() and (np.diff(path)[is_out] == 0).all()


def test_a_trajectory_that_overflows_is_rejected():
    """exp(q²) is finite with a force that throws a chain beyond the largest number."""
    steep = fahmc.Model(lambda q, rows: -rows * jnp.exp(q**2), init=np.array(25.0))
    draws = fahmc.sample(steep, fahmc.Federation.from_clients([np.ones(1)]), fahmc.SplitHMC(4), 40, **QUIET)
    assert draws.stats["diverging"].all() and (draws.flat() == 25.0).all()


def test_a_start_whose_gradient_is_not_finite_ends_the_run():
    edge = fahmc.Model(lambda q, rows: -rows * jnp.sqrt(q**2), init=np.zeros(()))
    with pytest.raises(DivergenceError, match=r"round 0 of the phase 'first energy'.*NaN gradient at the start"):
        fahmc.sample(edge, fahmc.Federation.from_clients([np.ones(1)]), fahmc.SplitHMC(), 2, **QUIET)


def test_each_trajectory_is_kept_once_whatever_the_warm_up():
    sampler, start = fahmc.SplitHMC(3, **WRONG), np.zeros((200, 2))
    every = sample(sampler, 21, start, thin=1)
    assert every.num_draws == 21 and every.settings["thin"] == 1
    kept = {warmup: sample(sampler, 20 - warmup, start, num_warmup_rounds=warmup) for warmup in (0, 1, 3)}
    assert [draws.num_draws for draws in kept.values()] == [6, 6, 5] and kept[0].settings["thin"] == 3
    for warmup, draws in kept.items():
        rounds = warmup + 2 + 3 * np.arange(draws.num_draws)
        np.testing.assert_array_equal(draws.flat(), every.flat()[:, rounds])
        for stat, values in draws.stats.items():
            np.testing.assert_array_equal(values, every.stats[stat][:, rounds])
    held = every.flat().reshape(200, 7, 3, 2)
    np.testing.assert_array_equal(held[:, :-1, 2], held[:, 1:, 0])
    np.testing.assert_array_equal(held[:, :-1, 2], held[:, 1:, 1])


def test_settings_may_change_between_rounds_and_compile_nothing(compilations):
    sampler = fahmc.SplitHMC(2, **WRONG)
    run = make_run(STUDY.model, STUDY.federation, sampler, 8, num_chains=200, seed=3, dtype=np.dtype("float64"))
    session, (setup, phase) = WARM_GAUSSIAN.start(run), run.phases
    state = begin(run, phase, (setup, session.advance(setup, begin(run, setup), 0, 1).state))
    ends = [session.advance(phase, state, 0, 6).state["point"]]
    compilations.clear()
    numbers = {"num_steps": 3, "step_size": 0.3, "jitter": 0.0, "center": (0.0, 0.0), "inverse_mass_matrix": COVARIANCE}
    others: list[dict[str, Any]] = [{name: number} for name, number in numbers.items()]
    for other in others:
        ends.append(session.advance(phase._replace(sampler=replace(sampler, **other)), state, 0, 6).state["point"])
    assert not compilations
    assert len({end.tobytes() for end in ends}) == len(ends), "every setting must have its effect"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num_steps": 0}, "num_steps is 0"),
        ({"step_size": 0}, "step_size is 0; it must be a positive number"),
        ({"step_size": lambda t: 0.1}, "it must be a positive number"),
        ({"jitter": 1.0}, "jitter is 1.0; it must be a number of at least 0 and below 1"),
        ({"center": [1.0]}, "center must be 2 finite numbers"),
        ({"center": {"a": np.zeros(2)}}, "center must be 2 finite numbers"),
        ({"inverse_mass_matrix": -np.ones(2)}, "not positive"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, words):
    with pytest.raises(SettingsError, match=words):
        sample(fahmc.SplitHMC(**settings), 2, np.zeros((1, 2)))


def test_settings_may_have_the_structure_of_the_position():
    template, precision = {"a": np.zeros(()), "b": np.zeros(2)}, np.dtype("float64")
    as_tree = {"center": {"a": 1.0, "b": np.array([2.0, 3.0])}, "inverse_mass_matrix": {"a": 0.5, "b": np.full(2, 0.6)}}
    as_vector = {"center": [1.0, 2.0, 3.0], "inverse_mass_matrix": [0.5, 0.6, 0.6]}
    settings: list[dict[str, Any]] = [as_tree, as_vector]
    tree, vector = (fahmc.SplitHMC(**given).numbers(template, precision) for given in settings)
    jax.tree.map(np.testing.assert_array_equal, tree, vector)
