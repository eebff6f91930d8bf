"""What a site does for others is in its ledger, counted by the content of its file, once for each answer."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fahmc.engines.flare import ledger as ledgers
from fahmc.engines.flare.ledger import Ledger, LedgerFault, begin_ledger
from fahmc.engines.flare.refusals import Refusal, Refused
from fahmc.engines.flare.rules import Rules
from fahmc.engines.flare.statement import items, left, rule_of
from fahmc.engines.flare.work import Work
from fahmc.engines.order import Order

COLUMNS: dict[str, Any] = {"outcome": "ill", "outcome_positive": "yes", "features": ["age"]}
ENCODING: dict[str, Any] = {"features": ["age"], "levels": {}, "outcome_levels": ["no", "yes"], "standardization": {}}
ORDER = Order(
    model={"name": "logistic_regression", "feature_names": ["age"]},
    sampler={"name": "FAHMC", "step_size": 0.1, "num_leapfrog_steps": 1},
    leader={"name": "FAHMC", "step_size": 0.1, "num_leapfrog_steps": 1},
    phase="sampling",
    stream="",
    seed=1,
    num_chains=1,
    dtype="float64",
    template={"dict": [["coefficients", "coefficients"], ["intercept", "intercept"]]},
    leaf_shapes={"coefficients": [1], "intercept": []},
    weights={"north": 0.5, "south": 0.3, "east": 0.2},
    num_rows=80,
)


class Kit:
    """A site's kit and table, of which one job after the other is done."""

    def __init__(self, folder: Path, **rules: Any):
        self.folder = folder
        (folder / "local").mkdir(exist_ok=True)
        begin_ledger(folder, site="north", study="trial")
        self.file, self.rules = folder / "north.csv", rules
        self.write_table(1.0)

    def write_table(self, step: float) -> None:
        ages, ill = 20 + step * np.arange(40), np.resize(["yes", "no", "no"], 40)
        pd.DataFrame({"age": ages, "group": np.resize(["a", "b"], 40), "ill": ill}).to_csv(self.file, index=False)

    @property
    def settled(self) -> Rules:
        return Rules(file=str(self.file), columns="all", secure_sum="off", **self.rules)

    def job(self, who: str = "ann@example.org") -> Work:
        """Begin a job, as after a restart."""
        return Work("north", self.settled, bytes(32), None, Ledger(self.folder, who=who, job="5c1"))

    def read(self) -> Ledger:
        return Ledger(self.folder)


@pytest.fixture
def kit(tmp_path) -> Kit:
    return Kit(tmp_path, maximum_runs=2, maximum_rounds=70)


def survey(work: Work, **columns: Any) -> None:
    asked = COLUMNS | columns
    work.summarize(json.dumps({"columns": asked, "features": asked["features"]}))


def encode(work: Work, **columns: Any) -> None:
    asked, encoding = COLUMNS | columns, ENCODING | {"features": (COLUMNS | columns)["features"]}
    work.encode(json.dumps({"columns": asked, "encoding": encoding}))


def state(number: float) -> dict[str, bytes]:
    return {"position": np.array([[number, 0.0]]).tobytes()}


def rounds(work: Work, numbers: Any, of: Order = ORDER) -> None:
    for number in numbers:
        work.local_round(of.identity, int(number), state(number))


def test_choices_of_columns_count_once_and_no_more_than_the_rule_are_answered(kit):
    work = kit.job()
    survey(work)
    encode(work)
    survey(kit.job())
    survey(work, standardize=False)
    with pytest.raises(Refused) as refusal:
        survey(work, outcome="age", outcome_positive=None, features=["ill"])
    assert refusal.value.refusal == Refusal.SURVEYS
    with pytest.raises(Refused, match="as many different choices of columns"):
        encode(kit.job(), outcome="age", outcome_positive=None, features=["ill"])
    survey(kit.job())
    kit.write_table(2.0)
    survey(kit.job(), missing="drop")
    (first, other) = kit.read().accounts.values()
    assert (len(first.asked["survey"]), len(other.asked["survey"])) == (2, 1), "by content of the file"


