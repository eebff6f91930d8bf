"""What files and messages may name, and the one way in which settings go as plain values and come back.

    {"name": "minibatch", "size": 100}           what fahmc brings
    {"object": "study:Clipped", "norm": 1.0}     what somebody else wrote: imported only where it is listed
    {"array": [1.0, 2.0], "dtype": "float64"}, {"tuple": [...]}, {"dict": {...}}

The same values stand in a configuration file, in a message to a site and, with arrays and functions by what they hold,
in a run's fingerprint. What settings there are is read off the signature of the class or function that is named, and
values are checked against its type hints before it is called. A class that is not registered is refused, never run as
something else.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import json
import operator
import re
import types
import typing
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import jax
import numpy as np
import pydantic

from fahmc.errors import SettingsError, nearest
from fahmc.tree import digest

Kind = Literal["sampler", "gradient", "schedule", "model"]
_Target = TypeVar("_Target", bound=Callable[..., Any])

_registered: dict[str, dict[str, Callable[..., Any]]] = {kind: {} for kind in typing.get_args(Kind)}
# The type hint of a setting that takes a registered thing, such as Gradient.
_hints: dict[Any, Kind] = {}
# Two functions of t that agree at 0 and all powers of two up to 2^30 are taken for the same.
_SCHEDULE_BITS = 31


def register(kind: Kind, name: str | None = None) -> Callable[[_Target], _Target]:
    """Let a class, or a function that makes one, be sampled with, named in files and sent in messages.

    What is not part of fahmc is named by where it can be imported from, ``"module:attribute"``, and a site of a real
    federation runs it only if its own rules list that.

    Parameters
    ----------
    kind
        ``"sampler"``, ``"gradient"``, ``"schedule"``: a frozen dataclass whose fields are its settings. ``"model"``: a
        function of settings that returns a `Model`, see `fahmc.models.family`.
    name
        How fahmc's own are called in files; by default as in Python. One that begins with ``_`` is for messages alone.
    """
    if kind not in _registered:
        raise SettingsError(f"register({kind!r}): there are {', '.join(_registered)}.")

    def add(target: _Target) -> _Target:
        is_ours = target.__module__.partition(".")[0] == __name__.partition(".")[0]
        reference = f"{target.__module__}:{target.__qualname__}"
        _registered[kind][(name or target.__name__) if is_ours else reference] = target
        return target

    return add


def takes(kind: Kind, hint: Any) -> None:
    """Say that settings with this type hint are things of a kind."""
    _hints[hint] = kind


def choices(kind: Kind) -> dict[str, Callable[..., Any]]:
    """Return what fahmc brings of a kind, by name; what a user has no use for has a name with an underscore."""
    return {name: target for name, target in _registered[kind].items() if ":" not in name and name[0] != "_"}


def find(kind: Kind, name: Any) -> Callable[..., Any] | None:
    """Return what is registered under a name, or ``"module:attribute"``."""
    return _registered[kind].get(name)


def require(kind: Kind, value: Any) -> None:
    """Refuse what is not of a registered class: a subclass of one may do something else."""
    if type(value) in _registered[kind].values():
        return
    hint = ""
    if isinstance(value, type) and value in _registered[kind].values():
        hint = f" This is the class: write {value.__name__}(...)."
    elif isinstance(getattr(value, "build", None), types.MethodType):
        hint = f' A class of your own is registered by the decorator @fahmc.register("{kind}").'
    known = ", ".join(target.__name__ for target in choices(kind).values())
    raise SettingsError(f"{kind} is {value!r}; use one of {known}.{hint}")


def unknown_key(name: str, key: str, known: Iterable[str]) -> str:
    """Say that a key is not known, which one was probably meant, and which there are."""
    known = list(known)
    return f"{name} is not known{nearest(key, known)} Known here: {', '.join(known)}."


def name_of(target: Any) -> dict[str, str] | None:
    """Return how a registered class or function is named in plain values."""
    for names in _registered.values():
        for name, known in names.items():
            if known is target:
                return {"object" if ":" in name else "name": name}
    return None


def references(table: Any) -> set[str]:
    """Return what else than fahmc's own is named anywhere in plain values, as ``"module:attribute"``."""
    if isinstance(table, Mapping):
        named = {table["object"]} if isinstance(table.get("object"), str) else set()
        return named.union(*map(references, table.values()))
    return set().union(*map(references, table)) if isinstance(table, list) else set()


# From things to plain values


