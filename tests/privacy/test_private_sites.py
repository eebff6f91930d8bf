"""A site's own privacy: noise from its secret, a budget in its ledger, and nothing exact beside it."""

import itertools
import json
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import fahmc
from assertions import FALSE_ALARM
from fahmc.adaptive.private_answer import Noise, PrivateAnswer
from fahmc.data.columns import Columns
from fahmc.dynamics.sampler import Phase
from fahmc.engines.flare import site
from fahmc.engines.flare.ledger import Ledger, begin_ledger
from fahmc.engines.flare.noise import normal_of
from fahmc.engines.flare.privacy import PrivacyRules, budget_left
from fahmc.engines.flare.refusals import Refusal, Refused
from fahmc.engines.flare.rules import Rules, read_rules
from fahmc.engines.flare.survey import survey
from fahmc.engines.flare.wire import Layout
from fahmc.engines.flare.work import Work
from fahmc.engines.order import Order, sampler_recipe
from fahmc.engines.run import SAMPLING
from fahmc.privacy import Budget, epsilon_of
from fahmc.runs.plan import make_run
from kit_forge import Authority

COLUMNS: dict[str, Any] = {
    "outcome": "ill",
    "features": ["age", "ward"],
    "outcome_levels": ["no", "yes"],
    "bounds": {"age": [20.0, 80.0]},
    "levels": {"ward": ["a", "b", "c"]},
}
BUDGET = Budget(3.0, 1e-6)
MODEL = fahmc.models.logistic_regression()
SECRETS = {name: bytes([place] * 32) for place, name in enumerate(("north", "south", "east"))}


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    generator, folder = np.random.default_rng(0), tmp_path_factory.mktemp("tables")
    for name, num_rows in zip(SECRETS, (300, 200, 250), strict=True):
        frame = pd.DataFrame(
            {
                "age": generator.uniform(30, 70, num_rows).round(1),
                "ward": generator.choice(["a", "b"], num_rows),  # no site has anybody in ward c, which nobody learns
                "ill": generator.choice(["no", "yes"], num_rows),
            }
        )
        frame.to_csv(folder / f"{name}.csv", index=False)
    return {name: folder / f"{name}.csv" for name in SECRETS}


def work_of(tables, ledgers=None, **settings):
    rules = {"columns": "all", "privacy": {"epsilon": BUDGET.epsilon, "delta": BUDGET.delta}} | settings
    known = Authority().identities(list(tables))
    return {
        name: Work(
            name, Rules(file=str(file), **rules), SECRETS[name], known[name], None if ledgers is None else ledgers(name)
        )
        for name, file in tables.items()
    }


def surveyed(work, **columns):
    """Have the sites write their rows as numbers, as a server does; return what it learns."""

    def call(sites, method, seconds, arguments):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(site, "collab", SimpleNamespace(caller="server"))
            return {name: site._answered(getattr(work[name], method))(**arguments) for name in sites}, {}

    return survey(call, list(work), asdict(Columns(**COLUMNS | columns)), None, 1.0)


def question(mu=0.3, noise: Noise = "own", mu_left=0.0):
    return PrivateAnswer(
        bounds=((-1.0, 1.0), (0.0, 1.0), (0.0, 1.0)),
        has_intercept=True,
        radius=2.0,
        mu_score=mu * 0.8,
        mu_information=mu * 0.6,
        mu_left=mu_left or mu,
        noise=noise,
    )


def order_of(asked, seed=0):
    federation = fahmc.Federation.from_clients(
        {name: {"x": np.zeros((size, 3)), "y": np.zeros(size)} for name, size in SIZES.items()}
    )
    leader = fahmc.PrivateLaplace(BUDGET.epsilon, BUDGET.delta)
    run = make_run(MODEL, federation, leader, None, dtype=np.dtype("float64"), seed=seed)
    return Order.of(run, Phase("answer 0", asked, 1))


SIZES = {"north": 300, "south": 200, "east": 250}


