"""Sites that work as in a real federation, without its network: their draws are those of one process."""

import json
import logging
from typing import Any

import jax
import numpy as np
import pytest

import fahmc
from clinics import COLUMNS, SIZES, write_tables
from fahmc import FAHMC, DebiasedFAHMC, tree
from fahmc.data.columns import Columns
from fahmc.data.sites import RemoteFederation
from fahmc.data.study import build_study
from fahmc.data.tables import read_clients
from fahmc.engines.flare.engine import write_order
from fahmc.engines.flare.rounds import Rounds, ask_all, survey
from fahmc.engines.flare.rules import Rules
from fahmc.engines.flare.wire import merge_fn, reply_layout, state_layout
from fahmc.engines.flare.work import Work
from fahmc.engines.recipes import with_feature_names
from fahmc.errors import DataError, FederationError
from fahmc.runs.pacing import Pacing
from fahmc.runs.plan import Plan, make_plan, make_task

NUM_ROUNDS, SEED, CHAINS = 4, 11, 2
MODEL = fahmc.models.logistic_regression(prior_scale=2.0)
ASKED = COLUMNS | {"features": list(COLUMNS["features"])}
# Given, as a model's random start costs more to compile than to look at.
START = {"coefficients": np.array([[0.1, -0.2, 0.3], [0.0, 0.2, -0.1]]), "intercept": np.array([0.05, -0.05])}
# All momentum of the one is private, and none of the other's: each compiles only what it is to show.
PRIVATE = FAHMC(0.05, num_leapfrog_steps=2, momentum_correlation=0.0)
DEBIASED = DebiasedFAHMC(0.05, num_leapfrog_steps=1)


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    return write_tables(tmp_path_factory.mktemp("tables"))


@pytest.fixture(scope="module")
def shorter(tmp_path_factory):
    """The same with as many rows in the south as in the north, so that one compiled round serves both."""
    tables = write_tables(tmp_path_factory.mktemp("shorter"))
    lines = tables["south"].read_text().splitlines()
    tables["south"].write_text("\n".join(lines[: SIZES["north"] + 1]))
    return tables


@pytest.fixture(scope="module")
def pooled_here(shorter) -> fahmc.Federation:
    return fahmc.Federation.from_clients(build_study(read_clients(shorter), Columns(**COLUMNS)).clients)


class Sites:
    """Three sites, and a server that calls them without a network: what passes is JSON values and bytes."""

    def __init__(self, tables, secret: int = 0, **rules: Any):
        settings = {"columns": ["age", "group", "ill"], "minimum_rows": 30} | rules
        self.work = {
            name: Work(name, Rules(file=str(file), **settings), bytes([secret, place] * 16))
            for place, (name, file) in enumerate(tables.items())
        }

    def call(self, sites, method, seconds, arguments, /):
        return {site: getattr(self.work[site], method)(**arguments) for site in sites}, {}

    def survey(self, columns: Any = ASKED, weights: Any = None) -> dict[str, Any]:
        return survey(self.call, list(self.work), columns, weights, 1.0)

    def plan(self, sampler: FAHMC) -> Plan:
        """Ask the sites what they hold, as `Flare.open` does."""
        answer = json.loads(json.dumps(self.survey()))
        example = {name: np.zeros((1, *array["shape"]), array["dtype"]) for name, array in answer["arrays"].items()}
        weights = dict(zip(answer["sizes"], answer["weights"], strict=True))
        federation = RemoteFederation.from_reports(answer["sizes"], example, answer["marks"], weights, answer["about"])
        model = with_feature_names(MODEL, answer["about"]["feature_names"])
        return make_plan(
            model,
            federation,
            sampler,
            seed=SEED,
            private_seed=None,
            num_chains=CHAINS,
            init=START,
            dtype=np.dtype("float64"),
            row_space=False,
        )

    def run(self, sampler: FAHMC) -> tuple[np.ndarray, np.ndarray]:
        """Return the positions [chain, draw, dim] and squared drifts [chain, draw, client] of a few rounds."""
        plan = self.plan(sampler)
        order = written_order(plan)
        ask_all(self.call, list(self.work), "prepare", 1.0, {"order": order}, "to make ready")
        shape = (CHAINS, plan.potentials.dimension)
        rounds = Rounds(
            self.call,
            run=json.loads(order)["run"],
            weights={site["name"]: site["weight"] for site in json.loads(order)["sites"]},
            states=state_layout(sampler, shape, plan.dtype),
            replies=reply_layout(sampler, shape, plan.dtype),
            merge=merge_fn(sampler),
            seconds=1.0,
        )
        state, outcomes = jax.device_get(plan.start), []
        for round_index in range(NUM_ROUNDS):
            outcomes.append(rounds.advance(state, round_index))
            state = outcomes[-1].state
        positions = np.stack([outcome.state.position for outcome in outcomes], axis=1)
        return positions, np.stack([outcome.drift_squares for outcome in outcomes], axis=1)


