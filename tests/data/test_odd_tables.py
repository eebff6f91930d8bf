"""Tables that are odd: what they claim, what they are called, what they hold. None becomes numbers without a word."""

import io
import logging
import os
import time
import zipfile

import numpy as np
import pandas as pd
import pytest

from fahmc.data.columns import Columns
from fahmc.data.study import build_study
from fahmc.data.tables import MAX_COLUMNS, Table, read_arrays, read_sites, read_table
from fahmc.errors import DataError


def study(clients, **settings):
    tables = {name: Table.from_frame(pd.DataFrame(columns), f"{name}.csv") for name, columns in clients.items()}
    return build_study(tables, Columns("y", **settings))


def test_numbers_whose_squares_overflow_are_refused():
    rows = {"x": [1.0, 2.0, 1e200], "y": [0, 1, 1]}
    for standardize in (True, False):
        with pytest.raises(DataError, match=r"column 'x' may hold numbers up to 1e\+30.*row 3 of b.csv \(client 'b'\)"):
            study({"a": {"x": [1.0, 2.0], "y": [0, 1]}, "b": rows}, standardize=standardize)
    # Within that, the scale is right.
    x = study({"a": {"x": [1.0, 2.0, 1e30], "y": [0, 1, 1]}}).clients["a"]["x"]
    assert np.isclose(x.mean(), 0) and np.isclose(x.std(), 1)


def test_numbers_whose_squares_vanish_are_refused():
    with pytest.raises(DataError, match=r"feature 'x' has values so close together.*comes out as 0"):
        study({"a": {"x": [1e-200, 2e-200], "y": [0, 1]}})


@pytest.mark.parametrize("header", ["", "Unnamed: 0", " "])
def test_a_column_without_a_name_is_no_feature(header, tmp_path, caplog):
    """As pandas and R write row numbers, and as pandas calls them when it writes the table once more."""
    (tmp_path / "t.csv").write_text(f"{header},age,y\n0,40,1\n1,50,0\n")
    table = read_table(tmp_path / "t.csv")
    assert list(table.columns) == ["age", "y"]
    assert "t.csv has 1 column(s) without a name, which are left out" in caplog.text


def test_complex_columns_are_refused(tmp_path):
    np.savez(tmp_path / "t.npz", x=np.array([1 + 2j, 3]), y=np.zeros(2))
    with pytest.raises(DataError, match=r"column 'x' of t.npz is of type complex128"):
        read_table(tmp_path / "t.npz")


def test_nested_columns_of_parquet_are_refused(tmp_path):
    for cells in ([[1, 2], [3]], [{"a": 1}, {"a": 2}]):
        pd.DataFrame({"x": cells, "y": [0, 1]}).to_parquet(tmp_path / "t.parquet")
        with pytest.raises(DataError, match=r"column 'x' of t.parquet holds lists or tables"):
            read_table(tmp_path / "t.parquet")


def test_names_that_would_be_one_are_refused_before_anything_is_sampled():
    rows = {"g": ["C", "T", "C"], "g[T]": [1.0, 2.0, 3.0], "y": [0, 1, 1]}
    with pytest.raises(DataError, match=r"two features would be called 'g\[T\]'"):
        study({"a": rows})


@pytest.mark.parametrize("name", ["a\0b", "a\nb", "\x1b[31m", "a\u2028b", "x" * 201])
def test_names_that_cannot_be_shown_are_refused(name):
    with pytest.raises(DataError, match=r"is called .*which (holds the control|has 201 letters)"):
        Table.from_frame(pd.DataFrame({name: [1.0], "y": [0]}))
    with pytest.raises(DataError, match=r"a level of the text column 'g' (holds the control|has 201 letters)"):
        study({"a": {"g": ["fine", name], "y": [0, 1]}})


def test_levels_of_one_client_and_other_spellings_are_told(caplog):
    clients = {
        "north": {"histology": ["atypical", "benign", "benign"], "y": [0, 1, 1]},
        "south": {"histology": ["ATYPICAL", "benign", "be nign"], "y": [0, 1, 0]},
    }
    with caplog.at_level(logging.WARNING, "fahmc"):
        remarks = study(clients).remarks
    assert len(remarks) == 2 and all(remark in caplog.text for remark in remarks)
    assert (
        "differ only by case or spaces count as different: 'ATYPICAL' and 'atypical', 'be nign' and 'benign'"
        in remarks[0]
    )
    assert "one client only: 'ATYPICAL' (south), 'atypical' (north), 'be nign' (south)" in remarks[1]
    assert not study({"a": {"g": ["p", "q"], "y": [0, 1]}, "b": {"g": ["q", "p"], "y": [0, 1]}}).remarks
    assert not study({"a": {"g": ["p", "q"], "y": [0, 1]}}).remarks, "a single client has all levels"


