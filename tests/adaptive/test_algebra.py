"""The parts of a posterior in few rounds, against algebra and closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import fahmc
from assertions import FALSE_ALARM, assert_covariance, assert_mean, threshold
from fahmc.adaptive.exact import metropolis
from fahmc.adaptive.questions import Expansion, Scatter, pack, unpack_lower, unpack_symmetric
from fahmc.adaptive.surrogate import Gaussian, Quadratic, convex, fit_quadratic
from fahmc.adaptive.weights import smoothed, tempered
from fahmc.dynamics.evaluation import is_seen
from fahmc.engines.in_process import InProcess
from fahmc.runs.plan import make_run

RNG = np.random.default_rng(5)
POINTS = RNG.normal(size=(3, 4))
DOUBLE = np.dtype("float64")


@pytest.fixture(scope="module")
def run(logistic_study):
    return make_run(fahmc.models.logistic_regression(), logistic_study, fahmc.Auto(), None, dtype=DOUBLE)


@pytest.fixture(scope="module")
def pooled(logistic_study):
    """The loss of all rows, its gradient and curvature, as NumPy writes them down."""
    rows = logistic_study.pooled().rows[0]
    X, y = np.column_stack([rows["x"], np.ones(len(rows["y"]))]), rows["y"]

    def loss(point):
        chance = 1 / (1 + np.exp(-X @ point))
        value = -(y * np.log(chance) + (1 - y) * np.log(1 - chance)).sum()
        return value, X.T @ (chance - y), (X * (chance * (1 - chance))[:, None]).T @ X

    return loss


def ask(run, question, **asked):
    phase = question.ask("a question", run.dtype, **asked)
    state = {name: np.asarray(value) for name, value in phase.state.items()}
    return phase, InProcess().start(run).advance(phase, state, 0, 1).state


def test_an_expansion_is_the_pooled_loss_and_its_derivatives(run, pooled):
    _, answer = ask(run, Expansion(4, 3), points=POINTS)
    for k, point in enumerate(POINTS):
        value, gradient, curvature = pooled(point)
        np.testing.assert_allclose(answer["loss"][k], value - pooled(POINTS[0])[0], rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(answer["gradient"][k], gradient, rtol=1e-10)
        np.testing.assert_allclose(unpack_symmetric(answer["curvature"][k], 4), curvature, rtol=1e-10)


def test_points_made_at_the_sites_are_the_servers(run, pooled):
    factor = np.tril(RNG.normal(size=(4, 4))) + 2 * np.eye(4)
    question = Scatter(4, 8, num_scouts=2, num_probes=1)
    asked = {"center": POINTS[0], "factor": pack(factor), "scouts": POINTS[:2], "probes": POINTS[2:]}
    phase, answer = ask(run, question, **asked)
    keys = jax.tree.map(lambda key: jax.random.clone(key[0]), run.chain_keys(phase))
    state = {name: jnp.asarray(value) for name, value in answer.items()}
    z = np.asarray(question.directions(keys, state))
    points, middle = POINTS[0] + z @ factor.T, pooled(POINTS[0])[0]
    losses, gradients, _ = zip(*map(pooled, points), strict=True)
    np.testing.assert_allclose(answer["loss"], np.array(losses) - middle, rtol=1e-10, atol=1e-10)
    slopes = np.array(gradients) @ factor
    np.testing.assert_allclose(answer["slope"], slopes.mean(axis=0), rtol=1e-9)
    bend = slopes.T @ z / len(z)
    np.testing.assert_allclose(unpack_symmetric(answer["bend"], 4), (bend + bend.T) / 2, rtol=1e-9)
    np.testing.assert_allclose(answer["scout_gradient"][1], pooled(POINTS[1])[1], rtol=1e-10)
    np.testing.assert_allclose(unpack_symmetric(answer["scout_curvature"][1], 4), pooled(POINTS[1])[2], rtol=1e-10)
    np.testing.assert_allclose(answer["probe_loss"], [pooled(POINTS[2])[0] - middle], rtol=1e-10)
    way = POINTS[1] + 3 / 8 * (POINTS[0] - POINTS[1])
    np.testing.assert_allclose(answer["way_loss"][2], pooled(way)[0] - middle, rtol=1e-10)


def test_points_from_heavier_tails_have_their_law(run):
    question = Scatter(2, 100_000, degrees=6)
    keys = jax.tree.map(
        lambda key: jax.random.clone(key[0]), run.chain_keys(question.ask("t", run.dtype, center=[0, 0]))
    )
    z = np.asarray(question.directions(keys, {"center": jnp.zeros(2)}))
    for column in z.T:
        assert stats.kstest(column, stats.t(6).cdf).pvalue > FALSE_ALARM


def test_a_place_where_nothing_can_be_seen_ends_no_run():
    model = fahmc.Model(lambda position, batch: jnp.log(position - batch["y"]), init=jnp.asarray(2.0))
    run = make_run(model, fahmc.Federation.from_clients([{"y": np.zeros(3)}]), fahmc.Auto(), None, dtype=DOUBLE)
    _, answer = ask(run, Expansion(1, 2), points=[[2.0], [-1.0]])
    assert list(is_seen(answer["loss"])) == [True, False] and np.isfinite(answer["gradient"]).all()


def test_a_triangle_is_a_matrix():
    lower = np.tril(RNG.normal(size=(5, 5)))
    np.testing.assert_array_equal(unpack_lower(pack(lower), 5), lower)
    np.testing.assert_array_equal(unpack_symmetric(pack(lower), 5), lower + np.tril(lower, -1).T)


def test_the_fit_to_a_quadratic_is_that_quadratic():
    A, g = RNG.normal(size=(3, 3)), RNG.normal(size=3)
    truth = Quadratic(RNG.normal(size=3), g, A @ A.T)
    center, factor, z = RNG.normal(size=3), np.tril(RNG.normal(size=(3, 3))) + 2 * np.eye(3), RNG.normal(size=(20, 3))
    points = center + z @ factor.T
    slopes = (truth.gradient + (points - truth.center) @ truth.curvature) @ factor
    bend = slopes.T @ z / len(z)
    fitted = fit_quadratic(center, factor, z, slopes.mean(axis=0), (bend + bend.T) / 2)
    np.testing.assert_allclose(fitted.curvature, truth.curvature, rtol=1e-9)
    at = RNG.normal(size=(4, 3))
    np.testing.assert_allclose(np.diff(fitted(at)), np.diff(truth(at)), rtol=1e-9)


def test_a_saddle_is_turned_around():
    np.testing.assert_allclose(convex(np.array([[0.0, 2.0], [2.0, 0.0]])), 2 * np.eye(2), atol=1e-15)


@pytest.mark.parametrize("scale", [1.0, 1e8])
def test_a_gaussian_of_unlike_units(scale):
    units = np.array([1.0, scale, 1 / scale])
    A = RNG.normal(size=(3, 3))
    precision = (A @ A.T + np.eye(3)) / units[:, None] / units
    law = Gaussian.from_precision(np.zeros(3), precision)
    assert law is not None
    product = (law.covariance / units[:, None] / units) @ (precision * units[:, None] * units)
    np.testing.assert_allclose(product, np.eye(3), atol=1e-12)
    again = Gaussian.from_moments(np.zeros(3), law.covariance)
    assert again is not None
    np.testing.assert_allclose(again.factor, law.factor, rtol=1e-6)
    assert Gaussian.from_precision(np.zeros(2), np.array([[1.0, 2.0], [2.0, 1.0]])) is None


def test_weights_turn_one_law_into_another():
    """N(0, 1.3²) points, weighted for N(0.2, 1): the closed forms of both, and of the weights' effective size."""
    x = 1.3 * RNG.normal(size=(100_000, 1))
    weights = smoothed((-((x - 0.2) ** 2) / 2 + x**2 / 2 / 1.3**2)[:, 0])
    assert weights.k_hat < 0.7
    assert abs(weights.mean(x)[0] - 0.2) < threshold(1) * weights.errors(x)[0]
    assert abs(weights.covariance(x)[0, 0] ** 0.5 - 1) < threshold(1) * weights.sd_errors(x)[0]
    assert weights.sd_errors(x)[0] == pytest.approx(np.sqrt(0.5 / weights.ess), rel=0.5)
    # 1 / E[w²] = s exp(−...) in closed form for two normal laws.
    s2 = 1.3**2
    expected = np.sqrt(2 * s2 - 1) / s2 * np.exp(-(0.2**2) / (2 * s2 - 1))
    assert weights.ess / len(x) == pytest.approx(expected, rel=0.02)
    drawn = x[weights.resample(len(x), RNG)]
    assert abs(drawn.mean() - 0.2) < threshold(1) * weights.errors(x)[0]


