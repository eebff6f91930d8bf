"""A run on disk: settings once, then one file a block, each complete before it gets its name.

    run.json                      the run's fingerprint: everything that its draws depend on
    progress.json                 where it stands, for those who watch (`journal`); nothing depends on it
    block-000007-3f9a….npz        draws of the block, and the state after it

The name of a block carries a checksum of its content, the block before it and, at the beginning of this chain, the
run's fingerprint: a block of another run, or one out of its place, is as good as damaged. Opening a run takes the
longest chain of blocks that holds; what comes after is drawn again, and since keys derive from indices it comes out the
same. Plain npz and JSON: no pickle.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import logging
import os
import re
import reprlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np
from filelock import FileLock, Timeout

from fahmc.durable import PART, read_whole, write_atomically
from fahmc.errors import CheckpointError
from fahmc.own_folder import own_folder

logger = logging.getLogger("fahmc")

# To be raised when blocks are named or filled in another way, so that a run of the old way is refused and kept.
_FORMAT = 2
_BLOCK_NAME = re.compile(r"block-([0-9]{6,})-([0-9a-f]{16})\.npz")
_LEFTOVER = re.compile(rf"\.(run\.json|progress\.json|{_BLOCK_NAME.pattern}){re.escape(PART)}")
# Settings and checksums of thousands of clients need a few hundred kilobytes.
_LARGEST_SETTINGS = 100 * 2**20
# A sum of thousands of float32 terms: another machine may round it this differently.
_VALUE_TOLERANCE = 1e-5
# Of a setting in a message.
_LONGEST_VALUE = 200


class RunFolder:
    """The folder of one durable run, which no other process may use meanwhile."""

    def __init__(self, path: str | os.PathLike):
        self.path = own_folder(path, "fahmc.sample")
        self._lock = lock_folder(self.path)
        self._num_blocks, self._last = 0, ""

    def claim(self, fingerprint: dict[str, Any]) -> None:
        """Write the settings into a folder without rounds, or compare them with those of the run that is there.

        Parameters
        ----------
        fingerprint
            Nested dict of JSON values; a folder whose run has another one is refused, the differing field named.
        """
        settings = self.path / "run.json"
        versions = {package: version(package) for package in ("fahmc", "jax", "jaxlib")}
        fingerprint = json.loads(json.dumps({"format": _FORMAT, **fingerprint, "versions": versions}))
        with self._writing():
            names = [file.name for file in self.path.iterdir()]
            for name in filter(_LEFTOVER.fullmatch, names):
                (self.path / name).unlink()
            has_blocks = any(map(_BLOCK_NAME.fullmatch, names))
            if not os.path.lexists(settings):
                if has_blocks:
                    raise CheckpointError(f"{self.path} holds blocks but no run.json; use a new folder.")
                write_atomically(settings, json.dumps(fingerprint, indent=1).encode())
            saved = _read_settings(settings)
            if not has_blocks and "versions" in saved:
                # Of a run that was refused before its first round: that bound the folder to nothing.
                write_atomically(settings, json.dumps(fingerprint, indent=1).encode())
                saved = dict(fingerprint)
        if saved.pop("versions", None) != fingerprint.pop("versions"):
            logger.warning(
                "%s was begun with other versions of fahmc or JAX; new draws may round differently.", self.path
            )
        _check_fingerprint(self.path, saved, fingerprint)
        self._last = _checksum("", json.dumps(saved, sort_keys=True).encode())

    def load(self) -> list[dict[str, Any]]:
        """Read the blocks from the first to the last before which nothing is missing or damaged."""
        names: dict[int, list[tuple[Path, str]]] = {}
        for file in sorted(self.path.iterdir()):
            if match := _BLOCK_NAME.fullmatch(file.name):
                names.setdefault(int(match[1]), []).append((file, match[2]))
        blocks = []
        while found := next(filter(None, (self._read(*named) for named in names.get(len(blocks), []))), None):
            block, self._last = found
            blocks.append(block)
        lost = [file for index, files in names.items() if index >= len(blocks) for file, _ in files]
        if lost:
            logger.warning(
                "%s: %d block file(s) from %s on are damaged or follow a damaged one; they are drawn again.",
                self.path, len(lost), min(lost).name,
            )  # fmt: skip
            with self._writing():
                for file in lost:
                    file.unlink()
        self._num_blocks = len(blocks)
        return blocks

    def _read(self, file: Path, checksum: str) -> tuple[dict[str, Any], str] | None:
        """Return a block and its checksum, if it is what was written after the last one."""
        try:
            content = read_whole(file)
        except OSError as error:
            # It may be sound: whoever may read it, or brings the disk back, should find it.
            raise CheckpointError(
                f"{file} cannot be read ({error}). Make it readable, or remove it to have it drawn again."
            ) from error
        block = _decode(content) if _checksum(self._last, content) == checksum else None
        return None if block is None else (block, checksum)

    def append(self, block: dict[str, Any]) -> None:
        """Write one block (a nested dict of arrays) durably."""
        buffer, (leaves, _) = io.BytesIO(), jax.tree_util.tree_flatten_with_path(block)
        arrays = {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}
        np.savez(buffer, allow_pickle=False, **arrays)
        content = buffer.getbuffer()
        checksum = _checksum(self._last, content)
        with self._writing():
            write_atomically(self.path / f"block-{self._num_blocks:06d}-{checksum}.npz", content)
        self._num_blocks, self._last = self._num_blocks + 1, checksum

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Say where the run stands if its folder cannot be written to."""
        try:
            yield
        except OSError as error:
            raise CheckpointError(
                f"The run's folder {self.path} cannot be written to ({error}). What was drawn up to its last block is "
                "kept there; check the free space and permissions, and the run goes on where it stopped."
            ) from error

    def close(self) -> None:
        """Let another process have the folder."""
        self._lock.release()


