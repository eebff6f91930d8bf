"""Files of draws, damaged, forged or of other kinds: they load as they were saved, or are refused."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import os
import random
import tempfile
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np

import fahmc
from damage import damaged_bytes, damaged_json
from fahmc import draws_file
from fahmc.errors import CheckpointError
from harness import part


class Pair(NamedTuple):
    first: np.ndarray
    second: list


@functools.cache
def examples() -> list[tuple[fahmc.Draws, bytes]]:
    """Draws of several kinds, and their files."""
    rng = np.random.default_rng(0)
    trees: list[Any] = [
        rng.normal(size=(2, 6, 3)),
        {"b": rng.normal(size=(2, 6)), "a": rng.normal(size=(2, 6, 2)).astype(np.float32)},
        OrderedDict(z=rng.normal(size=(1, 3, 2, 2)), a=(rng.normal(size=(1, 3)), None)),
        Pair(rng.normal(size=(3, 4)), [rng.normal(size=(3, 4, 1))]),
    ]
    made = []
    for index, positions in enumerate(trees):
        chains, draws = fahmc.Draws(positions, {}, ("a",), None, {}, {}).flat().shape[:2]
        stats = {"diverging": np.zeros((chains, draws), bool), "step_size": rng.random((chains, draws))}
        example = fahmc.Draws(
            positions, stats, ("north", "süd"), rng.random((chains, 2)) if index % 2 else None,
            {"seed": index, "sampler": {"name": "FAHMC"}, "ended": "complete"}, {"rounds": 9, "seconds": 0.5},
        )  # fmt: skip
        with tempfile.TemporaryDirectory(prefix="fahmc-fuzz-") as folder:
            example.save(Path(folder, "draws.nc"))
            made.append((example, Path(folder, "draws.nc").read_bytes()))
    return made


@part("draws files")
def try_one(rng: random.Random, folder: Path) -> str:
    example, content = rng.choice(examples())
    file = folder / "draws.nc"
    # Opening and writing netCDF takes tens of milliseconds, so most cases should end before.
    kind = rng.choices(["damaged", "forged", "whole", "other", "save over"], [70, 14, 5, 7, 4])[0]
    if kind == "save over":
        return save_over(rng, example, file)
    if kind == "other":
        return other_thing(rng, content, file)
    file.write_bytes({"damaged": damaged_bytes, "forged": forged}[kind](rng, content) if kind != "whole" else content)
    is_same = file.read_bytes() == content
    draws = fahmc.Draws.load(file)
    assert is_same or kind == "forged", "damage was not seen"
    if is_same:
        assert_equal(draws, example)
    # Whatever is taken can be looked at, and survives another turn.
    assert draws.flat().shape[:2] == (draws.num_chains, draws.num_draws) and repr(draws)
    if rng.random() < 0.2:
        draws.save(folder / "again.nc")
        assert_equal(fahmc.Draws.load(folder / "again.nc"), draws)
    return "loaded" if is_same else "loaded a forgery that fits"


def assert_equal(one: fahmc.Draws, other: fahmc.Draws) -> None:
    assert one.named().keys() == other.named().keys() and one.stats.keys() == other.stats.keys()
    for name, values in (other.named() | other.stats).items():
        np.testing.assert_array_equal((one.named() | one.stats)[name], values)
        assert (one.named() | one.stats)[name].dtype == values.dtype
    assert (one.client_names, one.settings, one.cost) == (other.client_names, other.settings, other.cost)
    assert (one.client_drift is None) == (other.client_drift is None)


def save_over(rng: random.Random, example: fahmc.Draws, file: Path) -> str:
    """Save where something is, and see whether it is still there."""
    there = rng.choice([b"mine", b"\x89HDF\r\n\x1a\n", rng.randbytes(300), examples()[0][1], b""])
    file.write_bytes(there)
    try:
        example.save(file)
    except CheckpointError:
        assert file.read_bytes() == there and os.listdir(file.parent) == [file.name]
        raise
    assert there in (b"", examples()[0][1])
    assert_equal(fahmc.Draws.load(file), example)
    return "saved"


def other_thing(rng: random.Random, content: bytes, file: Path) -> str:
    """Load what is no file of draws at all."""
    how = rng.randrange(5)
    if how == 0:
        file.mkdir()
    elif how == 1:
        os.mkfifo(file)
    elif how == 2:
        file.symlink_to(rng.choice(["nowhere", file.name, "."]))
    elif how == 3:
        with h5py.File(file, "w") as other:
            other["x"] = np.arange(9)
    else:
        file.write_bytes(content[: -draws_file._END])
    fahmc.Draws.load(file)
    raise AssertionError("what is no file of draws was loaded")


def forged(rng: random.Random, content: bytes) -> bytes:
    """Change what HDF5 holds, or the values beside it, and give it the checksum that belongs to it."""
    image = io.BytesIO(content[: -draws_file._END])
    with h5py.File(image, "r+") as file:
        for _ in range(rng.choice([1, 1, 2])):
            _alter(rng, file)
    netcdf = image.getvalue()
    return netcdf + draws_file._MARK + hashlib.sha256(netcdf).hexdigest().encode()


def _alter(rng: random.Random, file: h5py.File) -> None:
    names: list[str] = []
    file.visit(names.append)
    if not names or rng.random() < 0.4:
        words = file.attrs.get("fahmc", "{}")
        try:
            file.attrs["fahmc"] = damaged_json(rng, json.loads(words))
        except (ValueError, OSError, TypeError, RecursionError):
            file.attrs["fahmc"] = rng.choice(["", "{}", 7.0])
        return
    name = rng.choice(names)
    how = rng.randrange(5)
    if how == 0:
        del file[name]
    elif how == 1:
        del file[name]
        file[name] = rng.choice([np.zeros(3), np.zeros((2, 6)), np.array(7), np.array([b"text"]), np.zeros((2, 0, 3))])
    elif how == 2:
        for attribute in list(file[name].attrs):
            if rng.random() < 0.5:
                del file[name].attrs[attribute]
    elif how == 3:
        file[name].attrs[rng.choice(["_FillValue", "scale_factor", "dtype", "units", "calendar"])] = rng.choice(
            [1.0, "bool", "days since 1900", "x", -5]
        )
    else:
        file[f"posterior/{rng.choice(['extra', 'a', 'chain', 'draw'])}{rng.randrange(3)}"] = np.zeros(2)
