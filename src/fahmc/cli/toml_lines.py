"""The line of every key in a TOML file, so that a refusal can name it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fahmc.errors import SettingsError

KeyPath = tuple[str, ...]

# What may hold a bracket or an end of line that is none, and those that are. Text here is known to be TOML.
_TOKEN = re.compile(
    r'''"""(?:\\.|[^\\])*?"""+|'{3}.*?'{3,}|"(?:\\.|[^"\\\n])*"|'[^'\n]*'|#[^\n]*|[][{}\n]''', re.DOTALL
)
# The parser's time grows with the square of a key's parts.
_MAX_PARTS = 32
_LONG_KEY = re.compile(rf"""(?<![\w"'-])(?:[\w"'-]+[ \t]*\.[ \t]*){{{_MAX_PARTS}}}""")
_MAX_DEPTH = 32
_INTEGERS = range(-(2**63), 2**64)  # TOML's own, and seeds


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


def parse_toml(text: str, name: str) -> dict[str, Any]:
    """Read a TOML text of reasonable nesting; ``name`` is that of its file, for messages."""
    if (long := _LONG_KEY.search(text)) is not None:
        line = text.count("\n", 0, long.end()) + 1
        raise SettingsError(f"{name}, line {line}: a name of more than {_MAX_PARTS} parts; no setting lies that deep.")
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"\(at line (\d+), ", str(error))
        place = f"{name}, line {line[1]}" if line else name
        raise SettingsError(f"{place}: this is not TOML: {error}. A setting reads: key = value.") from error
    except RecursionError:
        raise _too_deep(name) from None
    except ValueError as error:  # of a number: Python converts no more than 4,300 digits
        raise SettingsError(f"{name}: a number cannot be read: {error}.") from error
    _check_values(table, name)
    return table


def _check_values(table: dict[str, Any], name: str) -> None:
    """Refuse nesting and whole numbers beyond what any setting can be; such numbers cannot even be printed."""
    level, depth = [table], 0
    while level:
        if (depth := depth + 1) > _MAX_DEPTH:
            raise _too_deep(name)
        inner = [part for values in level for part in (values.values() if isinstance(values, dict) else values)]
        if any(isinstance(part, int) and part not in _INTEGERS for part in inner):
            raise SettingsError(f"{name}: a whole number is beyond -2^63 to 2^64 - 1, the largest that settings take.")
        level = [part for part in inner if isinstance(part, dict | list)]


def _too_deep(name: str) -> SettingsError:
    return SettingsError(f"{name}: lists or tables are nested in more than {_MAX_DEPTH} others; no setting needs that.")


def locate_keys(text: str) -> dict[KeyPath, int]:
    """Find the line of every key of a valid TOML text; the keys of an inline table are on the line where it begins."""
    lines: dict[KeyPath, int] = {}
    table: KeyPath = ()
    for number, statement in _statements(text):
        # A header or one key with its value is TOML by itself, so the parser that ships with Python does the work.
        paths = list(_key_paths(tomllib.loads(statement)))
        is_header = statement.lstrip().startswith("[")
        for path in paths:
            lines.setdefault(path if is_header else table + path, number)
        table = paths[-1] if is_header else table
    return lines


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Cut a valid TOML text where a line ends outside of all brackets and strings; yield line numbers and pieces."""
    number, start, depth, passed = 1, 0, 0, 0
    for token in _TOKEN.finditer(text + "\n"):
        if token[0] in "[{":
            depth += 1
        elif token[0] in "]}":
            depth -= 1
        passed += token[0].count("\n")
        if token[0] == "\n" and not depth:
            yield number, text[start : token.end()]
            number, start, passed = number + passed, token.end(), 0


def _key_paths(parsed: Mapping[str, Any]) -> Iterator[KeyPath]:
    for key, value in parsed.items():
        yield (key,)
        if isinstance(value, dict):
            yield from ((key, *rest) for rest in _key_paths(value))
