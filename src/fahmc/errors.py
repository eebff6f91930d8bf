"""What fahmc raises: each message says what came, what is needed and what to do."""

from __future__ import annotations

from typing import Any


class FahmcError(Exception):
    """Base of every error that fahmc raises on purpose."""


class DataError(FahmcError):
    """The rows, or how they are spread over the clients, cannot be used."""


class ModelError(FahmcError):
    """The model's functions do not fit the data or each other."""


class SettingsError(FahmcError):
    """A setting is outside what it can be, or two settings contradict each other."""


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
