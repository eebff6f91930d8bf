"""Models written in NumPyro: densities to rounding, what each site becomes, what is refused, and eight schools."""

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.infer import util
from numpyro.infer.reparam import LocScaleReparam
from scipy import integrate, stats

import fahmc
from assertions import threshold
from fahmc.data.buckets import single_client
from fahmc.data.places import with_places
from fahmc.density.local import at_sites
from fahmc.density.supports import constrain, log_jacobian, present
from fahmc.errors import DataError, ModelError
from fahmc.models import from_numpyro
from fahmc.report.parameters import parameter_table
from fahmc.report.verdict import judge
from fahmc.runs.plan import make_run

DOCS = (Path(__file__).parent.parent / "docs" / "numpyro.md").read_text()
FILE, SCHOOLS = re.findall(r"```python\n(.*?)```", DOCS, flags=re.DOTALL)
sample: Any = numpyro.sample
RNG = np.random.default_rng(5)


@pytest.fixture(autouse=True, scope="module")
def like_a_user():
    """NumPyro leaves promotion to JAX, as users do."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def many_kinds(x, group, shift, y=None, count=None):
    """Vectors, scales, shares, plates of other sizes, two outcomes, deterministic sites of rows and of none."""
    beta = numpyro.sample("beta", dist.Normal(0.5, 2.0).expand([2]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2.0))
    shares = sample("shares", dist.Dirichlet(jnp.array([1.0, 2.0, 3.0])))
    bounded = numpyro.sample("bounded", dist.Uniform(-2.0, 3.0))
    with numpyro.plate("groups", 3):
        effect = sample("effect", dist.StudentT(4.0, bounded, sigma))
    mean = numpyro.deterministic("mean", x @ beta + effect[group] + shift)
    numpyro.deterministic("all_rows", jnp.mean(mean))
    numpyro.deterministic("ratio", beta / sigma)
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(mean, sigma), obs=y)
        with numpyro.plate("repeats", 2):
            numpyro.sample("count", dist.Poisson(1 + shares[group]), obs=None if count is None else count.T)


ROWS = {
    "x": RNG.normal(size=(5, 2)),
    "group": np.array([0, 2, 1, 1, 0]),
    "y": RNG.normal(size=5),
    "count": RNG.integers(0, 4, size=(5, 2)),
}
FREE = {
    "beta": np.array([0.3, -1.0]),
    "sigma": np.array(0.4),
    "shares": np.array([0.2, -0.7]),
    "bounded": np.array(-0.3),
    "effect": np.array([1.0, -2.0, 0.5]),
}
ARGUMENTS = {**ROWS, "shift": 0.7}


@pytest.fixture(scope="module")
def kinds():
    return from_numpyro(many_kinds, {name: values[:2] for name, values in ROWS.items()}, constants={"shift": 0.7})


def test_densities_are_numpyro_s(kinds):
    position = constrain(kinds.supports, FREE)
    expected = util.constrain_fn(many_kinds, (), ARGUMENTS, FREE, return_deterministic=True)
    for name, values in position.items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-12)
    terms, _ = util.compute_log_probs(many_kinds, (), ARGUMENTS, position, sum_log_prob=False)
    fits = kinds.row_loglikelihoods(position, ROWS)
    np.testing.assert_allclose(fits, terms["y"] + terms["count"].sum(axis=0), rtol=1e-12)
    whole = jnp.sum(fits) + kinds.logprior_fn(position)
    np.testing.assert_allclose(whole, util.log_density(many_kinds, (), ARGUMENTS, position)[0], rtol=1e-12)
    potential = util.potential_energy(many_kinds, (), ARGUMENTS, FREE)
    np.testing.assert_allclose(-whole - log_jacobian(kinds.supports, FREE), potential, rtol=1e-12)


def test_draws_have_supports_derived_quantities_and_names(kinds):
    run = make_run(kinds, fahmc.Federation.from_clients([ROWS]), fahmc.FAHMC(0.1), dtype=np.dtype("float64"))
    flat = np.concatenate([np.ravel(FREE[name]) for name in sorted(FREE)])
    found = present(kinds, run.target.template, flat[None])
    expected = util.constrain_fn(many_kinds, (), ARGUMENTS, FREE, return_deterministic=True)
    assert set(found) == {*FREE, "ratio"}, "what depends on rows is left out"
    for name, values in found.items():
        np.testing.assert_allclose(values[0], expected[name], rtol=1e-12)
    assert kinds.dims == {"effect": ["groups"]}
    assert set(kinds.supports) == {"sigma", "shares", "bounded"}


def test_starts_and_prior_draws_are_inside(kinds: Any):
    draws = jax.vmap(lambda key: kinds.prior_fn(key, ROWS))(jax.random.split(jax.random.key(1), 2000))
    error = 1 / np.sqrt(12 * 2000) * 5
    assert abs(np.mean(draws["bounded"]) - 0.5) < threshold(1) * error
    start = kinds.initial_position(jax.random.key(0), ROWS)
    other = kinds.initial_position(jax.random.key(1), ROWS)
    for name, values in start.items():
        assert values.shape == draws[name].shape[1:] and (values != other[name]).any()
        assert name not in kinds.supports or np.all(kinds.supports[name](values))


def test_two_outcomes_are_predicted_one_by_one(kinds):
    assert kinds.predict_fn is None and kinds.sample_fn is None
    example, position = {name: values[:1] for name, values in ROWS.items()}, constrain(kinds.supports, FREE)
    model: Any = from_numpyro(many_kinds, example, constants={"shift": 0.7}, outcome="y")
    mean = ROWS["x"] @ FREE["beta"] + FREE["effect"][ROWS["group"]] + 0.7
    rows = {name: ROWS[name] for name in ("x", "group")}
    np.testing.assert_allclose(model.predict(position, rows), mean, rtol=1e-12)
    drawn = jax.vmap(lambda key: model.sample_fn(key, position, ROWS))(jax.random.split(jax.random.key(2), 1000))
    z = (drawn.mean(axis=0) - mean) / (position["sigma"] / np.sqrt(1000))
    assert np.abs(z).max() < threshold(5) and model.outcome == "y"
    with pytest.raises(ModelError, match=r"observed as they stand \(obs=y\) are y\."):
        from_numpyro(many_kinds, example, constants={"shift": 0.7}, outcome="count")


def test_categories_are_predicted_by_their_probabilities():
    def model(x, y=None):
        cuts = numpyro.sample("cuts", dist.ImproperUniform(dist.constraints.ordered_vector, (), (2,)))
        with numpyro.plate("rows", len(x)):
            numpyro.sample("y", dist.OrderedLogistic(x, cuts), obs=y)

    found: Any = from_numpyro(model, {"x": np.zeros(1), "y": np.zeros(1, int)})
    position, x = {"cuts": np.array([-1.0, 2.0])}, np.array([0.3, 1.0, -2.0])
    below = 1 / (1 + np.exp(x[:, None] - position["cuts"]))
    np.testing.assert_allclose(found.predict(position, {"x": x}), np.diff(below, prepend=0, append=1), rtol=1e-10)
    assert found.prior_fn is None, "it is improper"
    assert np.diff(found.initial_position(jax.random.key(0), {})["cuts"]) > 0
    assert "y of row 1 is 3" in found.validate_fn({"x": x[:2], "y": np.array([0, 3])})


def normal(x, y=None):
    beta = numpyro.sample("beta", dist.Normal(0, 1))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Normal(beta * x, 1), obs=y)


EXAMPLE = {"x": np.zeros(1), "y": np.zeros(1)}


def test_rows_that_do_not_fit_are_refused():
    model = from_numpyro(normal, EXAMPLE)
    for rows, words in [
        ({"x": np.zeros(2)}, "takes 'y', but the rows hold x"),
        ({"x": np.zeros((2, 3)), "y": np.zeros(2)}, r"x has shape \[3\] for a row, but \[\] in the model's example"),
    ]:
        with pytest.raises(DataError, match=f"'north'.*{words}"):
            fahmc.sample(model, fahmc.Federation.from_clients({"north": rows}))


def test_the_likelihood_sees_what_it_needs():
    def centred(site, num_sites, y):
        mu, tau = numpyro.sample("mu", dist.Normal(0, 5)), numpyro.sample("tau", dist.HalfCauchy(5))
        with numpyro.plate("clients", num_sites):
            theta = sample("theta", dist.Normal(mu, tau))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Normal(theta[site], 2.0), obs=y)

    rows = {"y": np.array([1.0, 2.0, 4.0]), "site": np.array([0, 3, 3])}
    theta, z = np.array([1.0, -1.0, 0.5, 2.0]), np.array([0.2, -0.2, 0.1, 0.4])
    expected = stats.norm.logpdf(rows["y"], theta[rows["site"]], 2.0)
    plain = from_numpyro(centred, {"y": np.zeros(1)})
    position = {"mu": 0.0, "tau": 5.0, "theta": theta}
    assert set(plain.view(position)) == {"theta"}
    np.testing.assert_allclose(plain.row_loglikelihoods(position, rows), expected, rtol=1e-12)
    # A model with handlers about it is a model, too.
    apart = handlers.reparam(centred, config={"theta": LocScaleReparam(0)})
    seen = from_numpyro(apart, {"y": np.zeros(1)}, sees=["theta"])
    position = {"mu": 0.0, "tau": 5.0, "theta_decentered": z}
    np.testing.assert_allclose(seen.view(position)["theta"], theta, rtol=1e-12)
    np.testing.assert_allclose(seen.row_loglikelihoods(position, rows), expected, rtol=1e-12)
    assert set(from_numpyro(apart, {"y": np.zeros(1)}).view(position)) == set(position)
    with pytest.raises(ModelError, match="does not follow from mu, which sees names"):
        from_numpyro(centred, {"y": np.zeros(1)}, sees=["mu"])
    with pytest.raises(ModelError, match=r"sees names 'teta'.*did you mean 'theta'"):
        from_numpyro(centred, {"y": np.zeros(1)}, sees=["teta"])


def test_clients_find_their_own_effects():
    namespace: dict = {}
    exec(FILE, namespace)
    model, function = namespace["model"], namespace["random_intercepts"]
    clients = {name: {"x": RNG.normal(size=(n, 3)), "y": RNG.integers(0, 2, n)} for name, n in (("b", 3), ("a", 2))}
    federation = fahmc.Federation.from_clients(clients)
    run = make_run(model, federation, fahmc.HMC(0.1), dtype=np.dtype("float64"))
    pooled = {name: np.concatenate([rows[name] for rows in clients.values()]) for name in ("x", "y")}
    arguments = {**pooled, "site": np.array([0, 0, 0, 1, 1]), "num_sites": 2}
    free = {"beta": np.ones(3), "mu": np.array(0.3), "tau": np.array(-0.2), "z": np.array([0.5, -1.0])}
    flat = np.concatenate([np.ravel(free[name]) for name in sorted(free)])
    found = run.target.value(jnp.asarray(flat), single_client(run.federation, 0, np.dtype("float64")))
    np.testing.assert_allclose(found, util.potential_energy(function, (), arguments, free), rtol=1e-12)
    assert run.model.coords == {"sites": ["b", "a"]}
    assert run.model.dims == {"z": ["sites"], "effect": ["sites"]}
    assert run.model.prior_fn is not None and run.model.prior_fn(jax.random.key(0), None)["z"].shape == (2,)
    # As many as there are clients, in whatever order.
    moved = at_sites(model, ["a", "b", "c"])
    assert moved.initial_position(jax.random.key(0), None)["z"].shape == (3,)
    with pytest.raises(ModelError, match="do not say of which client they are"):
        model.predict({"beta": np.zeros(3), "mu": 0.0, "tau": 1.0, "z": np.zeros(2)}, {"x": pooled["x"]})
    with pytest.raises(ModelError, match="no position without a federation"):
        model.initial_position(jax.random.key(0), None)
    with pytest.raises(DataError, match="'site', which is where"):
        with_places(fahmc.Federation.from_clients([pooled | {"site": np.zeros(5)}]))


def test_factors_in_the_plate_are_of_rows_and_what_is_observed_outside_is_of_the_prior():
    """Censored times as NumPyro's users write them, and a constraint on effects."""

    def model(x, y, event):
        effect = sample("effect", dist.Normal(0, 1).expand([3]).to_event(1))
        numpyro.sample("zero", dist.Normal(jnp.sum(effect), 0.1), obs=0.0)
        numpyro.factor("smooth", -jnp.sum(jnp.diff(effect) ** 2))
        law = dist.Exponential(jnp.exp(effect[0] * x))
        with numpyro.plate("rows", len(x)):
            numpyro.factor("time", jnp.where(event == 1, law.log_prob(y), jnp.log1p(-law.cdf(y))))

    rows = {"x": RNG.normal(size=4), "y": RNG.gamma(1.0, size=4), "event": np.array([1.0, 0.0, 1.0, 0.0])}
    position = {"effect": np.array([0.3, -0.2, 0.4])}
    found = from_numpyro(model, {name: values[:1] for name, values in rows.items()})
    whole = jnp.sum(found.row_loglikelihoods(position, rows)) + found.logprior_fn(position)
    np.testing.assert_allclose(whole, util.log_density(model, (), rows, position)[0], rtol=1e-12)
    rate = np.exp(0.3 * rows["x"])
    np.testing.assert_allclose(
        found.row_loglikelihoods(position, rows), rows["event"] * np.log(rate) - rate * rows["y"], rtol=1e-12
    )
    assert found.prior_fn is None and found.predict_fn is None, "draws of sites would not know of the constraint"


