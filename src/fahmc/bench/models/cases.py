"""Each family on rows that it could have made, and the same posterior written in NumPyro.

A case is a function with the decorator `case`. NumPyro's version is written with its own distributions and shares
nothing with ours, so that likelihood, priors and supports are compared as well; its sites have the names of our
parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions import constraints

from fahmc import models
from fahmc.bench.models.peer import Peer
from fahmc.density.model import Model
from fahmc.errors import SettingsError

Rows = dict[str, np.ndarray]


class Case(NamedTuple):
    """One posterior, said twice."""

    model: Model
    clients: Mapping[str, Rows]
    peer: Peer
    compared: tuple[str, ...] | None = None
    """Parameters and derived quantities that are compared; all, unless said."""


_MAKERS: dict[str, Callable[[], Case]] = {}
_SIZES = {"north": 60, "south": 90, "east": 150}
_BETA = np.array([0.6, -0.4, 0.2])
_CUTS = (0.4, 0.9, 1.6)


def case(make: Callable[[], Case]) -> Callable[[], Case]:
    """Add a case under the function's name."""
    _MAKERS[make.__name__] = make
    return make


def names() -> tuple[str, ...]:
    """Return the names of all cases."""
    return tuple(_MAKERS)


def check_names(chosen: Sequence[str]) -> None:
    """Refuse names of no case."""
    if unknown := next((name for name in chosen if name not in _MAKERS), None):
        raise SettingsError(f"There is no case {unknown!r}; choose from {', '.join(_MAKERS)}.")


def build(name: str) -> Case:
    """Return a case; some need tables that may not be here."""
    return _MAKERS[name]()


def _simulated(outcomes: Callable[[np.random.Generator, np.ndarray], Rows], intercept: float = 0.3) -> dict[str, Rows]:
    """Draw covariates around means of the client's own, and outcomes given η = xβ + α."""
    rng = np.random.default_rng(12)
    clients = {}
    for name, size in _SIZES.items():
        x = 0.5 * rng.normal(size=3) + rng.normal(size=(size, 3))
        clients[name] = {"x": x, **outcomes(rng, x @ _BETA + intercept)}
    return clients


def _censored(rng: np.random.Generator, times: np.ndarray) -> Rows:
    """Follow each subject for a time of its own."""
    last_seen = rng.uniform(0.3, 3.0, len(times))
    return {"y": np.minimum(times, last_seen), "event": (times <= last_seen).astype(float)}


def _coefficients(x) -> Any:
    return x @ numpyro.sample("coefficients", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))


def _eta(x) -> Any:
    return _coefficients(x) + numpyro.sample("intercept", dist.Normal(0, 10))


@case
def linear_regression() -> Case:
    """Noise of unknown size."""

    def peer(x, y):
        noise = jnp.exp(numpyro.sample("log_noise", dist.Normal(0, 1)))
        numpyro.sample("y", dist.Normal(_eta(x), noise), obs=y)

    return Case(models.linear_regression(), _simulated(lambda rng, eta: {"y": rng.normal(eta, 0.7)}), peer)


@case
def logistic_regression() -> Case:
    """Two classes."""

    def peer(x, y):
        numpyro.sample("y", dist.Bernoulli(logits=_eta(x)), obs=y)

    def outcomes(rng, eta):
        return {"y": rng.binomial(1, 1 / (1 + np.exp(-eta)))}

    return Case(models.logistic_regression(), _simulated(outcomes), peer)


@case
def softmax_regression() -> Case:
    """Three classes, which the prior alone tells apart from a common shift."""

    def peer(x, y):
        coefficients = numpyro.sample("coefficients", dist.Normal(0, 1).expand([3, 3]).to_event(2))
        intercept = numpyro.sample("intercept", dist.Normal(0, 10).expand([3]).to_event(1))
        law: Any = dist.Categorical(logits=x @ coefficients + intercept)
        numpyro.sample("y", law, obs=y.astype(int))

    def outcomes(rng, eta):
        logits = np.stack([0 * eta, eta, -eta], axis=1) + rng.gumbel(size=(len(eta), 3))
        return {"y": logits.argmax(axis=1)}

    return Case(models.softmax_regression(3), _simulated(outcomes), peer)


@case
def poisson_regression() -> Case:
    """Count over exposures of the row's own."""

    def peer(x, y, offset):
        numpyro.sample("y", dist.Poisson(jnp.exp(_eta(x) + offset)), obs=y)

    def outcomes(rng, eta):
        offset = np.log(rng.uniform(0.2, 3.0, len(eta)))
        return {"y": rng.poisson(np.exp(eta + offset)), "offset": offset}

    return Case(models.poisson_regression(), _simulated(outcomes), peer)


@case
def negative_binomial_regression() -> Case:
    """Count what varies more, over exposures of the row's own."""

    def peer(x, y, offset):
        dispersion = numpyro.sample("dispersion", dist.LogNormal(0, 1))
        numpyro.sample("y", dist.NegativeBinomial2(jnp.exp(_eta(x) + offset), 1 / dispersion), obs=y)

    def outcomes(rng, eta):
        offset = np.log(rng.uniform(0.2, 3.0, len(eta)))
        rate = np.exp(eta + offset) * rng.gamma(1 / 0.6, 0.6, len(eta))
        return {"y": rng.poisson(rate), "offset": offset}

    return Case(models.negative_binomial_regression(), _simulated(outcomes), peer)


