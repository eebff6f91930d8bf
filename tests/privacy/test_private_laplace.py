"""The posterior that knows its noise: calibrated over data sets, and not without that knowledge; and a run of it."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
from scipy import stats
from scipy.special import expit

import fahmc
from assertions import FALSE_ALARM
from fahmc.adaptive import noise_aware
from fahmc.adaptive.private_answer import GRID, Noise, PrivateAnswer
from fahmc.adaptive.private_laplace import SHARES, answer_of, learn
from fahmc.adaptive.prognosis import widening
from fahmc.adaptive.surrogate import Gaussian
from fahmc.privacy import Budget

NUM_DATA_SETS, LEVEL = 200, 0.95
SCALE, INTERCEPT = 0.5, (-1.0, 0.7)
MODEL = fahmc.models.logistic_regression(prior_scale=0.5, intercept_scale=0.7)


def questions_of(budget, columns, noise: Noise = "own"):
    radius = (columns + 1) ** 0.5
    return [
        PrivateAnswer(((-1.0, 1.0),) * columns, True, radius, budget.mu * a**0.5, budget.mu * b**0.5, 1.0, noise)
        for a, b in SHARES
    ]


def with_prior(loss, precision, mean):
    """Join N(mean, precision⁻¹) to a quadratic −log likelihood."""
    total = precision + loss.curvature
    right = precision @ mean + loss.curvature @ loss.center - loss.gradient
    return Gaussian.from_moments(np.linalg.solve(total, right), np.linalg.inv(total))


def posterior_of(generator, questions, num_rows, columns):
    """Draw parameters from the prior, rows, and noisy answers; return parameters and the posterior."""
    mean = np.r_[np.zeros(columns), INTERCEPT[0]]
    sds = np.r_[np.full(columns, SCALE), INTERCEPT[1]]
    truth = generator.normal(mean, sds)
    u = np.c_[generator.uniform(-1, 1, (num_rows, columns)), np.ones(num_rows)]
    y = (generator.random(num_rows) < expit(u @ truth)).astype(float)
    learning = learn(questions, num_rows, partial(with_prior, precision=np.diag(sds**-2.0), mean=mean))
    question, point = next(learning)
    try:
        while True:
            p = expit(u @ point)
            s, t = question.deviations_at(point, 1)
            noise = generator.normal(size=(len(truth), len(truth)))
            answer = noise_aware.Answer(
                point,
                u.T @ (p - y) + s * generator.normal(size=len(truth)),
                (u * (p * (1 - p))[:, None]).T @ u + t * (noise + noise.T) / 2,
                s,
                t,
            )
            question, point = learning.send(answer)
    except StopIteration as end:
        return truth, end.value[1].law


def num_covered(num_rows=3000, columns=4, epsilon=1.0):
    """Count the data sets whose parameters lie in the posterior's central ellipsoid of `LEVEL`."""
    questions, generator = questions_of(Budget(epsilon, 1e-6), columns), np.random.default_rng(1)
    limit = stats.chi2.ppf(LEVEL, columns + 1) ** 0.5
    found = [posterior_of(generator, questions, num_rows, columns) for _ in range(NUM_DATA_SETS)]
    return sum(law.distance(truth[None])[0] <= limit for truth, law in found)


def is_calibrated(covered):
    """Whether so many of the data sets are what chance makes of `LEVEL`, but for one time in a million."""
    return stats.binomtest(covered, NUM_DATA_SETS, LEVEL).pvalue > FALSE_ALARM


def test_posteriors_cover_as_often_as_they_say():
    assert is_calibrated(num_covered())


def test_posteriors_that_ignore_the_noise_do_not(monkeypatch):
    without = noise_aware.noise_aware

    def ignoring(answer, moments, posterior):
        return without(answer._replace(score_sd=1e-3, information_sd=1e-3), moments, posterior)

    monkeypatch.setattr("fahmc.adaptive.private_laplace.noise_aware", ignoring)
    assert not is_calibrated(num_covered())


