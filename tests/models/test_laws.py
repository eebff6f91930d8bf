"""The families' rows, priors and drawn outcomes against SciPy's laws."""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from scipy.special import expit

from assertions import assert_covariance, assert_mean
from fahmc import models
from fahmc.density.model import Model
from fahmc.models.parameters import gamma, level_and_own, log_normal, ordered_normal

stats: Any = scipy.stats
GENERATOR = np.random.default_rng(5)
NUM = 40
X = GENERATOR.normal(size=(NUM, 2))
OFFSET = GENERATOR.normal(size=NUM)
COUNTS, TIMES = GENERATOR.poisson(2.0, NUM), GENERATOR.gamma(2.0, 1.0, NUM)
TRIALS = COUNTS + np.arange(NUM) % 3
BETA, INTERCEPT = np.array([0.5, -1.0]), 0.3
CUTS, LOG_HAZARDS = (0.5, 1.5, 2.0), np.array([-1.0, 0.2, -0.4, 0.1])
CUTPOINTS = np.array([-0.7, 0.1, 1.4])


class WithCuts:
    """Survival with a hazard that is constant between cuts, by its cumulative hazard, interval by interval."""

    def __init__(self, eta):
        self.factor = np.exp(eta)

    def mass(self, times):
        ends = np.array([*CUTS, np.inf])
        starts = np.array([0.0, *CUTS])
        inside = np.minimum(np.asarray(times)[..., None], ends) - starts
        return self.factor * np.sum(np.where(inside > 0, inside, 0) * np.exp(LOG_HAZARDS), axis=-1)

    def logpdf(self, times):
        interval = np.searchsorted(CUTS, times)
        return np.log(self.factor) + LOG_HAZARDS[interval] - self.mass(times)

    def logsf(self, times):
        return -self.mass(times)

    def cdf(self, times):
        return 1 - np.exp(-self.mass(times))


class Ordered:
    def __init__(self, eta):
        below = expit(CUTPOINTS - np.asarray(eta)[..., None])
        ends = np.zeros((*np.shape(eta), 1))
        self.below = np.concatenate([below, ends + 1], axis=-1)
        self.chances = np.diff(np.concatenate([ends, self.below], axis=-1), axis=-1)

    def logpmf(self, y):
        return np.log(np.take_along_axis(self.chances, y[:, None], axis=1)[:, 0])

    def cdf(self, y):
        return self.below[int(y)]


def sample_of(model: Model) -> Any:
    assert model.sample_fn is not None
    return model.sample_fn


def complaint_of(model: Model, rows) -> str | None:
    assert model.validate_fn is not None
    return model.validate_fn(rows)


class Family(NamedTuple):
    model: Model
    law: Callable[[Any], Any]
    """η -> what SciPy calls a frozen distribution"""
    y: np.ndarray
    parameters: Mapping[str, Any] = {}
    rows: Mapping[str, np.ndarray] = {}
    has_intercept: bool = True

    @property
    def position(self):
        common = {"coefficients": BETA} | ({"intercept": INTERCEPT} if self.has_intercept else {})
        return jax.tree.map(jnp.asarray, {**common, **self.parameters})

    @property
    def eta(self):
        return X @ BETA + (INTERCEPT if self.has_intercept else 0.0) + OFFSET

    @property
    def all_rows(self):
        return {"x": X, "y": self.y, "offset": OFFSET, **self.rows}


def negative_binomial(dispersion):
    return lambda eta: stats.nbinom(1 / dispersion, 1 / (1 + dispersion * np.exp(eta)))