def block_files(path: Path) -> list[Path]:
    """Return the files of a run's blocks in their order, for those who only look."""
    found = {int(match[1]): file for file in path.glob("block-*.npz") if (match := _BLOCK_NAME.fullmatch(file.name))}
    return [found[index] for index in itertools.takewhile(found.__contains__, itertools.count())]


def read_block(file: Path) -> dict[str, Any] | None:
    """Return what a block's file holds, or nothing if it is gone or cannot be read as one; no checksum is looked at."""
    try:
        return _decode(read_whole(file))
    except OSError:
        return None


def _checksum(before: str, content: bytes | memoryview) -> str:
    sha = hashlib.sha256(before.encode())
    sha.update(content)
    return sha.hexdigest()[:16]


def lock_folder(path: Path) -> FileLock:
    """Keep others out of a folder; the system lets go of the lock however this process ends."""
    lock = FileLock(path / ".lock", thread_local=False)  # whichever thread closes a run releases it
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise CheckpointError(f"Another process is sampling into {path}; wait for it, or use another folder.") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be used as a run's folder: {error.strerror}.") from error
    return lock


def _decode(content: bytes) -> dict[str, Any] | None:
    """Return the arrays of a block, nested again, or nothing if they cannot be read."""
    block: dict[str, Any] = {}
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            if any(member.compress_type for member in arrays.zip.infolist()):
                return None  # ours are stored as they are, so that they cannot be larger than their file
            for path in arrays.files:
                *folders, name = path.split("/")
                reduce(lambda place, folder: place.setdefault(folder, {}), folders, block)[name] = arrays[path]
    except Exception:  # whatever NumPy and zipfile make of what is no npz
        return None
    return block


def _read_settings(file: Path) -> dict[str, Any]:
    """Read run.json."""
    try:
        if file.stat().st_size > _LARGEST_SETTINGS:
            raise ValueError("it is too large")
        return dict(json.loads(read_whole(file)))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{file} cannot be read ({error}); use a new folder.") from error


def _check_fingerprint(path: Path, saved: Any, current: Any, field: str = "") -> None:
    """Name the first field in which two fingerprints differ."""
    if isinstance(saved, dict) and isinstance(current, dict):
        for key in [*saved, *(key for key in current if key not in saved)]:
            _check_fingerprint(path, saved.get(key), current.get(key), f"{field}.{key}" if field else key)
        return
    if isinstance(saved, float) and isinstance(current, float):
        # Values of the model are recomputed; all other numbers were typed. A schedule may be NaN where nobody looks.
        tolerance = _VALUE_TOLERANCE if field.startswith("model.") else 0.0
        same = bool(np.isclose(saved, current, rtol=tolerance, atol=0.0, equal_nan=True))
    else:
        same = saved == current
    if not same:
        raise CheckpointError(
            f"{path} holds a run with {field} = {_short(saved)}, but now it is {_short(current)}. A run goes on only "
            "with the settings, model and data it began with: restore them, or use a new folder."
        )


def _short(value: Any) -> str:
    return value[:_LONGEST_VALUE] if isinstance(value, str) else reprlib.repr(value)
