"""Encodings agreed between tables that never meet: what passes, that it suffices, and that it holds no more."""

import dataclasses
import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pydantic import TypeAdapter

from fahmc.data.agreement import agree, choose_features
from fahmc.data.columns import Columns
from fahmc.data.encoding import Encoding, Scale, encode
from fahmc.data.study import build_study
from fahmc.data.summaries import MAX_LEVELS, ColumnSummary, TableSummary, summarize
from fahmc.data.tables import Table, read_sites
from fahmc.data.trial import opt_csv_path
from fahmc.errors import DataError


def frames(**clients):
    return {name: Table.from_frame(pd.DataFrame(columns), f"{name}.csv") for name, columns in clients.items()}


def sent(value: Any) -> Any:
    """Return what arrives at the other end of a connection that carries JSON."""
    wire = json.dumps(dataclasses.asdict(value), allow_nan=False)
    return TypeAdapter(type(value)).validate_python(json.loads(wire))


def agree_apart(tables, columns):
    """Take the three steps with JSON between them; no function sees more than one table."""
    present = {client: json.loads(json.dumps(list(table.columns))) for client, table in tables.items()}
    features = choose_features(sent(columns), present, {client: table.file for client, table in tables.items()})
    summaries = {c: sent(summarize(table, c, sent(columns), features)) for c, table in tables.items()}
    return sent(agree(columns, features, summaries)), summaries


def values_in(summary: TableSummary) -> list[Any]:
    def leaves(value):
        if isinstance(value, dict):
            return [leaf for part in value.values() for leaf in leaves(part)]
        return [leaf for part in value for leaf in leaves(part)] if isinstance(value, list) else [value]

    return leaves(json.loads(json.dumps(dataclasses.asdict(summary))))


def test_everything_that_passes_survives_json_to_the_last_bit():
    columns = Columns("y", ("age", "sex"), "1", ("sex",), "drop", False)
    assert sent(columns) == columns and sent(Columns("y")) == Columns("y")
    ages = ColumnSummary(has_numbers=True, count=3, mean=0.1 + 0.2, squares=1 / 3, is_constant=True)
    summary = TableSummary(3, 1, {"age": ages}, ColumnSummary(has_numbers=False, num_levels=2, levels=("né", "o")))
    assert sent(summary) == summary
    encoding = Encoding(("age", "sex"), {"sex": ("f", "m")}, ("0", "1"), {"age": Scale(0.1 + 0.2, 1e-300 / 3)})
    assert sent(encoding) == encoding and isinstance(sent(encoding).standardization["age"], Scale)
    assert sent(encoding).feature_names == ("age", "sex[m]")


def test_sites_that_exchange_json_get_what_one_process_builds():
    clinics = read_sites(opt_csv_path(), "Clinic")
    names = ("Group", "Age", "Education", "Prev.preg", "BL.PD.avg", "BL..BOP")
    columns = Columns("Preg.ended...37.wk", names, outcome_positive="Yes", missing="drop")
    encoding, summaries = agree_apart(clinics, columns)
    study = build_study(clinics, columns)
    assert (encoding.feature_names, encoding.outcome_levels) == (study.feature_names, study.outcome_levels)
    assert encoding.standardization == study.standardization and len(study.standardization) == 3
    assert {clinic: summary.num_dropped for clinic, summary in summaries.items()} == study.dropped
    for clinic, table in clinics.items():
        rows = encode(table, clinic, columns, encoding)
        assert len(rows["y"]) == summaries[clinic].num_rows
        for key in "xy":
            np.testing.assert_array_equal(rows[key], study.clients[clinic][key])
            assert rows[key].dtype == study.clients[clinic][key].dtype


