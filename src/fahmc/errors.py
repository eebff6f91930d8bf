"""What fahmc raises: each message says what came, what is needed and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class FahmcError(Exception):
    """Base of every error that fahmc raises on purpose."""


class DataError(FahmcError):
    """The rows, or how they are spread over the clients, cannot be used."""


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
