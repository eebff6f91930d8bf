"""Row space is nothing but speed: the plain path's draws to rounding, and under gradient noise its exact law."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fahmc
from assertions import assert_covariance, assert_mean, threshold
from fahmc import keys, theory
from fahmc.engines import InProcess
from fahmc.engines.in_process.row_space import RowSpace
from fahmc.errors import ModelError, SettingsError
from fahmc.runs.plan import make_run

# Refreshments at the start of rounds only, inside rounds, several in a round, and rounds of whole trajectories.
UNITS = {
    "T divides K": {"num_leapfrog_steps": 6, "num_local_steps": 3, "sync_unit": "leapfrog"},
    "T across K": {"num_leapfrog_steps": 7, "num_local_steps": 5, "sync_unit": "leapfrog"},
    "T above K": {"num_leapfrog_steps": 3, "num_local_steps": 8, "sync_unit": "leapfrog"},
    "trajectories": {"num_leapfrog_steps": 4, "num_local_steps": 2},
}
# Without and with other parameters than the coefficients, several outputs, a flat prior with a temperature.
MODELS = {
    "logistic": fahmc.models.logistic_regression(0.7, intercept=False),
    "softmax": fahmc.models.softmax_regression(3, 0.7),
    "noise": fahmc.models.linear_regression(0.7),
    "poisson": fahmc.models.poisson_regression(None, temperature=2.0),
}
OFFSET_AND_WEIGHT = {"offset": 0.0, "weight": 1.0}


def federation(sizes=(4, 6, 5, 6), dimension=12, **more: float) -> fahmc.Federation:
    """Return clients with rows of a logistic law; ``more`` columns lie around these numbers."""
    rng = np.random.default_rng(5)
    clients = [{"x": rng.normal(size=(n, dimension)), "y": rng.integers(0, 2, n)} for n in sizes]
    return fahmc.Federation.from_clients(
        [rows | {name: at + rng.uniform(-1, 1, len(rows["y"])) for name, at in more.items()} for rows in clients]
    )


def draw(model, sampler, **options) -> fahmc.Draws:
    settings = {"num_rounds": 12, "num_chains": 4, "seed": 3, "dtype": "float64", "progress": False}
    return fahmc.sample(model, options.pop("federation", None) or federation(), sampler, **(settings | options))


def assert_same_draws(found: fahmc.Draws, expected: fahmc.Draws, tolerance: float) -> None:
    for a, b in zip(jax.tree.leaves(found.positions), jax.tree.leaves(expected.positions), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)
    for name in ("client_drift", "step_size", "diverging"):
        np.testing.assert_allclose(found.stats[name], expected.stats[name], rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(found.client_drift, expected.client_drift, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("units", "name", "more"),
    [("T across K", "softmax", {}), ("T above K", "noise", {}), ("trajectories", "poisson", OFFSET_AND_WEIGHT)],
)
def test_draws_are_those_of_the_plain_path(units, name, more):
    """For units of averaging and models, thinned, after warm-up; T divides K is below."""
    sampler = fahmc.FAHMC(0.02, **UNITS[units])
    options = {"thin": 3, "num_warmup_rounds": 2, "federation": federation(**more)}
    plain, fast = (draw(MODELS[name], sampler, row_space=choice, **options) for choice in (False, True))
    assert (plain.settings["path"], fast.settings["path"]) == ("plain", "row space")
    assert_same_draws(fast, plain, 1e-11)
    assert fast.cost["bytes_to_server"] == plain.cost["bytes_to_server"]


def test_single_precision_agrees_to_its_rounding():
    sampler = fahmc.FAHMC(0.05, **UNITS["T divides K"])
    options = {"dtype": "float32", "num_rounds": 200}
    plain, fast = (draw(MODELS["logistic"], sampler, row_space=choice, **options) for choice in (False, True))
    assert_same_draws(fast, plain, 2e-4)


def test_more_rows_than_twice_the_coefficients():
    """Predictors then go over the coefficients instead of the rows' products with each other."""
    rows = federation(sizes=(4,) * 8)
    sampler = fahmc.FAHMC(0.02, **UNITS["T divides K"])
    plain, fast = (draw(MODELS["logistic"], sampler, federation=rows, row_space=choice) for choice in (False, True))
    assert_same_draws(fast, plain, 1e-11)


