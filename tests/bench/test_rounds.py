"""Problems, references and the runner of `fahmc bench rounds`.

`references.json` holds mean and sd of every parameter as `references.make_reference` found them (20,000 to 80,000 draws
of NUTS given all rows, Monte Carlo errors below 0.02 sd), rounded to six figures.
"""

import json
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from typer.testing import CliRunner

from fahmc.bench import peers
from fahmc.bench.rounds import families, simulated, tables
from fahmc.bench.rounds.kept import Kept
from fahmc.bench.rounds.measure import Measured, deviation, judge, measure, sample_without_settings
from fahmc.bench.rounds.problems import UNSEEN, names, problem
from fahmc.bench.rounds.references import Reference, newton, pooled_potential
from fahmc.bench.rounds.results import Judged, Results
from fahmc.bench.rounds.rivals import Bytes, Rival, Trail, contest, follow, laplace
from fahmc.bench.rounds.suite import Plan, run_plan
from fahmc.cli.app import app
from fahmc.errors import SettingsError

MOMENTS = json.loads(Path(__file__).with_name("references.json").read_text())
GOOD = Measured(
    "opt", 0, 3, limit=8, rounds=5, bytes_to_clients=9e3, bytes_to_server=2e5, seconds=2.0, ess=2800.0, mean_error=0.02,
    sd_error=0.03, k_hat=0.4,
)  # fmt: skip

# Clients and length of a flat position of what needs no file.
SHAPES = {
    "opt": (4, 13),
    "opt_horseshoe": (4, 26),
    "logistic_50": (20, 50),
    "logistic_200": (20, 200),
    "student_t": (6, 11),
    "linear_scale": (5, 8),
    "nearly_separable": (4, 8),
    "hierarchical_centred": (4, 16),
    "hierarchical_noncentred": (4, 16),
    "poisson": (5, 20),
    "softmax": (5, 35),
}


@pytest.mark.parametrize("name", SHAPES)
def test_problems_have_one_finite_likelihood_a_row_and_a_prior(name):
    made = problem(name)
    rows = made.federation.pooled().rows[0]
    position = made.model.initial_position(jax.random.key(0), rows)
    fits = made.model.row_loglikelihoods(position, jax.tree.map(jnp.asarray, rows))
    assert (made.federation.num_clients, len(ravel_pytree(position)[0])) == SHAPES[name]
    assert fits.shape == (made.federation.num_rows,)
    assert np.isfinite(fits).all() and np.isfinite(made.model.logprior_fn(position))


def test_a_seed_makes_the_same_rows_and_another_seed_others():
    first, again, other = (problem("student_t", seed).federation.rows[0]["y"] for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_an_unknown_problem_is_refused():
    with pytest.raises(SettingsError, match="There is no problem 'heat'; choose from opt, "):
        problem("heat")
    assert set(SHAPES) < set(names())


def test_both_coordinates_of_the_hierarchy_are_one_posterior():
    """The log densities differ by the Jacobian of a -> μ + τ a, which is τ for every site."""
    [rows, *_] = simulated.sites(seed=0)
    rows = jax.tree.map(jnp.asarray, rows)
    centred, other = (families.site_intercepts(10, 4, is_centred=is_centred) for is_centred in (True, False))
    position = other.initial_position(jax.random.key(1), rows)
    sites = position["mean"] + jnp.exp(position["log_scale"]) * position["sites"]

    def log_density(model, at):
        return jnp.sum(model.row_loglikelihoods(at, rows)) + model.logprior_fn(at)

    difference = log_density(other, position) - log_density(centred, position | {"sites": sites})
    np.testing.assert_allclose(difference, 4 * position["log_scale"], rtol=1e-10)


def test_the_horseshoe_shrinks_to_the_slab():
    """β → z τ λ for small τ λ, and z c for large ones, where the prior is the slab's N(0, c²)."""
    model = families.horseshoe(2, num_rows=100, num_relevant=1, slab_scale=2.5)
    row = {"x": jnp.array([[1.0, 0.0]]), "y": jnp.array([1.0])}
    shared = {"z": jnp.array([1.0, 1.0]), "log_global": jnp.array(0.0), "intercept": jnp.array(0.0)}
    for log_local, coefficient in ((-20.0, 0.0), (20.0, 2.5)):
        fit = model.row_loglikelihoods(shared | {"log_local": jnp.full(2, log_local)}, row)
        np.testing.assert_allclose(fit, -np.log1p(np.exp(-coefficient)), atol=1e-7)


@contextmanager
def jax_as_it_comes():
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"), jax.debug_key_reuse(False):
        yield


@pytest.fixture
def _as_users_have_it():
    """Let JAX be set as it is by default."""
    with jax_as_it_comes():
        yield


def as_reference(mean, sd, **others) -> Reference:
    mean, sd = np.asarray(mean), np.asarray(sd)
    kept: dict[str, Any] = dict(ess=1e4, r_hat=1.001, num_divergent=0, potential=0.0)
    return Reference(mean, sd, 0.01 * sd, 0.01 * sd, **(kept | others))


@pytest.fixture(scope="module")
def opt_draws():
    with jax_as_it_comes():
        return sample_without_settings(problem("opt"), seed=0)


def test_a_posterior_without_settings_costs_few_rounds(opt_draws):
    made = judge(opt_draws, as_reference(**MOMENTS["opt"]), problem="opt", data_seed=0, seed=0, limit=8)
    assert made.faults == () and made.doubts == ()


@pytest.mark.usefixtures("_as_users_have_it")
def test_others_cost_few_rounds_too():
    """One of them; ``fahmc bench rounds`` has them all."""
    made = measure(problem("student_t"), as_reference(**MOMENTS["student_t"]), seed=1)
    assert made.faults == () and made.doubts == ()


def test_a_wrong_posterior_fails(opt_draws):
    """Negative controls: one mean moved, one sd scaled."""
    mean, sd = np.array(MOMENTS["opt"]["mean"]), np.array(MOMENTS["opt"]["sd"])
    one = np.eye(len(mean))[4]
    about = dict(problem="opt", data_seed=0, seed=0, limit=8)
    [moved] = judge(opt_draws, as_reference(mean + 0.2 * sd * one, sd), **about).faults
    [wider] = judge(opt_draws, as_reference(mean, sd * (1 - 0.2 * one)), **about).faults
    assert moved.startswith("a mean 0.") and wider.startswith("an sd 2")


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (dict(rounds=9), "9 rounds, 8 allowed"),
        (dict(ess=399.0), "ESS 399, 400 wanted"),
        (dict(mean_error=0.11), "a mean 0.11 sd off"),
        (dict(sd_error=0.11), "an sd 11 % off"),
        (dict(sd_error=np.nan), "an sd nan % off"),
        (dict(error="There is no posterior to sample."), "There is no posterior to sample."),
    ],
)
def test_a_run_passes_if_all_limits_are_kept(change, fault):
    assert GOOD.faults == ()
    assert replace(GOOD, **change).faults == (fault,)


