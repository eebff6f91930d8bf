"""How far an answer moves when a row is replaced: by construction, against the worst rows that there are."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit

import fahmc
from fahmc.adaptive.private_answer import GRID, PrivateAnswer, diameter, information_diameter, triangles
from fahmc.density.target import build_target
from fahmc.engines.noise import noisy
from fahmc.engines.run import Run
from fahmc.privacy import Budget, composed
from fahmc.types import Client


def corners(size, radius):
    """All rows u with the outcome's sign taken in: corners of the box, shrunk into the ball, and what lies inside."""
    box = np.array(list(itertools.product([-1.0, 1.0], repeat=size)))
    inside = np.random.default_rng(size).uniform(-1, 1, size=(200, size))
    rows = np.concatenate([box, inside])
    return rows * np.minimum(1, radius / np.linalg.norm(rows, axis=1))[:, None]


@pytest.mark.parametrize("share", (1.0, 0.6))
@pytest.mark.parametrize("scale", (0.0, 0.1, 0.5, 1.0, 4.0))
@pytest.mark.parametrize("size", (1, 2, 5, 8))
def test_no_two_rows_scores_are_further_apart_than_the_diameter_nor_much_less(size, scale, share):
    radius = share * size**0.5
    point = scale * np.random.default_rng(1).normal(size=size)
    rows = corners(size, radius)
    scores = expit(-rows @ point)[:, None] * rows
    squares = (scores**2).sum(axis=1)
    worst = np.sqrt((squares[:, None] + squares - 2 * scores @ scores.T).max())
    bound = float(diameter(jnp.asarray(point), radius))
    assert worst <= bound * (1 + 1e-12)
    # Not so large either that noise would be added for nothing.
    assert bound <= 1.6 * worst
    assert bound <= 2 * radius * expit(np.abs(point).sum()) * (1 + 1e-12)


def test_scores_without_coefficients_are_as_far_apart_as_a_row_is_long():
    """At θ = 0 every residual is ±1/2, so that the worst pair is a row with either outcome."""
    assert float(diameter(jnp.zeros(6), 6**0.5)) == pytest.approx(6**0.5, rel=1e-12)


def test_no_two_rows_informations_are_further_apart_than_their_diameter():
    """Reached by rows at right angles, whose outcomes are open."""
    radius = 2.0
    rows = np.array([[1.0, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1]])
    told = triangles(0.25 * rows, rows)
    worst = max(np.linalg.norm(one - other) for one in told for other in told)
    assert worst == pytest.approx(information_diameter(radius), rel=1e-12)
    assert np.linalg.norm(told[0]) == pytest.approx(0.25 * radius**2, rel=1e-12)


QUESTION = PrivateAnswer(
    bounds=((0.0, 10.0), (-1.0, 1.0), (0.0, 1.0)),
    has_intercept=True,
    radius=1.5,
    mu_score=0.5,
    mu_information=0.25,
    mu_left=1.0,
)


@pytest.fixture(scope="module")
def answer():
    """The exact answer of rows, in the run's own program."""
    model = fahmc.models.logistic_regression()
    rows = {"x": np.zeros((4, 3)), "y": np.zeros(4)}
    client = Client(rows, np.ones(4), 4, 1.0, 1.0, np.zeros(2, np.uint32))
    position = {"coefficients": np.zeros(3), "intercept": np.zeros(())}
    answer_fn = jax.jit(QUESTION.build(build_target(model, position, client, "site")))

    def ask(x, y, point, weights=None):
        own = client._replace(rows={"x": x, "y": y}, row_weights=np.ones(4) if weights is None else weights)
        return jax.device_get(answer_fn(None, np.int32(0), {"point": point}, {}, own))

    return ask


