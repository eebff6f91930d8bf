"""A site's effect integrated out: value, gradient and Hessian against a fine grid."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fahmc.density.marginal import find_peak, marginal_shares

RNG = np.random.default_rng(1)
_SIZE = 41


def _logistic(seen, z, batch):
    logits = batch["x"] @ seen[:2] + seen[2] + jnp.exp(seen[3]) * z
    return batch["y"] * logits - jax.nn.softplus(logits)


def _poisson(seen, z, batch):
    log_rate = batch["x"] @ seen[:2] + seen[2] + jnp.exp(seen[3]) * z
    return batch["y"] * log_rate - jnp.exp(log_rate)


def _batch(kind, n):
    x = RNG.normal(size=(n, 2))
    if kind == "none":
        return {"x": x, "y": np.zeros(n)}
    return {"x": x, "y": RNG.poisson(1.0, size=n).astype(float) if kind == "counts" else RNG.integers(0, 2, n) * 1.0}


def _on_grid(row_fits, seen, batch, row_weights):
    """∫ by the trapezoidal rule, whose error for such integrands is far below rounding."""
    z = jnp.linspace(-14.0, 14.0, 4001)
    heights = jax.vmap(lambda z: jnp.sum(row_weights * row_fits(seen, z, batch)) - z**2 / 2)(z)
    return jax.nn.logsumexp(heights) + jnp.log(z[1] - z[0]) - 0.5 * jnp.log(2 * jnp.pi)


@functools.cache
def _compare(row_fits):
    """Compile value, gradient and Hessian, by ours and on the grid, and the shares: once a likelihood."""

    def derivatives(function, *arguments):
        return function(*arguments), jax.grad(function)(*arguments), jax.hessian(function)(*arguments)

    def ours(seen, batch, row_weights):
        return jnp.sum(marginal_shares(row_fits, seen, batch, row_weights))

    def compare(seen, batch, row_weights):
        grid = derivatives(lambda seen: _on_grid(row_fits, seen, batch, row_weights), seen)
        errors = jax.tree.map(jnp.subtract, derivatives(ours, seen, batch, row_weights), grid)
        return errors, marginal_shares(row_fits, seen, batch, row_weights)

    return jax.jit(compare)


@pytest.mark.parametrize("tau", [0.1, 1.0])
@pytest.mark.parametrize(
    ("row_fits", "kind", "n"),
    [(_logistic, "both", 40), (_logistic, "none", 20), (_logistic, "both", 1), (_poisson, "counts", 40)],
)
def test_marginal_equals_a_fine_grid(row_fits, kind, n, tau):
    seen = jnp.array([0.5, -0.3, -0.4, np.log(tau)])
    # Padding counts for nothing, and other weights as often as they say.
    row_weights = np.where(np.arange(_SIZE) < n, RNG.uniform(0.5, 2.0, size=_SIZE), 0.0)
    errors, shares = _compare(row_fits)(seen, _batch(kind, _SIZE), row_weights)
    assert max(float(jnp.max(jnp.abs(error))) for error in errors) < 1e-8
    assert (shares[n:] == 0).all()


def test_without_rows_there_is_nothing():
    _, shares = _compare(_logistic)(jnp.zeros(4), _batch("both", _SIZE), np.zeros(_SIZE))
    assert (shares == 0).all()


def test_one_node_would_be_noticed(monkeypatch):
    """One node is Laplace's method, which a site without events is not Gaussian enough for."""
    monkeypatch.setattr("fahmc.density.marginal._NODES", np.array([0.0]))
    monkeypatch.setattr("fahmc.density.marginal._WEIGHTS", np.array([np.sqrt(np.pi)]))
    arguments = _logistic, jnp.array([0.5, -0.3, -0.4, 0.0]), _batch("none", _SIZE), jnp.ones(_SIZE)
    laplace, grid = jax.jit(lambda: (jnp.sum(marginal_shares(*arguments)), _on_grid(*arguments)))()
    assert abs(float(laplace - grid)) > 1e-3


@pytest.mark.parametrize("count", [0.0, 1e4])
def test_peak_is_found_where_newton_would_overshoot(count):
    """From z = 0 the first Newton step of a Poisson likelihood goes to where its rate overflows."""
    batch = {"x": np.zeros((3, 2)), "y": np.full(3, count)}
    seen = jnp.array([0.0, 0.0, -3.0, np.log(3.0)])

    @jax.jit
    def find():
        peak = find_peak(_poisson, seen, batch, jnp.ones(3))
        return peak, jax.grad(lambda z: jnp.sum(_poisson(seen, z, batch)) - z**2 / 2)(peak.mode)

    (_, scale), slope = find()
    assert abs(float(slope)) * float(scale) < 0.02