@case
def binomial_regression() -> Case:
    """Successes out of up to eight trials."""

    def peer(x, y, trials):
        numpyro.sample("y", dist.Binomial(trials.astype(int), logits=_eta(x)), obs=y)

    def outcomes(rng, eta):
        trials = rng.integers(0, 9, len(eta))
        return {"y": rng.binomial(trials, 1 / (1 + np.exp(-eta))), "trials": trials}

    return Case(models.binomial_regression(), _simulated(outcomes), peer)


@case
def gamma_regression() -> Case:
    """Positive outcomes."""

    def peer(x, y):
        shape = numpyro.sample("shape", dist.LogNormal(0, 1))
        numpyro.sample("y", dist.Gamma(shape, shape / jnp.exp(_eta(x))), obs=y)

    return Case(models.gamma_regression(), _simulated(lambda rng, eta: {"y": rng.gamma(2.0, np.exp(eta) / 2)}), peer)


@case
def student_t_regression() -> Case:
    """Heavy tails, four degrees of freedom."""

    def peer(x, y):
        scale = numpyro.sample("noise_scale", dist.LogNormal(0, 1))
        numpyro.sample("y", dist.StudentT(4, _eta(x), scale), obs=y)

    return Case(models.student_t_regression(), _simulated(_heavy_tails), peer)


@case
def student_t_unknown_degrees() -> Case:
    """Heavy tails of unknown weight."""

    def peer(x, y):
        scale = numpyro.sample("noise_scale", dist.LogNormal(0, 1))
        degrees = numpyro.sample("degrees", dist.Gamma(2, 0.1))
        numpyro.sample("y", dist.StudentT(degrees, _eta(x), scale), obs=y)

    return Case(models.student_t_regression(degrees=None), _simulated(_heavy_tails), peer)


@case
def ordered_regression() -> Case:
    """Four classes in their order."""

    def peer(x, y):
        cuts = numpyro.sample("cutpoints", dist.ImproperUniform(constraints.ordered_vector, (), (3,)))
        numpyro.factor("prior", dist.Normal(0, 10).log_prob(cuts).sum())
        numpyro.sample("y", dist.OrderedLogistic(_coefficients(x), cuts), obs=y.astype(int))

    def outcomes(rng, eta):
        return {"y": np.searchsorted([-1.0, 0.5, 2.0], eta + rng.logistic(size=len(eta)))}

    return Case(models.ordered_regression(4), _simulated(outcomes), peer)


@case
def exponential_survival() -> Case:
    """Let the hazard stay the same; a good part of the subjects are censored."""

    def peer(x, y, event):
        law = dist.Exponential(jnp.exp(_eta(x)))
        numpyro.factor("rows", jnp.where(event == 1, law.log_prob(y), jnp.log1p(-law.cdf(y))).sum())

    def outcomes(rng, eta):
        return _censored(rng, rng.exponential(np.exp(-eta)))

    return Case(models.exponential_survival(), _simulated(outcomes), peer)


@case
def weibull_survival() -> Case:
    """Let the hazard rise; NumPyro's scale is that of accelerated failure."""

    def peer(x, y, event):
        shape = numpyro.sample("shape", dist.LogNormal(0, 1))
        law = dist.Weibull(jnp.exp(-_eta(x) / shape), shape)
        numpyro.factor("rows", jnp.where(event == 1, law.log_prob(y), jnp.log1p(-law.cdf(y))).sum())

    return Case(models.weibull_survival(), _simulated(_rising_hazard), peer)


@case
def piecewise_exponential() -> Case:
    """Let it rise in steps; in NumPyro as Poisson counts of events, a row for each subject and interval."""

    def peer(x, y, event):
        starts, ends = jnp.array([0.0, *_CUTS]), jnp.array([*_CUTS, jnp.inf])
        log_hazards = numpyro.sample(
            "log_hazards", dist.MultivariateNormal(jnp.zeros(4), covariance_matrix=jnp.eye(4) + 100.0)
        )
        at_risk = jnp.minimum(y[:, None], ends) - starts
        happened = (event[:, None] == 1) & (y[:, None] > starts) & (y[:, None] <= ends)
        rate = jnp.exp(log_hazards + _coefficients(x)[:, None]) * at_risk
        with numpyro.handlers.mask(mask=at_risk > 0):
            numpyro.sample("y", dist.Poisson(jnp.where(at_risk > 0, rate, 1.0)), obs=happened.astype(int))

    return Case(models.piecewise_exponential(_CUTS), _simulated(_rising_hazard), peer)


def _heavy_tails(rng: np.random.Generator, eta: np.ndarray) -> Rows:
    return {"y": eta + 0.7 * rng.standard_t(4.0, len(eta))}


def _rising_hazard(rng: np.random.Generator, eta: np.ndarray) -> Rows:
    return _censored(rng, rng.weibull(1.6, len(eta)) * np.exp(-eta / 1.6))
