"""A file of JSON lines that is only ever added to, each with a checksum of itself and of the line before.

    {"at":"2026-11-19T07:01:02Z","who":"ann@example.org",…,"check":"9f0c…"}

So a line that was changed or taken out is noticed. Lines that are gone from the end are, too: a second file holds how
far the first one reached when it was last opened. A line that a crash cut short has no end; it is left out, and the
next one says so. Several processes may add lines, one at a time.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fahmc.durable import write_atomically
from fahmc.errors import FahmcError

Entry = dict[str, Any]
_LINE = re.compile(r'(\{.*),"check":"([0-9a-f]{16})"\}')
_BEFORE_FIRST = "0" * 16
# What is told of a line that was cut short.
_TORN_SHOWN = 200


class BrokenChain(FahmcError):
    """Lines that cannot be believed, or not be added to; the message is the end of a sentence about the file."""


class ChainedLines:
    """The lines of a file, as one process knows them.

    Parameters
    ----------
    path, anchor
        Both files must be there (`begin_lines`).
    take
        Called with every entry, old and new, in order.
    """

    def __init__(self, path: Path, anchor: Path, take: Callable[[Entry], None]):
        self._path, self._anchor, self._take = path, anchor, take
        self._check, self._size, self._number = _BEFORE_FIRST, 0, 0
        self.torn = b""
        """The start of a last line that has no end."""
        self._held = _read_anchor(anchor)
        with self.locked():
            if self._size < self._held[0]:
                raise BrokenChain("has lost lines at its end")
        self.hold()

    def hold(self) -> None:
        """Hold on to how far the lines reach."""
        reached = self._size, self._check
        if self._held != reached:
            write_atomically(self._anchor, json.dumps({"bytes": self._size, "check": self._check}).encode())
            self._held = reached

    @contextlib.contextmanager
    def locked(self) -> Iterator[Callable[[Entry], None]]:
        """Keep other processes from adding lines, know all that they have added, and give what adds one."""
        with _opened(self._path) as descriptor:
            self._catch_up(descriptor)
            yield lambda entry: self._add(descriptor, entry)

    def _catch_up(self, descriptor: int) -> None:
        if os.fstat(descriptor).st_size < self._size:
            raise BrokenChain("has become shorter while it was in use")
        *lines, self.torn = _read_from(descriptor, self._size).split(b"\n")
        for line in lines:
            entry, check = self._read_line(line)
            self._went_on(entry, check, len(line) + 1)

    def _read_line(self, line: bytes) -> tuple[Entry, str]:
        try:
            found = _LINE.fullmatch(line.decode())
            if found is None or found[2] != _checksum(self._check, found[1]):
                raise ValueError("another checksum")
            return json.loads(found[1] + "}"), found[2]
        except (ValueError, RecursionError) as error:
            raise BrokenChain(f"was changed in line {self._number + 1}") from error

    def _add(self, descriptor: int, entry: Entry) -> None:
        if self.torn:
            torn, self.torn = self.torn, b""
            os.ftruncate(descriptor, self._size)
            words = torn[:_TORN_SHOWN].decode(errors="replace")
            self._add(descriptor, {"at": now(), "what": "torn", "text": words})
        text = json.dumps(entry, ensure_ascii=False, separators=(",", ":")).removesuffix("}")
        body = text.encode(errors="backslashreplace").decode()  # half of a pair, as JSON would escape it
        check = _checksum(self._check, body)
        line = f'{body},"check":"{check}"}}\n'.encode()
        try:
            if os.write(descriptor, line) < len(line):
                raise OSError("no space is left")
            os.fsync(descriptor)
        except OSError as error:
            raise BrokenChain(f"cannot be added to: {error.strerror or error}") from error
        self._went_on(entry, check, len(line))

    def _went_on(self, entry: Entry, check: str, num_bytes: int) -> None:
        self._check, self._size, self._number = check, self._size + num_bytes, self._number + 1
        if self._size - num_bytes < self._held[0] <= self._size and self._held != (self._size, check):
            raise BrokenChain("is not the one that was here before")
        try:
            self._take(entry)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise BrokenChain(f"has in line {self._number} what this fahmc cannot read") from error


def begin_lines(path: Path, anchor: Path, entry: Entry) -> None:
    """Write the first line of a file that is not there."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    write_atomically(anchor, json.dumps({"bytes": 0, "check": _BEFORE_FIRST}).encode())
    lines = ChainedLines(path, anchor, lambda entry: None)
    with lines.locked() as add:
        add(entry)
    lines.hold()


def now() -> str:
    """Return the time as it is written into lines."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    try:
        # Each line goes to the end, and not through a link: what it points to is not ours.
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0))
    except FileNotFoundError:
        raise BrokenChain("is missing") from None
    except OSError as error:
        raise BrokenChain(f"cannot be opened: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)  # which lets go of it, too


def _read_from(descriptor: int, place: int) -> bytes:
    os.lseek(descriptor, place, os.SEEK_SET)
    parts = []
    while part := os.read(descriptor, 2**20):
        parts.append(part)
    return b"".join(parts)


def _checksum(before: str, body: str) -> str:
    return hashlib.sha256(f"{before}{body}".encode()).hexdigest()[:16]


def _read_anchor(anchor: Path) -> tuple[int, str]:
    try:
        held = json.loads(anchor.read_text(encoding="utf-8"))
        return int(held["bytes"]), str(held["check"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise BrokenChain(f"cannot be held against {anchor.name}, which is missing or damaged") from error