def reply_at(own: Work, asked, point, round_index=0, seed=0):
    order = order_of(asked, seed)
    own.prepare(order.text)
    exchange = order.exchange(asked)
    state = Layout(exchange.broadcast, 1, order.precision).pack({"point": np.asarray(point, float)})
    answer = own.local_round(order.identity, round_index, state)
    return Layout(exchange.reply, 1, order.precision).unpack(answer["reply"], own.name)


def alone(tables, ledger=None, **settings):
    """Return one site's work with its rows ready, whose replies go unmasked so that they can be looked at."""
    known = work_of(tables, None if ledger is None else lambda name: ledger, secure_sum="off", **settings)
    surveyed(known)
    return known["north"]


def test_a_survey_tells_of_the_rows_only_how_many_there_are(tables):
    found = surveyed(work_of(tables))
    assert found["sizes"] == SIZES
    about = found["about"]
    assert about["feature_names"] == ["age", "ward[b]", "ward[c]"] and about["outcome_levels"] == ["no", "yes"]
    assert about["standardization"]["age"] == pytest.approx([50.0, 30.0])
    assert about["bounds"] == [[-1.0, 1.0], [0.0, 1.0], [0.0, 1.0]]
    request = json.dumps({"columns": asdict(Columns(**COLUMNS)), "features": ["age", "ward"]})
    told = {name: own.summarize(request) for name, own in work_of(tables, secure_sum="off").items()}
    for name, summary in told.items():
        # What two sites tell differs by their number of rows, and by nothing else.
        age = summary["features"]["age"] | {"count": 0, "squares": 0.0}
        assert age == told["north"]["features"]["age"] | {"count": 0, "squares": 0.0}
        assert summary["features"]["age"]["squares"] == SIZES[name] * 30.0**2
        assert summary["features"]["ward"]["levels"] == ("a", "b", "c")
        assert summary["outcome"] == told["north"]["outcome"]


def test_exact_statistics_and_questions_are_refused_where_there_is_a_budget(tables):
    exact = {"bounds": None, "levels": None, "outcome_positive": "yes", "outcome_levels": ()}
    with pytest.raises(fahmc.errors.FederationError, match="Name public bounds and levels"):
        surveyed(work_of(tables), **exact)
    own, told = alone(tables), json.loads(order_of(question()).text)
    told |= {"leader": {"name": "FAHMC"}, "sampler": sampler_recipe(fahmc.FAHMC(0.1)), "phase": SAMPLING, "stream": ""}
    with pytest.raises(Refused) as refused:
        own.prepare(json.dumps(told))
    assert refused.value.refusal is Refusal.NOT_PRIVATE


def test_private_runs_need_a_budget(tables):
    with pytest.raises(Refused) as refused:
        reply_at(alone(tables, privacy=None), question(), np.zeros(4))
    assert refused.value.refusal is Refusal.NO_BUDGET


def test_a_share_of_the_noise_is_given_in_a_masked_sum_alone(tables):
    for settings in ({}, {"privacy": {"epsilon": 3.0, "delta": 1e-6, "shared_noise": True}}):
        with pytest.raises(Refused) as refused:  # secure_sum is off
            reply_at(alone(tables, **settings), question(noise="shared"), np.zeros(4))
        assert refused.value.refusal is Refusal.SHARED_NOISE


def test_the_same_question_has_the_same_noise_and_any_other_its_own(tables):
    """Else two positions in one round, or other rows, would tell their difference exactly."""
    point = np.array([0.1, -0.2, 0.3, 0.0])
    own, asked = alone(tables), question(0.01)
    first, again = reply_at(own, asked, point), reply_at(alone(tables), asked, point)
    np.testing.assert_array_equal(first["score"], again["score"])
    np.testing.assert_array_equal(first["information"], again["information"])
    nearby = reply_at(own, asked, point + np.array([0, 0, 0, 1e-12]))
    later, otherwise = reply_at(own, asked, point, round_index=1), reply_at(own, asked, point, seed=1)
    sd = asked.deviations_at(point, 1)[0]
    for reply in (nearby, later, otherwise):
        # What is exact of both differs by 10⁻⁹ at most.
        assert (np.abs(first["score"] - reply["score"]) > 1e-3 * sd).all()