FAMILIES = {
    "linear": Family(models.linear_regression(), lambda eta: stats.norm(eta, 0.6), TIMES, {"log_noise": np.log(0.6)}),
    "logistic": Family(models.logistic_regression(), lambda eta: stats.bernoulli(expit(eta)), COUNTS % 2),
    "poisson": Family(models.poisson_regression(), lambda eta: stats.poisson(np.exp(eta)), COUNTS),
    # r on both sides of where Stirling's series takes over
    "negative binomial": Family(
        models.negative_binomial_regression(), negative_binomial(0.7), COUNTS, {"dispersion": 0.7}
    ),
    "closer to Poisson": Family(
        models.negative_binomial_regression(), negative_binomial(0.065), COUNTS, {"dispersion": 0.065}
    ),
    "binomial": Family(
        models.binomial_regression(), lambda eta: stats.binom(TRIALS, expit(eta)), COUNTS, rows={"trials": TRIALS}
    ),
    "gamma": Family(
        models.gamma_regression(), lambda eta: stats.gamma(1.7, scale=np.exp(eta) / 1.7), TIMES, {"shape": 1.7}
    ),
    "student t": Family(
        models.student_t_regression(), lambda eta: stats.t(4.0, eta, 0.6), TIMES, {"noise_scale": 0.6}
    ),
    "student t of unknown degrees": Family(
        models.student_t_regression(degrees=None),
        lambda eta: stats.t(2.5, eta, 0.6),
        TIMES,
        {"noise_scale": 0.6, "degrees": 2.5},
    ),
    "ordered": Family(models.ordered_regression(4), Ordered, COUNTS % 4, {"cutpoints": CUTPOINTS}, {}, False),
    "exponential": Family(models.exponential_survival(), lambda eta: stats.expon(scale=np.exp(-eta)), TIMES),
    "weibull": Family(
        models.weibull_survival(),
        lambda eta: stats.weibull_min(1.6, scale=np.exp(-eta / 1.6)),
        TIMES,
        {"shape": 1.6},
    ),
    "piecewise": Family(
        models.piecewise_exponential(CUTS), WithCuts, TIMES, {"log_hazards": LOG_HAZARDS}, {}, False
    ),
}  # fmt: skip
SURVIVAL = ("exponential", "weibull", "piecewise")


EVENT = np.arange(NUM) % 2
NUM_DRAWN = 20_000
DRAWN = sorted(set(FAMILIES) - {"closer to Poisson", "student t of unknown degrees"})  # laws that others have, too


def rows_to_draw_for(family):
    ones = np.ones(NUM_DRAWN)
    return {"x": np.ones((NUM_DRAWN, 2)), "offset": -0.2 * ones} | ({"trials": 7 * ones} if family.rows else {})


class Computed(NamedTuple):
    fits: Any
    censored: Any
    predicted: Any
    survival: Any
    drawn: Any


@pytest.fixture(scope="module")
def computed() -> Computed:
    """All families in one program: compiling costs more than the rest of these tests."""
    positions = {name: family.position for name, family in FAMILIES.items()}

    def fits(name, **more):
        return FAMILIES[name].model.row_loglikelihoods(positions[name], FAMILIES[name].all_rows | more)

    def until(name, horizon):
        recipe: Any = FAMILIES[name].model.recipe
        build: Any = getattr(models, recipe["name"])
        model = build(**{key: value for key, value in recipe.items() if key != "name"}, horizon=horizon)
        return model.predict(positions[name], {"x": X, "offset": OFFSET})

    def draw(name, key):
        family = FAMILIES[name]
        return sample_of(family.model)(key, positions[name], rows_to_draw_for(family))

    def compute(key):
        keys = dict(zip(DRAWN, jax.random.split(key, len(DRAWN)), strict=True))
        return Computed(
            {name: fits(name) for name in FAMILIES},
            {name: fits(name, event=EVENT) for name in SURVIVAL},
            {name: FAMILIES[name].model.predict(positions[name], FAMILIES[name].all_rows) for name in FAMILIES},
            {name: until(name, 1.2) for name in SURVIVAL},
            {name: draw(name, keys[name]) for name in DRAWN},
        )

    return jax.device_get(jax.jit(compute)(jax.random.key(3)))


@pytest.mark.parametrize("name", FAMILIES)
def test_rows_have_scipys_log_likelihood(name, computed):
    family = FAMILIES[name]
    assert complaint_of(family.model, family.all_rows) is None
    law = family.law(family.eta)
    expected = law.logpmf(family.y) if hasattr(law, "logpmf") else law.logpdf(family.y)
    np.testing.assert_allclose(computed.fits[name], expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", SURVIVAL)
def test_a_censored_row_says_that_it_lasted(name, computed):
    family = FAMILIES[name]
    law = family.law(family.eta)
    expected = np.where(EVENT == 1, law.logpdf(family.y), law.logsf(family.y))
    np.testing.assert_allclose(computed.censored[name], expected, rtol=1e-10, atol=1e-10)


def test_without_dispersion_counts_are_poissons_in_single_precision_too():
    family = FAMILIES["negative binomial"]
    expected = stats.poisson.logpmf(COUNTS, np.exp(family.eta))
    rows, position = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), (family.all_rows, family.position))

    @jax.jit
    @jax.value_and_grad
    def total(log_dispersion):
        return jnp.sum(family.model.row_loglikelihoods(position | {"dispersion": jnp.exp(log_dispersion)}, rows))

    for log_dispersion in (-16.0, -46.0, -200.0):
        fit, slope = total(np.float32(log_dispersion))
        np.testing.assert_allclose(fit, expected.sum(), rtol=1e-5)
        np.testing.assert_allclose(slope, 0.0, atol=1e-3)


