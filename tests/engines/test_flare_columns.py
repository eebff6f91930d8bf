"""What sites make of columns other than plain features, without their network: as in one process, and no more told."""

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fahmc.data.columns import Columns
from fahmc.data.study import build_study
from fahmc.data.tables import read_clients
from fahmc.engines.flare import site
from fahmc.engines.flare.refusals import Refusal, Refused
from fahmc.engines.flare.rules import Rules
from fahmc.engines.flare.survey import survey
from fahmc.engines.flare.work import Work
from fahmc.errors import DataError, FederationError
from kit_forge import Authority


def write_tables(folder, **changes: Any):
    """Write three wards' tables; a change is a function of the ward's frame."""
    rng = np.random.default_rng(3)
    files = {}
    for name, size in {"north": 60, "south": 90, "east": 40}.items():
        frame = pd.DataFrame({"age": rng.normal(50, 12, size), "group": rng.choice(["A", "B", "C"], size)})
        frame["dose"] = rng.lognormal(size=size)
        frame["days"] = rng.integers(1, 400, size)
        frame["copies"] = rng.integers(0, 4, size)
        frame["falls"] = rng.poisson(frame["days"] / 200)
        files[name] = folder / f"{name}.csv"
        frame.assign(**changes).to_csv(files[name], index=False)
    return files


def workers(files, **rules: Any) -> dict[str, Work]:
    settings: dict[str, Any] = {"columns": "all"} | rules
    known = Authority().identities(list(files))
    return {name: Work(name, Rules(file=str(file), **settings), bytes(32), known[name]) for name, file in files.items()}


def asked(work: dict[str, Work], columns: dict[str, Any]) -> dict[str, Any]:
    """Return what the sites answer to a survey, each through the door that a server calls."""

    def call(sites, method, seconds, arguments):
        return {name: site._answered(getattr(work[name], method))(**arguments) for name in sites}, {}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site, "collab", SimpleNamespace(caller="server"))
        return json.loads(json.dumps(survey(call, list(work), columns, None, 1.0)))


def test_a_site_leaves_out_only_what_it_takes_for_a_missing_value(tmp_path):
    files = write_tables(tmp_path, group=lambda frame: frame["group"].replace("C", "?"))
    columns = {"outcome": "falls", "features": ["age", "group"], "missing": "drop", "missing_values": ["?", -9]}
    answer = asked(workers(files, missing_values=["?", -9]), columns)
    study = build_study(read_clients(files), Columns(**columns))
    assert answer["about"]["dropped"] == study.dropped and min(study.dropped.values()) > 0
    assert answer["about"]["feature_names"] == ["age", "group[B]"]
    with pytest.raises(FederationError, match=r"'A' may be a value here, and is not left out.*missing_values"):
        asked(workers(files, missing_values=["?"]), columns | {"missing_values": ["?", "A"]})


COUNTS: dict[str, Any] = {"outcome": "falls", "exposure": "days", "row_weights": "copies", "features": ["age", "group"]}


def same_rows(files, columns: dict[str, Any]) -> dict[str, Any]:
    """Have sites and one process write the same tables; return what the sites said of them."""
    work = workers(files)
    answer, study = asked(work, columns), build_study(read_clients(files), Columns(**columns))
    assert answer["about"]["feature_names"] == list(study.feature_names)
    for name, rows in study.clients.items():
        assert set(work[name]._rows) == set(rows)
        for array, expected in rows.items():
            np.testing.assert_array_equal(work[name]._rows[array], expected)
    return answer


def test_sites_write_what_says_how_rows_count_as_one_process_does(tmp_path):
    answer = same_rows(write_tables(tmp_path), COUNTS)
    assert set(answer["arrays"]) == {"x", "y", "offset", "weight"}
    assert answer["arrays"]["weight"] == {"dtype": "float64", "shape": []}


@pytest.mark.parametrize(
    ("changes", "column"), [({"days": 0}, "days"), ({"copies": -1}, "copies"), ({"copies": 1e31}, "copies")]
)
def test_cells_that_cannot_be_what_they_are_named_for_are_refused_without_their_row(tmp_path, changes, column):
    with pytest.raises(DataError, match=f"^Site 'north' refuses .*the cells of '{column}' are not all") as refusal:
        asked(workers(write_tables(tmp_path, **changes)), COUNTS)
    assert "row 1" not in str(refusal.value)


def test_weights_cannot_single_out_a_few_rows(tmp_path):
    files = write_tables(tmp_path, copies=lambda frame: np.where(frame.index < 5, 1000.0, 0.001))
    with pytest.raises(FederationError, match="fewer complete rows of these columns than it takes part with"):
        asked(workers(files), COUNTS)
    asked(workers(files, minimum_rows=4), COUNTS)