def test_without_noise_it_is_newtons_method_on_the_log_likelihood():
    """With a budget that buys everything: the exact posterior's mode and curvature."""
    generator, questions = np.random.default_rng(0), questions_of(Budget(1e6, 1e-3), 3)
    truth, law = posterior_of(generator, questions, 4000, 3)
    again = np.random.default_rng(0)
    mean, sds = np.r_[np.zeros(3), INTERCEPT[0]], np.r_[np.full(3, SCALE), INTERCEPT[1]]
    np.testing.assert_array_equal(again.normal(mean, sds), truth)
    u = np.c_[again.uniform(-1, 1, (4000, 3)), np.ones(4000)]
    y = (again.random(4000) < expit(u @ truth)).astype(float)
    mode, precision = mean.copy(), np.diag(sds**-2.0)
    for _ in range(20):
        p = expit(u @ mode)
        precision = (u * (p * (1 - p))[:, None]).T @ u + np.diag(sds**-2.0)
        mode -= np.linalg.solve(precision, u.T @ (p - y) + (mode - mean) / sds**2)
    sd = np.sqrt(np.diag(np.linalg.inv(precision)))
    assert (np.abs(law.mean - mode) < 0.05 * sd).all()
    np.testing.assert_allclose(np.sqrt(np.diag(law.covariance)), sd, rtol=0.02)


def test_the_first_answer_tells_score_and_information_wherever_the_intercept_is():
    generator = np.random.default_rng(0)
    u, y = np.c_[generator.uniform(-1, 1, (500, 2)), np.ones(500)], (np.arange(500) % 10 == 0).astype(float)

    def exact(point):
        p = expit(u @ point)
        return u.T @ (p - y), (u * (p * (1 - p))[:, None]).T @ u

    first = noise_aware.Answer(np.zeros(3), *exact(np.zeros(3)), 1.0, 2.0)
    moved = noise_aware.at_constant_chance(first, 500)
    score, information = exact(moved.point)
    np.testing.assert_allclose(moved.point, [0, 0, np.log(0.1 / 0.9)], rtol=1e-12)
    np.testing.assert_allclose(moved.score, score, atol=1e-10)
    np.testing.assert_allclose(moved.information, information, rtol=1e-12)
    assert moved.information_sd == pytest.approx(2.0 * 4 * 0.1 * 0.9)


BOUNDS = [(40.0, 60.0), (-1.0, 1.0)]


@pytest.fixture(scope="module")
def federation():
    generator = np.random.default_rng(2)

    def client(num_rows):
        x = generator.uniform([40, -1], [60, 1], size=(num_rows, 2))
        y = generator.random(num_rows) < expit(0.1 * (x[:, 0] - 50) - x[:, 1] - 1)
        return {"x": x, "y": y.astype(float)}

    return fahmc.Federation.from_clients({"north": client(6000), "south": client(9000)})


@pytest.fixture(scope="module")
def draws(federation):
    return fahmc.private_laplace(MODEL, federation, Budget(3.0, 1e-6), bounds=BOUNDS, num_draws=500)


def test_a_run_asks_three_times_and_finds_the_posterior(draws, federation):
    assert draws.cost["rounds"] == 3 and (draws.num_chains, draws.num_draws) == (4, 500)
    table = draws.summary()
    assert (np.abs(table["mean"] - [0.1, -1.0, -6.0]) < 5 * table["sd"]).all()
    privacy = draws.account["privacy"]
    assert (privacy["epsilon"], privacy["delta"]) == (3.0, 1e-6)
    assert all(1 < wide < 1.2 for wide in privacy["widening"])
    assert "epsilon = 3, delta = 1e-06" in draws.account["choices"][0]
    again = fahmc.private_laplace(MODEL, federation, Budget(3.0, 1e-6), bounds=BOUNDS, num_draws=500)
    np.testing.assert_array_equal(again.flat(), draws.flat())


def test_its_verdict_claims_nothing_that_cannot_be_looked_at(draws):
    verdict = fahmc.report.judge(draws, fahmc.report.parameter_table(draws))
    assert verdict.status == "unknown" and not verdict.setting
    assert "(epsilon = 3, delta = 1e-06)" in verdict.headline
    assert "normal approximation" in " ".join(verdict.faults)


