"""Parameters of single sites: the density is the equation, whoever holds the rows and in whatever order."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import fahmc
from fahmc.data.buckets import single_client
from fahmc.data.places import with_places
from fahmc.density.local import at_sites
from fahmc.density.target import build_target
from fahmc.runs.plan import make_run

RNG = np.random.default_rng(0)
CLIENTS = {name: {"x": RNG.normal(size=(n, 2)), "y": RNG.normal(size=n)} for name, n in (("a", 4), ("b", 7), ("c", 2))}
POSITION = {"beta": np.array([0.3, -1.0]), "effect": np.array([1.0, -2.0, 0.5])}


def _model(**settings):
    return fahmc.Model(
        loglikelihood_fn=lambda q, rows: -0.5 * (rows["y"] - rows["x"] @ q["beta"] - q["effect"]) ** 2,
        logprior_fn=lambda q: -0.5 * jnp.sum(q["effect"] ** 2),
        init=lambda key: {"beta": jnp.zeros(2)},
        local={"effect": 0.0},
        **settings,
    )


def _log_density(position, clients):
    terms = [
        np.sum((rows["y"] - rows["x"] @ position["beta"] - effect) ** 2)
        for rows, effect in zip(clients.values(), position["effect"], strict=True)
    ]
    return -0.5 * (sum(terms) + np.sum(position["effect"] ** 2))


def _potential(run, position):
    flat = ravel_pytree(jax.tree.map(jnp.asarray, position))[0]
    values = [
        jax.vmap(run.target.value, in_axes=(None, 0))(flat, bucket.clients) @ bucket.clients.weight
        for bucket in run.buckets
    ]
    return float(sum(values))


@pytest.mark.parametrize("sampler", [fahmc.FAHMC(0.1), fahmc.HMC(0.1)], ids=["at their clients", "pooled"])
def test_density_is_the_equation(sampler):
    federation = fahmc.Federation.from_clients(CLIENTS)
    run = make_run(_model(), federation, sampler, dtype=np.dtype(np.float64))
    np.testing.assert_allclose(_potential(run, POSITION), -_log_density(POSITION, CLIENTS), rtol=1e-12)


def test_permuting_clients_permutes_their_entries():
    order = ["c", "a", "b"]
    moved = fahmc.Federation.from_clients({name: CLIENTS[name] for name in order})
    position = POSITION | {"effect": POSITION["effect"][[2, 0, 1]]}
    run = make_run(_model(), moved, fahmc.FAHMC(0.1), dtype=np.dtype(np.float64))
    np.testing.assert_allclose(_potential(run, position), -_log_density(POSITION, CLIENTS), rtol=1e-12)
    assert run.model.coords["site"] == order and run.model.dims["effect"] == ["site"]


def test_only_the_own_entry_has_a_gradient():
    federation = with_places(fahmc.Federation.from_clients(CLIENTS))
    model, client = at_sites(_model(), federation.names), single_client(federation, 1, np.dtype(np.float64))
    target = build_target(model, jax.tree.map(jnp.asarray, POSITION), client, "b")
    flat = ravel_pytree(jax.tree.map(jnp.asarray, POSITION))[0]
    gradient = target.unravel(jax.grad(target.loss)(flat, client))["effect"]
    assert gradient[1] != 0 and gradient[0] == gradient[2] == 0
    # Minibatches and clipping take rows one by one: their gradients sum to the client's.
    rows = target.row_gradients(flat, client)
    np.testing.assert_allclose(rows.sum(axis=0), jax.grad(target.loss)(flat, client), rtol=1e-12)


def test_starts_come_from_numbers_arrays_and_functions():
    local = {"a": 1.5, "b": np.zeros(2), "c": lambda key: jax.random.normal(key, (3,))}
    model = at_sites(fahmc.Model(lambda q, rows: rows["y"], local=local), ("north", "south"))
    start = model.initial_position(jax.random.key(0), None)
    assert {name: value.shape for name, value in start.items()} == {"a": (2,), "b": (2, 2), "c": (2, 3)}
    assert (start["a"] == 1.5).all() and start["c"][0, 0] != start["c"][1, 0]
    assert model.dims == {"a": ["site"], "b": ["site", "b_dim_0"], "c": ["site", "c_dim_0"]}


@pytest.mark.parametrize(
    ("model", "rows", "sentence"),
    [
        (_model(), {"site": np.zeros(3), "y": np.zeros(3)}, "'site', which is where"),
        (_model(), np.zeros(3), "rows as a dict"),
        (fahmc.Model(lambda q, rows: rows["y"], init=np.zeros(2), local={"a": 0.0}), {"y": np.zeros(3)}, "a dict"),
        (
            fahmc.Model(lambda q, rows: rows["y"], init={"b": 0.0}, view_fn=lambda q: q["b"], local={"a": 0.0}),
            {"y": np.zeros(3)},
            "not in what the likelihood sees",
        ),
    ],
)
def test_refusals(model, rows, sentence):
    with pytest.raises(fahmc.errors.FahmcError, match=sentence):
        make_run(model, fahmc.Federation.from_clients([rows]), fahmc.FAHMC(0.1), dtype=np.dtype(np.float64))