def test_blocks_and_threads_change_nothing(tmp_path):
    sampler = fahmc.FAHMC(0.05, **UNITS["T across K"])
    whole = draw(MODELS["noise"], sampler, row_space=True)
    cut = draw(MODELS["noise"], sampler, row_space=True, block_rounds=5, checkpoint_dir=tmp_path)
    for a, b in zip(jax.tree.leaves(cut.positions), jax.tree.leaves(whole.positions), strict=True):
        np.testing.assert_array_equal(a, b)
    assert_same_draws(draw(MODELS["noise"], sampler, row_space=True, engine=InProcess(threads=1)), whole, 1e-11)


def test_the_client_that_diverged_is_named():
    calm = federation()
    steep = [{"x": 1e3 * rows["x"], "y": rows["y"]} if index == 2 else rows for index, rows in enumerate(calm.rows)]
    model = fahmc.models.poisson_regression(1.0)
    messages = []
    for choice in (False, True):
        with pytest.raises(fahmc.errors.DivergenceError) as caught:
            draw(
                model, fahmc.FAHMC(0.05), federation=fahmc.Federation.from_clients(steep), row_space=choice,
                init={"coefficients": np.full(12, 1e-3), "intercept": 0.0},
            )  # fmt: skip
        messages.append(str(caught.value))
    assert messages[0] == messages[1] and "'client_2'" in messages[0]


def test_it_is_chosen_where_it_pays_and_only_there():
    many_steps = fahmc.FAHMC(0.01, num_leapfrog_steps=20)
    assert draw(MODELS["logistic"], many_steps, num_rounds=1).settings["path"] == "row space"

    def chosen(sampler, rows=None, row_space=None) -> str:
        # The engine chooses as it starts; to run would compile each sampler.
        run = make_run(MODELS["logistic"], rows or federation(), sampler, dtype=np.dtype(np.float64))
        return InProcess(row_space=row_space).start(run).path

    assert chosen(many_steps) == "row space"
    assert chosen(fahmc.FALD(0.01)) == "plain"
    assert chosen(many_steps, federation(sizes=(13, 5))) == "plain"
    for sampler in (
        fahmc.FAHMC(0.01, gradient=fahmc.Minibatch(2)),
        fahmc.FAHMC(0.01, momentum_correlation=0.5),
        fahmc.FAHMC(lambda t: 0.01),
        fahmc.DebiasedFAHMC(0.01),
        fahmc.HMC(0.01),
    ):
        assert chosen(sampler) == "plain"
        with pytest.raises(SettingsError, match="cannot be run in row space"):
            chosen(sampler, row_space=True)


def with_linear_part(parameter: str, covariates: str, sign: float) -> fahmc.Model:
    """A Gaussian model, whose linear part is right as ``("beta", "x", 1.0)``."""

    def terms(xb, others, batch):
        return -0.5 * (batch["y"].astype(xb.dtype) - sign * xb) ** 2

    return fahmc.Model(
        lambda position, batch: -0.5 * (batch["y"].astype(float) - batch["x"] @ position["beta"]) ** 2,
        init={"beta": np.ones(12)},
        linear=fahmc.Linear(parameter, covariates, None, terms),
    )


def test_a_wrong_linear_part_is_refused():
    with pytest.raises(ModelError, match="linear part contradicts the model"):
        draw(with_linear_part("beta", "x", -1.0), fahmc.FAHMC(0.01), row_space=True)


@pytest.mark.parametrize(("parameter", "covariates", "named"), [("betta", "x", "betta"), ("beta", "xs", "xs")])
def test_a_linear_part_that_names_nothing_is_refused(parameter, covariates, named):
    with pytest.raises(ModelError, match=f"{named}'.*is a dict with.*Give a name that is there"):
        draw(with_linear_part(parameter, covariates, 1.0), fahmc.FAHMC(0.01))