TOLD = []


@fahmc.register("sampler")
@dataclass(frozen=True)
class AskOnce(fahmc.Leader):
    """Asks one question at a point, and leaves the answer in `TOLD`."""

    question: Any
    point: Any

    def course(self, run):
        result = yield self.question.ask("answer", run.dtype, point=self.point)
        TOLD.append(answer_of(self.question, result.state, run.federation.num_clients))
        return fahmc.Outcome(np.zeros((1, 4, run.dimension)), {"lp": np.zeros((1, 4))}, {})


def ask(question, federation, point, seed=0):
    """Return what all clients answer together."""
    fahmc.sample(MODEL, federation, AskOnce(question, point), num_chains=1, seed=seed, dtype="float64")
    return TOLD.pop()


def noise_in(answer, federation):
    x = np.concatenate([rows["x"] for rows in federation.rows])
    y = np.concatenate([rows["y"] for rows in federation.rows])
    u = np.c_[np.clip(x, -1, 1), np.ones(len(x))]
    return answer.score - u.T @ (expit(u @ answer.point) - y)


def test_equal_questions_have_equal_noise_and_others_unrelated(federation):
    """Else the difference of two answers in one round would be exact."""
    point, question = np.array([0.1, 0.2, -0.3]), questions_of(Budget(1.0, 1e-6), 2)[1]
    nearby = point + np.array([0, 0, 2**-40])
    first, again, other = (ask(question, federation, at) for at in (point, point, nearby))
    np.testing.assert_array_equal(first.score, again.score)
    np.testing.assert_array_equal(first.information, again.information)
    noise, others = noise_in(first, federation), noise_in(other, federation)
    assert (np.abs(noise - others) > 1e-3 * first.score_sd).all()
    # Two clients' noise, each of its own stream: so much, and neither 0 nor twice one of them.
    assert (np.abs(noise) < 6 * first.score_sd).all() and (np.abs(noise) > 1e-6 * first.score_sd).all()
    elsewhere = noise_in(ask(question, federation, point, seed=1), federation)
    assert (np.abs(noise - elsewhere) > 1e-3 * first.score_sd).all()


def test_shared_noise_is_less(federation):
    own, shared = (questions_of(Budget(1.0, 1e-6), 2, noise)[1] for noise in ("own", "shared"))
    assert own.deviations_at(np.zeros(3), 2)[0] == pytest.approx(2**0.5 * shared.deviations_at(np.zeros(3), 2)[0])


def test_noise_in_the_program_is_of_the_deviation_that_is_declared(federation):
    """Over 400 simulated clients at once, by χ²."""
    question = questions_of(Budget(1.0, 1e-6), 2)[2]
    generator = np.random.default_rng(0)
    rows = {"x": generator.uniform(-1, 1, (5, 2)), "y": generator.integers(0, 2, 5).astype(float)}
    many = fahmc.Federation.from_clients([rows] * 400)
    answer = ask(question, many, np.zeros(3))
    u = np.c_[rows["x"], np.ones(5)]
    noise = answer.score - 400 * u.T @ (0.5 - rows["y"])
    assert stats.chi2.sf((noise**2).sum() / answer.score_sd**2, 3) > FALSE_ALARM
    exact = 400 * 0.25 * u.T @ u
    beside = answer.information - exact
    numbers = beside[np.tril_indices(3)] * np.where(np.eye(3)[np.tril_indices(3)], 1, 2**0.5)
    spread = (numbers**2).sum() / answer.information_sd**2
    assert FALSE_ALARM / 2 < stats.chi2.sf(spread, 6) < 1 - FALSE_ALARM / 2
    assert answer.score_sd == pytest.approx(question.deviations_at(np.zeros(3), 1)[0] * 20)
    assert (answer.score / GRID == np.rint(answer.score / GRID)).all()


