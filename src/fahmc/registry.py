"""What files and messages may name, and the one way in which settings go as plain values and come back.

    {"name": "minibatch", "size": 100}           what fahmc brings
    {"object": "study:Clipped", "norm": 1.0}     what somebody else wrote: imported only where it is listed
    {"array": [1.0, 2.0], "dtype": "float64"}, {"tuple": [...]}, {"dict": {...}}

The same values stand in a configuration file, in a message to a site and, with arrays and functions by what they hold,
in a run's fingerprint. What settings there are is read off the signature of the class or function that is named, and
values are held against its type hints (`fahmc.door`) before it is called. A class that is not registered is refused,
never run as something else.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import importlib
import json
import operator
import re
import types
import typing
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import Any, Literal, TypeVar

import jax
import numpy as np

from fahmc.door import admit, parameters_of
from fahmc.errors import FahmcError, SettingsError, first_line, nearest, shown
from fahmc.fitting import Unfit, fitted, introduce
from fahmc.hints import DTYPES, MAX_NESTING
from fahmc.tree import digest

Kind = Literal["sampler", "gradient", "schedule", "model", "prior", "check"]
_Target = TypeVar("_Target", bound=Callable[..., Any])

_registered: dict[str, dict[str, Callable[..., Any]]] = {kind: {} for kind in typing.get_args(Kind)}
# The type hint of a setting that takes a registered thing, such as Gradient.
_hints: dict[Any, Kind] = {}
# Two functions of t that agree at 0 and all powers of two up to 2^30 are taken for the same.
_SCHEDULE_BITS = 31
_LONGEST_KEY = 200
# Where a site lists what is not fahmc's own. A prior is part of a model.
_LISTED_UNDER: dict[str, str] = dict.fromkeys(typing.get_args(Kind), "own_samplers") | {
    "model": "own_models",
    "prior": "own_models",
    "check": "own_checks",
}


def register(kind: Kind, name: str | None = None) -> Callable[[_Target], _Target]:
    """Let a class, or a function that makes one, be sampled with, named in files and sent in messages.

    What is not part of fahmc is named by where it can be imported from, ``"module:attribute"``, and a site of a real
    federation runs it only if its own rules list that.

    Parameters
    ----------
    kind
        ``"sampler"``, ``"gradient"``, ``"schedule"``, ``"prior"``, ``"check"``: a frozen dataclass whose fields are its
        settings.
        ``"model"``: a function of settings that returns a `Model`, see `fahmc.models.family`.
    name
        How fahmc's own are called in files; by default as in Python. One that begins with ``_`` is for messages alone.
    """
    if not isinstance(kind, str) or kind not in _registered:
        raise SettingsError(f"register({shown(kind)}): there are {', '.join(_registered)}.")
    admit("name", str | None, name)

    def add(target: _Target) -> _Target:
        is_ours = target.__module__.partition(".")[0] == __name__.partition(".")[0]
        reference = f"{target.__module__}:{target.__qualname__}"
        _registered[kind][(name or target.__name__) if is_ours else reference] = target
        return target

    return add


def takes(kind: Kind, hint: Any, admits: Callable[[Any], bool] | None = None, words: str = "") -> None:
    """Say that settings with this type hint are things of a kind; by default registered ones alone."""
    _hints[hint] = kind
    introduce(hint, words or f"a {kind}", admits or (lambda value: require(kind, value) is None))


def choices(kind: Kind) -> dict[str, Callable[..., Any]]:
    """Return what fahmc brings of a kind, by name; what a user has no use for has a name with an underscore."""
    return {name: target for name, target in _registered[kind].items() if ":" not in name and name[0] != "_"}


def find(kind: Kind, name: Any) -> Callable[..., Any] | None:
    """Return what is registered under a name, or ``"module:attribute"``."""
    return _registered[kind].get(name) if isinstance(name, str) else None


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
    raise SettingsError(f"{kind} is {shown(value)}; use one of {known}.{hint}")


def unknown_key(name: str, key: str, known: Iterable[str]) -> str:
    """Say that a key is not known, which one was probably meant, and which there are."""
    known = list(known)
    return f"{name} is not known{nearest(key[:_LONGEST_KEY], known)} Known here: {', '.join(known)}."


def name_of(target: Any) -> dict[str, str] | None:
    """Return how a registered class or function is named in plain values."""
    for names in _registered.values():
        for name, known in names.items():
            if known is target:
                return {"object" if ":" in name else "name": name}
    return None


def references(table: Any) -> set[str]:
    """Return what else than fahmc's own is named anywhere in plain values, as ``"module:attribute"``."""
    check_nesting(table, "the table")
    if isinstance(table, Mapping):
        named = {table["object"]} if isinstance(table.get("object"), str) else set()
        return named.union(*map(references, table.values()))
    return set().union(*map(references, table)) if isinstance(table, list) else set()


