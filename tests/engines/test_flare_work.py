"""Engine, server and sites work together as in a real federation, without its network: one process' draws come out."""

import json
import logging
import re
import threading
import uuid
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fahmc
from clinics import COLUMNS, SIZES, write_tables
from fahmc import FAHMC, DebiasedFAHMC
from fahmc.data.columns import Columns
from fahmc.data.study import build_study
from fahmc.data.tables import read_clients
from fahmc.engines import Flare
from fahmc.engines.flare import server, site
from fahmc.engines.flare.messages import Close, Stop, write_request
from fahmc.engines.flare.refusals import Refusal, Refused
from fahmc.engines.flare.rules import Rules
from fahmc.engines.flare.session import raise_end
from fahmc.engines.flare.survey import survey
from fahmc.engines.flare.work import Work
from fahmc.engines.order import Order
from fahmc.errors import DataError, FederationError, ModelError, SettingsError
from fahmc.runs.plan import make_run
from kit_forge import Authority
from own_samplers import Clipped, ServerLangevin, Unlisted

MODEL = fahmc.models.logistic_regression(prior_scale=2.0)
ASKED = COLUMNS | {"features": list(COLUMNS["features"])}
# Given, as a model's random start costs more to compile than to look at.
START = {"coefficients": np.array([[0.1, -0.2, 0.3], [0.0, 0.2, -0.1]]), "intercept": np.array([0.05, -0.05])}
RUN: dict[str, Any] = {"num_rounds": 4, "num_chains": 2, "seed": 11, "init": START, "dtype": "float64"}
# All momentum of the one is private, and none of the other's: each compiles only what it is to show.
PRIVATE = FAHMC(0.05, num_leapfrog_steps=2, momentum_correlation=0.0)
SAMPLERS = {
    "private momentum and minibatches": replace(PRIVATE, gradient=fahmc.Minibatch(20)),
    "a phase before the first round": DebiasedFAHMC(0.05, num_leapfrog_steps=1),
    "a course, and gradients along": FAHMC(0.2, 1, correction="curvature", with_gradients=True),
    "a sampler of one's own": ServerLangevin(0.001),
}
AUTO = {"leader": {"name": "Auto"}}
OWN = ["own_samplers:ServerLangevin", "own_samplers:Clipped"]


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


def workers(tables, secret: int = 0, **rules: Any) -> dict[str, Work]:
    settings = {"columns": ["age", "group", "ill"], "minimum_rows": 30, "rows_per_parameter": 4} | rules
    known = Authority().identities(list(tables))
    return {
        name: Work(name, Rules(file=str(file), **settings), bytes([secret, place] * 16), known[name])
        for place, (name, file) in enumerate(tables.items())
    }