def test_a_summary_holds_no_cell_of_a_column_of_numbers():
    ages, incomes = [20.5, 41.25, 63.125], [1234.5, 9876.5, 4321.5]
    table = Table.from_frame(pd.DataFrame({"age": ages, "weight": ages, "income": incomes}))
    summary = summarize(table, "a", Columns("income"), ["age", "weight"])
    assert not set(values_in(summary)) & {*ages, *incomes, *map(str, [*ages, *incomes])}
    age = summary.features["age"]
    assert (age.count, age.mean, age.levels) == (3, np.mean(ages), ())
    assert age.squares == pytest.approx(3 * np.var(ages))
    # Nothing is averaged that nothing is scaled by.
    assert summary.outcome == ColumnSummary(has_numbers=True)
    unscaled = summarize(table, "a", Columns("income", standardize=False), ["age"])
    assert unscaled.features["age"] == ColumnSummary(has_numbers=True)


def test_of_too_many_levels_only_their_number_and_an_example_pass():
    tables = frames(
        a={"x": [f"id{i:02}" for i in range(MAX_LEVELS + 1)], "y": 1.0},
        b={"x": ["aa", "bb"], "y": 1.0},
    )
    columns = Columns("y", ("x",))
    summaries = {client: summarize(table, client, columns, ["x"]) for client, table in tables.items()}
    assert (summaries["a"].features["x"].num_levels, summaries["a"].features["x"].levels) == (51, ("id00",))
    with pytest.raises(DataError, match=r"'x' is text with 51 different values at client 'a', such as 'id00'"):
        agree(columns, ["x"], summaries)
    halves = frames(
        a={"x": [f"id{i:02}" for i in range(30)], "y": 1.0}, b={"x": [f"id{i:02}" for i in range(25, 55)], "y": 1.0}
    )
    with pytest.raises(DataError, match=r"'x' is text with 55 different values over all clients, such as 'id00'"):
        build_study(halves, Columns("y"))


def test_a_cell_that_is_no_number_is_quoted():
    columns = Columns("y", ("x",))
    mixed = Table.from_frame(pd.DataFrame({"x": ["1", "secret"], "y": [0, 1]}), "t.csv")
    encoding = Encoding(("x",), {}, (), {})
    for step in (
        lambda: summarize(mixed, "a", columns, ["x"]),
        lambda: encode(mixed, "a", columns, encoding),
    ):
        with pytest.raises(
            DataError, match=r"'x' holds numbers, but 'secret' in row 2 of t.csv \(client 'a'\)"
        ) as refusal:
            step()
        assert refusal.value.columns == ("x",), "what may be told to somebody who may not see the cell"


@pytest.mark.parametrize("changed", ["feature", "outcome"])
def test_a_level_that_was_not_agreed_is_refused(changed):
    columns = Columns("y", ("x",), outcome_positive="ill")
    encoding = Encoding(("x",), {"x": ("1", "2")}, ("well", "ill"), {})
    cells = {"x": [1, 3], "y": ["well", "ill"]} if changed == "feature" else {"x": [1, 2], "y": ["well", "3"]}
    table = Table.from_frame(pd.DataFrame(cells), "t.csv")
    words = r"was agreed to have the levels \[.*\], but '3' in row 2 of t.csv \(client 'a'\)\. Correct that cell"
    with pytest.raises(DataError, match=words):
        encode(table, "a", columns, encoding)


def test_text_at_one_client_and_numbers_at_another_is_refused_where_the_text_is():
    # Even a constant elsewhere is not blamed: the column is not the same in every row.
    tables = frames(a={"x": ["3", "3"], "y": [0, 1]}, b={"x": ["low", "high"], "y": [0, 1]})
    columns = Columns("y")
    encoding, summaries = agree_apart(tables, columns)
    assert summaries["b"].features["x"].levels == ("high", "low")
    assert (encoding.levels, encoding.standardization) == ({}, {})
    encode(tables["a"], "a", columns, encoding)
    with pytest.raises(DataError, match=r"'x' holds numbers, but 'low' in row 1 of b.csv \(client 'b'\)"):
        encode(tables["b"], "b", columns, encoding)
    coded, _ = agree_apart(tables, Columns("y", categorical=("x",)))
    assert coded.levels == {"x": ("3", "high", "low")}


