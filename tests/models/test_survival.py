"""The piecewise exponential model next to Cox's partial likelihood, and what is refused."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fahmc
from fahmc import models
from fahmc.errors import SettingsError

GENERATOR = np.random.default_rng(4)
X = GENERATOR.normal(size=(80, 2))
TRUE = np.array([0.8, -0.5])
TIMES = GENERATOR.weibull(1.5, 80) * np.exp(-X @ TRUE / 1.5)
LAST_SEEN = GENERATOR.uniform(0.2, 2.5, 80)


def newton(function, start):
    """Maximise a concave function; a few zero rows and columns of its curvature do no harm."""
    look = jax.jit(lambda at: (jax.grad(function)(at), jax.hessian(function)(at)))
    at = jnp.asarray(start)
    for _ in range(40):
        slope, curvature = look(at)
        step = jnp.linalg.solve(curvature, slope)
        at = at - step * jnp.minimum(1.0, 2.0 / jnp.max(jnp.abs(step)))
    assert np.abs(look(at)[0]).max() < 1e-8
    return np.asarray(at), np.asarray(look(at)[1])


def cox(x, time, event):
    """Breslow's partial likelihood: each event against everybody still at risk."""

    def partial(beta):
        eta = x @ beta
        at_risk = jax.nn.logsumexp(eta[None], axis=1, b=jnp.asarray(time[None] >= time[:, None], float))
        return jnp.sum(event * (eta - at_risk))

    beta, curvature = newton(partial, np.zeros(x.shape[1]))
    return beta, np.sqrt(np.diag(np.linalg.inv(-curvature)))


def piecewise(cuts, x, time, event, hazard_scale):
    """The mode of a model with coefficients without a prior."""
    model = models.piecewise_exponential(cuts, None, hazard_scale=hazard_scale)
    rows = {"x": x, "y": time, "event": event}
    assert model.validate_fn is not None and model.validate_fn(rows) is None

    def density(flat):
        at = {"coefficients": flat[:2], "log_hazards": flat[2:]}
        return jnp.sum(model.row_loglikelihoods(at, rows)) + model.logprior_fn(at)

    return newton(density, np.zeros(2 + len(cuts) + 1))[0][:2]


def test_with_a_cut_at_each_event_the_mode_is_coxs():
    """Exactly, where nobody leaves inside an interval that has an event: here all who leave do so after the last."""
    event = (np.sort(TIMES)[59] >= TIMES).astype(float)
    time = np.where(event == 1, TIMES, 9.0)
    beta, _ = cox(X, time, event)
    cuts = np.sort(TIMES[event == 1]).tolist()
    # All but flat: log hazards are N(0, 1000²) around their level.
    np.testing.assert_allclose(piecewise(cuts, X, time, event, 1e3), beta, atol=1e-4)


def test_finer_cuts_come_closer_to_cox():
    """With others leaving at any time: at 60 cuts within a tenth of a standard error."""
    event, time = (TIMES <= LAST_SEEN).astype(float), np.minimum(TIMES, LAST_SEEN)
    assert 0.5 < event.mean() < 0.9
    beta, error = cox(X, time, event)
    few, many = (
        np.abs(piecewise(np.quantile(time, np.linspace(0, 1, num + 1)[1:]).tolist(), X, time, event, 10.0) - beta)
        for num in (2, 60)
    )
    assert (many < 0.1 * error).all() and many.max() < few.max() / 2, (few / error, many / error)


@pytest.mark.parametrize("cuts", [[1.0, 1.0], [2.0, 1.0]])
def test_cuts_that_do_not_increase_are_refused(cuts):
    with pytest.raises(SettingsError, match=r"they must increase from one to the next\. Sort them, each once"):
        models.piecewise_exponential(cuts)


@pytest.mark.parametrize("cuts", [[], [0.0, 1.0], 3.0])
def test_cuts_that_are_none_are_refused(cuts):
    with pytest.raises(SettingsError, match="cuts"):
        models.piecewise_exponential(cuts)


def test_what_stands_for_the_intercept_takes_none():
    builds: list[Any] = [models.ordered_regression, models.piecewise_exponential]
    for build in builds:
        with pytest.raises(SettingsError, match=r"\(intercept=...\) is not known"):
            build(3, intercept=False)


def test_intervals_have_names():
    model = models.piecewise_exponential([0.5, 12])
    assert model.coords["interval"] == ["0 to 0.5", "0.5 to 12", "from 12"]
    assert fahmc.models.ordered_regression(3).coords["cut"] == ["0|1", "1|2"]
