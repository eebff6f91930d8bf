"""Partitions: every row exactly once, at the client that the rule says."""

from typing import Any, cast

import numpy as np
import pytest

from fahmc.data import partition
from fahmc.errors import DataError


def make_rows(num_rows):
    return {"x": np.stack([np.arange(num_rows), -np.arange(num_rows)], axis=1), "y": np.arange(num_rows)}


def split(name, rows, num_clients, seed=0):
    labels = rows["y"] % 3
    return {
        "iid": lambda: partition.iid(rows, num_clients, seed),
        "equal": lambda: partition.equal(rows, num_clients, seed),
        "dirichlet": lambda: partition.dirichlet(rows, labels, num_clients, 0.5, seed=seed),
    }[name]()


@pytest.mark.parametrize("name", ["iid", "equal", "dirichlet"])
@pytest.mark.parametrize("num_clients", [1, 3, 11])
def test_every_row_lands_once_and_stays_whole(name, num_clients):
    clients = split(name, make_rows(60), num_clients)
    together = np.concatenate([client["y"] for client in clients.values()])
    assert sorted(together) == list(range(60))
    for client in clients.values():
        np.testing.assert_array_equal(client["x"], np.stack([client["y"], -client["y"]], axis=1))
        assert len(client["y"]) >= 1


@pytest.mark.parametrize("name", ["iid", "equal", "dirichlet"])
def test_the_seed_decides_the_split(name):
    first, again, other = (split(name, make_rows(60), 4, seed) for seed in (7, 7, 8))
    np.testing.assert_equal(first, again)
    assert any(not np.array_equal(first[client]["y"], other[client]["y"]) for client in first)


def test_names_sort_as_numbers():
    names = list(partition.equal(make_rows(20), 11, seed=0))
    assert names == sorted(names)
    assert names[0] == "client_00" and names[-1] == "client_10"


def test_equal_sizes_differ_by_at_most_one():
    sizes = [len(client["y"]) for client in partition.equal(make_rows(23), 5, seed=3).values()]
    assert sorted(sizes) == [4, 4, 5, 5, 5]


def test_iid_fills_every_client_when_rows_are_just_enough():
    sizes = [len(client["y"]) for client in partition.iid(make_rows(9), 9, seed=1).values()]
    assert sizes == [1] * 9


def test_small_concentration_separates_labels_and_large_mixes_them():
    rows = make_rows(3000)
    labels = rows["y"] % 3

    def largest_share(concentration):
        clients = partition.dirichlet(rows, labels, 3, concentration, seed=0).values()
        return max(np.bincount(client["y"] % 3, minlength=3).max() / len(client["y"]) for client in clients)

    assert largest_share(0.05) > 0.8
    assert largest_share(1e4) < 0.4


def test_dirichlet_respects_min_rows():
    rows = make_rows(300)
    clients = partition.dirichlet(rows, rows["y"] % 2, 5, 0.3, seed=0, min_rows=20)
    assert min(len(client["y"]) for client in clients.values()) >= 20


def test_by_column_names_clients_after_values():
    rows = {"y": np.arange(5), "site": np.array(["b", "a", "b", "c", "a"])}
    clients = partition.by_column(rows, "site")
    assert {name: client["y"].tolist() for name, client in clients.items()} == {"a": [1, 4], "b": [0, 2], "c": [3]}
    assert all(set(client) == {"y"} for client in clients.values())
    by_array = partition.by_column({"y": rows["y"]}, [10, 20, 10, 20, 10])
    assert {name: client["y"].tolist() for name, client in by_array.items()} == {"10": [0, 2, 4], "20": [1, 3]}


@pytest.mark.parametrize("sites", [[b"b", b"a", b"b"], [10.0, 2.0, 10.0], ["1.0", "2", "1"], [10, 2, 10]])
def test_by_column_writes_names_as_tables_do(sites):
    clients = partition.by_column({"y": np.arange(3)}, sites)
    names = {bytes: ["a", "b"], float: ["2", "10"], str: ["1", "2"], int: ["2", "10"]}[type(sites[0])]
    assert list(clients) == names
    assert [0, 2] in [client["y"].tolist() for client in clients.values()]


def test_any_pytree_can_be_split():
    clients = partition.equal((np.arange(6), [np.ones((6, 2, 2))]), 2, seed=0)
    assert clients["client_0"][1][0].shape == (3, 2, 2)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: partition.iid(make_rows(3), 4, seed=0), "3 rows cannot give 4 clients"),
        (lambda: partition.equal(make_rows(3), 0, seed=0), "num_clients is 0"),
        (lambda: partition.equal({"x": np.ones(3), "y": np.ones(4)}, 2, seed=0), r"shapes \[\(3,\), \(4,\)\]"),
        (lambda: partition.equal({}, 2, seed=0), "shapes"),
        (lambda: partition.dirichlet(make_rows(4), [0, 1], 2, 1.0, seed=0), r"labels has shape \(2,\)"),
        (lambda: partition.dirichlet(make_rows(4), [0, 1, 0, 1], 2, 0.0, seed=0), "concentration is 0.0"),
        (lambda: partition.dirichlet(make_rows(4), [0] * 4, 2, 1e-3, seed=0, min_rows=2), "Raise the concentration"),
        (lambda: partition.by_column(make_rows(4), "site"), "no column 'site'.*'x', 'y'"),
        (lambda: partition.by_column(make_rows(2), [1.0, np.nan]), "row 1"),
        (lambda: partition.by_column(make_rows(2), np.array(["a", None], dtype=object)), "row 1"),
        (lambda: partition.iid(make_rows(4), *cast(Any, (2.0, 0))), "num_clients is 2.0; it must be a whole number"),
        (lambda: partition.equal(make_rows(4), 2, seed=-1), "seed is -1; it must be a whole number from 0"),
        (lambda: partition.dirichlet(make_rows(4), [0] * 4, 2, 1.0, seed=cast(Any, 0.5)), "seed is 0.5"),
        (
            lambda: partition.dirichlet(make_rows(4), [0] * 4, 2, 1.0, seed=0, min_rows=cast(Any, 1.5)),
            "min_rows is 1.5",
        ),
    ],
)
def test_impossible_requests_are_refused_in_words(call, words):
    with pytest.raises(DataError, match=words):
        call()
