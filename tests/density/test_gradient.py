import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import fahmc
from assertions import FALSE_ALARM
from fahmc.data.buckets import single_client
from fahmc.density.gradient import draw_minibatch
from fahmc.density.target import build_target

DOUBLE = np.dtype(np.float64)
POSITION = jnp.array([0.4, -0.3, 0.2])


@pytest.fixture(scope="module")
def setting():
    generator = np.random.default_rng(0)
    clients = [{"x": generator.normal(size=(size, 3)), "y": generator.normal(size=size)} for size in (5, 8)]
    federation = fahmc.Federation.from_clients(clients)
    model = fahmc.models.linear_regression(prior_scale=2.0, noise_scale=0.5, intercept=False)
    client = jax.tree.map(jnp.asarray, single_client(federation, 0, DOUBLE))
    target = build_target(model, {"coefficients": jnp.zeros(3)}, client, "client_0")
    return federation, model, client, target


def test_potential_is_the_scaled_loss_plus_the_prior(setting):
    federation, _, client, target = setting
    rows, position = federation.rows[0], np.asarray(POSITION)
    loss = np.sum((rows["y"] - rows["x"] @ position) ** 2) / (2 * 0.25) + 5 * (np.log(0.5) + np.log(2 * np.pi) / 2)
    expected = 13 / 5 * loss + np.sum(position**2) / (2 * 4)
    np.testing.assert_allclose(target.value(POSITION, client), expected, rtol=1e-12)


def test_parts_make_up_the_whole(setting):
    """What a sampler of one's own is built on: prior and likelihood apart, rows apart, second derivatives."""
    _, _, client, target = setting
    gradient = target.gradient(POSITION, client)
    of_rows = target.row_gradients(POSITION, client)
    np.testing.assert_allclose(
        client.scale * of_rows.sum(axis=0) + jax.grad(target.prior)(POSITION), gradient, rtol=1e-12
    )
    np.testing.assert_allclose(target.loss(POSITION, client), target.row_losses(POSITION, client).sum(), rtol=1e-12)
    value = client.scale * target.loss(POSITION, client) + target.prior(POSITION)
    np.testing.assert_allclose(target.value(POSITION, client), value, rtol=1e-12)
    # The potential is quadratic, with its minimum where Newton's step from anywhere ends.
    minimum = POSITION - jnp.linalg.solve(target.curvature(POSITION, client), gradient)
    np.testing.assert_allclose(target.gradient(minimum, client), 0, atol=1e-10)


def test_weighted_potentials_count_the_prior_once_and_every_row_once(setting):
    federation, model, _, target = setting
    total = sum(
        weight * target.value(POSITION, jax.tree.map(jnp.asarray, single_client(federation, index, DOUBLE)))
        for index, weight in enumerate(federation.weights)
    )
    pooled = federation.pooled().rows[0]
    loglikelihood = model.loglikelihood_fn({"coefficients": POSITION}, pooled).sum()
    expected = -loglikelihood - model.logprior_fn({"coefficients": POSITION})
    np.testing.assert_allclose(total, expected, rtol=1e-12)


def test_pooling_keeps_the_target_of_given_weights(setting):
    federation, _, _, target = setting
    weighted = fahmc.Federation.from_clients(list(federation.rows), weights=[0.9, 0.1])
    total = sum(
        weight * target.value(POSITION, jax.tree.map(jnp.asarray, single_client(weighted, index, DOUBLE)))
        for index, weight in enumerate(weighted.weights)
    )
    pooled = jax.tree.map(jnp.asarray, single_client(weighted.pooled(), 0, DOUBLE))
    np.testing.assert_allclose(target.value(POSITION, pooled), total, rtol=1e-12)


def test_temperature_divides_the_potential(setting):
    _, _, client, target = setting
    cold = fahmc.models.linear_regression(prior_scale=2.0, noise_scale=0.5, intercept=False, temperature=0.1)
    cold_target = build_target(cold, {"coefficients": jnp.zeros(3)}, client, "client_0")
    np.testing.assert_allclose(
        cold_target.gradient(POSITION, client), 10 * target.gradient(POSITION, client), rtol=1e-12
    )


def test_full_size_minibatch_is_the_full_gradient(setting):
    _, _, client, target = setting
    minibatch = fahmc.Minibatch(5).build(target)(jax.random.key(0), POSITION, client)
    np.testing.assert_allclose(minibatch, target.gradient(POSITION, client), rtol=1e-12)


def test_mean_over_all_minibatches_is_the_full_gradient(setting):
    """Every subset that the code can draw, with the scale that the code gives it."""
    _, _, client, target = setting
    scale = draw_minibatch(jax.random.key(0), client, 2).scale
    subsets = [jnp.array(subset) for subset in itertools.combinations(range(5), 2)]
    gradients = [
        target.gradient(
            POSITION,
            client._replace(
                rows=jax.tree.map(lambda leaf, s=s: leaf[s], client.rows),
                row_weights=client.row_weights[s],
                scale=scale,
            ),
        )
        for s in subsets
    ]
    np.testing.assert_allclose(np.mean(gradients, axis=0), target.gradient(POSITION, client), rtol=1e-12)


@pytest.mark.parametrize("padding", [0, 3])
def test_minibatches_are_uniform_and_never_hold_padding(setting, padding):
    _, _, client, _ = setting
    tagged = client._replace(
        rows={"tag": jnp.concatenate([jnp.arange(5), jnp.full(padding, -1)])},
        row_weights=jnp.concatenate([jnp.ones(5), jnp.zeros(padding)]),
    )
    draw = jax.jit(jax.vmap(lambda key: draw_minibatch(key, tagged, 2).rows["tag"]))
    tags = np.sort(draw(jax.random.split(jax.random.key(1), 20_000)), axis=1)
    assert (tags >= 0).all() and (tags[:, 0] != tags[:, 1]).all()
    _, counts = np.unique(tags[:, 0] * 5 + tags[:, 1], return_counts=True)
    assert len(counts) == 10
    assert stats.chisquare(counts).pvalue > FALSE_ALARM


def test_minibatch_does_not_depend_on_padding(setting):
    _, _, client, _ = setting
    padded = client._replace(
        rows=jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf[:3]]), client.rows),
        row_weights=jnp.concatenate([client.row_weights, jnp.zeros(3)]),
    )
    draw = jax.vmap(lambda key, client: draw_minibatch(key, client, 3).rows["y"], in_axes=(0, None))
    seeds = jax.random.split(jax.random.key(0), 20)
    np.testing.assert_array_equal(draw(seeds, client), draw(jax.random.clone(seeds), padded))


def test_gaussian_noise_has_its_scale(setting):
    _, _, client, target = setting
    noisy = fahmc.GaussianNoise(3.0).build(target)
    draws = jax.vmap(lambda key: noisy(key, POSITION, client))(jax.random.split(jax.random.key(2), 50_000))
    noise = (np.asarray(draws) - np.asarray(target.gradient(POSITION, client))).ravel() / 3.0
    assert stats.kstest(noise, "norm").pvalue > FALSE_ALARM


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (lambda: fahmc.Minibatch(0), "size is 0; it must be a whole number of rows"),
        (lambda: fahmc.GaussianNoise(-1.0), "scale is -1"),
        (lambda: fahmc.GaussianNoise(1.0, of=fahmc.GaussianNoise(1.0)), "add the noise once"),  # type: ignore
    ],
)
def test_nonsense_is_refused(arguments, message):
    with pytest.raises(fahmc.errors.SettingsError, match=message):
        arguments()
