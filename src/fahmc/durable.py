"""Files that are there whole or not at all, whatever happens while they are written."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PART = ".fahmc-part"
"""How the name of a file that is being written ends: nobody else's does, so what a kill left behind may go."""


def write_atomically(path: Path, *parts: bytes | memoryview, is_lasting: bool = True) -> None:
    """Write a file, of one part or several, so that it is there whole or not at all: after a kill, on a full disk.

    It is written beside its place, flushed to disk and renamed; if that fails, what was written is removed and the
    file that was there before is untouched. What other libraries write (HDF5, Matplotlib) is made in memory and then
    goes through here: when the disk is full, some of them leave half a file, and some crash. What is not to last, such
    as news that the next will replace, may be lost with the power, and is not waited for.
    """
    temporary = path.with_name(f".{path.name}{PART}")
    # Not through a link: what it points to is not ours.
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0)
    descriptor = os.open(temporary, flags, 0o666)
    try:
        with open(descriptor, "wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            if is_lasting:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    if not is_lasting:
        return
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def read_whole(path: Path) -> bytes:
    """Read a regular file. A directory or a pipe in its place is an `OSError` too, and is not waited for."""
    if path.exists() and not path.is_file():
        raise OSError(f"{path.name} is not a file")
    return path.read_bytes()


def append_record(path: Path, record: Any) -> None:
    """Add a line of JSON to a file; what a kill or a full disk left of a line stays a line of its own."""
    line = json.dumps(record).encode() + b"\n"
    with path.open("ab+") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - 1))
        file.write(line if file.read() in (b"", b"\n") else b"\n" + line)
        file.flush()
        os.fsync(file.fileno())


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """Read what `append_record` wrote; lines that were cut short are left out."""
    for line in path.read_bytes().splitlines() if path.exists() else []:
        with contextlib.suppress(ValueError):
            if isinstance(record := json.loads(line), dict):
                yield record
