"""The line of every key in a TOML file, so that a refusal can name it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fahmc.errors import SettingsError

KeyPath = tuple[str, ...]


class Source(NamedTuple):
    """Where settings came from: the file, and the line of each key."""

    path: Path
    lines: dict[KeyPath, int]

    def place(self, where: KeyPath) -> str:
        """Name the file and the line of a key, or of the nearest table around it that the file has."""
        line = next((self.lines[where[:n]] for n in range(len(where), 0, -1) if where[:n] in self.lines), None)
        return self.path.name if line is None else f"{self.path.name}, line {line}"

    def refusal(self, where: KeyPath, message: str) -> SettingsError:
        """Build the error for a key."""
        return SettingsError(f"{self.place(where)}: {message}")


def locate_keys(text: str) -> dict[KeyPath, int]:
    """Find the line of every key of a valid TOML text; the keys of an inline table are on the line where it begins."""
    lines: dict[KeyPath, int] = {}
    table: KeyPath = ()
    statement, start = "", 0
    for number, line in enumerate(text.split("\n"), start=1):
        start = start if statement else number
        statement += line + "\n"
        try:
            # A header or one key with its value is TOML by itself, so the parser that ships with Python does the work.
            parsed = tomllib.loads(statement)
        except tomllib.TOMLDecodeError:
            continue  # an array or a string that goes on over the next line
        is_header = statement.lstrip().startswith("[")
        statement = ""
        paths = list(_key_paths(parsed))
        for path in paths:
            lines.setdefault(path if is_header else table + path, start)
        table = paths[-1] if is_header else table
    return lines


def _key_paths(parsed: Mapping[str, Any]) -> Iterator[KeyPath]:
    for key, value in parsed.items():
        yield (key,)
        if isinstance(value, dict):
            yield from ((key, *rest) for rest in _key_paths(value))
