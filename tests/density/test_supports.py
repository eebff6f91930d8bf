"""Parameters in their supports: densities to rounding, laws in closed form, and what is refused."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.distributions import constraints
from scipy import stats

import fahmc
from assertions import threshold
from fahmc.data.buckets import single_client
from fahmc.density.supports import constrain, present, unconstrain
from fahmc.density.target import build_target
from fahmc.errors import ModelError

# A value inside each support, and which of its numbers determine the others.
SUPPORTS = {
    "positive": (fahmc.positive, np.array([0.3, 2.0]), lambda x: x),
    "unit_interval": (fahmc.unit_interval, np.array([0.2, 0.9]), lambda x: x),
    "interval": (fahmc.interval(-2.0, 5.0), np.array([-1.0, 4.0]), lambda x: x),
    "simplex": (fahmc.simplex, np.array([0.2, 0.3, 0.5]), lambda x: x[:-1]),
    "ordered": (fahmc.ordered, np.array([-1.0, 0.5, 0.7]), lambda x: x),
    "positive_ordered": (fahmc.positive_ordered, np.array([0.1, 0.5, 0.7]), lambda x: x),
    "correlation_cholesky": (
        fahmc.correlation_cholesky,
        np.linalg.cholesky([[1, 0.3, -0.2], [0.3, 1, 0.4], [-0.2, 0.4, 1]]),
        lambda x: x[jnp.tril_indices(3, -1)],
    ),
    "of NumPyro": (constraints.less_than(1.0), np.array([-0.5]), lambda x: x),
}
ROWS = {"y": np.array([0.5, -1.0, 2.0])}


@pytest.fixture(autouse=True)
def like_a_user():
    """NumPyro's bijections leave promotion to JAX, as users do."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.mark.parametrize("name", SUPPORTS)
def test_the_jacobian_is_the_determinant(name):
    support, value, free_entries = SUPPORTS[name]
    model = fahmc.Model(
        loglikelihood_fn=lambda position, batch: -((batch["y"] - jnp.sum(position["theta"])) ** 2),
        logprior_fn=lambda position: -jnp.sum(position["theta"] ** 4),
        init={"theta": value},
        supports={"theta": support},
        temperature=3.0,
    )
    start = jax.tree.map(lambda leaf: leaf[0], unconstrain(model, {"theta": value[None]}))
    client = single_client(fahmc.Federation.from_clients({"only": ROWS}), 0, np.dtype("float64"))
    target = build_target(model, start, client, "only")

    def transform(u):
        return free_entries(constrain({"theta": support}, {"theta": u})["theta"])

    np.testing.assert_allclose(constrain({"theta": support}, start)["theta"], value, atol=1e-12)
    log_volume = np.linalg.slogdet(jax.jacfwd(transform)(start["theta"]))[1]
    # The Jacobian is not tempered: exp(−f / τ) is a density of θ.
    expected = (np.sum(value**4) + np.sum((ROWS["y"] - value.sum()) ** 2)) / 3.0 - log_volume
    np.testing.assert_allclose(target.value(start["theta"], client), expected, rtol=1e-10)


RATE, SHAPE = 2.0, 3.0
WAITS = {"a": np.array([0.1, 0.7, 0.2]), "b": np.array([1.4, 0.3])}
FEDERATION = fahmc.Federation.from_clients({name: {"y": y} for name, y in WAITS.items()})
# λ ~ Gamma(SHAPE, RATE), y ~ Exp(λ): conjugate.
WAITING = fahmc.Model(
    loglikelihood_fn=lambda position, batch: jnp.log(position["rate"]) - position["rate"] * batch["y"],
    logprior_fn=lambda position: (SHAPE - 1) * jnp.log(position["rate"]) - RATE * position["rate"],
    init=lambda key: {"rate": jnp.exp(0.1 * jax.random.normal(key))},
    supports={"rate": fahmc.positive},
    derived_fn=lambda position: {"mean wait": 1 / position["rate"], "is fast": position["rate"] > 1},
    predict_fn=lambda position, batch: 1 / position["rate"] + 0 * batch["y"],
)
_ROWS = np.concatenate(list(WAITS.values()))


def law_of(shape: float) -> dict:
    """The posterior of the rate and of the mean wait, if the prior's shape were this."""
    shape, rate = shape + len(_ROWS), RATE + _ROWS.sum()
    return {"rate": stats.gamma(shape, scale=1 / rate), "mean wait": stats.invgamma(shape, scale=rate)}


POSTERIOR = law_of(SHAPE)


def off_by(draws, laws) -> np.ndarray:
    """Differences of means and sds from the closed form, in Monte Carlo errors."""
    table = draws.summary()
    means = [(table.loc[n, "mean"] - law.mean()) / table.loc[n, "mcse_mean"] for n, law in laws.items()]
    sds = [(table.loc[n, "sd"] - law.std()) / table.loc[n, "mcse_sd"] for n, law in laws.items()]
    chance = laws["rate"].sf(1.0)
    return np.array([*means, *sds, (table.loc["is fast", "mean"] - chance) / table.loc["is fast", "mcse_mean"]])


@pytest.fixture(scope="module")
def weighted():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return fahmc.sample(WAITING, FEDERATION)


def test_weighted_draws_have_the_posterior_and_tell_their_error(weighted):
    assert np.abs(off_by(weighted, POSTERIOR)).max() < threshold(5)
    # With a Jacobian too few, or one too many, the prior's shape would be one off: the same check sees that.
    assert np.abs(off_by(weighted, law_of(SHAPE - 1))).max() > threshold(5)
    assert np.abs(off_by(weighted, law_of(SHAPE + 1))).max() > threshold(5)
    assert weighted.bias.attrs["found_by"] == "weights"
    worth = weighted.account["weights"]
    assert len(worth["ess"]) == weighted.flat().shape[-1] == 3 and weighted.flat_unconstrained().shape[-1] == 1
    # Weights know the error of any function of the draws.
    place, share = list(weighted.summary().index).index("is fast"), POSTERIOR["rate"].sf(1.0)
    error = np.sqrt(share * (1 - share) / worth["ess"][place])
    np.testing.assert_allclose(worth["mcse"][place], error, rtol=0.1)


