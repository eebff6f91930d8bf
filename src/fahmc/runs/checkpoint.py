"""A run on disk: settings once, then one file a block, each complete before it gets its name.

    run.json                      the run's fingerprint: everything that its draws depend on
    block-000007-3f9a….npz        draws of the block, and the state after it; the name carries the content's checksum

A block file is written under a temporary name, flushed to disk and renamed, so a kill leaves either the whole block or
none of it. Opening a run takes the longest prefix of blocks whose checksums hold; what comes after is drawn again, and
since keys derive from indices it comes out the same. Plain npz and JSON: no pickle.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import re
from functools import reduce
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np
from filelock import FileLock, Timeout

from fahmc.errors import CheckpointError

logger = logging.getLogger("fahmc")

_BLOCK_NAME = re.compile(r"block-(\d{6,})-([0-9a-f]{16})\.npz")
# A sum of thousands of float32 terms: another machine may round it this differently.
_VALUE_TOLERANCE = 1e-5


class RunFolder:
    """The folder of one durable run.

    Parameters
    ----------
    fingerprint
        Nested dict of JSON values; a folder whose run has another fingerprint is refused, the differing field named.
    """

    def __init__(self, path: str | os.PathLike, fingerprint: dict[str, Any]):
        self.path = Path(path)
        self._lock = lock_folder(self.path)
        self._num_blocks = 0
        try:
            self._claim(fingerprint)
        except BaseException:
            self.close()
            raise

    def _claim(self, fingerprint: dict[str, Any]) -> None:
        """Write the settings into a new folder, or compare them with those of the run that is there."""
        for leftover in self.path.glob("*.tmp"):
            leftover.unlink()
        settings = self.path / "run.json"
        versions = {package: version(package) for package in ("fahmc", "jax", "jaxlib")}
        fingerprint = json.loads(json.dumps(fingerprint | {"versions": versions}))
        if settings.exists():
            try:
                saved = dict(json.loads(settings.read_text()))
            except (OSError, ValueError, TypeError) as error:
                raise CheckpointError(f"{settings} cannot be read ({error}); use a new folder.") from error
            if saved.pop("versions", None) != fingerprint.pop("versions"):
                logger.warning(
                    "%s was begun with other versions of fahmc or JAX; new draws may round differently.", self.path
                )
            _check_fingerprint(self.path, saved, fingerprint)
        elif any(_BLOCK_NAME.fullmatch(file.name) for file in self.path.iterdir()):
            raise CheckpointError(f"{self.path} holds blocks but no run.json; use a new folder.")
        else:
            write_atomically(settings, json.dumps(fingerprint, indent=1).encode())

    def load(self) -> list[dict[str, Any]]:
        """Read the blocks from the first to the last before which nothing is missing or damaged."""
        names = {}
        for file in sorted(self.path.iterdir()):
            if match := _BLOCK_NAME.fullmatch(file.name):
                names.setdefault(int(match[1]), []).append((file, match[2]))
        blocks = []
        while block := next(
            filter(None, (_read_block(file, checksum, blocks[-1:]) for file, checksum in names.get(len(blocks), []))),
            None,
        ):
            blocks.append(block)
        lost = [file for index, files in names.items() if index >= len(blocks) for file, _ in files]
        if lost:
            logger.warning(
                "%s: %d block file(s) from %s on are damaged or follow a damaged one; they are drawn again.",
                self.path, len(lost), min(lost).name,
            )  # fmt: skip
            for file in lost:
                file.unlink()
        self._num_blocks = len(blocks)
        return blocks

    def append(self, block: dict[str, Any]) -> None:
        """Write one block (a nested dict of arrays with ``phase``, ``first_round`` and ``rounds``) durably."""
        buffer, (leaves, _) = io.BytesIO(), jax.tree_util.tree_flatten_with_path(block)
        arrays = {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}
        np.savez(buffer, allow_pickle=False, **arrays)
        content = buffer.getvalue()
        write_atomically(self.path / f"block-{self._num_blocks:06d}-{_checksum(content)}.npz", content)
        self._num_blocks += 1

    def close(self) -> None:
        """Let another process have the folder."""
        self._lock.release()


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that after a crash it is there whole or not at all."""
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def lock_folder(path: Path) -> FileLock:
    """Make a folder and keep others out of it; the system lets go of the lock however this process ends."""
    lock = FileLock(path / ".lock", thread_local=False)  # whichever thread closes a run releases it
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock.acquire(blocking=False)
    except Timeout:
        raise CheckpointError(f"Another process is sampling into {path}; wait for it, or use another folder.") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be used as a run's folder: {error.strerror}.") from error
    return lock


def _read_block(file: Path, checksum: str, before: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Read a block, if it is what was written and goes on where the last one ended, or begins the next phase."""
    content = file.read_bytes()
    if _checksum(content) != checksum:
        return None
    block: dict[str, Any] = {}
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        for path in arrays.files:
            *folders, name = path.split("/")
            reduce(lambda place, folder: place.setdefault(folder, {}), folders, block)[name] = arrays[path]
    phase, first_round = int(block["phase"]), int(block["first_round"])
    if not before:
        return block if (phase, first_round) == (0, 0) else None
    last_phase, reached = int(before[0]["phase"]), int(before[0]["first_round"] + before[0]["rounds"])
    return block if (phase, first_round) in [(last_phase, reached), (last_phase + 1, 0)] else None


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
            f"{path} holds a run with {field} = {saved}, but now it is {current}. A run goes on only with the "
            "settings, model and data it began with: restore them, or use a new folder."
        )
