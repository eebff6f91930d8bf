"""Effects of sites: both forms are the density that NumPyro has of the same model, and its posterior."""

import functools
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.flatten_util import ravel_pytree
from numpyro.infer import MCMC, NUTS
from numpyro.infer.util import log_density

import fahmc
from assertions import threshold
from fahmc import models
from fahmc.cli.config import build, load_config
from fahmc.data.columns import Columns
from fahmc.data.study import build_study
from fahmc.data.trial import clinic_tables, opt_csv_path
from fahmc.runs.plan import make_run

RNG = np.random.default_rng(3)
SIZES = {"a": 5, "b": 3, "c": 4}
DOUBLE = np.dtype(np.float64)


def _rows(n: int) -> dict[str, np.ndarray]:
    return {"x": RNG.normal(size=(n, 2)), "y": RNG.integers(0, 2, n), "weight": RNG.uniform(0.5, 2.0, n)}


CLIENTS = {name: _rows(n) for name, n in SIZES.items()}
POSITION = {
    "coefficients": np.array([0.4, -0.7]),
    "intercept": np.array(-0.3),
    "site_sd": np.array(0.8),
    "site_z": np.array([0.5, -1.0, 1.4]),
}


def written_in_numpyro(x, y, weight, site, num_sites):
    """Every row with its site's place; of fahmc nothing but the scales of the priors."""
    beta = numpyro.sample("coefficients", dist.Normal(0, 2.5).expand([x.shape[1]]).to_event(1))
    alpha = numpyro.sample("intercept", dist.Normal(0, 10))
    tau = numpyro.sample("site_sd", dist.HalfNormal(1.5))
    z: Any = numpyro.sample("site_z", dist.Normal(0, 1).expand([num_sites]).to_event(1))
    numpyro.deterministic("site_effect", tau * z)
    with numpyro.plate("rows", len(y)), numpyro.handlers.scale(scale=weight):
        numpyro.sample("y", dist.Bernoulli(logits=x @ beta + alpha + tau * z[site]), obs=y)


def pooled(clients: Any) -> tuple[Any, ...]:
    """What the model above takes."""
    rows = [np.concatenate([own[name] * 1.0 for own in clients.values()]) for name in ("x", "y", "weight")]
    return *rows, np.repeat(np.arange(len(clients)), [len(own["y"]) for own in clients.values()]), len(clients)


def model(form: Any, family: Any = models.logistic_regression, **settings: Any) -> fahmc.Model:
    return family(prior_scale=2.5, site_effects=form, site_scale=1.5, **settings)


def run_of(made: fahmc.Model, clients: Any = CLIENTS):
    return make_run(made, fahmc.Federation.from_clients(clients), fahmc.FAHMC(0.1), dtype=DOUBLE)


def losses(run, flat):
    """Return −log likelihood of all clients' rows."""
    return sum(jnp.sum(jax.vmap(run.target.loss, in_axes=(None, 0))(flat, bucket.clients)) for bucket in run.buckets)


def log_densities(run, positions) -> np.ndarray:
    """Of the parameters as they are: the Jacobian of log τ is taken off again."""

    def of_one(position):
        log_tau = jnp.log(position["site_sd"])
        flat = ravel_pytree(position | {"site_sd": log_tau})[0]
        return -losses(run, flat) - run.target.prior(flat) - log_tau

    return np.asarray(jax.jit(jax.vmap(of_one))(positions))


def test_the_shared_form_is_numpyros_density_and_the_private_one_its_integral():
    """The one by differences, as it is known up to a constant; the integral over z is taken on a fine grid."""
    positions: Any = {name: jnp.stack([value, 1.3 * value + 0.1]) for name, value in POSITION.items()}
    by_numpyro = jax.jit(jax.vmap(lambda at: log_density(written_in_numpyro, pooled(CLIENTS), {}, at)[0]))
    with jax.numpy_dtype_promotion("standard"):  # NumPyro's own arithmetic
        expected = by_numpyro(positions)
    found = log_densities(run_of(model("intercept")), positions)
    np.testing.assert_allclose(found[1] - found[0], expected[1] - expected[0], rtol=1e-11)

    def integral(beta, alpha, tau) -> float:
        z, total = np.linspace(-12.0, 12.0, 1201), 0.0
        for own in CLIENTS.values():
            eta = own["x"] @ beta + alpha + tau * z[:, None]
            heights = (own["weight"] * (own["y"] * eta - np.logaddexp(0, eta))).sum(axis=1) - z**2 / 2
            total += np.log(np.exp(heights).sum() * (z[1] - z[0]) / np.sqrt(2 * np.pi))
        return total - (beta**2).sum() / (2 * 2.5**2) - alpha**2 / (2 * 10**2) - tau**2 / (2 * 1.5**2)

    common = {name: value for name, value in positions.items() if name != "site_z"}
    found = log_densities(run_of(model("private intercept")), common)
    expected = [integral(*(np.asarray(value[place]) for value in common.values())) for place in (0, 1)]
    np.testing.assert_allclose(found, expected, rtol=1e-8)