def test_a_point_is_drawn_as_often_as_its_weight_says():
    weights = smoothed(np.linspace(-3, 0, 50))
    counts = np.bincount(weights.resample(1000, RNG), minlength=50)
    assert counts.sum() == 1000 and (np.abs(counts - 1000 * weights.values) < 1).all()


def test_tempered_weights_have_the_size_that_was_asked_for():
    logs = 20 * RNG.normal(size=1000)
    weights = tempered(logs, 50.0)
    assert 1 / np.sum(weights**2) == pytest.approx(50.0, rel=1e-3) and weights.sum() == pytest.approx(1)


def gaussian_chains(log_weights):
    """Chains that begin in N(0, 1), with proposals from N(0, 2²): 10 transitions later they are still there."""
    rng, num_chains = np.random.default_rng(1), 50_000
    start, proposals = rng.normal(size=num_chains), 2 * rng.normal(size=(num_chains, 10))
    state = start[:, None], log_weights(start)
    (end, _), _, rates = metropolis(proposals[..., None], log_weights(proposals), state, rng)
    return start, end, rates


def test_transitions_leave_the_posterior_invariant():
    start, end, rates = gaussian_chains(lambda x: -(x**2) / 2 + x**2 / 8)
    assert_mean(end, np.zeros(1), np.eye(1))
    assert_covariance(np.column_stack([end, np.random.default_rng(2).normal(size=len(end))]), np.eye(2))
    assert (end[:, 0] != start).mean() > 0.9 and 0.4 < rates.mean() < 0.9


@pytest.mark.parametrize("broken", [lambda x: np.zeros_like(x), lambda x: -(x**2) / 2])
def test_transitions_with_wrong_weights_do_not(broken):
    """Every proposal accepted; the surrogate's own density left out of the weight."""
    _, end, _ = gaussian_chains(broken)
    with pytest.raises(AssertionError):
        assert_covariance(np.column_stack([end, np.random.default_rng(2).normal(size=len(end))]), np.eye(2))
