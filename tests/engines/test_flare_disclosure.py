"""A site's rules of disclosure: checked where the rows are, before anything is computed, and told without telling."""

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fahmc.data.rare import find_rare_array
from fahmc.engines.flare import site
from fahmc.engines.flare.refusals import Refused
from fahmc.engines.flare.rules import Rules
from fahmc.engines.flare.work import Work
from fahmc.engines.order import Order

LEVELS = ["low", "middle", "high"]
ASKED: dict[str, Any] = {"outcome": "ill", "outcome_positive": "yes", "features": ["age", "group", "smokes"]}
FORMULA: dict[str, Any] = {"formula": "ill ~ age + group * smokes", "outcome_positive": "yes"}


def table(**columns: Any) -> pd.DataFrame:
    """Return 60 rows in which nothing is rare: each combination of group and smoking has ten."""
    rows = np.arange(60)
    whole = {"age": 20.5 + rows, "group": np.resize(LEVELS, 60), "smokes": (rows // 3) % 2}
    return pd.DataFrame(whole | {"ill": np.where(rows % 4 == 0, "yes", "no")} | columns)


def first_rows(count: int, value: Any, others: Any) -> list[Any]:
    return [value] * count + list(others[count:])


def worker(folder: Path, rows: pd.DataFrame | str, **rules: Any) -> Work:
    file = folder / "north.csv"
    file.write_text(rows if isinstance(rows, str) else rows.to_csv(index=False))
    return Work("north", Rules(file=str(file), columns="all", secure_sum="off", **rules), bytes(32))


def told(work: Work, method: str, **arguments: Any) -> dict[str, Any]:
    """Return what leaves the site."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site, "collab", SimpleNamespace(caller="server"))
        return site._answered(getattr(work, method))(**arguments)


def summarized(work: Work, asked: dict[str, Any]) -> dict[str, Any]:
    features = asked.get("features", ["age", "group", "smokes"])
    return told(work, "summarize", request=json.dumps({"columns": asked, "features": features}))


def groups(count: int, level: str = "rare") -> list[str]:
    return first_rows(count, level, np.resize(LEVELS, 60))


CROSSED = [("low" if row < 30 else "high") for row in range(60)]
VIOLATIONS: dict[str, tuple[dict[str, Any], list[Any], dict[str, Any]]] = {
    "a rare level": (
        ASKED,
        [table(group=groups(1)), table(group=groups(4)), table(group=["one"] + ["two"] * 59)],
        {"refused": "RARE_LEVEL", "words": ["group"]},
    ),
    "a rare outcome": (
        ASKED,
        [table(ill=first_rows(1, "yes", ["no"] * 60)), table(ill=first_rows(4, "no", ["yes"] * 60))],
        {"refused": "RARE_LEVEL", "words": ["ill"]},
    ),
    "a rare yes, or a rare no": (
        ASKED,
        [table(smokes=first_rows(count, value, [1 - value] * 60)) for count, value in ((1, 1), (4, 1), (3, 0))],
        {"refused": "RARE_LEVEL", "words": ["smokes"]},
    ),
    "a rare product": (
        FORMULA,
        [table(group=CROSSED, smokes=[int(row < 30 - count) for row in range(60)]) for count in (1, 4)],
        {"refused": "RARE_LEVEL", "words": ["group", "smokes"]},
    ),
    "many levels": (
        ASKED | {"categorical": ["age"]},
        [table(age=np.arange(60) % 41), table(age=np.arange(60))],
        {"refused": "MANY_LEVELS", "words": ["age"]},
    ),
    "few rows": (ASKED, [table()[:9], table(group=groups(3))[:4]], {"refused": "FEW_ROWS", "words": []}),
}  # fmt: skip


@pytest.mark.parametrize("what", VIOLATIONS)
def test_what_breaks_a_rule_is_refused_in_the_same_words_whatever_the_rows(tmp_path, what):
    asked, tables, expected = VIOLATIONS[what]
    for rows in tables:
        work = worker(tmp_path, rows)
        assert summarized(work, asked) == expected
        assert summarized(work, ASKED | {"features": ["age"], "outcome": "age", "outcome_positive": None})
    assert "refused" not in summarized(worker(tmp_path, table()), asked | {"categorical": []})


@pytest.mark.parametrize("count", [0, 5, 60])
def test_a_value_that_is_not_there_or_has_rows_enough_is_not_rare(tmp_path, count):
    """What is counted is what somebody has: that nobody has it tells of nobody."""
    work = worker(tmp_path, table(group=groups(count), smokes=first_rows(count, 1, [0] * 60)))
    assert "refused" not in summarized(work, ASKED)
    work = worker(tmp_path, table(group=groups(4)), minimum_rows_per_level=4)
    assert "refused" not in summarized(work, ASKED)


def test_only_the_site_s_own_log_says_which_value_is_rare(tmp_path, caplog):
    work = worker(tmp_path, table(group=groups(3, "consul")))
    answer = summarized(work, ASKED)
    assert not re.search(r"consul|\d", json.dumps(answer))
    assert "group = consul in 3 rows; 5 are needed (minimum_rows_per_level)" in caplog.text
    request = {"columns": ASKED, "encoding": {"features": ASKED["features"], "standardization": {}}}
    request["encoding"] |= {"levels": {"group": [*LEVELS, "consul"]}, "outcome_levels": ["no", "yes"]}
    assert told(work, "encode", request=json.dumps(request)) == answer, "refused at every step, not only at the first"
    assert told(work, "prepare", order="{}") == {"refused": "NO_ROWS", "words": []}, "and nothing of it is kept"


def test_arrays_that_go_as_they_are_hold_nothing_rare_either(tmp_path):
    arrays = {"x": np.c_[np.arange(20.0), np.arange(20) % 2], "y": np.arange(20) // 10}
    assert find_rare_array(arrays, 5) is None
    for name, array in {"x": np.c_[np.arange(20.0), np.arange(20) < 4], "y": np.arange(20) > 16}.items():
        np.savez(tmp_path / "rows.npz", **arrays | {name: array})  # type: ignore
        work = Work("north", Rules(file=str(tmp_path / "rows.npz"), columns="all"), bytes(32))
        assert told(work, "take_arrays") == {"refused": "RARE_LEVEL", "words": []}
        assert told(work, "prepare", order="{}")["refused"] == "NO_ROWS"
    assert find_rare_array({"y": np.array(3.0), "names": np.array(["a"] * 9 + ["b"])}, 2) is not None


ORDER = Order(
    model={"name": "logistic_regression"},
    sampler={"name": "FAHMC"},
    leader={"name": "FAHMC"},
    phase="sampling",
    stream="",
    seed=1,
    num_chains=1,
    dtype="float64",
    template="x",
    leaf_shapes={"x": [4]},
    weights={"north": 0.5, "south": 0.3, "east": 0.2},
    num_rows=90,
)
RULES = Rules(file="north.csv", columns="all")


def refused(rules: Rules = RULES, num_rows: Any = 60, **changes: Any) -> str:
    with pytest.raises(Refused) as refusal:
        rules.check_order(replace(ORDER, **changes), "north", num_rows)
    assert not re.search(r"\d", str(refusal.value))
    return refusal.value.refusal.name


def test_orders_in_which_an_average_would_be_one_site_s_are_refused():
    RULES.check_order(ORDER, "north", 60)
    RULES.check_order(replace(ORDER, weights={"north": 0.8, "south": 0.1, "east": 0.1}), "north", 60)
    for weights in ({"north": 1.0}, {"north": 0.5, "south": 0.5}, {"north": 0.5, "south": 0.5, "east": 0.0}, {}):
        assert refused(weights=weights) == "FEW_SITES"
    # What counts is the share, whatever the sum.
    for weights in ({"north": 0.999, "south": 0.0005, "east": 0.0005}, {"north": 0.5, "south": 0.01, "east": 0.01}):
        assert refused(weights=weights) == "WEIGHT"
    two = {"north": 0.5, "south": 0.5}
    RULES.model_copy(update={"minimum_sites": 2}).check_order(replace(ORDER, weights=two), "north", 60)


def test_a_model_may_have_so_many_parameters_as_there_are_rows_for():
    RULES.check_order(ORDER, "north", 40)
    assert refused(num_rows=39) == refused(num_rows=12) == refused(leaf_shapes={"x": [3], "y": [2, 2]}) == "PARAMETERS"
    RULES.model_copy(update={"rows_per_parameter": 3}).check_order(ORDER, "north", 12)


def test_the_embedded_trial_has_rows_enough():
    """Thirteen parameters, of which the smallest clinic has 167 complete rows."""
    trial = {"leaf_shapes": {"coefficients": [12], "intercept": []}, "weights": dict.fromkeys("abcd", 0.25)}
    RULES.check_order(replace(ORDER, **trial), "a", 167)


def test_a_sampler_brings_its_own_phases_and_no_others():
    def name(leader: str, sampler: str) -> dict[str, Any]:
        return {"leader": {"name": leader}, "sampler": {"name": sampler}}

    only = RULES.model_copy(update={"samplers": ["FAHMC", "Tuned"]})
    for leader, part in (("FAHMC", "_second_order"), ("Tuned", "_scatter"), ("Tuned", "FAHMC"), ("FAHMC", "FAHMC")):
        only.check_order(replace(ORDER, **name(leader, part)), "north", 60)
    for leader, part in (("FAHMC", "_scatter"), ("FAHMC", "SplitHMC"), ("Auto", "FAHMC"), ("_scatter", "_scatter")):
        assert refused(only, **name(leader, part)) == "SAMPLER"
        assert refused(only, **name(leader, part) | {"leader": {"name": [leader]}}) == "SAMPLER"
        assert refused(RULES, **name(leader, part) | {"sampler": {"name": [part]}}) == "SAMPLER"
    # Code of one's own that is listed may do what any sampler here may.
    own = RULES.model_copy(update={"samplers": ["FAHMC"], "own_samplers": ["a:B"]})
    mine = {"object": "a:B"}
    for part in (mine, {"name": "_evaluation"}):
        own.check_order(replace(ORDER, leader=mine, sampler=part), "north", 60)
    assert refused(own, leader=mine, sampler={"name": "_scatter"}) == "SAMPLER"
    assert refused(RULES, leader=mine) == "OWN_SAMPLER"