def _in_rows(name, x, y, fn=None):
    with numpyro.plate(name, len(x)):
        numpyro.sample("y", dist.Normal(0, 1) if fn is None else fn, obs=y)


def no_plate(x, y):
    numpyro.sample("y", dist.Normal(numpyro.sample("a", dist.Normal(0, 1)) + x, 1), obs=y)


def outside(x, y):
    _in_rows("rows", x, y, dist.Normal(numpyro.sample("a", dist.Normal(0, 1)), 1))
    numpyro.sample("total", dist.Normal(0, 1), obs=y[0])


def together(x, y):
    _in_rows("rows", x, y, dist.Normal(numpyro.sample("a", dist.Normal(0, 1)) * (x - x.mean()), 1))


def by_count(x, y):
    a = numpyro.sample("a", dist.Normal(0, 1))
    with handlers.scale(scale=100 / len(x)):
        _in_rows("rows", x, y, dist.Normal(a * x, 1))


def latent_in_rows(x, y):
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Normal(numpyro.sample("a", dist.Normal(0, 1)), 1), obs=y)


def masked(x, y):
    a = numpyro.sample("a", dist.Normal(0, 1))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Normal(a, 1), obs=y, obs_mask=x > 0)


def shape_of_rows(x, y):
    a = numpyro.sample("a", dist.Normal(0, 1).expand([len(x)]).to_event(1))
    _in_rows("rows", x, y, dist.Normal(a, 1))


