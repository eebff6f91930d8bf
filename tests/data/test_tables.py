"""Tables: encodings worked by hand, agreement between clients, and refusals that name the cell."""

import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from fahmc.data.columns import Columns
from fahmc.data.study import Scale, build_study
from fahmc.data.tables import Table, nearest, read_arrays, read_clients, read_sites, read_table
from fahmc.errors import DataError

NORTH = "age,sex,drug,smokes,ill\n20, f ,a,1,No\n40,m,b,0,Yes\n"
SOUTH = "age,sex,drug,smokes,ill\n60,f,c,0,No\n"


@pytest.fixture
def files(tmp_path):
    (tmp_path / "north.csv").write_text(NORTH)
    (tmp_path / "south.csv").write_text(SOUTH)
    return {"north": tmp_path / "north.csv", "south": tmp_path / "south.csv"}


def frames(**clients):
    return {name: Table.from_frame(pd.DataFrame(columns), f"{name}.csv") for name, columns in clients.items()}


def test_an_encoding_worked_by_hand(files):
    study = build_study(read_clients(files), Columns("ill", outcome_positive="Yes"))
    assert study.feature_names == ("age", "sex[m]", "drug[b]", "drug[c]", "smokes")
    # Ages 20, 40, 60: mean 40, variance (400 + 0 + 400) / 3.
    sd = (800 / 3) ** 0.5
    assert study.standardization == {"age": Scale(40.0, sd)}
    np.testing.assert_allclose(study.clients["north"]["x"], [[-20 / sd, 0, 0, 0, 1], [0, 1, 1, 0, 0]])
    np.testing.assert_allclose(study.clients["south"]["x"], [[20 / sd, 0, 0, 1, 0]])
    assert study.clients["north"]["y"].tolist() == [0, 1] and study.clients["south"]["y"].tolist() == [0]
    assert study.outcome_levels == ("No", "Yes")
    assert study.dropped == {"north": 0, "south": 0}


def test_one_file_with_a_site_column_equals_one_file_per_client(files, tmp_path):
    lines = [f"{line},north" for line in NORTH.splitlines()[1:]] + [f"{line}, south" for line in SOUTH.splitlines()[1:]]
    (tmp_path / "all.csv").write_text("\n".join([NORTH.splitlines()[0] + ",site", *reversed(lines)]) + "\n")
    together = build_study(read_sites(tmp_path / "all.csv", "site"), Columns("ill", outcome_positive="Yes"))
    apart = build_study(read_clients(files), Columns("ill", outcome_positive="Yes"))
    np.testing.assert_array_equal(np.sort(together.clients["north"]["x"], 0), np.sort(apart.clients["north"]["x"], 0))
    np.testing.assert_array_equal(together.clients["south"]["x"], apart.clients["south"]["x"])
    assert list(together.clients) == ["north", "south"] and together.feature_names == apart.feature_names


def test_parquet_and_npz_read_like_csv(tmp_path):
    frame = pd.DataFrame({"age": [20, 40], "sex": pd.Categorical(["f", "m"]), "ill": [True, False]})
    frame.to_parquet(tmp_path / "t.parquet")
    np.savez(tmp_path / "t.npz", age=[20, 40], sex=np.array(["f", "m"]), ill=[True, False])
    for name in ("t.parquet", "t.npz"):
        study = build_study({"only": read_table(tmp_path / name)}, Columns("ill"))
        np.testing.assert_allclose(study.clients["only"]["x"], [[-1, 0], [1, 1]])
        assert study.clients["only"]["y"].tolist() == [1, 0]


def test_two_dimensional_arrays_are_features_by_their_name(tmp_path):
    np.savez(tmp_path / "t.npz", x=np.array([[1.0, 5.0], [2.0, 7.0]]), y=[0.5, 1.5], z=[3.0, 4.0])
    study = build_study({"only": read_table(tmp_path / "t.npz")}, Columns("y", features=["x"], standardize=False))
    assert study.feature_names == ("x[0]", "x[1]")
    np.testing.assert_array_equal(study.clients["only"]["x"], [[1, 5], [2, 7]])
    assert study.clients["only"]["y"].tolist() == [0.5, 1.5]


def test_scale_is_that_of_all_rows_together():
    rng = np.random.default_rng(0)
    ages = 1e8 + rng.normal(size=(2, 50)) * [[1.0], [3.0]]  # a mean that would swamp a plain sum of squares
    study = build_study(frames(a={"age": ages[0], "y": ages[0]}, b={"age": ages[1], "y": ages[1]}), Columns("y"))
    assert study.standardization["age"].mean == pytest.approx(ages.mean(), rel=1e-15)
    assert study.standardization["age"].sd == pytest.approx(ages.std(), rel=1e-6)