@pytest.mark.parametrize("cells", [["1,5", "2,0", "3,25"], ["1,000", "12,345", "1,234.5"], ["5%", "10 %", "7,5%"]])
def test_numbers_in_another_notation_are_no_levels(cells):
    """They became words without a word: a coefficient for each, and of an outcome the classes 0, 1, ..."""
    rows = {"x": cells, "z": [1.0, 2.0, 4.0], "y": [0, 1, 1]}
    with pytest.raises(DataError, match=r"'x' is text that reads like numbers in another notation, such as '1"):
        study({"a": rows})
    with pytest.raises(DataError, match="'y' is text that reads like numbers"):
        study({"a": rows | {"x": [1.0, 2.0, 4.0], "y": cells}})
    assert len(study({"a": rows}, categorical=["x"]).feature_names) == 3, "unless they are said to be names"
    assert len(study({"a": rows | {"x": ["0-9", "10-19", "1,5"]}}).feature_names) == 3


def test_members_that_are_no_arrays_are_refused(tmp_path):
    np.savez(tmp_path / "t.npz", x=np.ones(2))
    with zipfile.ZipFile(tmp_path / "t.npz", "a") as archive:
        archive.writestr("notes.txt", "no array")
    with pytest.raises(DataError, match=r"t.npz cannot be read as npz arrays"):
        read_arrays(tmp_path / "t.npz")


@pytest.mark.parametrize("size", [10**12, 10**6, 3])
def test_an_array_that_claims_more_than_it_holds_is_refused_before_space_is_taken(size, tmp_path):
    array = io.BytesIO()
    np.lib.format.write_array_header_1_0(array, {"descr": "<f8", "fortran_order": False, "shape": (size,)})
    with zipfile.ZipFile(tmp_path / "t.npz", "w") as archive:
        archive.writestr("x.npy", array.getvalue() + bytes(16))
    with pytest.raises(DataError, match=rf"x.npy says that it holds {8 * size:,} bytes, but there are 16"):
        read_arrays(tmp_path / "t.npz")


def test_a_file_larger_than_the_machine_is_refused(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "t.npz", x=np.zeros(10**6))
    assert (tmp_path / "t.npz").stat().st_size < 10_000
    monkeypatch.setattr(os, "sysconf", lambda name: {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1000}[name])
    with pytest.raises(DataError, match=r"t.npz would take 0.0 GB of memory, more than"):
        read_arrays(tmp_path / "t.npz")


@pytest.mark.parametrize("make", ["mkdir", "mkfifo", None])
def test_what_is_no_file_is_refused_at_once(make, tmp_path):
    path = tmp_path / "t.csv"
    if make == "mkdir":
        path.mkdir()
    elif make == "mkfifo":
        os.mkfifo(path)
    with pytest.raises(DataError, match="is not a file but a folder" if make else "does not exist"):
        read_table(path)


@pytest.mark.parametrize("name", ["a\0b.csv", "long" * 100 + ".csv"])
def test_paths_that_no_file_can_have(name, tmp_path):
    with pytest.raises(DataError, match="Check the path"):
        read_table(tmp_path / name)


def test_a_header_alone_is_no_table(tmp_path):
    (tmp_path / "t.csv").write_text("site,x,y\n")
    with pytest.raises(DataError, match=r"t\.csv has a header, and no rows below it"):
        read_sites(tmp_path / "t.csv", "site")


def test_rows_of_many_sites_stay_in_order(tmp_path):
    """In one pass: as many sites as rows took time with their square."""
    sites = [f"s{7 * i % 5000}" for i in range(10_000)]
    (tmp_path / "t.csv").write_text("site,x\n" + "".join(f"{site},{i}\n" for i, site in enumerate(sites)))
    began = time.process_time()
    tables = read_sites(tmp_path / "t.csv", "site")
    assert time.process_time() - began < 5
    assert list(tables) == sorted(set(sites))
    for name in ("s0", "s4999", "s777"):
        rows = [i for i, site in enumerate(sites) if site == name]
        assert [int(cell) for cell in tables[name].columns["x"]] == rows
        assert tables[name].row_numbers.tolist() == [i + 1 for i in rows]


def test_many_columns_take_time_in_proportion():
    """Four times the columns took sixteen times as long, and a hundred thousand never ended."""

    def seconds(num_columns):
        names = [f"column {i}" for i in range(num_columns)]
        tables = {"a": Table({name: np.arange(2.0) for name in [*names, "y"]}, np.arange(2), "t.csv")}
        began = time.process_time()
        build_study(tables, Columns("y", features=names))
        return time.process_time() - began

    seconds(100)
    assert seconds(8000) < 8 * max(seconds(2000), 0.02)
    with pytest.raises(DataError, match=f"at most {MAX_COLUMNS:,} are read"):
        Table.from_columns(((f"c{i}", np.ones(1)) for i in range(MAX_COLUMNS + 1)), 1)