def prior_of_rows(x, y):
    _in_rows("rows", x, y, dist.Normal(numpyro.sample("a", dist.Normal(jnp.mean(y), 1)), 1))


def support_of_parameter(x, y):
    top = numpyro.sample("top", dist.HalfNormal(1.0))
    _in_rows("rows", x, y, dist.Normal(numpyro.sample("a", dist.Uniform(0, top)), 1))


def discrete(x, y):
    _in_rows("rows", x, y, dist.Normal(numpyro.sample("a", dist.Bernoulli(0.5)), 1))


def factor(x, y):
    numpyro.factor("fit", -jnp.sum((y - numpyro.sample("a", dist.Normal(0, 1))) ** 2))
    _in_rows("rows", x, y)


def by_place(x, y):
    a: Any = numpyro.sample("a", dist.Normal(0, 1).expand([9]).to_event(1))
    _in_rows("rows", x, y, dist.Bernoulli(logits=a[jnp.arange(len(x))]))


def any_names(**rows):
    normal(**rows)


def param(x, y):
    _in_rows("rows", x, y, dist.Normal(numpyro.param("a", 0.5), 1))


def subsample(x, y):
    a = numpyro.sample("a", dist.Normal(0, 1))
    with numpyro.plate("rows", 10, subsample_size=len(x)):
        numpyro.sample("y", dist.Normal(a, 1), obs=y)