def test_outcomes_with_classes_and_counts():
    text = frames(a={"x": [0, 1, 0], "y": ["low", "high", "mid"]}, b={"x": [1, 0, 1], "y": ["low", "low", "low"]})
    with pytest.raises(DataError, match=r'say in which .* 0, 1, ...: outcome_levels = \["high", "low", "mid"\], or so'):
        build_study(text, Columns("y"))
    study = build_study(text, Columns("y", outcome_levels=["low", "mid", "high"]))
    assert study.clients["a"]["y"].tolist() == [0, 2, 1] and study.clients["b"]["y"].dtype.kind == "i"
    # One client holds whole numbers only, yet both get floats: a federation needs one kind.
    mixed = build_study(frames(a={"x": [0, 1], "y": [1, 2]}, b={"x": [0, 1], "y": [0.5, 2.0]}), Columns("y"))
    assert [rows["y"].dtype.kind for rows in mixed.clients.values()] == ["f", "f"] and mixed.outcome_levels == ()
    coded = build_study(frames(a={"x": [0, 1], "y": [1, 2]}), Columns("y", outcome_positive="1"))
    assert coded.clients["a"]["y"].tolist() == [1, 0] and coded.outcome_levels == ("2", "1")


def test_codes_can_be_declared_categorical():
    study = build_study(frames(a={"race": [1, 3, 2], "y": [0, 1, 0]}), Columns("y", categorical=["race"]))
    assert study.feature_names == ("race[2]", "race[3]")
    np.testing.assert_array_equal(study.clients["a"]["x"], [[0, 0], [0, 1], [1, 0]])


def test_codes_with_and_without_a_decimal_point_are_one_level(tmp_path):
    (tmp_path / "n.csv").write_text("race,y\n1.0,0\n2.0,1\n")
    (tmp_path / "s.csv").write_text("race,y\n1,1.0\n03,0.0\n")
    tables = read_clients({"n": tmp_path / "n.csv", "s": tmp_path / "s.csv"})
    study = build_study(tables, Columns("y", categorical=["race"], outcome_positive="1.0"))
    assert study.feature_names == ("race[1]", "race[2]")  # "03" stays as it is, and comes first
    assert study.outcome_levels == ("0", "1") and study.clients["s"]["y"].tolist() == [1, 0]
    (tmp_path / "all.csv").write_text("site,y\n1.0,0\n1,1\n-2.,1\n")
    sites = read_sites(tmp_path / "all.csv", "site")
    assert {name: len(table.row_numbers) for name, table in sites.items()} == {"-2": 1, "1": 2}


def test_byte_strings_are_text(tmp_path):
    np.savez(tmp_path / "t.npz", site=np.array([b"a", b"b"]), y=[0, 1])
    assert list(read_sites(tmp_path / "t.npz", "site")) == ["a", "b"]
    np.savez(tmp_path / "t.npz", site=np.array([b"a", b"\xff"]), y=[0, 1])
    with pytest.raises(DataError, match=r"'site' of t.npz holds bytes that are not UTF-8"):
        read_sites(tmp_path / "t.npz", "site")


@pytest.mark.parametrize("header", ["site,age, age,y", "site,age,age,y", '\nsite,age,"age",y'])
def test_a_header_that_comes_twice_is_refused(tmp_path, header):
    (tmp_path / "t.csv").write_text(f"{header}\nn,1,2,0\n", encoding="utf-8-sig")
    with pytest.raises(DataError, match=r"t.csv has more than one column 'age'"):
        read_table(tmp_path / "t.csv")
    with pytest.raises(DataError, match=r"the table has more than one column 'a'"):
        Table.from_frame(pd.DataFrame([[1, 2]], columns=["a", "a"]))
    np.savez(tmp_path / "t.npz", **{"x": np.ones((2, 2)), "x[0]": np.zeros(2)})
    with pytest.raises(DataError, match=r"t.npz has more than one column 'x\[0\]'"):
        read_table(tmp_path / "t.npz")


@pytest.mark.parametrize(("mark", "words"), [(";", "';'"), ("\t", "a tab")])
def test_other_separators_are_named(tmp_path, mark, words):
    (tmp_path / "t.csv").write_text(f"site{mark}age{mark}y\nn{mark}1,5{mark}0\n")
    with pytest.raises(DataError, match=f"one cell with {words} in it.*reads comma-separated files; export"):
        read_sites(tmp_path / "t.csv", "site")