def check_nesting(value: Any, what: str) -> None:
    """Refuse lists and tables that lie in each other too deeply to be walked through."""
    level = [value]
    for _ in range(MAX_NESTING):
        level = [item for entry in level if isinstance(entry, list | tuple | Mapping) for item in _items(entry)]
        if not level:
            return
    raise SettingsError(f"{what} has lists or tables in each other more than {MAX_NESTING} deep; write it flatter.")


def _items(entry: Any) -> Iterable[Any]:
    return entry.values() if isinstance(entry, Mapping) else entry


# From things to plain values


def encode(value: Any, what: str = "the setting") -> Any:
    """Write settings as JSON values from which `decode` makes the same again; functions cannot be written."""
    check_nesting(value, what)
    return _encode(value, what)


def _encode(value: Any, what: str) -> Any:
    if type(value) is list or type(value) is tuple:  # a NamedTuple is neither: its class would be lost
        items = [_encode(item, what) for item in value]
        return items if isinstance(value, list) else {"tuple": items}
    if name := name_of(type(value)):
        return name | {field.name: _encode(getattr(value, field.name), field.name) for field in _fields(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return _encode(value.item(), what)
    if isinstance(value, np.ndarray | jax.Array):
        array = np.asarray(value)
        if array.dtype.kind not in "fiub":
            return [_encode(item, what) for item in array.tolist()]
        return {"array": array.tolist(), "dtype": array.dtype.name}
    if isinstance(value, Mapping):
        return {"dict": {str(key): _encode(item, what) for key, item in value.items()}}
    raise SettingsError(
        f"{what} is {shown(value)}, which cannot be sent to sites: they take numbers, text, arrays, and the gradients "
        "and schedules of fahmc (for a step size, fahmc.schedules), but no Python functions."
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


def decode(kind: Kind, table: Any, where: tuple[str, ...] = (), own: Collection[str] = ()) -> Any:
    """Make what a table names with the table's other keys; errors carry the path of the key that they are about.

    ``own`` lists what else than fahmc's own may be imported, as ``"module:attribute"``.
    """
    if isinstance(table, str):
        return call(_choose(kind, where, table), {}, where, own)
    if not isinstance(table, Mapping) or not all(isinstance(key, str) for key in table):
        needed = f"a table with name = one of {', '.join(choices(kind))}, and its settings"
        raise SettingsError(f"{_path(where) or kind} is {shown(table)}; it must be {needed}.", where=where)
    check_nesting(table, _path(where) or kind)
    settings = dict(table)
    if "object" in settings:
        target = _import(kind, settings.pop("object"), own)
    else:
        target = _choose(kind, (*where, "name"), settings.pop("name", None))
    return call(target, settings, where, own)


def call(target: Callable[..., Any], settings: Mapping[str, Any], where: tuple[str, ...] = (), own=()) -> Any:
    """Call a class or function with settings given as plain values."""
    parameters = parameters_of(target)
    for key in settings:
        if key not in parameters:
            raise SettingsError(unknown_key(_path((*where, key)), key, ["name", *parameters]), where=(*where, key))
    for name, (is_required, _) in parameters.items():
        if is_required and name not in settings:
            raise SettingsError(f"{_path((*where, name))} is missing; it has no default. Add it.", where=where)
    arguments = {key: _argument(parameters[key][1], value, (*where, key), own) for key, value in settings.items()}
    try:
        return target(**arguments)
    except SettingsError as error:
        # The message names the setting that it refuses; if several are named, the first one in the table is blamed.
        blamed = next((key for key in settings if re.search(rf"\b{key}\b", str(error))), None)
        raise SettingsError(str(error), where=(*where, blamed) if blamed else where) from error
    except FahmcError:
        raise
    except Exception as error:  # of somebody else's code
        name, reason = _path(where) or target.__name__, f"{type(error).__name__}: {first_line(error)}"
        raise SettingsError(f"{name} cannot be made with these settings: {reason}.", where=where) from error


def decode_plain(value: Any) -> Any:
    """Make arrays, tuples and dicts of what `encode` wrote for them; leave the rest as it is."""
    if isinstance(value, list):
        return [decode_plain(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    if set(value) == {"array", "dtype"}:
        return _decode_array(value["array"], value["dtype"])
    if set(value) == {"tuple"} and isinstance(value["tuple"], list):
        return tuple(decode_plain(item) for item in value["tuple"])
    entries = value["dict"] if set(value) == {"dict"} and isinstance(value["dict"], Mapping) else value
    return {key: decode_plain(item) for key, item in entries.items()}


def _decode_array(items: Any, dtype: Any) -> np.ndarray:
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ValueError(f"there is no array of {shown(dtype)}; dtype is one of {', '.join(sorted(DTYPES))}")
    array = np.asarray(items)
    if array.size and array.dtype.kind not in "iufb":
        raise ValueError("an array should hold numbers only, written without quotation marks")
    with np.errstate(all="ignore"):
        declared = array.astype(dtype)
    if not np.array_equal(array, declared, equal_nan=array.dtype.kind == "f"):
        raise ValueError(f"an array holds numbers that are none of {dtype}")
    return declared


def _choose(kind: Kind, where: tuple[str, ...], name: Any) -> Callable[..., Any]:
    known, path = choices(kind), _path(where)
    if name is None:
        raise SettingsError(f"{path} is missing; add {where[-1]} = one of {', '.join(known)}.", where=where)
    if (target := find(kind, name if isinstance(name, str) and ":" not in name else None)) is None:
        raise SettingsError(
            unknown_key(f"{path} = {shown(name)}", name if isinstance(name, str) else shown(name), known), where=where
        )
    return target


def _import(kind: Kind, reference: Any, own: Collection[str]) -> Callable[..., Any]:
    """Import what somebody else registered, if it is listed: nothing is imported before that is known."""
    if not isinstance(reference, str) or reference not in own:
        named = _path([reference]) if isinstance(reference, str) else "module:attribute"
        raise SettingsError(
            f"The {kind} {shown(reference)} is not part of fahmc and not listed here. To allow it, install its module "
            f"here and add it to site.toml, or server.toml at the server: "
            f'{_LISTED_UNDER[kind]} = ["{named}"].'
        )
    try:
        importlib.import_module(reference.partition(":")[0])
    except Exception as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise SettingsError(f"The {kind} {reference!r} is listed here, but cannot be imported: {reason}.") from error
    if reference not in _registered[kind]:
        raise SettingsError(f'{reference!r} is not a {kind} registered by @fahmc.register("{kind}").')
    return _registered[kind][reference]


def _argument(hint: Any, value: Any, where: tuple[str, ...], own: Collection[str]) -> Any:
    """Turn a plain value into the argument that the parameter takes, or refuse it."""
    options = _options(hint)
    is_none = value is None or (isinstance(value, str) and value == "none")  # TOML has no null
    if (value is None and hint is Any) or (is_none and types.NoneType in options):
        return None
    kind: Kind | None = next(
        (_hints[option] for option in options if isinstance(option, Hashable) and option in _hints), None
    )
    if (entry := _registered_entry(options)) is not None and isinstance(value, Mapping):
        table = value["dict"] if set(value) == {"dict"} and isinstance(value["dict"], Mapping) else value
        return {key: _argument(entry, item, (*where, str(key)), own) for key, item in table.items()}
    if kind is not None and isinstance(value, Mapping | str):
        takes_numbers = any(option in (int, float) or typing.get_origin(option) for option in options)
        if isinstance(value, str) and value not in choices(kind) and takes_numbers:
            raise SettingsError(
                f"{_path(where)} = {shown(value)}: it should be a number, written without quotation marks, or a table "
                f"with name = one of {', '.join(choices(kind))}.",
                where=where,
            )
        return decode(kind, value, where, own)
    if hint is Any:
        return _numbers(value, where)
    plain = [option for option in options if not isinstance(option, Hashable) or option not in _hints]
    if kind is not None and not plain:
        return decode(kind, value, where, own)  # which refuses it
    try:
        if isinstance(value, Mapping) and set(value) == {"tuple"} and isinstance(value["tuple"], list):
            value = tuple(value["tuple"])
        return fitted(functools.reduce(operator.or_, plain), value)
    except Unfit as unfit:
        table = "" if kind is None else f" or a table with name = one of {', '.join(choices(kind))}"
        message = f"{_path(where)}{unfit.place} is {shown(unfit.value)}; it must be {unfit.needed}{table}."
        raise SettingsError(message, where=where) from None


def _registered_entry(options: Iterable[Any]) -> Any:
    """Return the hint of a table's entries, if a table of registered things is among the alternatives."""
    tables = [typing.get_args(option) for option in options if typing.get_origin(option) is collections.abc.Mapping]
    return next((entry for _, entry in tables if isinstance(entry, Hashable) and entry in _hints), None)


def _options(hint: Any) -> tuple[Any, ...]:
    """Return the alternatives of a hint."""
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


def _path(where: Iterable[str]) -> str:
    """Write the path of a key, however long somebody made it."""
    return ".".join(part if len(part) <= _LONGEST_KEY else f"{part[:_LONGEST_KEY]}…" for part in where)


def _numbers(value: Any, where: tuple[str, ...]) -> Any:
    """Return a number, an array of numbers or a tree of these, or refuse."""
    try:
        value = decode_plain(value)
        _check_numbers(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise SettingsError(f"{_path(where)} is {shown(value)}: {first_line(error)}.", where=where) from error
    return value


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


def _fields(settings: Any) -> list[dataclasses.Field]:
    return [field for field in dataclasses.fields(settings) if field.init]