def two_plates(x, y):
    a = numpyro.sample("a", dist.Normal(0, 1))
    with numpyro.plate("one", len(x)):
        _in_rows("other", x, y, dist.Normal(a, 1))


def no_num_sites(x, site, y):
    normal(x, y)


def no_effects(x, site, num_sites, y):
    normal(x, y)


def failing(x, y):
    raise KeyError("age")


@pytest.mark.parametrize(
    ("function", "settings", "words"),
    [
        (no_plate, {}, r"No plate has the number of rows as its size; put 'y' under"),
        (outside, {}, "'total' depends on rows, but it is not in their plate, 'rows'"),
        (together, {}, "'y' of a row changes when other rows come or go"),
        (by_count, {}, "'y' of a row changes when other rows come or go"),
        (latent_in_rows, {}, r"'a' is drawn anew for every row, in the plate 'rows'.*a\[site\] where rows need it"),
        (masked, {}, "'y_unobserved' is drawn anew for every row"),
        (shape_of_rows, {}, r"shape of 'a' depends on the number of rows, \[3\] for 3 rows and \[1\] for one"),
        (prior_of_rows, {}, "prior of 'a' depends on the rows"),
        (support_of_parameter, {}, "support of 'a', .* depends on rows or on other parameters"),
        (discrete, {}, "'a' is discrete"),
        (factor, {}, "'fit' depends on rows, but it is not in their plate, 'rows'"),
        # An outcome of 0.05 has no chance whatever else is true: made-up rows must be such as can occur.
        (by_place, {}, "'y' of a row changes when other rows come or go"),
        (any_names, {}, r"takes none of the example's columns \(x, y\): its arguments are found by name"),
        (param, {}, "'a' is a numpyro.param"),
        (subsample, {}, "'rows' takes a subsample of"),
        (two_plates, {}, "The plates .* all have a size that follows the rows; name theirs"),
        (normal, {"rows": "row"}, "rows = 'row', but no plate of this name .* the plates are rows"),
        (no_num_sites, {}, "takes site, .* but not num_sites"),
        (no_effects, {}, "no parameter has an entry for each client"),
        (no_effects, {"constants": {"num_sites": 3}}, "comes by itself; leave it out"),
        (failing, {}, "failed on the example's rows .*: KeyError: 'age'"),
        (normal, {"constants": {"z": 3}}, "constants has 'z', which the NumPyro model does not take"),
        (normal, {"example": {"X": np.zeros(1), "y": np.zeros(1)}}, "takes 'x', which is neither .* did you mean 'X'"),
        (normal, {"example": {"x": np.zeros(1)}}, "observes nothing"),
        (normal, {"example": {"x": np.zeros(0), "y": np.zeros(0)}}, "give at least one row"),
        (normal, {"example": {"x": np.zeros(1), "y": np.array([np.nan])}}, "first row is (nan|-inf)"),
        (normal, {"example": 3}, "example is 3"),
    ],
)
def test_what_is_no_product_over_rows_is_refused(function, settings, words):
    given: dict[str, Any] = {"example": EXAMPLE, **settings}
    with pytest.raises(ModelError, match=words):
        from_numpyro(function, **given)