def test_noise_is_standard_normal_and_follows_from_all_that_is_asked():
    asked = {"point": np.zeros(3)}, {"score": (40_000,)}
    draw = normal_of(bytes(32), "rows")
    first = draw("order", 0, *asked)["score"]
    others = [
        normal_of(bytes(31) + b"1", "rows")("order", 0, *asked),
        normal_of(bytes(32), "other rows")("order", 0, *asked),
        draw("another order", 0, *asked),
        draw("order", 1, *asked),
        draw("order", 0, {"point": np.array([0, 0, 5e-324])}, asked[1]),
    ]
    np.testing.assert_array_equal(first, draw("order", 0, *asked)["score"])
    together = np.stack(
        [first, *(other["score"] for other in others), draw("order", 0, asked[0], {"b": (40_000,)})["b"]]
    )
    for values in together:
        assert stats.kstest(values, "norm").pvalue > FALSE_ALARM
    correlations = np.corrcoef(together)[np.triu_indices(len(together), 1)]
    assert np.abs(correlations).max() < stats.norm.isf(FALSE_ALARM / 2 / len(correlations)) / 200


def test_a_budget_is_spent_and_then_refused_also_after_a_restart(tables, tmp_path):
    (tmp_path / "local").mkdir()
    begin_ledger(tmp_path)
    asked, points = question(BUDGET.mu / 2), itertools.count()

    def fresh():
        return alone(tables, Ledger(tmp_path))

    def point():
        return np.full(4, 0.01 * next(points))

    own, first = fresh(), point()
    released = reply_at(own, asked, first)["score"]
    for _ in range(3):
        reply_at(own, asked, point())  # four times half of μ are all of it
    own = fresh()
    np.testing.assert_array_equal(reply_at(own, asked, first)["score"], released)  # costs nothing
    for again in (own, fresh()):
        with pytest.raises(Refused) as refused:
            reply_at(again, asked, point())
        assert refused.value.refusal is Refusal.BUDGET
        with pytest.raises(Refused):  # another run is not begun
            reply_at(again, question(BUDGET.mu / 100), first, seed=3)
    ledger = Ledger(tmp_path)
    assert len(ledger.accounts["any"].spent) == 4
    allowed = PrivacyRules(epsilon=2 * BUDGET.epsilon, delta=BUDGET.delta)
    left = epsilon_of((allowed.budget.mu**2 - BUDGET.mu**2) ** 0.5, BUDGET.delta)
    assert budget_left(allowed, ledger) == f"epsilon = {left:.2g} of 6, at delta = 1e-06"
    assert budget_left(PrivacyRules(epsilon=3.0, delta=1e-6), ledger).startswith("epsilon = 0 of 3")
    # Other rows in the file do not begin another budget.
    changed = dict(tables, north=tables["south"])
    with pytest.raises(Refused) as refused:
        reply_at(alone(changed, Ledger(tmp_path)), asked, first, seed=4)
    assert refused.value.refusal is Refusal.BUDGET


def test_a_run_that_cannot_be_paid_to_the_end_is_not_begun(tables, tmp_path):
    (tmp_path / "local").mkdir()
    begin_ledger(tmp_path)
    with pytest.raises(Refused) as refused:
        reply_at(alone(tables, Ledger(tmp_path)), question(0.1, mu_left=1.1 * BUDGET.mu), np.zeros(4))
    assert refused.value.refusal is Refusal.BUDGET
    assert Ledger(tmp_path).accounts["any"].spent == []


def test_a_sites_file_says_what_may_be_spent(tables, tmp_path):
    file = tmp_path / "site.toml"
    text = f'file = "{tables["north"]}"\ncolumns = "all"\n[privacy]\nepsilon = 1.0\ndelta = 1e-6\n'
    file.write_text(text)
    privacy = read_rules(file).privacy
    assert privacy is not None and privacy.budget == Budget(1.0, 1e-6) and not privacy.shared_noise
    file.write_text(text.replace("1e-6", "2.0"))
    with pytest.raises(fahmc.errors.SettingsError, match=r"privacy\.delta = 2"):
        read_rules(file)