def test_classes_have_effects_each():
    def softmax(**settings: Any) -> fahmc.Model:
        return models.softmax_regression(3, **settings)

    clients = {name: rows | {"y": np.arange(len(rows["y"])) % 3} for name, rows in CLIENTS.items()}
    run = run_of(model("intercept", softmax), clients)
    assert run.model.dims["site_effect"] == ["site", "class"] and run.model.coords["site"] == list(SIZES)
    flat = jnp.asarray(RNG.normal(size=run.dimension))
    at: Any = jax.tree.map(np.asarray, run.target.unravel(flat))
    expected = 0.0
    for place, rows in enumerate(clients.values()):
        eta = rows["x"] @ at["coefficients"] + at["intercept"] + np.exp(at["site_sd"]) * at["site_z"][place]
        log_chance = eta - np.log(np.exp(eta).sum(axis=1, keepdims=True))
        expected -= (rows["weight"] * log_chance[np.arange(len(eta)), rows["y"]]).sum()
    np.testing.assert_allclose(losses(run, flat), expected, rtol=1e-10)
    with pytest.raises(fahmc.errors.SettingsError, match=r'"private intercept", but η has 3 entries'):
        model("private intercept", softmax)


def test_predictions_are_of_the_rows_site_or_of_one_in_the_middle():
    made, x = model("intercept"), CLIENTS["a"]["x"]
    position = {name: jnp.asarray(value) for name, value in POSITION.items()}
    middle = x @ POSITION["coefficients"] + POSITION["intercept"]
    for site, effect in ((None, 0.0), (1, -0.8), (7, np.nan)):
        rows = {"x": x} if site is None else {"x": x, "site": np.full(len(x), site)}
        np.testing.assert_allclose(made.predict(position, rows), 1 / (1 + np.exp(-middle - effect)), rtol=1e-12)


def test_a_file_names_them_and_draws_are_named_after_sites(tmp_path):
    lines = [f"{'ab'[i % 2]},{i // 2 % 2},{i}" for i in range(24)]
    (tmp_path / "rows.csv").write_text("\n".join(["hospital,y,age", *lines]))
    (tmp_path / "study.toml").write_text(
        '[model]\nname = "logistic_regression"\nsite_effects = "intercept"\nsite_scale = 0.5\n\n'
        '[data]\nfile = "rows.csv"\nsite_column = "hospital"\noutcome = "y"\nfeatures = ["age"]\n'
    )
    job, sampler = build(load_config(tmp_path / "study.toml")), fahmc.FAHMC(0.1, 2)
    settings: Any = {"num_chains": 2, "dtype": "float64", "progress": False, "checkpoint_dir": tmp_path / "run"}
    draws = fahmc.sample(job.model, job.federation, sampler, 4, **settings)
    assert {"coefficients[age]", "site_effect[a]", "site_effect[b]", "site_sd"} <= set(draws.summary().index)
    effects = draws.positions["site_sd"][..., None] * draws.positions["site_z"]
    np.testing.assert_allclose(draws.positions["site_effect"], effects, rtol=1e-12)
    assert draws.settings["prior"]["site_sd"] == "N⁺(0, 0.5²)"
    data: Any = draws.to_arviz(job.federation)
    pointwise = data.log_likelihood["y"]
    assert pointwise.shape == (2, 4, 24) and np.isfinite(pointwise).all()
    # The run goes on where it was; other effects would be another run.
    longer = fahmc.sample(job.model, job.federation, sampler, 6, **settings)
    np.testing.assert_array_equal(longer.positions["site_z"][:, :4], draws.positions["site_z"])
    other = models.logistic_regression(site_effects="intercept", site_scale=0.7, feature_names=["age"])
    with pytest.raises(fahmc.errors.CheckpointError, match=r"prior"):
        fahmc.sample(other, job.federation, sampler, 6, **settings)