def test_columns_that_are_not_for_others_cannot_be_weights(tmp_path):
    work = workers(write_tables(tmp_path), columns=["falls", "age", "group", "days"])
    with pytest.raises(DataError, match="no column 'copies' in what others may use of client 'north'"):
        asked(work, COUNTS)
    request = json.dumps({"columns": COUNTS, "features": ["age"]})
    with pytest.raises(FederationError, match="the columns 'copies' may not be used here"):
        raise_as_server(work["north"], request)


def raise_as_server(work: Work, request: str) -> None:
    try:
        work.summarize(request)
    except Exception as error:
        raise FederationError(str(error)) from error


FORMULA = "falls ~ age * group + bs(dose, df=4) + log(dose):group + scale(days) + C(copies):age + offset(log(days))"


def test_sites_build_the_columns_of_a_formula_as_one_process_does(tmp_path):
    files = write_tables(tmp_path)
    answer = same_rows(files, {"formula": FORMULA})
    assert set(answer["arrays"]) == {"x", "y", "offset"}
    assert set(answer["about"]["standardization"]) == {"age", "log(dose)"}
    same_rows(files, {"formula": FORMULA, "standardize": False})


def test_a_site_tells_of_a_formula_what_it_needs_and_no_more(tmp_path):
    work = workers(write_tables(tmp_path), secure_sum="off")["north"]
    columns = {"formula": "falls ~ log(dose) + age"}
    told = work.summarize(json.dumps({"columns": columns, "features": ["dose", "age"]}))
    frame = pd.read_csv(tmp_path / "north.csv")
    assert told["features"]["dose"] == {**told["features"]["dose"], "has_numbers": True, "count": 0, "mean": 0.0}
    assert told["functions"]["log(dose)"]["mean"] == pytest.approx(np.log(frame["dose"]).mean())
    assert told["features"]["age"]["mean"] == pytest.approx(frame["age"].mean())
    plain = work.summarize(json.dumps({"columns": columns | {"standardize": False}, "features": ["dose", "age"]}))
    assert {summary["count"] for summary in [*plain["features"].values(), *plain["functions"].values()]} == {0}


def test_a_site_runs_nothing_of_a_formula_and_reads_no_columns_beside_it(tmp_path):
    work = workers(write_tables(tmp_path), columns=["falls", "age", "dose"], secure_sum="off")["north"]
    made = tmp_path / "made"
    requests = [
        {"columns": {"formula": f"falls ~ log(open('{made}', 'w'))"}, "features": ["age"]},
        {"columns": {"formula": f"falls ~ age.__class__(open('{made}', 'w'))"}, "features": ["age"]},
        {"columns": {"formula": "falls ~ age"}, "features": ["age", "dose"]},
        {"columns": {"formula": "falls ~ age", "features": ["dose"]}, "features": ["dose"]},
    ]
    for request in requests:
        with pytest.raises(Refused) as refusal:
            work.summarize(json.dumps(request))
        assert refusal.value.refusal is Refusal.REQUEST
    assert not made.exists()
    with pytest.raises(Refused) as refusal:
        work.summarize(json.dumps({"columns": {"formula": "falls ~ log(days)"}, "features": ["days"]}))
    assert (refusal.value.refusal, refusal.value.words) == (Refusal.COLUMNS, ("days",))


def test_a_logarithm_that_a_site_has_not_is_refused_without_its_row(tmp_path):
    with pytest.raises(DataError, match=r"^Site 'north' refuses .*the cells of 'dose' are not all") as refusal:
        asked(workers(write_tables(tmp_path, dose=0)), {"formula": "falls ~ log(dose)"})
    assert "row 1" not in str(refusal.value)


@pytest.mark.parametrize(
    "forged",
    [
        {"formula": "falls ~ age:dose"},
        {"formula": None},
        {"spreads": {}},
        {"spreads": {"age": [50.0, 1e-30]}},
        {"spreads": {"age": [50.0, 10.0], "dose": [1.0, 1.0]}},
        {"standardization": {"age": [50.0, 10.0]}},
        {"standardization": {"dose": [0.0, 1e-200]}},
        {"levels": {"group": ["A", "B"]}},
        {"levels": {"group": ["A", "B", "C"], "dose": ["1", "2"]}},
        {"features": ["age", "dose", "group", "days"]},
    ],
)
def test_what_cannot_have_been_agreed_on_for_a_formula_is_refused_whatever_the_rows_hold(tmp_path, forged):
    work = workers(write_tables(tmp_path))["north"]
    columns = {"formula": "falls ~ bs(age) + dose + group"}
    sound = {
        "features": ["age", "dose", "group"],
        "levels": {"group": ["A", "B", "C"]},
        "outcome_levels": [],
        "standardization": {"dose": [1.6, 2.0]},
        "spreads": {"age": [50.0, 12.0]},
        **columns,
    }
    assert work.encode(json.dumps({"columns": columns, "encoding": sound}))["num_rows"] == 60
    with pytest.raises(Refused) as refusal:
        work.encode(json.dumps({"columns": columns, "encoding": sound | forged}))
    assert refusal.value.refusal in (Refusal.ENCODING, Refusal.REQUEST, Refusal.TEXT_HERE)
