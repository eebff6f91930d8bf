"""Examples against what they say, written out in NumPy for the Gaussian problem of the contract."""

from typing import Any

import jax
import numpy as np
import pytest

import contract_cases as cases
from fahmc import keys
from fahmc.engines.run import begin
from fahmc.types import ChainKeys

pytestmark = pytest.mark.xdist_group("contract float64")
# Of a flat position: the level, then the slopes.
PRIOR_PRECISION = np.diag([0.0, 1.0, 1.0])
CLIENTS = [
    (np.column_stack([np.ones(5), rows["x"]]), rows["y"], weight)
    for rows, weight in zip(cases.federation().rows, cases.federation().weights, strict=True)
]
SCALE = 2.0  # n / n_c


def test_one_newton_round_lands_on_the_mode_of_a_gaussian_and_chains_start_around_it():
    run = cases.run_of("newton", "float64")
    session, (newton, sampling) = cases.IN_PROCESS.start(run), run.phases
    once, thrice = (session.advance(newton, begin(run, newton), 0, rounds).state for rounds in (1, 3))
    curvature = PRIOR_PRECISION + sum(weight * SCALE * x.T @ x for x, _, weight in CLIENTS)
    mode = np.linalg.solve(curvature, sum(weight * SCALE * x.T @ y for x, y, weight in CLIENTS))
    np.testing.assert_allclose(once["position"], mode, atol=1e-12)
    np.testing.assert_allclose(thrice["position"], mode, atol=1e-12)
    starts = begin(run, sampling, (newton, thrice))["position"]
    np.testing.assert_allclose(starts - mode, run.start - run.start.mean(axis=0), atol=1e-12)


def noise_of(chain_keys: ChainKeys, num_rounds: int, num_steps: int) -> np.ndarray:
    """ξ, as [chain, round, step, dim]."""

    def draw(chain_keys, round_index, step):
        return jax.random.normal(keys.shared_noise(chain_keys, round_index, step), (3,))

    over_steps = jax.vmap(draw, in_axes=(None, None, 0))
    over_rounds = jax.vmap(over_steps, in_axes=(None, 0, None))
    return np.asarray(
        jax.jit(jax.vmap(over_rounds, in_axes=(0, None, None)))(chain_keys, np.arange(num_rounds), np.arange(num_steps))
    )


def test_underdamped_steps_with_clipped_gradients_are_those_of_the_equations():
    run = cases.run_of("underdamped", "float64")
    sampler: Any = run.sampler
    phase = run.phases[-1]
    end = cases.IN_PROCESS.start(run).advance(phase, begin(run, phase), 0, 3).state
    eta, alpha, norm = sampler.step_size, sampler.persistence, sampler.gradient.norm
    num_clipped = []

    def gradient(position, x, y):
        rows = (x @ position - y)[:, None] * x
        lengths = np.linalg.norm(rows, axis=1)
        num_clipped.append(np.sum(lengths > norm))
        return SCALE * np.minimum(1, norm / lengths) @ rows + PRIOR_PRECISION @ position

    noise = noise_of(run.chain_keys(phase), 3, sampler.num_local_steps)
    for chain in range(cases.NUM_CHAINS):
        position, momentum = run.start[chain], np.zeros(3)
        for round_index in range(3):
            replies = []
            for x, y, weight in CLIENTS:
                q, p = position, momentum
                for step in range(sampler.num_local_steps):
                    p = alpha * p + np.sqrt(1 - alpha**2) * noise[chain, round_index, step]
                    p = p - eta / 2 * gradient(q, x, y)
                    q = q + eta * p
                    p = p - eta / 2 * gradient(q, x, y)
                replies.append(weight * np.stack([q, p]))
            position, momentum = np.sum(replies, axis=0)
        np.testing.assert_allclose(end["position"][chain], position, atol=1e-12)
        np.testing.assert_allclose(end["momentum"][chain], momentum, atol=1e-12)
    assert 0 < sum(num_clipped) < 5 * len(num_clipped), "some rows must be clipped, and some not"
