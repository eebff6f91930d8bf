"""Tables of one to three clients: odd names, odd cells, odd types, damaged files.

Whatever is accepted has as many columns as names, all of them different and fit for every file; all numbers are finite;
no row is lost uncounted; what varied still varies; and the order of the clients decides nothing but the order of names.
"""

from __future__ import annotations

import io
import random
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.cbook import is_math_text

import fahmc
from fahmc.data.columns import Columns
from fahmc.data.study import Study, build_study
from fahmc.data.tables import Table, read_clients, read_sites
from fahmc.draws import Draws
from fahmc.errors import DataError
from fahmc.report.canvas import plain
from harness import part
from odd_formulas import odd_formula
from odd_values import ODD_NAMES, ODD_NUMBERS, ODD_TEXTS, flip_bytes

_LEVELS = ("mild", "severe", "none", "MILD", " none", "atypical")


@part("tables")
def try_one(rng: random.Random, folder: Path) -> str:
    """Write a table or several, damaged or not, and encode them."""
    frames = _frames(rng)
    columns = _columns(rng, frames[0])
    tables = _written(rng, folder, frames)
    study = build_study(tables, columns)
    federation = fahmc.Federation.from_clients(study.clients)
    assert sum(study.dropped.values()) + federation.num_rows == sum(len(t.row_numbers) for t in tables.values())
    _check_numbers(study, tables, columns)
    _check_order(study, tables, columns)
    if rng.random() < 0.03:
        _check_names(study, folder)
    return "accepted"


def _frames(rng: random.Random) -> list[pd.DataFrame]:
    """Make the clients' frames: a few sound columns, and odd ones in every other case."""
    numbers = np.random.default_rng(rng.randrange(2**32))
    frames = []
    names = ["age", "dose", "group", "smokes"][: rng.randint(1, 4)]
    odd = rng.random() < 0.6
    odd_name = {name: rng.choice(ODD_NAMES) for name in names if odd and rng.random() < 0.3}
    for _ in range(rng.randint(1, 3)):
        size = rng.choice((1, 2, 5, 9))
        made: dict[str, Any] = {
            "age": numbers.normal(50, 10, size) * rng.choice((1, 1, 1, 1e-9, 1e12)),
            "dose": numbers.integers(0, 9, size),
            "group": numbers.choice(_LEVELS[: rng.choice((2, 3, 6))], size),
            "smokes": numbers.integers(0, 2, size),
        }
        frame = pd.DataFrame({odd_name.get(name, name): made[name] for name in names})
        frame["y"] = numbers.integers(0, 2, size)
        for _ in range(rng.randint(1, 3) if odd and rng.random() < 0.5 else 0):
            _spoil(rng, frame)
        frames.append(frame)
    return frames


def _spoil(rng: random.Random, frame: pd.DataFrame) -> None:
    """Put something odd into a frame."""
    name, size = rng.choice(list(frame.columns)), len(frame)
    kind = rng.randrange(7)
    if kind < 3:  # a cell
        cells = frame[name].astype(object)
        cells.iloc[rng.randrange(size)] = rng.choice(ODD_NUMBERS if kind < 2 else ODD_TEXTS)
        frame[name] = cells
    elif kind == 3:
        frame[rng.choice(ODD_NAMES)] = np.arange(size)
    elif kind == 4:
        frame[name] = rng.choice((0, 1.5, "same", None))
    elif kind == 5:
        others = [f"{name}[{rng.choice(_LEVELS)}]", f"{name}[0]", f"{name} "]
        frame[rng.choice(others)] = np.arange(size) * 0.5
    else:
        odd = (
            [1 + 2j] * size, [[1, 2]] * size, [{"a": 1}] * size, pd.date_range("2020-01-01", periods=size),
            [b"\xff\xfe"] * size, pd.Categorical(["a", "b"] * size)[:size], np.arange(size).astype("timedelta64[s]"),
            [2**63] * size, ["x" * 500] * size, [f"name {i}" for i in range(size)],
        )  # fmt: skip
        frame[name] = pd.Series(rng.choice(odd))


def _columns(rng: random.Random, frame: pd.DataFrame) -> Columns:
    names = [str(name) for name in frame.columns if name != "y"] or ["none"]
    if rng.random() < 0.25:
        formula, standardize = odd_formula(rng, "y", names), rng.random() < 0.8
        return Columns(formula=formula, missing=rng.choice(("drop", "error")), standardize=standardize)
    return Columns(
        "y" if rng.random() < 0.95 else rng.choice(names),
        features=None if rng.random() < 0.6 else rng.sample(names, rng.randint(1, len(names))),
        categorical=rng.sample(names, 1) if rng.random() < 0.2 else (),
        outcome_positive="1" if rng.random() < 0.3 else None,
        missing=rng.choice(("drop", "error")),
        standardize=rng.random() < 0.8,
    )