def written_order(plan: Plan) -> str:
    """Say to the sites what to run, in the engine's own words."""
    return write_order(make_task(plan, Pacing(0, NUM_ROUNDS, 1, None, None)))


def assert_drawn_here(run: tuple[np.ndarray, np.ndarray], sampler: FAHMC, federation: fahmc.Federation, **options: Any):
    here = fahmc.sample(
        MODEL,
        federation,
        sampler,
        NUM_ROUNDS,
        num_chains=CHAINS,
        seed=SEED,
        init=START,
        dtype="float64",
        row_space=False,
        progress=False,
        **options,
    )
    positions, squares = run
    # The same arithmetic in another order.
    np.testing.assert_allclose(positions, tree.flatten_draws(here.positions), rtol=1e-10, atol=1e-12)
    drift = np.sqrt(squares @ federation.weights)
    np.testing.assert_allclose(drift, here.stats["client_drift"], rtol=1e-9)


@pytest.fixture(scope="module")
def private_run(shorter):
    """Three sites that each draw their momentum from a test seed instead of a secret, and what they drew."""
    sites = Sites(shorter, private_seed=5)
    return sites, sites.run(PRIVATE)


def test_private_momentum_from_a_test_seed_is_that_of_one_process(private_run, pooled_here):
    assert_drawn_here(private_run[1], PRIVATE, pooled_here, private_seed=5)


def test_debiased_sites_draw_what_one_process_draws(shorter, pooled_here):
    """There is nothing private in it, so the sites' secrets do not matter."""
    assert_drawn_here(Sites(shorter).run(DEBIASED), DEBIASED, pooled_here)


def test_a_secret_gives_the_same_momentum_again_and_another_gives_another(shorter, private_run):
    sites, _ = private_run
    order, state = written_order(sites.plan(PRIVATE)), {"position": np.ones((CHAINS, 4)).tobytes()}

    def reply(secret: int) -> np.ndarray:
        others = Sites(shorter, secret)
        others.survey()
        others.work["north"].prepare(order)
        answer = others.work["north"].local_round(json.loads(order)["run"], 2, state)
        return np.frombuffer(answer["reply"]["position"])

    first = reply(0)
    np.testing.assert_array_equal(reply(0), first)
    assert (reply(1) != first).all()


def test_a_round_that_is_run_again_gives_the_same_bits(private_run):
    """Sites keep nothing from round to round: they may be asked again, or out of order."""
    south = private_run[0].work["south"]
    state, run = {"position": np.ones((CHAINS, 4)).tobytes()}, south._run.identity
    first = south.local_round(run, 2, state)
    assert (first["site"], first["round"], set(first["reply"])) == ("south", 2, {"position"})
    assert south.local_round(run, 0, state)["reply"] != first["reply"]
    assert south.local_round(run, 2, state) == first