def answered(work: dict[str, Work], sites, method: str, arguments) -> dict[str, Any]:
    """Call sites as the server does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site, "collab", SimpleNamespace(caller="server"))
        return {name: site._answered(getattr(work[name], method))(**arguments) for name in sites}


def caller(work: dict[str, Work]):
    return lambda sites, method, seconds, arguments: (answered(work, sites, method, arguments), {})


def asked(tables, columns: Any = None, weights: Any = None, **settings: Any) -> dict[str, Any]:
    """Return what sites answer to a survey."""
    work = workers(tables, **settings)
    return survey(caller(work), list(work), ASKED | (columns or {}), weights, 1.0)


class Nearby:
    """A job whose server and sites are objects: between analyst and server JSON passes, between server and sites bytes.

    To the engine it is a `fahmc.engines.flare.session.Session`.
    """

    number = 1

    def __init__(self, folder, work: dict[str, Work], server_lists: list[str]):
        self.kit: Any = SimpleNamespace(sites=tuple(work))
        self._server, self._work, self._folder = server.Server(), work, folder
        (folder / "server.toml").write_text(f"own_samplers = {json.dumps(server_lists)}")

    def __enter__(self) -> Flare:
        workspace = SimpleNamespace(get_site_config_dir=lambda: str(self._folder / "local"))
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(server, "collab", SimpleNamespace(is_aborted=False, workspace=workspace))
        self._patch.setattr(server, "call_sites", self._call)
        self._patch.setattr(site, "collab", SimpleNamespace(caller="server"))
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        engine: Any = Flare("no kit")
        engine._session, engine._is_kept = self, True
        return engine

    def __exit__(self, *error: object) -> None:
        self.command(Close())
        self._thread.join()
        self._patch.undo()

    def _serve(self) -> None:
        while not self._server._is_closing:
            self._server._desk.serve_one(self._server._work, 0.1)

    def _call(self, sites, method, seconds, arguments, /):
        return {name: site._answered(getattr(self._work[name], method))(**arguments) for name in sites}, {}

    def insist(self, action, is_stopping=None):
        return action()

    def command(self, request, wait: float = 2.0, identity: str = "") -> dict[str, Any]:
        values = json.loads(json.dumps(write_request(request) | {"wait": wait, "id": identity}))
        return json.loads(json.dumps(self._server._command("fahmc", values, None)))

    def ask(self, request, seconds: float) -> dict[str, Any]:
        identity = uuid.uuid4().hex
        while (answer := self.command(request, identity=identity)).get("pending"):
            pass
        raise_end(answer.get("end"))
        return answer

    def check_job(self) -> None:
        assert self._thread.is_alive()

    def stop_run(self) -> None:
        self.command(Stop())


@pytest.fixture(scope="module")
def nearby_draws(shorter, short_shuffles, tmp_path_factory):
    """What three sites draw, one after the other, that draw their private parts from a test seed instead of secrets."""
    # Masks where there can be: not for the sampler that is told each site's potential.
    work = workers(shorter, private_seed=5, own_samplers=OWN, secure_sum="allowed")
    with Nearby(tmp_path_factory.mktemp("server"), work, OWN) as engine:
        yield lambda sampler: fahmc.sample(MODEL, fahmc.Sites(**COLUMNS), sampler, engine=engine, **RUN)


@pytest.mark.parametrize("name", SAMPLERS)
def test_draws_are_those_of_one_process(nearby_draws, shorter, name):
    remote = nearby_draws(SAMPLERS[name])
    pooled = fahmc.Federation.from_clients(build_study(read_clients(shorter), Columns(**COLUMNS)).clients)
    here = fahmc.sample(MODEL, pooled, SAMPLERS[name], row_space=False, private_seed=5, **RUN)
    assert remote.stats.keys() == here.stats.keys()
    for found, expected in ((remote.positions, here.positions), (remote.stats, here.stats)):
        for part, values in expected.items():
            # The same arithmetic in another order. How far clients stray is known to a share of how far they go, as
            # the sum over sites is all that is told.
            rtol, atol = (1e-6, 1e-6) if part == "client_drift" else (1e-9, 1e-12)
            np.testing.assert_allclose(found[part], values, rtol=rtol, atol=atol)
    assert (remote.gradients is None) == (here.gradients is None)
    if remote.gradients is not None and here.gradients is not None:
        np.testing.assert_allclose(remote.gradients, here.gradients, rtol=1e-9, atol=1e-9)
    assert remote.coords["feature"] == ["age", "group[B]", "group[C]"]
    assert remote.cost["bytes_to_clients"] == here.cost["bytes_to_clients"] > 0
    is_plain = isinstance(SAMPLERS[name], ServerLangevin)
    assert (remote.cost["bytes_to_server"] == here.cost["bytes_to_server"]) == is_plain, "words are larger"
    assert {phase["is_masked"] for phase in remote.account["messages"]} == {not is_plain}
    if is_plain:
        np.testing.assert_array_equal(remote.stats["num_rows"], 59 + 59 + 39)
        np.testing.assert_array_equal(remote.stats["rounds"], [[1, 2, 3, 4]] * 2)
    else:
        assert remote.client_drift is None, "nobody knows how far each site strays"


@pytest.mark.parametrize(
    ("sampler", "at_server", "at_sites", "words"),
    [
        (ServerLangevin(0.1), [], OWN, r"^The server refuses .*'own_samplers:ServerLangevin' is not part of fahmc"),
        (ServerLangevin(0.1), OWN, [], r"^Site 'north' refuses to make .*'own_samplers:ServerLangevin' is not part of"),
        (
            Unlisted(0.1),
            OWN,
            OWN,
            r"^The server .*'own_samplers:Unlisted' .*own_samplers = \[\"own_samplers:Unlisted\"\]",
        ),
        (FAHMC(0.1, gradient=Clipped(5.0)), OWN, OWN[:1], "'north' refuses to make ready .* 'own_samplers:Clipped' is"),
    ],
)
def test_what_is_one_s_own_runs_only_where_it_is_listed(tables, tmp_path, sampler, at_server, at_sites, words):
    with Nearby(tmp_path, workers(tables, own_samplers=at_sites), at_server) as engine:
        with pytest.raises(FederationError, match=words):
            fahmc.sample(MODEL, fahmc.Sites(**COLUMNS), sampler, engine=engine, **RUN)


def test_effects_of_sites_are_told_only_where_the_sites_share_them(shorter, tmp_path):
    model, sampler = fahmc.models.logistic_regression(site_effects="intercept"), FAHMC(0.05, 1)
    settings: dict[str, Any] = {"num_rounds": 2, "num_chains": 2, "dtype": "float64"}

    def sample(**rules: Any) -> fahmc.Draws:
        with Nearby(tmp_path, workers(shorter, **rules), []) as engine:
            return fahmc.sample(model, fahmc.Sites(**COLUMNS), sampler, engine=engine, **settings)

    with pytest.raises(FederationError, match=r"^Site 'north' refuses .*tells the effect of each .* \"private inter"):
        sample()
    remote = sample(site_effects="shared")
    pooled = fahmc.Federation.from_clients(build_study(read_clients(shorter), Columns(**COLUMNS)).clients)
    here = fahmc.sample(model, pooled, sampler, **settings)
    assert remote.positions.keys() == here.positions.keys()
    for name, values in here.positions.items():
        np.testing.assert_allclose(remote.positions[name], values, rtol=1e-9)
    assert {f"site_effect[{name}]" for name in SIZES} < set(remote.summary().index)


def test_what_cannot_be_sent_is_refused_before_anybody_is_asked(tmp_path):
    sites = fahmc.Sites(**COLUMNS)
    with Nearby(tmp_path, {}, []) as engine:
        with pytest.raises(SettingsError, match="HMC runs on one machine; a federation takes FAHMC, FALD or Debiased"):
            fahmc.sample(MODEL, sites, fahmc.HMC(0.1), engine=engine, **RUN)
        with pytest.raises(SettingsError, match=r"step_size is <function .* cannot be sent to sites"):
            fahmc.sample(MODEL, sites, FAHMC(lambda t: 0.1), engine=engine, **RUN)


def test_what_a_formula_says_reaches_the_model_and_the_sites(tables, tmp_path):
    sites = fahmc.Sites(formula="ill ~ 0 + age * group", outcome_positive="yes", missing="drop")
    with Nearby(tmp_path, workers(tables), []) as engine:
        model, federation = engine.open(MODEL, sites, PRIVATE)
        names = list(model.coords["feature"])
        assert names == federation.about["feature_names"] and names[0] == "age" and names[-1].startswith("age:group[T.")
        assert model.recipe is not None and model.recipe["intercept"] is False
        with pytest.raises(ModelError, match=r"mlp has no setting site_effects"):
            grouped = fahmc.Sites(formula="ill ~ age + (1 | site)", outcome_positive="yes")
            engine.open(fahmc.models.mlp(num_classes=2), grouped, PRIVATE)


@pytest.fixture(scope="module")
def order(shorter, tmp_path_factory) -> Order:
    """What the sites are told of a run."""
    with Nearby(tmp_path_factory.mktemp("server"), workers(shorter), []) as engine:
        model, federation = engine.open(MODEL, fahmc.Sites(**COLUMNS), PRIVATE)
    settings: dict[str, Any] = RUN | {"dtype": np.dtype("float64")}
    run = make_run(model, federation, PRIVATE, **settings)
    return Order.of(run, run.phases[-1])


def test_an_order_is_its_text(order):
    assert Order.read(order.text) == order and Order.read(order.text).identity == order.identity
    assert replace(order, seed=12).identity != order.identity
    assert order.model["feature_names"] == ["age", "group[B]", "group[C]"] and order.num_rows == 59 + 59 + 39
    assert list(order.weights) == ["north", "south", "east"] and order.leaf_shapes["coefficients"] == [3]
    for text in ("", "[]", "{}", order.text.replace('"num_chains":2', '"num_chains":"many"')):
        with pytest.raises(FederationError, match="the order cannot be read; is this fahmc as new as the analyst's"):
            Order.read(text)


STATE = {"position": np.ones((2, 4)).tobytes()}


@pytest.fixture(scope="module")
def ready(shorter, order):
    """Return a function that makes a site ready for the order, with a secret of its choice."""

    def make(secret: int) -> Work:
        work = workers(shorter, secret, secure_sum="off")
        survey(caller(work), list(work), ASKED, None, 1.0)
        work["south"].prepare(order.text)
        return work["south"]

    return make


@pytest.fixture(scope="module")
def south(ready):
    return ready(0)


def test_a_secret_gives_the_same_momentum_again_and_another_gives_another(ready, south, order):
    def position(site: Work) -> np.ndarray:
        return np.frombuffer(site.local_round(order.identity, 2, STATE)["reply"]["position"])

    np.testing.assert_array_equal(position(ready(0)), position(south))
    assert (position(ready(1)) != position(south)).all()


def test_a_round_that_is_run_again_gives_the_same_bits(south, order):
    """Sites keep nothing from round to round: they may be asked again, or out of order."""
    first = south.local_round(order.identity, 2, STATE)
    assert (first["site"], first["round"], set(first["reply"])) == ("south", 2, {"position"})
    assert south.local_round(order.identity, 0, STATE)["reply"] != first["reply"]
    assert south.local_round(order.identity, 2, STATE) == first


def test_a_site_answers_only_for_the_run_it_made_ready_for(south, order):
    with pytest.raises(Refused, match="this site was not told to make ready for this run"):
        south.local_round("another run", 0, STATE)
    with pytest.raises(Refused, match="what the server sent is not what the order says") as refusal:
        south.local_round(order.identity, 0, {"position": bytes(56)})
    assert "sent 56 bytes for position; 64 bytes were expected" in str(refusal.value.__cause__), "for the site's log"


def test_sites_agree_on_their_rows_without_showing_them(tables):
    answer = asked(tables)
    # One row in each clinic lacks an age.
    assert answer["sizes"] == {name: size - 1 for name, size in SIZES.items()}
    assert answer["about"]["dropped"] == dict.fromkeys(SIZES, 1)
    assert answer["about"]["feature_names"] == ["age", "group[B]", "group[C]"]
    assert answer["about"]["outcome_levels"] == ["no", "yes"]
    assert answer["arrays"] == {"x": {"dtype": "float64", "shape": [3]}, "y": {"dtype": "int32", "shape": []}}
    assert sum(answer["weights"]) == pytest.approx(1)
    # The same rows have the same mark again, and another for who has another secret.
    assert asked(tables)["marks"] == answer["marks"]
    assert not set(asked(tables, secret=1)["marks"].values()) & set(answer["marks"].values())
    weights = {"east": 0.5, "north": 0.3, "south": 0.2}
    assert asked(tables, weights=weights)["weights"] == [0.3, 0.2, 0.5]


def test_a_changed_cell_changes_the_mark_of_its_site_alone(tmp_path):
    tables = write_tables(tmp_path)
    before = asked(tables, {"standardize": False})["marks"]
    text = tables["south"].read_text()
    line = text.splitlines()[1]
    tables["south"].write_text(text.replace(line, "33.3" + line[line.index(",") :], 1))
    after = asked(tables, {"standardize": False})["marks"]
    assert [name for name in before if before[name] != after[name]] == ["south"]


@pytest.mark.parametrize(
    ("rules", "columns", "error", "words"),
    [
        ({}, {"features": ["age", "income"]}, DataError, "no column 'income' in what others may use of client 'north'"),
        ({}, {"outcome": "income", "outcome_positive": None}, DataError, r"no column 'income' .* It has: age, group, "),
        ({}, {"features": ["height"]}, DataError, r"no column 'height' in what others .* It has: age, group, ill\."),
        ({}, {"features": ["agee"]}, DataError, "no column 'agee' .*, did you mean 'age'"),
        ({}, {"missing": "error"}, DataError, r"^Site 'north' refuses .*lacks values in 'age'\. Leave"),
        ({"minimum_rows": 60}, {}, FederationError, r"fewer complete rows .* than it takes part with \(minimum_rows"),
        ({"minimum_rows": 61}, {}, FederationError, r"fewer complete rows .* than it takes part with \(minimum_rows"),
    ],
)
def test_sites_refuse_what_their_rules_do_not_allow(tables, rules, columns, error, words):
    with pytest.raises(error, match=words) as refusal:
        asked(tables, columns, **rules)
    assert "income" not in str(refusal.value) or "income" in str(columns), "nobody need know of other columns"


def test_what_was_not_named_is_not_sent_though_the_server_asks_for_it(tables):
    """The rules are kept at every step, not only at the first."""
    north = workers(tables, secure_sum="off")["north"]
    request = {"columns": ASKED, "features": ["age", "income"]}
    with pytest.raises(Refused, match="columns 'income' may not be used here"):
        north.summarize(json.dumps(request))
    # One that is not there is refused with the same words: nobody learns what else the file holds.
    with pytest.raises(Refused, match="columns 'absent' may not be used here"):
        north.summarize(json.dumps(request | {"features": ["age", "absent"]}))
    encoding = {"features": ["income"], "levels": {}, "outcome_levels": ["no", "yes"], "standardization": {}}
    with pytest.raises(Refused, match="columns 'income' may not be used here"):
        north.encode(json.dumps({"columns": ASKED, "encoding": encoding}))
    with pytest.raises(Refused, match=r"this site's file is not an \.npz file, whose arrays can go as they are"):
        north.take_arrays()


# One value of age is the largest, and whoever asks wants to know which.
OLDEST = 93.7
SCALES = [(0.0, 1e-306), (0.0, OLDEST / 1.7e308), (50.0, 5e-324), (1e308, 1e-3), (-1e308, 1.0), (0.0, 1e-9)]


@pytest.mark.parametrize(
    "change",
    [
        *({"standardization": {"age": scale}} for scale in SCALES),
        *({"standardization": {"age": scale}} for scale in [(0.0, 0.0), (0.0, -1.0), (0.0, "nan"), ("inf", 1.0)]),
        {"levels": {"age": ["93.7", "20"], "group": ["A", "B", "C"]}},
        {"levels": {"age": [f"{age / 10}" for age in range(1000)], "group": ["A", "B", "C"]}},
        {"levels": {"group": ["A", "B"]}},
        {"levels": {"group": ["A", "B", "C", "C"]}},
        {"levels": {}},
        {"outcome_levels": ["no", "maybe"]},
        {"outcome_levels": []},
        {"features": ["age", "age", "group"]},
        {"features": ["ill", "group"]},
        {"features": ["age"]},
    ],
)
def test_an_encoding_tells_nothing_of_cells(tmp_path, change):
    """Whether a site takes an encoding does not depend on cells, but on what its summary tells anyway."""
    table = pd.read_csv(write_tables(tmp_path)["north"])
    encoding = {"features": ["age", "group"], "levels": {"group": ["A", "B", "C"]}, "outcome_levels": ["no", "yes"]}
    encoding |= {"standardization": {"age": (50.0, 12.0)}} | change
    said = []
    for oldest in (OLDEST, OLDEST - 20, OLDEST + 20):
        changed = table.assign(age=[oldest, *table["age"][1:]])
        changed.to_csv(tmp_path / "north.csv", index=False)
        rules = Rules(file=str(tmp_path / "north.csv"), columns=["age", "group", "ill"])
        work = {"north": Work("north", rules, bytes(32))}
        request = json.dumps({"columns": ASKED, "encoding": encoding})
        said.append(answered(work, ["north"], "encode", {"request": request})["north"])
    assert said[0] == said[1] == said[2] and said[0]["refused"] in ("ENCODING", "TEXT_HERE", "REQUEST", "COLUMNS")
    assert set(said[0]["words"]) <= {"age", "group", "ill"}


def test_marks_of_two_encodings_are_not_compared(tables):
    """Else whether two encodings give the same rows would be a question about these."""
    north = workers(tables)["north"]
    encoding = {"features": ["group"], "levels": {"group": ["A", "B", "C"]}, "outcome_levels": ["no", "yes"]}
    first, again, other = (
        north.encode(json.dumps({"columns": ASKED, "encoding": encoding | {"standardization": {}} | change}))["mark"]
        for change in ({}, {}, {"levels": {"group": ["A", "B", "C", "D"]}})
    )
    assert first == again != other


def test_every_refusal_is_a_sentence_without_numbers():
    for refusal in Refusal:
        sentence = refusal.sentence()
        assert not re.search(r"[\d{}]", sentence) and sentence[-1] in ".?" and "  " not in sentence
        assert refusal.sentence(("age", "ill")).count("'age', 'ill'") == (len(refusal.value) == 3)


def test_only_words_of_the_asker_leave_a_site(caplog):
    def fails(request: str):
        raise Refused(Refusal.GAPS, "age", "Ümit", "93.7", "age and 93.7", "x" * 300) from DataError("row 8 has 93.7")

    request = json.dumps({"columns": ["age", "Ümit", "x" * 300], "rows": 93.7})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site, "collab", SimpleNamespace(caller="server"))
        assert site._answered(fails)(request=request) == {"refused": "GAPS", "words": ["age", "Ümit"]}
        assert "row 8 has 93.7" in caplog.text
        for error in (ValueError("93.7"), KeyError("93.7"), SystemExit("93.7"), RecursionError(), MemoryError()):
            assert site._answered(lambda error=error: raised(error))() == {"refused": "FAULT", "words": []}
        patch.setattr(site, "collab", SimpleNamespace(caller="south"))
        assert site._answered(fails)(request=request) == {"refused": "NOT_THE_SERVER", "words": []}


def raised(error: BaseException):
    raise error


def test_a_call_that_takes_too_long_ends_the_worker(monkeypatch, caplog):
    ended = threading.Event()
    monkeypatch.setattr(site.os, "_exit", lambda code: ended.set())
    with site._ending_worker_after(0.01):
        assert ended.wait(10) and "the worker ends" in caplog.text
    ended.clear()
    with site._ending_worker_after(0.2):
        pass
    assert not ended.wait(0.4), "one that is over does not"


def test_texts_are_measured_before_they_are_read(tables):
    work = workers(tables, maximum_megabytes=1)
    survey(caller(work), list(work), ASKED, None, 1.0)
    north = work["north"]
    for method in (north.summarize, north.encode, north.prepare):
        with pytest.raises(Refused, match="takes more memory than the site gives"):
            method("[" * 70_000)
        with pytest.raises(Refused, match="cannot be read"):
            method("[" * 5_000)


def test_what_is_wrong_with_a_file_stays_at_the_site(tmp_path, caplog):
    (tmp_path / "north.csv").write_text("secret;columns\n1;2\n")
    work = Work("north", Rules(file=str(tmp_path / "north.csv"), columns="all"), bytes(32))
    caplog.set_level(logging.WARNING, logger="fahmc")
    answer = answered({"north": work}, ["north"], "list_columns", {})
    assert answer == {"north": {"refused": "FILE", "words": []}} and "secret;columns" in caplog.text


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
    with pytest.raises(Refused, match="fewer complete rows"):
        Work("north", rules.model_copy(update={"minimum_rows": 13}), bytes(32)).take_arrays()


@pytest.mark.parametrize(
    ("changes", "refusal", "cause"),
    [
        ({"model": {"name": "mlp", "num_classes": 2}}, "the model 'mlp' may not run here. Ask the site", None),
        ({"model": {"object": "os:system"}}, "the model 'os:system' is not ready-made and not listed here", None),
        ({"model": {"name": "poisson_regression"}}, "its rows do not fit the model or", "but row 1 has 53.6"),
        ({"sampler": {"name": "Popen"}}, "the sampler 'Popen' may not run here", None),
        ({"leader": {"name": "Popen"}}, "the sampler 'Popen' may not run here", None),
        ({"leader": {}}, "the sampler named may not run here", None),
        ({"sampler": {"name": "SplitHMC", "num_steps": 1}}, "the sampler 'SplitHMC' may not run here", None),
        ({"sampler": {"object": "os:system"}}, "'os:system' is not part of fahmc and not listed here", None),
        ({"leader": {"name": "HMC"}, "sampler": {"name": "HMC", "step_size": 0.1}}, "'HMC' may not run here", None),
        ({"sampler": {"name": "FAHMC", "step_size": "far"}}, "cannot be made here", "step_size"),
        ({"sampler": {"name": "FAHMC", "step_size": 0.1, "gradient": {"name": "minibatch", "size": 60}}},
         "its rows do not fit the model or the sampler", "Minibatch size 60 is larger than client 'north', which has"),
        ({"weights": {"south": 1.0}}, "are not the sites that its kit names: 'east', 'north' differ", None),
        ({"weights": {"north": 0.2, "south": 0.3, "east": 0.4}}, "are not shares that add up to one", None),
        ({"dtype": "complex128"}, "the order cannot be read", "order cannot be read"),
        ({"dtype": "S100000000"}, "the order cannot be read", "order cannot be read"),
        ({"num_chains": 0}, "the order cannot be read", "order cannot be read"),
        ({"leaf_shapes": {"coefficients": [-3], "intercept": []}}, "the order cannot be read", "order cannot be read"),
        ({"leaf_shapes": {"coefficients": [4], "intercept": []}}, "its rows do not fit the model", "loglikelihood_fn"),
        ({"leaf_shapes": {"coefficients": [3], "intercept": [], "more": [2]}}, "cannot be made here", "does not fit"),
        ({"template": {"list": ["coefficients"] * 2}}, "cannot be made here", "template does not fit its leaves"),
        ({"template": {"Popen": []}}, "cannot be made here", "template does not fit its leaves"),
        ({**AUTO, "sampler": {"name": "_expansion", "size": 5, "num_points": 2}}, "rows do not fit", "does not fit"),
        ({"num_chains": 10**400}, "takes more memory than the site gives a run", "MiB"),
        # More memory, or time, than there is: nothing of it is allocated.
        ({"num_chains": 2**40}, "takes more memory than the site gives a run", "MiB"),
        ({"leaf_shapes": {"coefficients": [2**62], "intercept": []}}, "takes more memory than the site gives", "MiB"),
        ({"leaf_shapes": {"coefficients": [2**40, 2**40], "intercept": []}}, "takes more memory than", "MiB"),
        ({**AUTO, "sampler": {"name": "_expansion", "size": 2**40, "num_points": 6}}, "takes more memory than", "MiB"),
        ({**AUTO, "sampler": {"name": "_scatter", "size": 4, "num_points": 2**50}}, "takes more memory than", "MiB"),
        # Its messages would do, but not what is computed between them: 59 rows for each of a million chains.
        ({"num_chains": 10**6}, "takes more memory than the site gives a run", "MiB"),
        ({"sampler": {"name": "FAHMC", "step_size": 0.1, "num_leapfrog_steps": 10**6, "num_local_steps": 10**6}},
         "takes more time than the site gives a call", "gradients of a row"),
    ],
)  # fmt: skip
def test_orders_that_a_site_does_not_take(tables, order, changes, refusal, cause):
    rules = {"models": ["logistic_regression", "poisson_regression"], "maximum_megabytes": 300}
    rules |= {"rows_per_parameter": 0, "minimum_sites": 1, "maximum_weight": 1.0}
    work = workers(tables, **rules)
    told = replace(order, **changes)
    with pytest.raises(Refused, match="this site was not asked for its rows before the run"):
        work["north"].prepare(told.text)
    # Ages with a decimal are no counts.
    is_poisson = changes.get("model", {}).get("name") == "poisson_regression"
    columns = {"outcome": "age", "outcome_positive": None, "features": ["group"]} if is_poisson else {}
    survey(caller(work), list(work), ASKED | columns, None, 1.0)
    with pytest.raises(Refused, match=refusal) as refused:
        work["north"].prepare(told.text)
    assert not re.search(r"\d", str(refused.value)), "what is wrong with its rows stays at the site"
    assert cause is None or cause in str(refused.value.__cause__), "its log says why"
    with pytest.raises(Refused, match="not told to make ready"):
        work["north"].local_round(told.identity, 0, STATE)
