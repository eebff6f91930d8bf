"""What a participant's processes wrote: one story out of the files in its kit, oldest first.

    output.txt     how the participant fares, and what its process printed
    log.txt        FLARE's warnings and errors, with older files log.txt.1, log.txt.2
    <job>/log.txt  of a job's worker: here a site finds why it refused, in its own words

They stay in the kit: what a site's logs hold is nobody else's business.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from fahmc.engines.flare.kits import Kit
from fahmc.engines.flare.processes import OUTPUT_FILE

_STAMP = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:,\d+)?(?: - )?")
# Of a long file only so much of its end is read.
_TAIL_BYTES = 2**20


class Line(NamedTuple):
    """A line of a log; one without a time belongs to the one before it."""

    time: str
    source: str
    text: str


class Logs:
    """The logs of a kit, read from where the last reading ended."""

    def __init__(self, kit: Kit):
        self._kit = kit
        self._read: dict[Path, int] = {}
        self._times: dict[Path, str] = {}

    def read(self) -> list[Line]:
        """Return the lines that were not read before, in the order of their times."""
        found = [line for file in self._files() for line in self._lines(file)]
        return sorted(found, key=lambda line: line.time)  # lines of one file stay in their order

    def _files(self) -> Iterator[Path]:
        yield self._kit.path / OUTPUT_FILE
        for pattern in ("log.txt.2", "log.txt.1", "log.txt", "*-*-*-*-*/log.txt"):
            yield from sorted(self._kit.path.glob(pattern))

    def _lines(self, file: Path) -> Iterator[Line]:
        try:
            with file.open("rb") as opened:
                size = opened.seek(0, 2)
                begins = self._read.get(file, max(0, size - _TAIL_BYTES))
                begins = begins if begins <= size else 0  # the file was begun anew
                opened.seek(begins)
                whole, _, _ = opened.read().rpartition(b"\n")
        except OSError:
            return
        self._read[file] = begins + len(whole) + (1 if whole else 0)
        source = "job " + file.parent.name[:8] if file.parent != self._kit.path else self._kit.name
        for raw in whole.decode(errors="replace").splitlines():
            stamp = _STAMP.match(raw)
            if stamp:
                self._times[file] = stamp[1]
            text = "".join(letter if letter.isprintable() else "�" for letter in raw.expandtabs(4))
            yield Line(self._times.get(file, ""), source, text[stamp.end() :] if stamp else text)