def test_an_answer_is_the_sum_of_bounded_rows(answer):
    generator = np.random.default_rng(0)
    x, y = generator.uniform([-2, -2, -1], [13, 2, 2], size=(4, 3)), np.array([0.0, 1, 1, 0])
    point = np.array([0.4, -0.3, 0.8, -0.5])
    u = np.concatenate([np.clip((x - [5, 0, 0.5]) / [5, 1, 0.5], -1, 1), np.ones((4, 1))], axis=1)
    u *= np.minimum(1, QUESTION.radius / np.linalg.norm(u, axis=1))[:, None]
    p = expit(u @ point)
    found = answer(x, y, point)
    np.testing.assert_allclose(found["score"], u.T @ (p - y), atol=4 * GRID)
    information = (u * (p * (1 - p))[:, None]).T @ u
    lower = np.tril_indices(4)
    scale = np.where(lower[0] == lower[1], 1, 2**0.5)
    np.testing.assert_allclose(found["information"], information[lower] * scale, atol=4 * GRID)
    for values in found.values():  # on the grid, so that noise on the grid leaves nothing to read beside it
        assert (values / GRID == np.rint(values / GRID)).all()


def test_replacing_any_row_moves_an_answer_by_no_more_than_is_claimed(answer):
    """Also by a row far beyond the bounds; and padding does not count."""
    point = np.array([1.5, -0.4, 0.2, -1.0])
    x, y = np.array([[5.0, 0, 0.5]] * 4), np.array([0.0, 1, 0, 1])
    deviations = QUESTION.deviations({"point": point}, QUESTION.numbers(point, point.dtype), 1)
    claimed = {"score": float(deviations["score"]) * 0.5, "information": float(deviations["information"]) * 0.25}
    assert claimed["information"] == pytest.approx(information_diameter(1.5), rel=1e-6)
    told = []
    for corner in itertools.product([-1e9, 5.0, 1e9], [-7.0, 7.0], [-1.0, 2.0], [0.0, 1.0]):
        changed, outcomes = x.copy(), y.copy()
        changed[0], outcomes[0] = corner[:3], corner[3]
        told.append(answer(changed, outcomes, point))
    for name, bound in claimed.items():
        values = np.array([each[name] for each in told])
        worst = max(np.linalg.norm(values - value, axis=1).max() for value in values)
        assert 0.6 * bound < worst <= bound
    np.testing.assert_array_equal(
        answer(x, y, point, np.array([1.0, 1, 1, 0]))["score"],
        answer(np.r_[x[:3], [[1e9, 7, 2]]], y, point, np.array([1.0, 1, 1, 0]))["score"],
    )


def test_what_a_round_costs_is_what_its_noise_is_worth():
    release = QUESTION.exchange(4).release
    assert release is not None
    assert release.mu == pytest.approx(composed([0.5, 0.25])) and not release.is_shared
    shared = PrivateAnswer(QUESTION.bounds, True, 1.5, 0.5, 0.25, 1.0, "shared")
    point = np.zeros(4)
    for num_clients in (1, 4, 9):
        (own, own_information), (one, information) = (
            each.deviations_at(point, num_clients) for each in (QUESTION, shared)
        )
        # The sum of all sites has the noise of one site's own, or N times its variance.
        assert own == pytest.approx(one * num_clients**0.5) and information == pytest.approx(
            own_information / num_clients**0.5
        )


def test_the_budget_is_spent_to_the_last_bit_and_no_more():
    sampler = fahmc.PrivateLaplace(1.0, 1e-6, bounds=[(0, 1), (0, 1)])
    federation = fahmc.Federation.from_clients([{"x": np.zeros((10, 2)), "y": np.zeros(10)}])
    model = fahmc.models.logistic_regression()
    position = {"coefficients": np.zeros(2), "intercept": np.zeros(())}
    client = Client(federation.rows[0], np.ones(10), 10, 1.0, 1.0, np.zeros(2, np.uint32))
    run = Run(build_target(model, position, client, "a"), federation, sampler, np.zeros((1, 3)), 0, None, None, 0, 1)
    questions = sampler.questions(run)
    mus = [mu for question in questions for mu in (question.mu_score, question.mu_information)]
    assert composed(mus) == pytest.approx(Budget(1.0, 1e-6).mu, rel=1e-12)
    assert questions[0].mu_left == pytest.approx(composed(mus)) and questions[1].mu_left == pytest.approx(
        composed(mus[2:])
    )


def test_noise_has_its_deviation_and_stays_on_the_grid():
    normal = np.random.default_rng(0).normal(size=200_000)
    released = noisy(np.full(200_000, 3.0), normal, 7.0, GRID)
    np.testing.assert_allclose(released, 3.0 + 7.0 * normal, atol=GRID)
    assert (released / GRID == np.rint(released / GRID)).all()
