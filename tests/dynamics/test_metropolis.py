"""The Metropolis step on a Gaussian target: each decision to rounding, and the law that the decisions keep.

A round's momentum depends on seed, chain and round alone, so a run without Metropolis reveals it: where a trajectory
ends is linear in it. Position and momentum then say what a run with Metropolis has to do.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

import fahmc
from assertions import assert_covariance, assert_mean, threshold
from gaussian_study import Study

NUM_CHAINS, NUM_ROUNDS, NUM_STEPS = 100_000, 5, 3
MEAN, PRECISION = np.array([1.0, -2.0, 0.5]), np.diag([1.0, 4.0, 9.0]) + 0.3
INVERSE_MASS = np.array([[0.9, 0.2, 0.0], [0.2, 0.5, -0.1], [0.0, -0.1, 0.1]])
# Nine tenths of the stability limit: about three of ten proposals are rejected.
STEP_SIZE = 1.8 / np.linalg.eigvals(INVERSE_MASS @ PRECISION).real.max() ** 0.5


class Run(NamedTuple):
    positions: np.ndarray  # [1 + round, chain, dim]
    momenta: np.ndarray  # [round, chain, dim]
    rates: np.ndarray  # [round, chain]


def leapfrog(position: np.ndarray, momentum: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    factor = np.linalg.cholesky(INVERSE_MASS)
    for _ in range(NUM_STEPS):
        momentum = momentum - STEP_SIZE / 2 * (position - MEAN) @ PRECISION @ factor
        position = position + STEP_SIZE * momentum @ factor.T
        momentum = momentum - STEP_SIZE / 2 * (position - MEAN) @ PRECISION @ factor
    return position, momentum


def momentum_between(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    response = leapfrog(np.stack([MEAN] * 3), np.eye(3))[0] - MEAN
    return (end - leapfrog(start, np.zeros_like(start))[0]) @ np.linalg.inv(response)


def acceptance_rate(start, momentum, end, end_momentum, kinetic: float = 2.0) -> np.ndarray:
    def energy(position, momentum):
        gap = position - MEAN
        return np.sum(gap @ PRECISION * gap, axis=-1) / 2 + np.sum(momentum**2, axis=-1) / kinetic

    return np.exp(np.minimum(0.0, energy(start, momentum) - energy(end, end_momentum)))


def draw_target(generator: np.random.Generator) -> np.ndarray:
    return MEAN + generator.normal(size=(NUM_CHAINS, 3)) @ np.linalg.inv(np.linalg.cholesky(PRECISION))


def run_fahmc() -> Run:
    study, start = Study(MEAN[None], PRECISION[None], np.ones(1)), draw_target(np.random.default_rng(1))
    plain, adjusted = (
        fahmc.sample(
            study.model, study.federation,
            fahmc.HMC(STEP_SIZE, NUM_STEPS, metropolis=metropolis, inverse_mass_matrix=INVERSE_MASS), NUM_ROUNDS,
            num_chains=NUM_CHAINS, seed=20, init=start, dtype="float64", progress=False,
        )
        for metropolis in (False, True)
    )  # fmt: skip
    path, positions = (np.stack([start, *draws.flat().swapaxes(0, 1)]) for draws in (plain, adjusted))
    return Run(positions, momentum_between(path[:-1], path[1:]), adjusted.stats["acceptance_rate"].T)


def run_numpy(kinetic: float = 2.0, exponent: float = 1.0, rejects: bool = True) -> Run:
    generator = np.random.default_rng(2)
    positions, momenta, rates = [draw_target(generator)], [], []
    for _ in range(NUM_ROUNDS):
        momenta.append(generator.normal(size=(NUM_CHAINS, 3)))
        end, end_momentum = leapfrog(positions[-1], momenta[-1])
        rates.append(acceptance_rate(positions[-1], momenta[-1], end, end_momentum, kinetic) ** exponent)
        is_accepted = (generator.random(NUM_CHAINS) < rates[-1]) | (not rejects)
        positions.append(np.where(is_accepted[:, None], end, positions[-1]))
    return Run(*map(np.stack, (positions, momenta, rates)))


def check_decisions(run: Run) -> None:
    before, after = run.positions[:-1], run.positions[1:]
    end, end_momentum = leapfrog(before, run.momenta)
    rates = acceptance_rate(before, run.momenta, end, end_momentum)
    assert 0.6 < rates.mean() < 0.8
    np.testing.assert_allclose(run.rates, rates, rtol=0, atol=1e-10, err_msg="acceptance rate")
    has_moved = (after != before).any(axis=-1)
    np.testing.assert_allclose(after[has_moved], end[has_moved], rtol=0, atol=1e-10, err_msg="neither stays nor moves")
    assert has_moved[rates == 1].all(), "a sure proposal was rejected"
    # Of those in doubt, as many are accepted as the rate says, in each tenth of them by their rate.
    unsure = np.flatnonzero(rates < 1)
    tenths = np.array_split(unsure[np.argsort(rates.flat[unsure])], 10)
    excess = [np.sum(has_moved.flat[tenth] - rates.flat[tenth]) for tenth in tenths]
    error = [np.sum(rates.flat[tenth] * (1 - rates.flat[tenth])) ** 0.5 for tenth in tenths]
    z = np.divide(excess, error)
    assert np.abs(z).max() < threshold(len(z)), f"accepted more often than the rate says by z = {z}"


def check_law(run: Run) -> None:
    """The target is left as it was, and momenta are standard normal."""
    whitened = (run.positions[-1] - MEAN) @ np.linalg.cholesky(PRECISION)
    for replicas in (run.momenta.reshape(-1, 3), whitened):
        assert_mean(replicas, np.zeros(3), np.eye(3))
        assert_covariance(replicas, np.eye(3))


@pytest.mark.parametrize("run", [run_fahmc, run_numpy])
def test_decisions_follow_the_energy_and_keep_the_target(run):
    found = run()
    check_decisions(found)
    check_law(found)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"kinetic": 2.1}, "acceptance rate"),
        ({"exponent": 0.5}, "acceptance rate"),
        ({"rejects": False}, "accepted more often"),
    ],
    ids=["kinetic energy", "square root of the rate", "no rejection"],
)
def test_faulty_decisions_are_caught_by_both_checks(fault, words):
    run = run_numpy(**fault)
    with pytest.raises(AssertionError, match=words):
        check_decisions(run)
    with pytest.raises(AssertionError, match="covariance off"):
        check_law(run)


def test_a_trajectory_that_leaves_the_finite_numbers_is_rejected():
    """Beyond 1 the potential is not a number: chains see that they were there, and stay."""
    wall = fahmc.Model(lambda q, rows: jnp.where(q < 1, -rows * q**2 / 2, jnp.nan), init=np.zeros(()))
    options = {"num_chains": 20, "seed": 1, "dtype": "float64", "progress": False}
    draws = fahmc.sample(wall, fahmc.Federation.from_clients([np.ones(1)]), fahmc.HMC(0.5, 3, True), 50, **options)
    path, is_out = np.concatenate([np.zeros((20, 1)), draws.flat()[..., 0]], axis=1), draws.stats["diverging"]
    assert 0.05 < is_out.mean() < 0.95 and (path < 1).all()
    assert (draws.stats["acceptance_rate"][is_out] == 0).all() and (np.diff(path)[is_out] == 0).all()
