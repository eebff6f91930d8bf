"""What fahmc raises: each message says what came, what is needed and what to do."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable
from typing import Any

_LONGEST_LINE = 300


class FahmcError(Exception):
    """Base of every error that fahmc raises on purpose."""


class DataError(FahmcError):
    """The rows, or how they are spread over the clients, cannot be used.

    ``columns`` names those that it is about, for somebody who may know no more than that; ``setting`` is what has to
    change, if that is not what names them, and ``client`` whose file cannot be read.
    """

    def __init__(self, message: str, columns: Iterable[str] = (), setting: str | None = None):
        super().__init__(message)
        self.columns = tuple(columns)
        self.setting, self.client = setting, ""


class ModelError(FahmcError):
    """The model's functions do not fit the data or each other."""


class SettingsError(FahmcError):
    """A setting is outside what it can be, or two settings contradict each other.

    ``where`` is the path of the key that is refused, for settings that came from a table.
    """

    def __init__(self, message: str, where: tuple[str, ...] = ()):
        super().__init__(message)
        self.where = where


class CheckpointError(FahmcError):
    """A run's folder does not belong to this run, or cannot be read."""


class OutputError(FahmcError):
    """Standard output cannot be written."""

    def __init__(self, error: OSError):
        super().__init__(
            f"standard output cannot be written ({error.strerror}), so what was printed is lost, and files are not. "
            "Check where it goes; --quiet prints nothing."
        )


class DivergenceError(FahmcError):
    """A chain left the finite numbers. ``draws`` holds everything drawn before that round (`Draws`, or None)."""

    def __init__(self, message: str, draws: Any = None):
        super().__init__(message)
        self.draws = draws


class FederationError(FahmcError):
    """A site or the server of a real federation is missing, refuses, or answers with what cannot be used.

    ``draws`` holds everything drawn before that (`Draws`, or None).
    """

    def __init__(self, message: str, draws: Any = None):
        super().__init__(message)
        self.draws = draws


def error_class(name: object) -> type[FahmcError]:
    """Return the class of errors that another process named, if it is one of these."""
    kind = globals().get(str(name))
    return kind if isinstance(kind, type) and issubclass(kind, FahmcError) else FederationError


def nearest(word: str, known: Iterable[str]) -> str:
    """Say which known word was probably meant: ``", did you mean 'x'?"``, or a full stop if none is near."""
    by_lower = {name.lower(): name for name in known}
    matches = difflib.get_close_matches(word.lower(), by_lower, n=3)
    matches = matches or [name for name in by_lower if word and name.startswith(word.lower())][:3]
    return f", did you mean {' or '.join(repr(by_lower[match]) for match in matches)}?" if matches else "."


def first_line(error: Exception) -> str:
    """Return the first line of what somebody else's code complains about, without a full stop and not too long."""
    try:
        text = str(error).strip().split("\n")[0]
    except Exception:
        text = ""
    return (text if len(text) <= _LONGEST_LINE else f"{text[: _LONGEST_LINE - 1]}…").rstrip(".")


class _Shortener(reprlib.Repr):
    """Shows anything in a few dozen characters, whatever it is, and never fails."""

    def __init__(self):
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother = 3, 160, 100

    def repr_int(self, x: int, level: int) -> str:
        # Python refuses to write out more than 4,300 digits.
        return repr(x) if x.bit_length() < 256 else f"an integer of {int(x.bit_length() * 0.30103) + 1:,} digits"

    def repr_instance(self, x: Any, level: int) -> str:
        if isinstance(shape := getattr(x, "shape", None), tuple) and shape:
            return f"an array of shape {repr(shape)[: self.maxother]}"
        if isinstance(x, bytes | bytearray):
            x = x[: self.maxother]
        try:
            text = " ".join(repr(x).split())
        except Exception:
            text = f"a {type(x).__name__}"
        return text if len(text) <= self.maxother else f"{text[: self.maxother - 1]}…"


def shown(value: Any) -> str:
    """Show what came in few words: never megabytes, and never an error of its own."""
    return _Shortener().repr(value)
