"""Refusals of arguments, worded alike."""

from __future__ import annotations

from math import isfinite

from fahmc.errors import SettingsError


def require_positive(name: str, value: float) -> None:
    """Refuse what is not a finite number greater than 0."""
    require(isfinite(value) and value > 0, name, value, "a finite number greater than 0")


def require(fits: bool, name: str, value: object, needed: str) -> None:
    """Raise a SettingsError that names the value and what it must be."""
    if not fits:
        raise SettingsError(f"{name} is {value}; it must be {needed}.")