def test_what_is_refused_is_written_and_does_not_count(kit):
    work = kit.job()
    for _ in range(3):
        with pytest.raises(Refused):
            survey(work, features=["age", "income"])
    with pytest.raises(Refused):
        survey(work, features=["group"], outcome="age", outcome_positive="20")
    assert kit.read().accounts == {}
    told = [item.what for item in items(kit.read())][1:]
    # The first, second, fourth, ... of the same are written.
    assert told == ["refused 2 times: columns (income)", "refused: minimum_rows_per_level (age)"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Kit:
    """A kit whose site was made ready once; compiled programs are what takes time here."""
    return Kit(tmp_path_factory.mktemp("kit"), maximum_runs=2, maximum_rounds=70)


def test_runs_and_their_rounds(trained, monkeypatch):
    """One story, as compiling takes a second: a run, a restart, the same again, too many rounds, another run."""
    kit, work = trained, trained.job()
    with pytest.raises(Refused, match="not asked for its rows"):
        work.prepare(ORDER.text)
    encode(work)
    work.prepare(ORDER.text)
    rounds(work, range(30))
    rounds(work, range(10))  # asked again, as after a broken line
    work.ledger.settle()  # as at the end of a job
    (run,) = [item for item in items(kit.read()) if item.what == "run"]
    assert (run.who, run.model, run.sampler) == ("ann@example.org", "logistic_regression", "FAHMC")
    assert run.columns == ["ill", "age"] and run.rounds == 30

    again = kit.job()
    encode(again)
    monkeypatch.setattr(again, "_program", work._program)  # not to compile it anew
    with again._counts.run(ORDER, again._mark):
        pass
    rounds(again, range(60))
    computed = []
    honest = work._program.reply
    monkeypatch.setattr(work._program, "reply", lambda *call: computed.append(call) or honest(*call))
    # A broadcast with other numbers is another round, though it has the same index.
    with pytest.raises(Refused) as refusal:
        for number in range(11):
            again.local_round(ORDER.identity, 0, state(0.5 + number))
    assert refusal.value.refusal == Refusal.ROUNDS and len(computed) == 10, "what is refused is not computed"
    rounds(again, range(60))
    assert next(item for item in items(kit.read()) if item.what == "run").rounds == 70
    assert left(kit.read(), kit.settled, again._counts._content) == {"survey": 1, "run": 1, "question": 100}


def test_phases_of_a_run_are_one_run_and_other_seeds_others(kit):
    work = kit.job()
    encode(work)

    def count(order: Order) -> None:
        with work._counts.run(order, work._mark):
            pass

    for phase in ("first energy", "window 0", "sampling"):
        count(replace(ORDER, phase=phase, stream=phase, sampler={"name": "FAHMC", "step_size": len(phase) / 10}))
    count(replace(ORDER, seed=2))
    with pytest.raises(Refused, match="as many different runs"):
        count(replace(ORDER, seed=3))
    # On other rows it is another run, too.
    with pytest.raises(Refused, match="as many different runs"), work._counts.run(ORDER, "other rows"):
        pass


def test_an_order_that_is_refused_is_no_run(kit):
    work = kit.job()
    encode(work)
    with pytest.raises(Refused, match="minimum_sites"):
        work.prepare(replace(ORDER, weights={"north": 1.0}).text)
    with pytest.raises(Refused, match="sampler cannot be made here"):
        work.prepare(replace(ORDER, sampler={"name": "FAHMC", "step_size": "far"}).text)
    (account,) = kit.read().accounts.values()
    assert not account.asked["run"]


def test_nothing_is_done_without_a_ledger(kit):
    work = kit.job()
    shutil.move(kit.folder / "ledger.jsonl", kit.folder / "elsewhere")
    with pytest.raises(LedgerFault, match="is missing"):
        survey(work)
    with pytest.raises(LedgerFault):
        kit.job()


def test_a_ledger_of_a_broken_disk_stops_the_next_round(kit, monkeypatch):
    work = kit.job()
    monkeypatch.setattr(ledgers, "_RESERVED", 1)
    encode(work)
    with work._counts.run(ORDER, work._mark):
        pass
    work._counts.round(ORDER.identity, 0, b"a broadcast")
    monkeypatch.setattr("os.write", lambda descriptor, line: 0)
    work._counts.round(ORDER.identity, 0, b"a broadcast")
    with pytest.raises(LedgerFault):
        work._counts.round(ORDER.identity, 1, b"a broadcast")


def test_refusals_are_named_by_the_line_of_the_site_s_own_file():
    assert rule_of("FEW_ROWS") == "minimum_rows" and rule_of("RARE_LEVEL") == "minimum_rows_per_level"
    assert rule_of("SITE_EFFECTS") == "site_effects" and rule_of("CHECKS") == "checks"
    assert rule_of("GAPS") == "gaps" and rule_of("OF_A_NEWER_FAHMC") == "of a newer fahmc"
    named = {rule_of(refusal.name) for refusal in Refusal} & set(Rules.model_fields)
    assert {"minimum_sites", "maximum_weight", "maximum_levels", "maximum_runs", "maximum_rounds"} < named
