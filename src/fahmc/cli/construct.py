"""From a TOML table that names a function or class to what the function returns.

What settings there are is not written down a second time: it is read off the signatures of the library.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import importlib
import inspect
import json
import operator
import os
import re
import sys
import traceback
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import numpy as np
import pydantic

import fahmc
from fahmc import models, schedules
from fahmc.cli.toml_lines import KeyPath, Source
from fahmc.data.tables import nearest
from fahmc.errors import SettingsError

SAMPLERS = {name: getattr(fahmc, name) for name in ("FAHMC", "FALD", "DebiasedFAHMC", "HMC")}
GRADIENTS = {"full": fahmc.FullGradient, "minibatch": fahmc.Minibatch, "gaussian_noise": fahmc.GaussianNoise}
SCHEDULES = {"stages": schedules.Stages}
MODELS = {
    name: function
    for name, function in inspect.getmembers(models, inspect.isfunction)
    if function.__module__ == models.__name__ and not name.startswith("_")
}
# Settings that are themselves chosen by name, in a table such as {name = "minibatch", size = 100}.
_NAMED_SETTINGS: dict[str, Mapping[str, Callable[..., Any]]] = {
    "gradient": GRADIENTS,
    "of": GRADIENTS,
    "step_size": SCHEDULES,
}


def construct(
    source: Source, where: KeyPath, choices: Mapping[str, Callable[..., Any]], table: Mapping[str, Any] | str
) -> Any:
    """Call the function or class that a table names with the table's other keys."""
    settings = {} if isinstance(table, str) else dict(table)
    if isinstance(table, str):
        target = choices[_choose(source, where, choices, table)]
    else:
        target = choices[_choose(source, (*where, "name"), choices, settings.pop("name", None))]
    _check_names(source, where, target, settings)
    arguments = {key: _resolve(source, (*where, key), target, value) for key, value in settings.items()}
    try:
        return target(**arguments)
    except (SettingsError, TypeError, ValueError) as error:
        # The message names the setting that it refuses; if several are named, the first one in the file gets the line.
        blamed = next((key for key in settings if re.search(rf"\b{key}\b", str(error))), None)
        raise source.refusal((*where, blamed) if blamed else where, str(error)) from error


def _choose(source: Source, where: KeyPath, choices: Mapping[str, Any], name: Any) -> str:
    if name is None:
        message = f"{'.'.join(where)} is missing; add {where[-1]} = one of {', '.join(choices)}."
        raise source.refusal(where, message)
    if not isinstance(name, str) or name not in choices:
        raise source.refusal(where, unknown_key(f"{'.'.join(where)} = {name!r}", str(name), choices))
    return name


def parameters_of(target: Callable[..., Any]) -> dict[str, tuple[bool, Any]]:
    """Map each parameter to whether it is required and its type, following ``**settings`` to what it feeds."""
    hints = typing.get_type_hints(target)
    parameters = inspect.signature(target).parameters.values()
    named = {
        parameter.name: (parameter.default is parameter.empty, hints.get(parameter.name, Any))
        for parameter in parameters
        if parameter.kind is not parameter.VAR_KEYWORD
    }
    if len(named) < len(parameters) and dataclasses.is_dataclass(hints.get("return")):
        named = parameters_of(hints["return"]) | named
    return named


def _check_names(source: Source, where: KeyPath, target: Callable[..., Any], settings: Mapping[str, Any]) -> None:
    parameters = parameters_of(target)
    for key in settings:
        if key not in parameters:
            raise source.refusal((*where, key), unknown_key(".".join((*where, key)), key, ["name", *parameters]))
    for name, (is_required, _) in parameters.items():
        if is_required and name not in settings:
            raise source.refusal(where, f"{'.'.join((*where, name))} is missing; it has no default. Add it.")