def test_a_site_answers_only_for_the_run_it_made_ready_for(private_run):
    sites, _ = private_run
    north = sites.work["north"]
    state = {"position": bytes(CHAINS * 4 * 8)}
    with pytest.raises(FederationError, match="this site was not told to make ready for this run"):
        north.local_round("another run", 0, state)
    with pytest.raises(FederationError, match="the server sent 56 bytes for position; 64 bytes were expected"):
        north.local_round(north._run.identity, 0, {"position": bytes(56)})


def test_sites_agree_on_their_rows_without_showing_them(tables):
    answer = Sites(tables).survey()
    # One row in each clinic lacks an age.
    assert answer["sizes"] == {name: size - 1 for name, size in SIZES.items()}
    assert answer["about"]["dropped"] == dict.fromkeys(SIZES, 1)
    assert answer["about"]["feature_names"] == ["age", "group[B]", "group[C]"]
    assert answer["about"]["outcome_levels"] == ["no", "yes"]
    assert answer["arrays"] == {"x": {"dtype": "float64", "shape": [3]}, "y": {"dtype": "int32", "shape": []}}
    assert sum(answer["weights"]) == pytest.approx(1)
    # The same rows have the same mark again, and another for who has another secret.
    assert Sites(tables).survey()["marks"] == answer["marks"]
    assert not set(Sites(tables, secret=1).survey()["marks"].values()) & set(answer["marks"].values())
    weights = {"east": 0.5, "north": 0.3, "south": 0.2}
    assert Sites(tables).survey(weights=weights)["weights"] == [0.3, 0.2, 0.5]


def test_a_changed_cell_changes_the_mark_of_its_site_alone(tmp_path):
    tables = write_tables(tmp_path)
    before = Sites(tables).survey(ASKED | {"standardize": False})["marks"]
    text = tables["south"].read_text()
    line = text.splitlines()[1]
    tables["south"].write_text(text.replace(line, "33.3" + line[line.index(",") :], 1))
    after = Sites(tables).survey(ASKED | {"standardize": False})["marks"]
    assert [name for name in before if before[name] != after[name]] == ["south"]


@pytest.mark.parametrize(
    ("rules", "columns", "error", "words"),
    [
        ({}, {"features": ["age", "income"]}, FederationError, "columns 'income' may not be used here"),
        ({}, {"outcome": "income", "outcome_positive": None}, FederationError, "columns 'income' may not be used here"),
        ({}, {"features": ["height"]}, DataError, r"no column 'height' in north\.csv .* It has: age, group, ill\."),
        ({}, {"missing": "error"}, DataError, r"lacks values in 'age' \(1\)"),
        ({"minimum_rows": 60}, {}, FederationError, "only with at least 60 complete rows, and has fewer"),
        ({"minimum_rows": 61}, {}, FederationError, "only with at least 61 complete rows, and has fewer"),
    ],
)
def test_sites_refuse_what_their_rules_do_not_allow(tables, rules, columns, error, words):
    with pytest.raises(error, match=words) as refusal:
        Sites(tables, **rules).survey(ASKED | columns)
    assert "income" not in str(refusal.value) or "income" in str(columns), "nobody need know of other columns"


def test_what_was_not_named_is_not_sent_though_the_server_asks_for_it(tables):
    """The rules are kept at every step, not only at the first."""
    north = Sites(tables).work["north"]
    request = {"columns": ASKED, "features": ["age", "income"]}
    with pytest.raises(FederationError, match="columns 'income' may not be used here"):
        north.summarize(json.dumps(request))
    encoding = {"features": ["income"], "levels": {}, "outcome_levels": ["no", "yes"], "standardization": {}}
    with pytest.raises(FederationError, match="columns 'income' may not be used here"):
        north.encode(json.dumps({"columns": ASKED, "encoding": encoding}))
    with pytest.raises(DataError, match=r"north\.csv is not an \.npz file, whose arrays can go as they are"):
        north.take_arrays()