@pytest.mark.parametrize("name", DRAWN)
def test_drawn_outcomes_follow_the_law(name, computed):
    """Shares of draws up to four values against the distribution function."""
    family, drawn = FAMILIES[name], computed.drawn[name]
    eta = float(BETA.sum() + (INTERCEPT if family.has_intercept else 0.0)) - 0.2
    law = stats.binom(7, expit(eta)) if family.rows else family.law(eta)
    values = np.unique(np.quantile(drawn, [0.05, 0.3, 0.6, 0.9]))
    chances = np.array([law.cdf(value) for value in values])
    is_inner = (chances > 1e-3) & (chances < 1 - 1e-3)
    assert family.model.outcome == "y" and drawn.shape == (NUM_DRAWN,) and is_inner.any()
    is_below = (drawn[:, None] <= values[None]).astype(float)
    assert_mean(is_below[:, is_inner], chances[is_inner], np.diag((chances * (1 - chances))[is_inner]))


def test_drawn_classes_have_the_predicted_chances():
    model = models.mlp(3, (4,))
    rows = {"x": np.broadcast_to(X[0], (20_000, 2))}
    position = jax.tree.map(lambda leaf: 8 * leaf, model.initial_position(jax.random.key(0), {"x": X}))
    chances = np.asarray(model.predict(position, rows))[0, :2]
    drawn = np.asarray(sample_of(model)(jax.random.key(1), position, rows))
    assert_mean((drawn[:, None] == np.arange(2)).astype(float), chances, np.diag(chances * (1 - chances)))


def test_ranks_of_times_among_draws_are_uniform_under_censoring():
    """Ties, where both are the row's own time of censoring, are broken at random."""
    family, num, num_draws = FAMILIES["weibull"], 20_000, 9
    generator = np.random.default_rng(8)
    rows = {"x": generator.normal(size=(num, 2))}
    draw = jax.jit(sample_of(family.model))
    true = np.asarray(draw(jax.random.key(0), family.position, rows))
    last_seen = generator.gamma(2.0, 0.5, num)
    observed = rows | {"y": np.minimum(true, last_seen), "event": (true <= last_seen).astype(float)}
    assert 0.2 < observed["event"].mean() < 0.8
    draws = [np.asarray(draw(jax.random.key(1 + k), family.position, observed)) for k in range(num_draws)]
    key = generator.random((1 + num_draws, num))
    is_lower = [
        (drawn < observed["y"]) | ((drawn == observed["y"]) & (tie < key[0]))
        for drawn, tie in zip(draws, key[1:], strict=True)
    ]
    ranks = np.sum(is_lower, axis=0)
    shares = np.full(num_draws, 1 / (1 + num_draws))
    assert_mean((ranks[:, None] == np.arange(num_draws)).astype(float), shares, np.diag(shares * (1 - shares)))


def test_predictions_are_the_laws(computed):
    predicted = computed.predicted
    for name in ("negative binomial", "gamma"):
        np.testing.assert_allclose(predicted[name], FAMILIES[name].law(FAMILIES[name].eta).mean(), rtol=1e-10)
    np.testing.assert_allclose(predicted["binomial"], expit(FAMILIES["binomial"].eta), rtol=1e-12)
    np.testing.assert_allclose(predicted["student t"], FAMILIES["student t"].eta, rtol=1e-12)
    np.testing.assert_allclose(predicted["ordered"], Ordered(FAMILIES["ordered"].eta).chances, atol=1e-14)


@pytest.mark.parametrize("name", SURVIVAL)
def test_half_outlive_the_median_and_predicted_survival_is_the_laws(name, computed):
    law = FAMILIES[name].law(FAMILIES[name].eta)
    np.testing.assert_allclose(law.logsf(computed.predicted[name]), np.log(0.5), rtol=1e-10)
    np.testing.assert_allclose(np.log(computed.survival[name]), law.logsf(np.full(NUM, 1.2)), rtol=1e-10)


