"""Columns that say how a row counts: offset, exposure, weight, event, trials, from tables to arrays."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from fahmc.cli.config import build_federation, parse_config
from fahmc.data.columns import Columns
from fahmc.data.row_columns import UnfitCell
from fahmc.data.sites import Sites
from fahmc.data.study import build_study
from fahmc.data.tables import Table
from fahmc.errors import DataError

ROLES: dict[str, Any] = {
    "offset": "base",
    "exposure": "days",
    "row_weights": "copies",
    "event": "died",
    "trials": "tested",
}
NORTH = pd.DataFrame(
    {
        "y": [1.0, 2.0, 3.0],
        "age": [30.0, 40.0, 50.0],
        "base": [0.5, -1.0, 0.0],
        "days": [1.0, 10.0, 365.25],
        "copies": [1.0, 0.0, 2.5],
        "died": [0, 1, 1],
        "tested": [4, 5, 6],
    }
)
SOUTH = NORTH.assign(age=[20.0, 60.0, 35.0], died=[1, 1, 1])


def tables(north=NORTH):
    return {"north": Table.from_frame(north, "north.csv"), "south": Table.from_frame(SOUTH, "south.csv")}


def test_each_becomes_an_array_of_the_rows_as_it_is_and_no_feature():
    study = build_study(tables(), Columns("y", **ROLES))
    assert study.feature_names == ("age",), "by default everything but the outcome and these"
    assert set(study.standardization) == {"age"}
    rows = study.clients["north"]
    assert set(rows) == {"x", "y", "offset", "weight", "event", "trials"}
    np.testing.assert_array_equal(rows["offset"], NORTH["base"] + np.log(NORTH["days"]))
    for array, column in (("weight", "copies"), ("event", "died"), ("trials", "tested")):
        np.testing.assert_array_equal(rows[array], NORTH[column])
    plain = build_study(tables(), Columns("y", ("age",)))
    assert set(plain.clients["north"]) == {"x", "y"}, "what is not named is not there"
    np.testing.assert_array_equal(plain.clients["north"]["x"], rows["x"])
    named = build_study(tables(), Columns("y", ("age", "tested"), trials="tested"))
    assert named.feature_names == ("age", "tested"), "a column that is named as a feature is one, too"


def test_a_row_without_a_value_in_them_is_incomplete():
    with pytest.raises(DataError, match=r"client 'north' lacks values in 'days' \(1\)"):
        build_study(tables(NORTH.assign(days=[1.0, None, 2.0])), Columns("y", exposure="days"))
    study = build_study(tables(NORTH.assign(days=[1.0, None, 2.0])), Columns("y", exposure="days", missing="drop"))
    assert study.dropped == {"north": 1, "south": 0}
    np.testing.assert_array_equal(study.clients["north"]["offset"], np.log([1.0, 2.0]))


@pytest.mark.parametrize(
    ("column", "cell", "words"),
    [
        ("days", 0.0, "'days' is named as exposure, which must be above 0.*, but 0 in row 2 of north.csv .*'north'"),
        ("copies", -1.0, "'copies' is named as row_weights, which must be 0 or more, but -1 in row 2"),
        ("died", 2, r"'died' is named as event, which must be 1 \(it happened\) or 0 \(censored\), but 2 in row 2"),
        ("tested", 1.5, r"'tested' is named as trials, which must be a whole number, 0 or more, but 1\.5 in row 2"),
    ],
)
def test_a_cell_that_cannot_be_what_it_is_named_for_is_refused(column, cell, words):
    cells = NORTH[column].tolist()
    with pytest.raises(UnfitCell, match=words) as refusal:
        build_study(tables(NORTH.assign(**{column: [cells[0], cell, cells[2]]})), Columns("y", ("age",), **ROLES))
    assert refusal.value.columns == (column,)


def test_text_is_refused_and_so_are_names_that_make_no_sense():
    with pytest.raises(DataError, match=r"'base' holds numbers, but 'high' in row 1 of north\.csv"):
        build_study(tables(NORTH.assign(base=["high", "1", "2"])), Columns("y", ("age",), offset="base"))
    with pytest.raises(DataError, match=r"no column 'dyas' in north\.csv of client 'north'.*'days'"):
        build_study(tables(), Columns("y", exposure="dyas"))
    with pytest.raises(DataError, match="row_weights and outcome are both 'y'; name another column as row_weights"):
        Columns("y", row_weights="y")
    with pytest.raises(DataError, match="without an outcome; name the outcome column as well"):
        Sites(exposure="days")


def test_a_configuration_names_them(tmp_path):
    for name, frame in (("north", NORTH), ("south", SOUTH)):
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    text = """
    [model]
    name = "poisson_regression"
    [data]
    outcome = "y"
    exposure = "days"
    row_weights = "copies"
    features = ["age"]
    clients = {north = "north.csv", south = "south.csv"}
    """
    federation, study = build_federation(parse_config(text, tmp_path / "study.toml"))
    assert study is not None and set(federation.rows[0]) == {"x", "y", "offset", "weight"}
    np.testing.assert_array_equal(federation.rows[1]["offset"], np.log(SOUTH["days"]))