def test_dropped_rows_are_counted_and_change_nothing_else(tmp_path):
    (tmp_path / "t.csv").write_text("age,sex,y\n1,f,0\nNA,m,1\n3,,0\n5,m,1\n")
    study = build_study({"a": read_table(tmp_path / "t.csv")}, Columns("y", missing="drop"))
    assert study.dropped == {"a": 2}
    np.testing.assert_allclose(study.clients["a"]["x"], [[-1, 0], [1, 1]])


def test_missing_values_are_refused_with_client_column_count_and_row(tmp_path):
    (tmp_path / "t.csv").write_text("age,sex,y\n1,f,0\nNA,m,1\n3,,0\n.,m,1\n")
    with pytest.raises(DataError, match=r"'a' lacks values in 'age' \(2\), 'sex' \(1\) .*row 2 of t.csv.*drop"):
        build_study({"a": read_table(tmp_path / "t.csv")}, Columns("y"))


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        (("60,f", "sixty,f"), {}, r"'age' holds numbers, but 'sixty' in row 1 of south.csv \(client 'south'\)"),
        (("60,f", "inf,f"), {}, "'inf' in row 1 of south.csv"),
        (("age", "agee"), {"features": ["age"]}, "no column 'age' in south.csv of client 'south', did you mean 'agee'"),
        (("", ""), {"features": ["Drog"]}, "'Drog'.*did you mean 'drug'.*It has: age, sex"),
        (("", ""), {"features": ["ill"]}, "not the outcome"),
        (("", ""), {"features": []}, "at least one feature"),
        (("", ""), {"outcome_positive": None}, 'outcome_positive = "Yes"'),
        (("", ""), {"outcome_positive": "yes"}, r"\['No', 'Yes'\].*'yes' must be one of two"),
        (("", ""), {"categorical": ["ages"]}, "'ages'.*categorical.*did you mean 'age'"),
        (("", ""), {"missing": "impute"}, "it must be 'error' or 'drop'"),
        (("60,f,c,0,No", "60,f,c,0,"), {"missing": "drop"}, "'south' has no complete row among its 1.*'ill'"),
    ],
)
def test_refusals_name_what_is_wrong(files, change, options, words):
    files["south"].write_text(SOUTH.replace(*change))
    with pytest.raises(DataError, match=words):
        build_study(read_clients(files), Columns("ill", **({"outcome_positive": "Yes"} | options)))


def test_constant_and_identifying_columns_are_refused():
    with pytest.raises(DataError, match=r"'x' is 3 in every complete row of every client.*Leave it out"):
        build_study(frames(a={"x": [3, 3], "y": [0, 1]}, b={"x": [3, 3], "y": [0, 1]}), Columns("y"))
    with pytest.raises(DataError, match="'x' is 'u' in every complete row of every client"):
        build_study(frames(a={"x": ["u", "u"], "y": [0, 1]}), Columns("y"))
    with pytest.raises(DataError, match="'x' is text with 60 different"):
        build_study(frames(a={"x": [f"id{i}" for i in range(60)], "y": [0, 1] * 30}), Columns("y"))
    with pytest.raises(DataError, match="no clients"):
        build_study({}, Columns("y"))
    with pytest.raises(DataError, match="no outcome is named; name the column to predict"):
        build_study(frames(a={"x": [0, 1]}), Columns())


def test_codes_for_missing_values_are_gaps_however_they_are_written(tmp_path):
    (tmp_path / "north.csv").write_text("age,dose,ill\n50,?,1\n-9.0,2,0\n60,3,unknown\n70,4,1\n80,6,0\n")
    frame = pd.DataFrame({"age": [40.0, -9.0, 45.0], "dose": [1.0, 2.0, np.nan], "ill": [0, 1, 1]})
    tables = {"north": read_table(tmp_path / "north.csv"), "south": Table.from_frame(frame)}
    columns = Columns("ill", missing="drop", missing_values=["?", "-9", "unknown"], standardize=False)
    study = build_study(tables, columns)
    assert study.dropped == {"north": 3, "south": 2}
    np.testing.assert_array_equal(study.clients["north"]["x"], [[70, 4], [80, 6]])
    np.testing.assert_array_equal(study.clients["south"]["x"], [[40, 1]])
    with pytest.raises(DataError, match=r"client 'north' lacks values in 'ill' \(1\), 'age' \(1\), 'dose' \(1\)"):
        build_study(tables, replace(columns, missing="error"))
    (tmp_path / "all.csv").write_text("site,x,y\na,1,0\n?,2,1\n")
    with pytest.raises(DataError, match="1 rows have no site in column 'site'"):
        read_sites(tmp_path / "all.csv", "site", ["?"])