@pytest.mark.parametrize(
    "model, words",
    [
        (fahmc.models.poisson_regression(), "poisson_regression is not such a model: its score grows with the count"),
        (fahmc.models.gamma_regression(), "a parameter of scale or shape"),
        (fahmc.models.logistic_regression(site_effects="intercept"), "takes no site_effects"),
        (fahmc.models.logistic_regression(temperature=2.0), "temperature = 2 is not"),
        (fahmc.models.logistic_regression(prior=fahmc.priors.Horseshoe(num_relevant=1)), "a normal or a flat prior"),
        (fahmc.Model(lambda position, batch: batch["y"] * position, init=0.0), "one of your own"),
    ],
)
def test_models_without_bounds_are_refused_by_name(federation, model, words):
    positive = fahmc.Federation.from_clients([{"x": rows["x"], "y": rows["y"] + 1} for rows in federation.rows])
    rows = positive if "gamma" in str(model.summary) else federation
    with pytest.raises(fahmc.errors.ModelError, match=words):
        fahmc.private_laplace(model, rows, Budget(3.0, 1e-6), bounds=BOUNDS)


@pytest.mark.parametrize(
    "settings, words",
    [
        ({}, "public bounds"),
        ({"bounds": [(0, 1)]}, "bounds for 1 columns, but x has 2"),
        ({"bounds": [(0, 1), (2, 2)]}, r"column 1 are \[2.0, 2.0\]"),
        ({"bounds": BOUNDS, "radius": 0.0}, "radius is 0"),
    ],
)
def test_what_is_not_public_is_asked_for(federation, settings, words):
    with pytest.raises(fahmc.errors.SettingsError, match=words):
        fahmc.private_laplace(MODEL, federation, Budget(3.0, 1e-6), **settings)


def test_rows_with_weights_have_no_bound(federation):
    weighted = fahmc.Federation.from_clients([rows | {"weight": rows["y"] + 1} for rows in federation.rows])
    with pytest.raises(fahmc.errors.ModelError, match="these hold weight, x, y"):
        fahmc.private_laplace(MODEL, weighted, Budget(3.0, 1e-6), bounds=BOUNDS)


def test_a_budget_that_buys_nothing_is_refused_with_what_it_takes(federation):
    """The embedded trial: 823 rows. What is asked for is then allowed."""
    generator = np.random.default_rng(0)
    trial = fahmc.Federation.from_clients(
        [{"x": generator.uniform(-1, 1, (206, 11)), "y": generator.integers(0, 2, 206)} for _ in range(4)]
    )
    sampler = fahmc.PrivateLaplace(3.0, 1e-6, [(-1, 1)] * 11, noise="shared")
    with pytest.raises(fahmc.errors.SettingsError) as refused:
        fahmc.sample(MODEL, trial, sampler, dtype="float64")
    words = str(refused.value)
    assert "Nothing was spent" in words and "of 824 rows and 12 coefficients" in words
    rows = int(words.partition("It takes about ")[2].partition(" rows")[0].replace(",", ""))
    question = questions_of(Budget(3.0, 1e-6), 11, "shared")[-1]
    assert widening(question, 824, 4) > 1.5 and 1.4 < widening(question, rows, 4) <= 1.5


def test_keys_of_releases_depend_on_all_that_is_asked():
    from fahmc import keys
    from fahmc.types import Client

    chain = jax.tree.map(lambda leaf: leaf[0], keys.chain_keys(0, 1))
    client = Client(None, None, None, None, None, np.array([1, 2], np.uint32))

    def numbers(round_index, *words):
        key = keys.release_of(keys.release(chain, client, round_index, np.array(words, np.uint32)), 0)
        return tuple(np.asarray(jax.random.key_data(key)).tolist())

    all_of_them = [
        numbers(0, 1, 2),
        numbers(1, 1, 2),
        numbers(0, 2, 1),
        numbers(0, 1, 3),
        numbers(0, 1),
        numbers(0, 0, 2),
    ]
    assert len(set(all_of_them)) == len(all_of_them) and numbers(0, 1, 2) == all_of_them[0]