def test_gradients_tell_the_moments_of_what_is_presented(weighted):
    """Control variates of free numbers correct functions of them: draws that are too wide have the posterior's mean."""
    free = 1.1 * (weighted.flat_unconstrained() - weighted.flat_unconstrained().mean()) + np.log(
        POSTERIOR["rate"].mean()
    )
    rate = np.exp(free)
    gradients = (RATE + _ROWS.sum()) * rate - (SHAPE + len(_ROWS))
    template = {"rate": jax.ShapeDtypeStruct((), np.float64)}
    draws = dataclasses.replace(
        weighted,
        positions=present(WAITING, template, free),
        sampled={"rate": free[..., 0]},
        gradients=gradients,
        account={},
    )
    table, bias = draws.summary(), draws.bias
    assert bias.attrs["found_by"] == "gradients"
    for name, law in POSTERIOR.items():
        plain, corrected = (abs(table.loc[name, column] - law.mean()) for column in ("mean", "mean_cv"))
        assert corrected < 0.2 * plain
        excess = table.loc[name, "sd"] / law.std() - 1
        # Half of the squares of 1 / rate are explained, more or less, and with less nothing is told.
        is_told = name == "rate" or not np.isnan(bias.loc[name, "sd_excess"])
        assert not is_told or abs(bias.loc[name, "sd_excess"] - excess) < 4 * bias.loc[name, "sd_excess_error"]


def test_files_and_arviz_hold_both_scales(weighted, tmp_path):
    weighted.save(tmp_path / "run.nc")
    again = fahmc.Draws.load(tmp_path / "run.nc")
    np.testing.assert_array_equal(again.flat(), weighted.flat())
    np.testing.assert_array_equal(again.unconstrained["rate"], weighted.unconstrained["rate"])
    np.testing.assert_allclose(np.log(again.positions["rate"]), again.unconstrained["rate"], atol=1e-12)
    assert again.derived == ("is fast", "mean wait") and set(again.parameters) == {"rate"}
    data: Any = weighted.to_arviz()
    assert set(data.unconstrained_posterior.data_vars) == {"rate"} < set(data.posterior.data_vars)
    expected = weighted.positions["mean wait"].mean()
    np.testing.assert_allclose(again.predict({"y": np.zeros(2)}, model=WAITING), [expected] * 2, rtol=1e-12)


def test_a_run_goes_on_where_it_stopped(tmp_path):
    sampler = fahmc.FAHMC(step_size=0.2, num_leapfrog_steps=3)
    arguments = {"num_chains": 2, "seed": 3, "checkpoint_dir": tmp_path / "run"}
    fahmc.sample(WAITING, FEDERATION, sampler, 20, **arguments)
    resumed = fahmc.sample(WAITING, FEDERATION, sampler, 40, **arguments)
    whole = fahmc.sample(WAITING, FEDERATION, sampler, 40, num_chains=2, seed=3)
    np.testing.assert_array_equal(resumed.flat(), whole.flat())
    np.testing.assert_array_equal(resumed.flat_unconstrained(), whole.flat_unconstrained())


def test_row_space_takes_supports_of_the_other_parameters():
    rng = np.random.default_rng(0)
    clients = {name: {"x": rng.normal(size=(3, 12)), "y": rng.normal(size=3)} for name in ("a", "b")}

    def row(xb, others, batch):
        return -(((batch["y"] - xb) / others["sigma"]) ** 2) / 2 - jnp.log(others["sigma"])

    def scale_prior(others):
        return -others["sigma"]

    model = fahmc.Model(
        loglikelihood_fn=lambda position, batch: row(batch["x"] @ position["beta"], position, batch),
        logprior_fn=lambda position: scale_prior(position) - jnp.sum(position["beta"] ** 2) / 2,
        init={"beta": np.zeros(12), "sigma": 0.5},
        supports={"sigma": fahmc.positive},
        linear=fahmc.Linear("beta", "x", 1.0, row, scale_prior),
    )
    sampler, federation = fahmc.FAHMC(step_size=0.1, num_leapfrog_steps=4), fahmc.Federation.from_clients(clients)
    fast, plain = (fahmc.sample(model, federation, sampler, 15, num_chains=2, row_space=way) for way in (True, False))
    assert fast.settings["path"] != plain.settings["path"]
    np.testing.assert_allclose(fast.flat(), plain.flat(), rtol=1e-8)
    with pytest.raises(ModelError, match="supports confine it"):
        dataclasses.replace(model, supports={"beta": fahmc.positive})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"init": {"rate": -1.0}}, "rate starts at -1.0, which is not inside its support"),
        ({"init": {"rate": 0.0}}, "is not inside its support"),
        ({"supports": {"scale": fahmc.positive}}, "supports names 'scale', but the position has rate"),
        ({"supports": {"rate": fahmc.simplex}}, "does not fit its shape"),
        ({"supports": {"rate": "positive"}}, "it must be a support such as fahmc.positive"),
        ({"derived_fn": lambda position: {"rate": 1.0}}, "as a parameter is called too"),
        ({"derived_fn": lambda position: 1.0}, "both must be dicts"),
        ({"derived_fn": lambda position: position["none"]}, "derived_fn failed"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(change, words):
    with pytest.raises(ModelError, match=words):
        fahmc.sample(dataclasses.replace(WAITING, **change), FEDERATION)
