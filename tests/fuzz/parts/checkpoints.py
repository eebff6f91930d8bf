"""Runs whose folder was damaged are taken up again: the same draws to the bit, or a refusal; never other ones.

A checksum is no signature: whoever computes one for numbers of his own gets these. So arrays are forged here in their
names, kinds and shapes, with the checksum that belongs to them, but not in the values of draws and state.
"""

from __future__ import annotations

import functools
import io
import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fahmc
from damage import damaged_bytes, damaged_json
from fahmc.durable import PART
from fahmc.engines import InProcess
from fahmc.runs import checkpoint
from fahmc.runs.history import History
from fahmc.runs.journal import Journal
from fahmc.runs.pacing import Pacing
from fahmc.runs.plan import fingerprint_of, make_run, settings_of
from fahmc.runs.progress import Interrupt
from fahmc.runs.start import model_values
from fahmc.sample import _drive
from harness import part

_BLOCKS = 4


class Study(NamedTuple):
    """What `fahmc.sample` makes of its arguments, compiled once, and a whole run of it."""

    resume: Callable[[Path], np.ndarray]
    whole: tempfile.TemporaryDirectory
    """Removed with this process."""
    folder: Path
    draws: np.ndarray


@functools.cache
def study(seed: int) -> Study:
    model = fahmc.Model(lambda position, batch: -((batch - position) ** 2) / 2, init=jnp.zeros(()))
    federation = fahmc.Federation.from_clients({"a": np.arange(4.0), "b": np.arange(6.0)})
    run = make_run(
        model, federation, fahmc.FAHMC(0.1, 2), 2 * _BLOCKS, seed=seed, num_chains=2, dtype=np.dtype(np.float32)
    )
    values, session = model_values(run), InProcess().start(run)
    settings = settings_of(run, {"a": 4, "b": 6}, session.path)

    def resume(path: Path) -> np.ndarray:
        with jax.enable_x64(False):
            folder = checkpoint.RunFolder(path)
            try:
                folder.claim(fingerprint_of(run, settings, values))
                history = History(run, settings, folder)
                return _drive(run, session, history, Pacing(None, 2), Interrupt(), Journal(None), False).flat()
            finally:
                folder.close()

    whole = tempfile.TemporaryDirectory(prefix="fahmc-fuzz-")
    return Study(resume, whole, Path(whole.name), resume(Path(whole.name)))


@part("checkpoints")
def try_one(rng: random.Random, folder: Path) -> str:
    ours, other = study(0), study(1)
    run = folder / "run"
    shutil.copytree(ours.folder, run)
    foreign = {name: rng.randbytes(9) for name in ("notes.tmp", "block-mine.npz", f".mine{PART}", "data.csv")}
    for name, content in foreign.items():
        (run / name).write_bytes(content)
    for _ in range(rng.choice([1, 1, 2, 3])):
        rng.choice(DAMAGES)(rng, run, other.folder)
    before = set(os.listdir(run))
    try:
        draws = ours.resume(run)
    finally:
        assert all((run / name).read_bytes() == content for name, content in foreign.items())
    np.testing.assert_array_equal(draws, ours.draws)
    np.testing.assert_array_equal(ours.resume(run), ours.draws)  # and the run is whole again
    return "same draws" if set(os.listdir(run)) == before else "drawn again"


def _blocks(run: Path) -> list[Path]:
    return sorted(filter(_is_plain, run.glob("block-0*")))


def _is_plain(file: Path) -> bool:
    """Whether it may be changed: not through a link, to somebody else's file."""
    return file.is_file() and not file.is_symlink()


def _one(rng: random.Random, run: Path) -> Path:
    """Return a file of the run; its settings less often than a block."""
    return rng.choice([run / "run.json", *_blocks(run)])


def corrupt(rng: random.Random, run: Path, other: Path) -> None:
    file = _one(rng, run)
    if _is_plain(file):
        file.write_bytes(damaged_bytes(rng, file.read_bytes()))


def edit(rng: random.Random, run: Path, other: Path) -> None:
    file = run / "run.json"
    if _is_plain(file):
        try:
            settings = json.loads(file.read_bytes())
        except (ValueError, RecursionError):
            return
        file.write_text(damaged_json(rng, settings))


def remove(rng: random.Random, run: Path, other: Path) -> None:
    file = _one(rng, run)
    if _is_plain(file):
        file.unlink()
    how = rng.randrange(8)
    if how == 0:
        file.mkdir(exist_ok=True)
    elif how == 1 and not os.path.lexists(file):
        file.symlink_to(rng.choice(["nowhere", "data.csv", file.name]))
    elif how == 2 and not os.path.lexists(file):
        os.mkfifo(file)