DOCS = (Path(__file__).parents[2] / "docs" / "site-effects.md").read_text()


def test_the_documented_example_prints_what_it_says(monkeypatch, capsys):
    """By a plain sampler of pooled rows instead of `Auto`, which compiles for longer; hence not to the last digit."""
    ((code, printed),) = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", DOCS, flags=re.DOTALL)
    plain = functools.partial(fahmc.sample, sampler=fahmc.HMC(0.12, 10, metropolis=True), num_rounds=800)
    monkeypatch.setattr(fahmc, "sample", functools.partial(plain, num_warmup_rounds=100, progress=False))
    exec(code, {})
    found = capsys.readouterr().out
    number = re.compile(r"-?\d+\.\d+")
    assert number.sub("#", found).split() == number.sub("#", printed).split()
    pairs = zip(number.findall(found), number.findall(printed), strict=True)
    assert all(abs(float(value) - float(expected)) < 0.35 for value, expected in pairs), found


def test_the_documented_study_is_accepted(tmp_path):
    (study,) = re.findall(r"```toml\n(.*?)```", DOCS, flags=re.DOTALL)
    (tmp_path / "trial.csv").write_bytes(opt_csv_path().read_bytes())
    (tmp_path / "study.toml").write_text(study)
    job = build(load_config(tmp_path / "study.toml"))
    assert job.model.together and job.federation.num_clients == 4


# The trial: preterm birth by treatment and hypertension at four clinics, women who are alike one row with a weight.


@pytest.fixture(scope="module")
def trial():
    columns = Columns("outcome", outcome_positive="preterm", features=("treatment", "hypertension"), missing="drop")
    few = {}
    for name, rows in build_study(clinic_tables(), columns).clients.items():
        cells, weight = np.unique(np.column_stack([rows["x"], rows["y"]]), axis=0, return_counts=True)
        few[name] = {"x": cells[:, :2], "y": cells[:, 2], "weight": weight.astype(float)}
    return few


@pytest.fixture(scope="module")
def by_nuts(trial):
    """NumPyro's draws, all rows in one place."""
    mcmc = MCMC(
        NUTS(written_in_numpyro, target_accept_prob=0.95), num_warmup=500, num_samples=1500, num_chains=4,
        chain_method="vectorized", progress_bar=False,
    )  # fmt: skip
    with jax.numpy_dtype_promotion("standard"):
        mcmc.run(jax.random.PRNGKey(0), *pooled(trial))
    return {name: np.asarray(value) for name, value in mcmc.get_samples(group_by_chain=True).items()}


@pytest.mark.parametrize("form", ["intercept", "private intercept"])
def test_the_trials_posterior_is_that_of_pooled_nuts(form, trial, by_nuts):
    """Stein's identities of our density p, E ∂_j log p = 0 and E u_i ∂_j log p = −δ_ij, hold of NUTS's draws of it.

    The private form's p has no effects of sites: its draws are those of all parameters, but for the effects.
    """
    run = run_of(model(form), trial)
    order = sorted(by_nuts) if form == "intercept" else ["coefficients", "intercept", "site_sd"]
    free = [np.log(by_nuts[name]) if name == "site_sd" else by_nuts[name] for name in order if name != "site_effect"]
    u = np.concatenate([values.reshape(*values.shape[:2], -1) for values in free], axis=2)
    score = jax.jit(jax.vmap(jax.vmap(jax.grad(lambda flat: -losses(run, flat) - run.target.prior(flat)))))
    z = stein_scores(u, np.asarray(score(u)))
    assert np.abs(z).max() < threshold(z.size), z
    # Draws of which τ is a fifth too large do not have them.
    wide = u + 0.2 * np.repeat(
        [name == "site_sd" for name in order if name != "site_effect"], [v[0, 0].size for v in free]
    )
    assert np.abs(stein_scores(wide, np.asarray(score(wide)))).max() > threshold(z.size)


def stein_scores(u: np.ndarray, score: np.ndarray) -> np.ndarray:
    """Return how many Monte Carlo errors the identities are off."""
    from fahmc.report import mcse

    centred = u - u.mean(axis=(0, 1))
    products = centred[..., :, None] * score[..., None, :] + np.eye(u.shape[2])
    terms = np.concatenate([score, products.reshape(*u.shape[:2], -1)], axis=2)
    return terms.mean(axis=(0, 1)) / mcse(terms)["position"]