@pytest.mark.parametrize(
    ("cells", "advice"),
    [
        (["1", "?", "2", "?"], r'missing_values = \["\?"\]'),
        (["1", "2", "-", "3"], r'missing_values = \["-"\]'),
        (["1", "none", "2", "none"], r'missing_values = \["none"\]'),
        (["1", "2", "4o", "3"], r'Correct that cell; or.*categorical = \["x"\]'),
    ],
)
def test_text_among_numbers_is_refused_with_what_it_most_likely_means(cells, advice):
    with pytest.raises(DataError, match=f"column 'x' holds numbers, but .*{advice}"):
        build_study(frames(a={"x": cells, "y": [0, 1, 0, 1]}), Columns("y"))


def test_levels_of_the_outcome_count_in_the_order_that_is_said():
    tables = frames(a={"x": [0, 1, 0], "y": ["mild", "none", "severe"]}, b={"x": [1, 0], "y": ["none", "mild"]})
    study = build_study(tables, Columns("y", outcome_levels=["none", "mild", "severe", "fatal"]))
    assert study.clients["a"]["y"].tolist() == [1, 0, 2] and study.outcome_levels[-1] == "fatal"
    numbers = build_study(frames(a={"x": [0, 1], "y": [1.0, 2.0]}), Columns("y", outcome_levels=["2", "1"]))
    assert numbers.clients["a"]["y"].tolist() == [1, 0]
    with pytest.raises(DataError, match=r"the level 'severe', which is not among outcome_levels = \['none', 'mild'\]"):
        build_study(tables, Columns("y", outcome_levels=["none", "mild"]))
    with pytest.raises(DataError, match="name each level once"):
        Columns("y", outcome_levels=["a", "a"])
    with pytest.raises(DataError, match="leave one out"):
        Columns("y", outcome_levels=["a", "b"], outcome_positive="a")


def test_unreadable_files_are_refused(tmp_path):
    (tmp_path / "wide.csv").write_text("a,b\n1,2,3\n1,2,3\n")
    (tmp_path / "ragged.csv").write_text("a,b\n1,2\n1,2,3\n")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "sites.csv").write_text("site,a\nn,1\n,2\n")
    (tmp_path / "bad.npz").write_text("not an archive")
    np.savez(tmp_path / "pickled.npz", a=np.array([{}], dtype=object))
    with (tmp_path / "array.npz").open("wb") as file:
        np.save(file, np.ones(3))
    np.savez(tmp_path / "cut.npz", a=np.ones(50))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "cut.npz").read_bytes()[:200])
    np.savez(tmp_path / "uneven.npz", a=np.ones(2), b=np.ones(3))
    pd.DataFrame({"when": pd.to_datetime(["2020-01-01"])}).to_parquet(tmp_path / "dates.parquet")
    for name, words in {
        "wide.cvs": "does not end in",
        "wyde.csv": "did you mean 'wide.csv'",
        "wide.csv": "more cells than its header",
        "ragged.csv": "line 3",
        "empty.csv": "not a comma-separated",
        "bad.npz": "cannot be read as npz",
        "cut.npz": "cut.npz cannot be read as npz arrays .*zip",
        "array.npz": "cannot be read as npz",
        "pickled.npz": "pickle, which is refused",
        "uneven.npz": "same rows",
        "dates.parquet": "column 'when' of dates.parquet is of type datetime",
    }.items():
        with pytest.raises(DataError, match=words):
            read_table(tmp_path / name)
    with pytest.raises(DataError, match=r"1 rows have no site.*row 2 of sites.csv"):
        read_sites(tmp_path / "sites.csv", "site")
    with pytest.raises(DataError, match=r"no column 'sites' in sites.csv, did you mean 'site'"):
        read_sites(tmp_path / "sites.csv", "sites")


def test_a_missing_parquet_reader_names_the_command(tmp_path, monkeypatch):
    (tmp_path / "t.parquet").touch()
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(DataError, match=r'pip install "fahmc\[parquet\]"'):
        read_table(tmp_path / "t.parquet")


def test_arrays_pass_through_untouched(tmp_path):
    images = np.arange(8, dtype=np.uint8).reshape(2, 2, 2)
    np.savez(tmp_path / "t.npz", images=images)
    read = read_arrays(tmp_path / "t.npz")
    np.testing.assert_array_equal(read["images"], images)
    assert read["images"].dtype == np.uint8


def test_nearest_ignores_case_and_stays_silent_when_nothing_is_near():
    assert nearest("AGE", ["age", "sex"]) == ", did you mean 'age'?"
    assert nearest("logistic", ["linear_regression", "logistic_regression"]) == ", did you mean 'logistic_regression'?"
    assert nearest("zzz", ["age", "sex"]) == "."