def test_the_plate_of_rows_is_the_one_of_what_is_observed():
    def model(x, y):
        with numpyro.plate("idle", len(x)):
            pass
        normal(x, y)

    for rows in (None, "rows"):
        assert from_numpyro(model, EXAMPLE, rows=rows).loglikelihood_fn({"beta": 0.0}, EXAMPLE).shape == (1,)
    with pytest.raises(ModelError, match="No observed site is in the plate of rows, 'idle'; put 'y' there"):
        from_numpyro(model, EXAMPLE, rows="idle")


def school_moments() -> dict[str, Any]:
    """Mean and sd by quadrature over τ: given τ, all else is Gaussian.

    With v_j = τ² + σ_j² and precision P = 1 / 25 + Σ 1 / v_j:  μ | τ ~ N(Σ y_j / v_j / P, 1 / P), and θ_j | μ, τ is
    normal with mean μ + s_j (y_j − μ) and variance s_j σ_j², s_j = τ² / v_j.
    """
    y, sigma = np.array([28, 8, -3, 7, -1, 1, 18, 12.0]), np.array([15, 10, 16, 11, 9, 11, 10, 18.0])
    grid = np.sinh(np.linspace(0, np.arcsinh(400), 20001))
    v = grid[:, None] ** 2 + sigma**2
    precision = 1 / 25 + (1 / v).sum(axis=1)
    mean = (y / v).sum(axis=1) / precision
    log_density = stats.halfcauchy.logpdf(grid, scale=5) - 0.5 * np.log(v).sum(axis=1) - 0.5 * np.log(precision)
    log_density += -0.5 * (y**2 / v).sum(axis=1) + 0.5 * mean**2 * precision
    weight = np.exp(log_density - log_density.max())

    def over_tau(values) -> Any:
        return integrate.simpson((weight * values.T).T, x=grid, axis=0) / integrate.simpson(weight, x=grid)

    def of_mixture(means, variances):
        centre = over_tau(means)
        return centre, np.sqrt(over_tau(variances + means**2) - centre**2)

    share = grid[:, None] ** 2 / v
    theta = of_mixture(
        mean[:, None] + share * (y - mean[:, None]), share * sigma**2 + (1 - share) ** 2 / precision[:, None]
    )
    found = {"mu": of_mixture(mean, 1 / precision), "tau": of_mixture(grid, 0 * grid)}
    return found | {f"theta[{name}]": (theta[0][j], theta[1][j]) for j, name in enumerate("ABCDEFGH")}


@pytest.fixture(scope="module")
def schools():
    namespace: dict = {}
    exec(FILE + SCHOOLS.replace("draws = ", "draws = ").split("print(")[0], namespace)
    return namespace["draws"]


def test_eight_schools_each_a_site_of_one_row(schools):
    expected = school_moments()
    # The reference posterior of posteriordb has mu 4.4 ± 3.3 and tau 3.6 ± 3.2.
    np.testing.assert_allclose([expected["mu"], expected["tau"]], [[4.4, 3.3], [3.6, 3.2]], atol=0.06)
    table = schools.summary()
    off = [
        (
            (table.loc[name, "mean"] - mean) / table.loc[name, "mcse_mean"],
            (table.loc[name, "sd"] - sd) / table.loc[name, "mcse_sd"],
        )
        for name, (mean, sd) in expected.items()
    ]
    assert np.abs(off).max() < threshold(20)
    assert (table["mcse_mean"] / table["sd"]).max() < 0.03
    verdict = judge(schools, parameter_table(schools))
    assert verdict.status == "good" and schools.cost["rounds"] <= 6