def _resolve(source: Source, where: KeyPath, target: Callable[..., Any], value: Any) -> Any:
    """Turn a TOML value into the argument that the parameter takes, or refuse it."""
    key = where[-1]
    hint = parameters_of(target)[key][1]
    options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    if types.NoneType in options and value == "none":  # TOML has no null
        return None
    plain = [option for option in options if _is_plain(option)]
    if key in _NAMED_SETTINGS and isinstance(value, dict | str):
        choices = _NAMED_SETTINGS[key]
        if float in plain and isinstance(value, str) and value not in choices:
            message = (
                f"{'.'.join(where)} = {value!r}: it should be a number, written without quotation marks, or a table "
            )
            raise source.refusal(where, message + f"with name = one of {', '.join(choices)}.")
        return construct(source, where, choices, value)
    try:
        if hint is Any:
            _check_numbers(value)
        if not plain:
            return np.asarray(value) if isinstance(value, list) else value
        # Through JSON, where strict typing lets a list be a tuple, but not a string a number.
        adapter = pydantic.TypeAdapter(functools.reduce(operator.or_, plain))
        return adapter.validate_json(json.dumps(value, default=str), strict=True)
    except pydantic.ValidationError as error:
        wanted = " or ".join(dict.fromkeys(entry["msg"].removeprefix("Input should be ") for entry in error.errors()))
        raise source.refusal(where, f"{'.'.join(where)} = {value!r}: it should be {wanted}.") from error
    except ValueError as error:
        raise source.refusal(where, f"{'.'.join(where)} = {value!r}: {error}.") from error


def _check_numbers(value: Any) -> None:
    """Refuse what is not a number, an array of numbers or a table of these."""
    if isinstance(value, dict):
        for entry in value.values():
            _check_numbers(entry)
    elif np.asarray(value).dtype.kind not in "iuf":
        raise ValueError("it should hold numbers only, written without quotation marks")


def _is_plain(hint: Any) -> bool:
    containers = (Literal, list, tuple, collections.abc.Sequence)
    return hint in (int, float, bool, str) or typing.get_origin(hint) in containers


def import_model(source: Source, reference: Any) -> fahmc.Model:
    """Import ``module:attribute``, also from the folder of the configuration file."""
    where = ("model", "object")
    module_name, _, attribute = str(reference).partition(":")
    if not module_name or not attribute:
        raise source.refusal(where, f'model.object = {reference!r}: it should read "module:attribute".')
    folder = str(source.path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        importlib.invalidate_caches()
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if not f"{module_name}.".startswith(f"{error.name}."):
            raise source.refusal(where, _own_fault(f"importing {module_name}", error, folder)) from error
        message = f"model.object = {reference!r}: {error}. Put {module_name}.py next to this file, or install it."
        raise source.refusal(where, message) from error
    except (Exception, SystemExit) as error:
        raise source.refusal(where, _own_fault(f"importing {module_name}", error, folder)) from error
    finally:
        sys.path.remove(folder)
    if not hasattr(module, attribute):
        message = f"model.object: {module_name} has no {attribute!r}{nearest(attribute, vars(module))}"
        raise source.refusal(where, message)
    found = getattr(module, attribute)
    if not isinstance(found, fahmc.Model) and callable(found):
        try:
            inspect.signature(found).bind()
        except TypeError as error:
            raise source.refusal(where, f"model.object: {attribute}() is called without arguments: {error}.") from error
        try:
            found = found()
        except (Exception, SystemExit) as error:
            raise source.refusal(where, _own_fault(f"{attribute}()", error, folder)) from error
    if not isinstance(found, fahmc.Model):
        message = f"model.object = {reference!r} is a {type(found).__name__}; it should be a fahmc.Model or a function "
        raise source.refusal(where, message + "without arguments that returns one.")
    return found


def _own_fault(what: str, error: BaseException, folder: str) -> str:
    """Say what the code behind model.object raised, and in which line of a file next to the configuration."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if os.path.dirname(frame.filename) == folder]
    place = f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})" if frames else ""
    return f"model.object: {what} raised {type(error).__name__}: {error}{place}. Correct that code."


def unknown_key(name: str, key: str, known: Iterable[str]) -> str:
    """Say that a key is not known, which one was probably meant, and which there are."""
    known = list(known)
    return f"{name} is not known{nearest(key, known)} Known here: {', '.join(known)}."