# The law under gradient noise, on linear regressions: Gaussian clients, each with fewer rows than coefficients.
NUM_CHAINS, NUM_ROUNDS, NOISE, PRIOR = 50_000, 3, 1.5, 0.8
START = np.array([1.0, -1.0, 0.5, 0.0])


def gaussian_rows() -> fahmc.Federation:
    rng = np.random.default_rng(8)
    # The last client's rows are dependent.
    x = [rng.normal(size=(2, 4)), rng.normal(size=(3, 4)), np.repeat(rng.normal(size=(1, 4)), 2, axis=0)]
    return fahmc.Federation.from_clients([{"x": part, "y": rng.normal(size=len(part))} for part in x])


def exact_law(rows: fahmc.Federation, sampler: fahmc.FAHMC):
    precisions, means = [], []
    for size, batch in zip(rows.sizes, rows.rows, strict=True):
        scale = rows.num_rows / size
        precision = scale * batch["x"].T @ batch["x"] + np.eye(4) / PRIOR**2
        precisions.append(precision)
        means.append(np.linalg.solve(precision, scale * batch["x"].T @ batch["y"]))
    clients = theory.GaussianClients(np.array(means), np.array(precisions), rows.weights)
    return theory.law_after(clients, sampler, NUM_ROUNDS, start_mean=START)


def check_law(units: str) -> None:
    rows = gaussian_rows()
    sampler = fahmc.FAHMC(0.2, gradient=fahmc.GaussianNoise(NOISE), **UNITS[units])
    law = exact_law(rows, sampler)
    found = fahmc.sample(
        fahmc.models.linear_regression(PRIOR, noise_scale=1.0, intercept=False), rows, sampler, NUM_ROUNDS,
        thin=NUM_ROUNDS, num_chains=NUM_CHAINS, seed=20, init={"coefficients": START}, dtype="float64",
        progress=False, row_space=True,
    ).flat()[:, -1]  # fmt: skip
    assert_mean(found, law.mean, law.covariance)
    assert_covariance(found, law.covariance)


@pytest.mark.parametrize("units", ["T across K", "T above K", "trajectories"])
def test_law_under_noise_is_exact(units):
    check_law(units)


def test_noise_left_out_outside_the_rows_is_caught(monkeypatch):
    outside = RowSpace._draw_outside
    monkeypatch.setattr(
        RowSpace, "_draw_outside", lambda *arguments: jax.tree.map(lambda leaf: 0.0 * leaf, outside(*arguments))
    )
    with pytest.raises(AssertionError, match="covariance off"):
        check_law("T across K")


def test_one_key_for_all_steps_is_caught(monkeypatch):
    gradient_at = keys.gradient_at
    monkeypatch.setattr(keys, "gradient_at", lambda key, k, half: gradient_at(key, jnp.int32(0), 0))
    with pytest.raises(AssertionError, match="covariance off"):
        check_law("T across K")


def test_client_drift_under_noise_is_that_of_the_plain_path():
    """In the mean of squares over many chains; the part outside the rows enters by its expectation."""
    sampler = fahmc.FAHMC(0.2, gradient=fahmc.GaussianNoise(NOISE), **UNITS["T above K"])
    model = fahmc.models.linear_regression(PRIOR, noise_scale=1.0, intercept=False)
    squares = [
        draw(
            model, sampler, federation=gaussian_rows(), num_rounds=1, num_chains=5_000, row_space=choice,
            init={"coefficients": START},
        ).client_drift ** 2
        for choice in (False, True)
    ]  # fmt: skip
    errors = np.sqrt(sum(part.var(axis=0) / len(part) for part in squares))
    assert (np.abs(squares[0].mean(axis=0) - squares[1].mean(axis=0)) < threshold(errors.size) * errors).all()