@pytest.mark.parametrize(
    ("missing", "words"), [("error", r"lacks values in 'x' \(2\)"), ("drop", "no complete row among its 2.*'x'")]
)
def test_a_column_that_is_all_missing_is_refused_where_it_is(missing, words):
    tables = frames(a={"x": [1.0, 2.0], "y": [0, 1]}, b={"x": [None, None], "y": [0, 1]})
    columns = Columns("y", missing=missing)
    assert summarize(tables["a"], "a", columns, ["x"]).num_rows == 2
    with pytest.raises(DataError, match=f"client 'b' .*{words}"):
        summarize(tables["b"], "b", columns, ["x"])


def test_a_level_seen_at_one_client_is_a_column_at_all():
    tables = frames(a={"x": ["u", "v"], "y": ["n", "n"]}, b={"x": ["w", "w"], "y": ["n", "p"]})
    columns = Columns("y", outcome_positive="p")
    encoding, _ = agree_apart(tables, columns)
    assert encoding.feature_names == ("x[v]", "x[w]") and encoding.outcome_levels == ("n", "p")
    rows = {client: encode(table, client, columns, encoding) for client, table in tables.items()}
    assert rows["a"]["x"].tolist() == [[0, 0], [1, 0]] and rows["b"]["x"].tolist() == [[0, 1], [0, 1]]
    assert rows["a"]["y"].tolist() == [0, 0] and rows["b"]["y"].tolist() == [0, 1]


def test_only_a_feature_that_is_constant_over_all_clients_is_refused():
    # A sum of three times 0.1 is not 0.3, so a mean taken from it would not be the constant.
    differing = frames(a={"x": [0.1] * 3, "y": [0, 1, 0]}, b={"x": [0.3] * 6, "y": [0, 1] * 3})
    encoding, _ = agree_apart(differing, Columns("y"))
    mean = (0.1 * 3 + 0.3 * 6) / 9
    sd = ((3 * (0.1 - mean) ** 2 + 6 * (0.3 - mean) ** 2) / 9) ** 0.5
    np.testing.assert_allclose(encoding.standardization["x"], (mean, sd))
    same = frames(a={"x": [0.1] * 3, "y": [0, 1, 0]}, b={"x": [0.1] * 6, "y": [0, 1] * 3})
    with pytest.raises(DataError, match=r"'x' is 0\.1 in every complete row of every client"):
        agree_apart(same, Columns("y"))
    assert agree_apart(same, Columns("y", standardize=False))[0].feature_names == ("x",)


@pytest.mark.parametrize(("other", "is_left"), [([1, 1], True), ([0, 1], True), ([0, 2], False), ([1, 0.5], False)])
def test_a_feature_stays_as_it_is_only_if_it_is_0_or_1_at_every_client(other, is_left):
    tables = frames(a={"x": [0, 0], "y": [0, 1]}, b={"x": other, "y": [0, 1]})
    encoding, _ = agree_apart(tables, Columns("y"))
    assert (encoding.standardization == {}) is is_left
    with pytest.raises(DataError, match="'x' is 0 in every complete row"):
        agree_apart(frames(a={"x": [0, 0], "y": [0, 1]}, b={"x": [0], "y": [1]}), Columns("y"))


def test_features_are_chosen_from_names_alone():
    present, files = {"a": ["x[0]", "x[1]", "y"], "b": ["y", "x[1]", "x[0]"]}, {"a": "a.npz", "b": "b.npz"}
    assert choose_features(Columns("y", ("x",)), present, files) == ("x[0]", "x[1]")
    assert choose_features(Columns("y"), present, files) == ("x[0]", "x[1]")
    with pytest.raises(DataError, match=r"no column 'x\[1\]' in b.npz of client 'b'"):
        choose_features(Columns("y"), present | {"b": ["y", "x[0]"]}, files)
    # Whoever is asked for a column that is not there says so, too: the file may have changed in between.
    with pytest.raises(DataError, match="no column 'z' in the table of client 'a'"):
        summarize(Table.from_frame(pd.DataFrame({"x": [1], "y": [1]})), "a", Columns("y"), ["z"])