def _written(rng: random.Random, folder: Path, frames: list[pd.DataFrame]) -> dict[str, Table]:
    """Write the frames as files, some of them damaged, and read them."""
    kind, is_damaged = rng.choice(("csv", "csv", "parquet", "npz")), rng.random() < 0.15
    if kind == "csv" and not is_damaged and rng.random() < 0.3:
        sites = [rng.choice(ODD_TEXTS) if rng.random() < 0.1 else f"site {i}" for i in range(len(frames))]
        whole = pd.concat([frame.assign(site=site) for frame, site in zip(frames, sites, strict=True)])
        (folder / "all.csv").write_bytes(_as_csv(rng, whole))
        return read_sites(folder / "all.csv", "site")
    files = {}
    for place, frame in enumerate(frames):
        content = {"csv": _as_csv, "parquet": _as_parquet, "npz": _as_npz}[kind](rng, frame)
        files[f"client {place}"] = folder / f"{place}.{kind}"
        files[f"client {place}"].write_bytes(flip_bytes(rng, content) if is_damaged else content)
    if rng.random() < 0.02:
        files["nobody"] = folder / rng.choice(("absent.csv", "", "0.csv/x.csv", "a\0b.csv", "long" * 100 + ".csv"))
    return read_clients(files)


def _as_csv(rng: random.Random, frame: pd.DataFrame) -> bytes:
    text = frame.to_csv(index=rng.random() < 0.1, sep=";" if rng.random() < 0.02 else ",")
    encoding = rng.choice(("utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16")) if rng.random() < 0.1 else "utf-8"
    return text.encode(encoding, errors="replace")


def _as_parquet(rng: random.Random, frame: pd.DataFrame) -> bytes:
    file = io.BytesIO()
    try:
        frame.to_parquet(file, index=rng.random() < 0.1)
    except Exception:  # what Arrow itself cannot write, a user cannot have
        return _as_csv(rng, frame)
    return file.getvalue()


def _as_npz(rng: random.Random, frame: pd.DataFrame) -> bytes:
    arrays: dict[str, Any] = {f"column {i}": frame[name].to_numpy() for i, name in enumerate(frame.columns)}
    arrays = {
        name: cells if cells.dtype != object else np.array(list(map(str, cells))) for name, cells in arrays.items()
    }
    arrays["y"] = arrays.pop(f"column {len(frame.columns) - 1}")
    if rng.random() < 0.3:
        shape = rng.choice(((len(frame), 3), (len(frame), 0), (2, 2, 2), (), (len(frame),)))
        dtype = rng.choice((float, complex, "S3", "U2", "i1", "M8[s]", "f2", "g", object, [("a", float)]))
        arrays[rng.choice(("x", "column 0[1]", "y[0]"))] = np.zeros(shape, dtype)
    file = io.BytesIO()
    (np.savez_compressed if rng.random() < 0.5 else np.savez)(file, **arrays)
    if rng.random() < 0.1:
        with zipfile.ZipFile(file, "a", zipfile.ZIP_DEFLATED) as archive:
            header = (
                f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({rng.choice((10**12, 5, -1))},), }}\n".encode()
            )
            bomb = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
            archive.writestr(rng.choice(("bomb.npy", "notes.txt")), rng.choice((bomb, b"no array", b"")))
    return file.getvalue()


def _check_numbers(study: Study, tables: dict[str, Table], columns: Columns) -> None:
    names = study.feature_names
    assert len(set(names)) == len(names)
    x = np.concatenate([rows["x"] for rows in study.clients.values()])
    assert x.shape[1] == len(names) and np.isfinite(x).all()
    for place, name in enumerate(names):
        if name in study.standardization:
            assert abs(x[:, place].mean()) < 1e-3 and abs(x[:, place].std() - 1) < 1e-3, (name, x[:, place])
        elif all(name in table.columns for table in tables.values()):
            # Taken as it is: the same numbers, in the rows that are left.
            cells = np.concatenate([np.asarray(pd.to_numeric(t.columns[name]), float) for t in tables.values()])
            assert set(x[:, place]) <= set(cells), name


def _check_order(study: Study, tables: dict[str, Table], columns: Columns) -> None:
    """Build the same study with the clients in another order: the same features, with the same numbers."""
    if columns.features is None and len({frozenset(table.columns) for table in tables.values()}) > 1:
        return  # the first client's columns are the features, as documented
    try:
        turned = build_study(dict(reversed(tables.items())), columns)
    except DataError as error:
        raise AssertionError(f"refused in another order: {error}") from error
    assert set(turned.feature_names) == set(study.feature_names) and turned.outcome_levels == study.outcome_levels
    places = [turned.feature_names.index(name) for name in study.feature_names]
    for client, rows in study.clients.items():
        assert np.allclose(rows["x"], turned.clients[client]["x"][:, places], rtol=1e-6, atol=1e-9)


def _check_names(study: Study, folder: Path) -> None:
    """Have the names go through files, figures and pages."""
    names, numbers = study.feature_names, np.random.default_rng(0)
    draws = Draws(
        positions={"coefficients": numbers.normal(size=(2, 5, len(names)))},
        stats={"diverging": np.zeros((2, 5), bool)},
        client_names=tuple(study.clients),
        client_drift=None,
        settings={"clients": {client: 1 for client in study.clients}},
        cost={"rounds": 5, "seconds": 1.0},
        dims={"coefficients": ["feature"]},
        coords={"feature": list(names)},
    )
    draws.save(folder / "draws.nc")
    loaded = Draws.load(folder / "draws.nc")
    assert tuple(loaded.coords["feature"]) == names and loaded.client_names == tuple(study.clients)
    assert not any(is_math_text(line) for name in names for line in plain(name).split("\n"))