def shuffle(rng: random.Random, run: Path, other: Path) -> None:
    if len(files := _blocks(run)) < 2:
        return
    one, two = rng.sample(files, 2)
    how = rng.randrange(4)
    if how == 0:
        content = one.read_bytes()
        one.write_bytes(two.read_bytes())
        two.write_bytes(content)
    elif how == 1:
        one.rename(run / f"{two.name[:12]}{one.name[12:]}")
    elif how == 2:
        number = f"{rng.choice([0, 3, 4, 99, 10**9]):0{rng.choice([6, 7, 12])}d}"
        (run / f"block-{number}{one.name[12:]}").write_bytes(one.read_bytes())
    else:
        shutil.copy(one, run / f"block-00000{rng.randrange(5)}-{rng.randbytes(8).hex()}.npz")


def borrow(rng: random.Random, run: Path, other: Path) -> None:
    """Take blocks of another run: under their own names, or under those of this run's."""
    for file in _blocks(other)[rng.randrange(_BLOCKS) :]:
        mine = [block for block in _blocks(run) if block.name[:12] == file.name[:12]]
        name = rng.choice([file, *mine]).name
        if rng.random() < 0.5:
            for block in mine:
                block.unlink()
        shutil.copy(file, run / name)


def obstruct(rng: random.Random, run: Path, other: Path) -> None:
    """Put something where the run wants to write."""
    name = rng.choice([".lock", f".run.json{PART}", *(f".{file.name}{PART}" for file in _blocks(run))])
    if not os.path.lexists(run / name) or (run / name).is_file():
        (run / name).unlink(missing_ok=True)
        rng.choice([Path.mkdir, Path.touch, lambda path: path.symlink_to("data.csv")])(run / name)


def forge(rng: random.Random, run: Path, other: Path) -> None:
    """Change the arrays of a block, but not the values of draws and state, and name it as the run would."""
    files, whole = _blocks(run), _blocks(study(0).folder)
    if [file.read_bytes() for file in files] != [file.read_bytes() for file in whole]:
        return  # what was damaged or borrowed is not given our name
    try:
        settings = json.loads((run / "run.json").read_bytes())
        settings.pop("versions")
        last = checkpoint._checksum("", json.dumps(settings, sort_keys=True).encode())
    except (OSError, ValueError, RecursionError, AttributeError, KeyError, TypeError):
        return
    forged = rng.randrange(_BLOCKS)
    for index, file in enumerate(files):
        content = file.read_bytes()
        if index == forged:
            try:
                with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
                    content = _as_npz(rng, _altered(rng, dict(arrays)))
            except Exception:  # damaged before
                return
        last = checkpoint._checksum(last, content)
        file.unlink()
        (run / f"block-{index:06d}-{last}.npz").write_bytes(content)


def _altered(rng: random.Random, arrays: dict[str, Any]) -> dict[str, Any]:
    name = rng.choice(list(arrays))
    array = arrays[name]
    how = rng.randrange(9)
    if how == 0:
        del arrays[name]
    elif how == 1:
        arrays[name] = array.astype(rng.choice(["f8", "i4", "c16", "S3", "U3", "?", "f2"]))
    elif how == 2:
        arrays[name] = np.reshape(array, rng.choice([(-1,), (*array.shape, 1), (1, *array.shape)]))
    elif how == 3:
        arrays[name] = np.concatenate([np.atleast_1d(array)] * 2, axis=rng.choice([0, -1]))
    elif how == 4:
        arrays[name] = np.array([{"a": array}], dtype=object)
    elif how == 5:
        arrays[rng.choice([f"{name}/inner", "state/extra", "stats/extra", "extra", "../up", "a/b/c", "stats", ""])] = (
            array
        )
    elif how == 6:
        number = rng.choice(["phase", "first_round", "rounds", "has_diverged", "seconds"])
        arrays[number] = np.asarray(rng.choice([-1, 0, 1, 3, 2**62, 0.5, np.nan, True, False, "a"]))
    elif how == 7:
        arrays["seconds"] = np.float64(rng.random())
    return arrays


def _as_npz(rng: random.Random, arrays: dict[str, Any]) -> bytes:
    content = io.BytesIO()
    (np.savez_compressed if rng.random() < 0.2 else np.savez)(content, **arrays)
    return content.getvalue()


DAMAGES = [corrupt, corrupt, edit, remove, shuffle, borrow, obstruct, forge, forge]