def test_what_is_wrong_with_a_file_stays_at_the_site(tmp_path, caplog):
    (tmp_path / "north.csv").write_text("secret;columns\n1;2\n")
    work = Work("north", Rules(file=str(tmp_path / "north.csv"), columns="all"), bytes(32))
    caplog.set_level(logging.WARNING, logger="fahmc")
    with pytest.raises(DataError, match=r"^this site's file cannot be read; its log says why\.$") as refusal:
        work.list_columns(json.dumps(ASKED))
    assert refusal.value.__suppress_context__ and "secret;columns" in caplog.text


def test_arrays_go_as_they_are_if_they_are_allowed(tmp_path):
    rng = np.random.default_rng(1)
    arrays = {"x": rng.normal(size=(12, 2)), "y": np.arange(12), "names": rng.normal(size=12)}
    np.savez(tmp_path / "north.npz", **arrays)  # type: ignore
    rules = Rules(file=str(tmp_path / "north.npz"), columns=["x", "y"])
    answer = Work("north", rules, bytes(32)).take_arrays()
    assert answer["num_rows"] == 12 and answer["arrays"] == {
        "x": {"dtype": "float64", "shape": [2]},
        "y": {"dtype": "int64", "shape": []},
    }
    with pytest.raises(FederationError, match="only with at least 13 complete rows"):
        Work("north", rules.model_copy(update={"minimum_rows": 13}), bytes(32)).take_arrays()


def short_order(**changes: Any) -> str:
    """Write as much of an order as a site reads before it refuses it."""
    order: dict[str, Any] = {
        "run": "a run",
        "model": {"name": "logistic_regression"},
        "sampler": {"class": "FAHMC", "step_size": 0.1},
        "dtype": "float64",
    }
    return json.dumps(order | changes)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"model": {"name": "mlp", "num_classes": 2}}, FederationError, "the model 'mlp' may not run here; this site"),
        ({"model": {"object": "os:system"}}, FederationError, "The model 'os:system' is not ready-made and not listed"),
        ({"sampler": {"class": "Popen"}}, FederationError, "The job names 'Popen', which is not among"),
        ({"model": {"name": "poisson_regression"}}, DataError, "its rows do not fit the model; its log says why"),
        ({"sampler": {"class": "FAHMC", "step_size": 0.1, "gradient": {"class": "Minibatch", "size": 60}}}, DataError,
         "Minibatch size 60 is larger than client 'north', which has 59 rows"),
    ],
)  # fmt: skip
def test_orders_that_a_site_does_not_take(tables, changes, error, words):
    sites = Sites(tables, models=["logistic_regression", "poisson_regression"])
    north = sites.work["north"]
    with pytest.raises(FederationError, match="this site was not asked for its rows before the run"):
        north.prepare(short_order(**changes))
    # Ages with a decimal are no counts.
    is_poisson = changes.get("model", {}).get("name") == "poisson_regression"
    asked = ASKED | ({"outcome": "age", "outcome_positive": None, "features": ["group"]} if is_poisson else {})
    sites.survey(asked)
    with pytest.raises(error, match=words) as refusal:
        north.prepare(short_order(**changes))
    assert "row 0" not in str(refusal.value), "what is wrong with its rows stays at the site"
    with pytest.raises(FederationError, match="not told to make ready"):
        north.local_round("a run", 0, {})


def test_the_same_plan_is_the_same_order_and_another_is_another(private_run):
    sites, _ = private_run
    plan = sites.plan(PRIVATE)
    order = written_order(plan)
    assert written_order(sites.plan(PRIVATE)) == order
    other = written_order(plan._replace(settings=plan.settings | {"seed": SEED + 1}))
    assert json.loads(other)["run"] != json.loads(order)["run"]
    assert json.loads(order)["model"]["feature_names"] == ["age", "group[B]", "group[C]"]
    assert json.loads(order)["num_rows"] == 59 + 59 + 39