def encode(value: Any, what: str = "the setting") -> Any:
    """Write settings as JSON values from which `decode` makes the same again; functions cannot be written."""
    if type(value) is list or type(value) is tuple:  # a NamedTuple is neither: its class would be lost
        items = [encode(item, what) for item in value]
        return items if isinstance(value, list) else {"tuple": items}
    if name := name_of(type(value)):
        return name | {field.name: encode(getattr(value, field.name), field.name) for field in _fields(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return encode(value.item(), what)
    if isinstance(value, np.ndarray | jax.Array):
        array = np.asarray(value)
        if array.dtype.kind not in "fiub":
            return [encode(item, what) for item in array.tolist()]
        return {"array": array.tolist(), "dtype": array.dtype.name}
    if isinstance(value, Mapping):
        return {"dict": {str(key): encode(item, what) for key, item in value.items()}}
    raise SettingsError(
        f"{what} is {value!r}, which cannot be sent to sites: they take numbers, text, arrays, and the gradients and "
        "schedules of fahmc (for a step size, fahmc.schedules), but no Python functions."
    )


def describe(settings: Any) -> Any:
    """Write settings as JSON values that show what they are: arrays by a checksum, functions of t by their values."""
    if dataclasses.is_dataclass(settings) and not isinstance(settings, type):
        name = name_of(type(settings)) or {"name": type(settings).__name__}
        return name | {field.name: describe(getattr(settings, field.name)) for field in _fields(settings)}
    if callable(settings):
        times = [0, *(2**power for power in range(_SCHEDULE_BITS))]
        schedule: Any = settings
        return {"name": "function", "values": {str(t): float(schedule(np.int32(t))) for t in times}}
    if settings is None or isinstance(settings, bool | int | float | str):
        return settings
    return f"array {digest(settings)}"


def structure(settings: Any, leave_out: Collection[str] = ()) -> str:
    """Return a text that is equal for settings that are, but for the fields left out.

    Functions count by identity, also in fields left out: they are code, not numbers.
    """

    def write(value: Any) -> Any:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            parts = [write(getattr(value, field.name)) for field in _fields(value)]
            return [type(value).__module__, type(value).__qualname__, *parts]
        return f"function {id(value)}" if callable(value) else describe(value)

    values = {field.name: getattr(settings, field.name) for field in _fields(settings)}
    kept = {name: write(value) for name, value in values.items() if name not in leave_out or callable(value)}
    return json.dumps([type(settings).__module__, type(settings).__qualname__, kept])


# From plain values to things


def decode(kind: Kind, table: Mapping[str, Any] | str, where: tuple[str, ...] = (), own: Collection[str] = ()) -> Any:
    """Make what a table names with the table's other keys; errors carry the path of the key that they are about.

    ``own`` lists what else than fahmc's own may be imported, as ``"module:attribute"``.
    """
    settings = {} if isinstance(table, str) else dict(table)
    if isinstance(table, str):
        target = _choose(kind, where, table)
    elif "object" in settings:
        target = _import(kind, settings.pop("object"), own)
    else:
        target = _choose(kind, (*where, "name"), settings.pop("name", None))
    return call(target, settings, where, own)


def call(target: Callable[..., Any], settings: Mapping[str, Any], where: tuple[str, ...] = (), own=()) -> Any:
    """Call a class or function with settings given as plain values."""
    parameters = parameters_of(target)
    for key in settings:
        if key not in parameters:
            raise SettingsError(unknown_key(".".join((*where, key)), key, ["name", *parameters]), where=(*where, key))
    for name, (is_required, _) in parameters.items():
        if is_required and name not in settings:
            raise SettingsError(f"{'.'.join((*where, name))} is missing; it has no default. Add it.", where=where)
    arguments = {key: _argument(parameters[key][1], value, (*where, key), own) for key, value in settings.items()}
    try:
        return target(**arguments)
    except (SettingsError, TypeError, ValueError) as error:
        # The message names the setting that it refuses; if several are named, the first one in the table is blamed.
        blamed = next((key for key in settings if re.search(rf"\b{key}\b", str(error))), None)
        raise SettingsError(str(error), where=(*where, blamed) if blamed else where) from error


def parameters_of(target: Callable[..., Any]) -> dict[str, tuple[bool, Any]]:
    """Map each parameter to whether it is required and its type, following ``**settings`` to what it feeds."""
    hints = typing.get_type_hints(target)
    parameters = inspect.signature(target).parameters.values()
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
            name: (name in shared.__required_keys__, hint) for name, hint in typing.get_type_hints(shared).items()
        }
    return parameters_of(hints["return"]) | named if dataclasses.is_dataclass(hints.get("return")) else named


def decode_plain(value: Any) -> Any:
    """Make arrays, tuples and dicts of what `encode` wrote for them; leave the rest as it is."""
    if isinstance(value, list):
        return [decode_plain(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    if set(value) == {"array", "dtype"}:
        return np.asarray(value["array"], dtype=value["dtype"])
    if set(value) == {"tuple"}:
        return tuple(decode_plain(item) for item in value["tuple"])
    entries = value["dict"] if set(value) == {"dict"} else value
    return {key: decode_plain(item) for key, item in entries.items()}


def _choose(kind: Kind, where: tuple[str, ...], name: Any) -> Callable[..., Any]:
    known, path = choices(kind), ".".join(where)
    if name is None:
        raise SettingsError(f"{path} is missing; add {where[-1]} = one of {', '.join(known)}.", where=where)
    if (target := find(kind, name if isinstance(name, str) and ":" not in name else None)) is None:
        raise SettingsError(unknown_key(f"{path} = {name!r}", str(name), known), where=where)
    return target


def _import(kind: Kind, reference: Any, own: Collection[str]) -> Callable[..., Any]:
    """Import what somebody else registered, if it is listed: nothing is imported before that is known."""
    if reference not in own:
        raise SettingsError(
            f"The {kind} {reference!r} is not part of fahmc and not listed here. To allow it, install its module here "
            f"and add it to site.toml, or server.toml at the server: "
            f'own_{"models" if kind == "model" else "samplers"} = ["{reference}"].'
        )
    importlib.import_module(str(reference).partition(":")[0])
    if reference not in _registered[kind]:
        raise SettingsError(f'{reference!r} is not a {kind} registered by @fahmc.register("{kind}").')
    return _registered[kind][reference]


def _argument(hint: Any, value: Any, where: tuple[str, ...], own: Collection[str]) -> Any:
    """Turn a plain value into the argument that the parameter takes, or refuse it."""
    options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    if (value is None and (hint is Any or types.NoneType in options)) or (
        value == "none" and types.NoneType in options  # TOML has no null
    ):
        return None
    plain = [option for option in options if _is_plain(option)]
    kind: Kind | None = next(
        (_hints[option] for option in options if isinstance(option, Hashable) and option in _hints), None
    )
    path = ".".join(where)
    if kind is not None and isinstance(value, Mapping | str):
        if float in plain and isinstance(value, str) and value not in choices(kind):
            raise SettingsError(
                f"{path} = {value!r}: it should be a number, written without quotation marks, or a table with name = "
                f"one of {', '.join(choices(kind))}.",
                where=where,
            )
        return decode(kind, value, where, own)
    try:
        if hint is Any:
            value = decode_plain(value)
            _check_numbers(value)
        if not plain:
            return value
        if isinstance(value, Mapping) and set(value) == {"tuple"}:
            value = value["tuple"]
        # Through JSON, where strict typing lets a list be a tuple, but not a string a number.
        adapter = pydantic.TypeAdapter(functools.reduce(operator.or_, plain))
        return adapter.validate_json(json.dumps(value, default=str), strict=True)
    except pydantic.ValidationError as error:
        wanted = " or ".join(dict.fromkeys(entry["msg"].removeprefix("Input should be ") for entry in error.errors()))
        raise SettingsError(f"{path} = {value!r}: it should be {wanted}.", where=where) from error
    except (ValueError, TypeError) as error:
        raise SettingsError(f"{path} = {value!r}: {error}.", where=where) from error


def _check_numbers(value: Any) -> None:
    """Refuse what is not a number, an array of numbers or a tree of these."""
    if isinstance(value, dict):
        for entry in value.values():
            _check_numbers(entry)
    elif isinstance(value, list | tuple) and any(isinstance(entry, dict | np.ndarray) for entry in value):
        for entry in value:
            _check_numbers(entry)
    elif np.asarray(value).dtype.kind not in "iuf":
        raise ValueError("it should hold numbers only, written without quotation marks")


def _is_plain(hint: Any) -> bool:
    return hint in (int, float, bool, str) or typing.get_origin(hint) in (Literal, list, tuple, Sequence)


def _fields(settings: Any) -> list[dataclasses.Field]:
    return [field for field in dataclasses.fields(settings) if field.init]