@pytest.mark.usefixtures("_as_users_have_it")
def test_an_error_of_the_sampler_is_a_failed_run():
    """Without rows for it, a flat prior leaves coefficients free."""
    made = problem("linear_scale")
    flat = replace(made, federation=made.federation.from_clients([{"x": np.zeros((4, 6)), "y": np.arange(4.0)}]))
    failed = measure(flat, as_reference(np.zeros(8), np.ones(8)), seed=0)
    assert failed.error is not None and failed.faults == (failed.error,)


def test_references_are_judged_too():
    assert as_reference(np.zeros(2), np.ones(2)).faults == ()
    bad = as_reference(np.zeros(2), np.ones(2), r_hat=1.02, num_divergent=7)
    assert bad.faults == ("R-hat 1.020", "7 divergences")
    assert not Judged("opt", 0, 8, bad, [GOOD]).is_good


def test_finished_runs_are_kept(tmp_path):
    def opened():
        return Kept(tmp_path / "runs.jsonl", Measured, ("problem", "data_seed", "seed"))

    opened().add(GOOD)
    with (tmp_path / "runs.jsonl").open("a") as file:
        file.write('{"problem": "op')  # a kill came in between
    found = opened().get("opt", 0, 3)
    assert found is not None and found.faults == () and found.rounds == 5
    assert opened().get("opt", 0, 4) is None


def test_results_say_what_is_not_as_it_must_be(tmp_path):
    reference = as_reference(np.zeros(2), np.ones(2))
    judged = [Judged("opt", 0, 8, reference, [GOOD, replace(GOOD, seed=4, rounds=9, doubts=("Perhaps not.",))])]
    results = Results({}, [*judged, Judged("wine", 0, 30, reference, [GOOD], is_unseen=True)])
    files = results.write(tmp_path)
    text = files[1].read_text()
    assert "| opt | 1 of 2 | 5 to 9 | 8 | 9.00 kB | 200 kB | 2,800 | 0.020 | 3.0 % | 0.40 | 1 | 2.0 |" in text
    assert "- opt, seed 4: 9 rounds, 8 allowed." in text
    assert "On 1 of 2 problems every run keeps to" in text
    assert "## Tables not looked at before" in text
    assert [one["is_good"] for one in json.loads(files[0].read_text())["problems"]] == [False, True]