PRIORS = {
    "log-normal": (log_normal(0.5), lambda value: stats.lognorm(0.5).logpdf(value), 0.7, 1.9),
    "gamma": (gamma(2.0, 0.1), lambda value: stats.gamma(2.0, scale=10).logpdf(value), 3.0, 11.0),
    "ordered": (
        ordered_normal(2.0, {"cut": "ab"}),
        lambda value: stats.norm(0, 2).logpdf(value).sum(),
        np.array([-1.0, 0.5]),
        np.array([0.3, 3.0]),
    ),
    "level": (
        level_and_own(3.0, 0.5, {"interval": "abc"}),
        lambda value: stats.multivariate_normal(np.zeros(3), 0.25 * np.eye(3) + 9).logpdf(value),
        np.array([-1.0, 0.5, 0.2]),
        np.array([0.3, 3.0, 2.5]),
    ),
}


@pytest.mark.parametrize("name", PRIORS)
def test_priors_of_parameters_are_scipys_up_to_a_constant(name):
    parameter, logpdf, one, other = PRIORS[name]
    difference = parameter.logprior_fn(jnp.asarray(one)) - parameter.logprior_fn(jnp.asarray(other))
    np.testing.assert_allclose(difference, logpdf(one) - logpdf(other), rtol=1e-12)


def test_draws_of_parameters_follow_their_priors():
    names = ("level", "log-normal", "ordered")  # JAX's gamma law takes longer to compile than all other tests here
    keys = dict(zip(names, jax.random.split(jax.random.key(0), (len(names), 20_000)), strict=True))
    draw = jax.jit(lambda keys: {name: jax.vmap(PRIORS[name][0].draw_fn)(keys[name]) for name in keys})
    made = jax.device_get(draw(keys))
    assert_covariance(made["level"], 0.25 * np.eye(3) + 9)
    assert_covariance(np.log(made["log-normal"])[:, None], np.array([[0.25]]))
    # Of two N(0, 2²) numbers the larger has mean 2 / √π, and both together variance 2 · 2².
    ordered = made["ordered"]
    assert (np.diff(ordered) > 0).all()
    variance = 4 * (1 - 1 / np.pi)
    assert_mean(ordered[:, 1:], np.array([2 / np.sqrt(np.pi)]), np.array([[variance]]))


@pytest.mark.parametrize(
    ("model", "rows", "message"),
    [
        (models.binomial_regression(), {}, "the rows hold no 'trials', of how many y counts"),
        (models.binomial_regression(), {"trials": [2, 1]}, "y must be a count from 0 to the row's trials, but row 1"),
        (models.binomial_regression(), {"trials": [2.5, 3]}, "trials must be a whole number, 0 or more, but row 0"),
        (models.weibull_survival(), {"event": [1, 2]}, "event must be 0 or 1, but row 1 has 2"),
        (models.exponential_survival(), {"y": [1.0, 0.0]}, "y must be above 0, but row 1 has 0.0"),
        (models.exponential_survival(), {"trials": [1, 1]}, "'trials', which is for binomial_regression"),
        (models.negative_binomial_regression(), {"y": [1.5, 0.0]}, "y must be a count, 0 or more, but row 0"),
        (models.negative_binomial_regression(), {"y": [1.0, np.inf]}, "y must be a count, 0 or more, but row 1"),
        (models.gamma_regression(), {"y": [1.0, -0.5]}, "y must be above 0, but row 1 has -0.5"),
        (models.student_t_regression(), {"y": [1.0, np.nan]}, "y must be a finite number, but row 1 has nan"),
        (models.ordered_regression(3), {"y": [1, 3]}, "y must be a class from 0 to 2, but row 1 has 3"),
        (models.ordered_regression(3), {"event": [1, 1]}, "'event', which is for survival models"),
    ],
)  # fmt: skip
def test_rows_that_a_family_cannot_have_are_refused(model, rows, message):
    rows = {"x": np.zeros((2, 3)), "y": np.array([1, 2])} | {name: np.array(entry) for name, entry in rows.items()}
    assert re.search(message, complaint_of(model, rows) or "")
