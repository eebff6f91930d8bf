"""The door: what comes from outside is held against type hints, in one way for Python calls, files and messages.

A frozen dataclass calls ``door.check(self)`` first of all in its ``__post_init__``; a function has the decorator
``@door.checked()``. Limits are part of the hints (`fahmc.hints`), so they are stated where the setting is. A text among
the marks of a hint is what the setting is called in the sentence: ``Annotated[Steps, "K"]``.

    num_leapfrog_steps is 0; K must be a whole number from 1 to 1,000,000.

Numbers of NumPy and JAX are welcome; kept are Python's, which print, hash and save alike everywhere.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable
from typing import Annotated, Any, ParamSpec, TypeVar

from fahmc.errors import FahmcError, SettingsError, shown
from fahmc.fitting import Unfit, fitted

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def check(settings: Any, error: type[FahmcError] = SettingsError) -> None:
    """Hold the fields of a dataclass against its hints; what fits is kept in Python's own types."""
    hints = _hints_of(type(settings))
    for field in dataclasses.fields(settings):
        if field.init:
            value = getattr(settings, field.name)
            kept = admit(field.name, hints[field.name], value, error)
            if kept is not value:
                object.__setattr__(settings, field.name, kept)


def checked(
    error: type[FahmcError] = SettingsError,
) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """Return a decorator that holds a function's arguments against its hints before it is called."""

    def decorate(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        @functools.wraps(function)
        def call(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
            args, kwargs = admitted(function, args, kwargs, error)  # type: ignore[assignment]
            return function(*args, **kwargs)

        return call

    return decorate


def admitted(
    function: Callable[..., Any], args: Any, kwargs: Any, error: type[FahmcError] = SettingsError
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return a call's arguments, each held against its hint."""
    hints = {name: hint for name, (_, hint) in parameters_of(function).items()}
    try:
        bound = _signature_of(function).bind(*args, **kwargs)
    except TypeError:
        return args, kwargs  # the call says by itself what is missing, or one too many
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            values = {key: admit(key, hints.get(key, Any), entry, error) for key, entry in value.items()}
            bound.arguments[name] = values
        elif kind is not inspect.Parameter.VAR_POSITIONAL:
            bound.arguments[name] = admit(name, hints[name], value, error)
    return bound.args, bound.kwargs


def admit(name: str, hint: Any, value: Any, error: type[FahmcError] = SettingsError) -> Any:
    """Return a value as its hint has it, or refuse it in a sentence."""
    try:
        return fitted(hint, value)
    except Unfit as unfit:
        marks = typing.get_args(hint)[1:] if typing.get_origin(hint) is Annotated else ()
        subject = next((mark for mark in marks if isinstance(mark, str)), "it")
        advice = " Put a single one into a list." if isinstance(value, str) and "a list of" in unfit.needed else ""
        message = f"{name}{unfit.place} is {shown(unfit.value)}; {subject} must be {unfit.needed}.{advice}"
        raise (unfit.error or error)(message) from None


@functools.cache
def parameters_of(target: Callable[..., Any]) -> dict[str, tuple[bool, Any]]:
    """Map each parameter to whether it is required and its hint, following ``**settings`` to what it feeds."""
    hints = _hints_of(target)
    parameters = _signature_of(target).parameters.values()
    named = {
        parameter.name: (parameter.default is parameter.empty, hints.get(parameter.name, Any))
        for parameter in parameters
        if parameter.kind is not parameter.VAR_KEYWORD
    }
    if len(named) == len(parameters):
        return named
    *_, rest = parameters  # **settings is the last
    if typing.get_origin(hints.get(rest.name)) is typing.Unpack:
        (shared,) = typing.get_args(hints[rest.name])
        return named | {
            name: (name in shared.__required_keys__, hint)
            for name, hint in typing.get_type_hints(shared, include_extras=True).items()
        }
    return parameters_of(hints["return"]) | named if dataclasses.is_dataclass(hints.get("return")) else named


@functools.cache
def _hints_of(target: Callable[..., Any]) -> dict[str, Any]:
    return typing.get_type_hints(target, include_extras=True)


_signature_of = functools.cache(inspect.signature)