def test_rivals_are_followed_until_they_are_good():
    reference, rng = as_reference(np.zeros(2), np.ones(2)), np.random.default_rng(0)
    draws, rounds = rng.normal(size=(8, 1000, 2)), 10 + 3 * np.arange(1, 1001)
    found = follow(Trail("", draws, rounds, Bytes(8.0, 16.0), bytes_before=Bytes(1.0, 2.0), rounds_before=5), reference)
    assert found.is_good and 400 <= found.ess and 3 * 40 < found.rounds < 3 * 400
    assert found.bytes_to_clients == 8 * (found.rounds - 5) + 1
    never = follow(Trail("", draws + 0.2, rounds, Bytes(8.0, 16.0)), reference)
    assert not never.is_good and never.tried == 3010
    assert never.words.startswith("never in 3,010 rounds (means 0.2")
    trails = [Trail(name, draws + shift, rounds, Bytes(8.0, 16.0)) for name, shift in (("off", 0.2), ("on", 0.0))]
    assert contest(Rival("mine", lambda *about: iter(trails)), problem("opt"), reference).settings == "on"


def test_newton_finds_a_mode_and_counts_what_it_asks():
    """Of a quadratic: the start, and the one step that ends there."""
    curvature = jnp.array([[2.0, 1.0], [1.0, 3.0]])
    mode, found, num_asked = newton(lambda at: (at - 1) @ curvature @ (at - 1) / 2, np.zeros(2))
    np.testing.assert_allclose(mode, 1.0)
    np.testing.assert_allclose(found, curvature)
    assert num_asked == 2


def test_laplace_is_off_on_few_rows():
    """The trial's rare covariates skew the posterior: the mode is no mean."""
    reference = as_reference(**MOMENTS["opt"])
    [trail] = laplace(problem("opt"), reference)
    off = deviation(trail.draws, reference)
    assert 0.1 < off.mean < 0.5 and trail.rounds[-1] < 10


def test_tables_that_are_missing_stop_only_who_asks_for_them(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "find_spec", lambda package: None)
    with pytest.raises(SettingsError, match=r'scikit-learn, which is not installed; run: pip install "fahmc\[bench\]"'):
        run_plan(Plan(("wine",), num_seeds=1), tmp_path, lambda message: None)
    monkeypatch.setattr("fahmc.bench.rounds.suite.names", lambda: ("wine",))
    results = run_plan(Plan(), tmp_path, lambda message: None)
    assert results.judged == [] and results.notes[0].startswith("wine was left out. The table wine comes with")


@pytest.mark.parametrize("name", UNSEEN)
def test_tables_are_dealt_to_unlike_clients_in_their_own_units(name):
    pytest.importorskip("sklearn", reason="scikit-learn is missing, so its tables are not dealt")
    made = problem(name)
    potential_fn, starts = pooled_potential(made, 1)
    assert np.isfinite(potential_fn(starts[0]))
    x = made.federation.pooled().rows[0]["x"]
    assert x.std(axis=0).max() > 50 * x.std(axis=0).min()


def bench(*arguments):
    return CliRunner().invoke(app, ["bench", *arguments])


@pytest.mark.usefixtures("_as_users_have_it")
def test_the_command_counts_rounds(tmp_path):
    pytest.importorskip("numpyro", reason="numpyro is missing, so there is no reference")
    done = bench("rounds", "--quick", "--json", "--out", str(tmp_path))
    again = bench("rounds", "--quick", "--out", str(tmp_path))
    assert done.exit_code == 0
    [found] = json.loads(done.stdout)["problems"]
    assert found["problem"] == "linear_scale" and found["runs"][0]["rounds"] <= found["limit"]
    made = {".fahmc", "results.json", "table.md", "runs.jsonl", "references"}
    assert {file.name for file in tmp_path.iterdir()} == made
    assert "1 run is kept in" in again.stderr and "A quick run shows that everything works" in again.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rounds", "--repeats", "2"], "--repeats says nothing here: rounds takes no turns. Leave it out."),
        (["federation", "--seconds", "2"], "--seconds says nothing here: federation takes no turns."),
        (["W4", "--seeds", "2"], "--seeds says nothing here: it is for `fahmc bench rounds`."),
        (["--rivals"], "--rivals says nothing here"),
        (["rounds", "W4"], "rounds is measured by itself"),
        (["rounds", "--problem", "heat"], "There is no problem 'heat'; choose from opt, "),
    ],
)
def test_options_that_would_be_ignored_are_refused(arguments, message, tmp_path):
    done = bench(*arguments, "--out", str(tmp_path))
    assert done.exit_code == 2
    assert message in done.stderr


def test_references_need_numpyro(tmp_path, monkeypatch):
    monkeypatch.setattr(peers, "find_spec", lambda package: None)
    done = bench("rounds", "--quick", "--out", str(tmp_path))
    assert done.exit_code == 2
    assert (
        'numpyro is not installed, so there is nothing to compare with; run: pip install "fahmc[bench]"' in done.stderr
    )
