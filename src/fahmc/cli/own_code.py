"""Code of the user's own that a configuration names: imported from beside the file, faults told with their lines."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from typing import Any

import fahmc
from fahmc.cli.toml_lines import KeyPath, Source
from fahmc.errors import nearest, shown


def references(table: Any, where: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    """Find every ``object = "module:attribute"`` of a table."""
    for key, value in table.items():
        if key == "object":
            yield (*where, key), value
        elif isinstance(value, Mapping):
            yield from references(value, (*where, key))


def import_object(source: Source, where: KeyPath, reference: Any) -> Any:
    """Import ``module:attribute``, also from the folder of the configuration file."""
    path = ".".join(where)
    module_name, _, attribute = str(reference).partition(":")
    if not isinstance(reference, str) or not module_name or not attribute:
        raise source.refusal(where, f'{path} = {shown(reference)}: it should read "module:attribute".')
    folder = str(source.path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        importlib.invalidate_caches()
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if not f"{module_name}.".startswith(f"{error.name}."):
            raise source.refusal(where, _own_fault(path, f"importing {module_name}", error, folder)) from error
        message = f"{path} = {shown(reference)}: {error}. Put {module_name}.py next to this file, or install it."
        raise source.refusal(where, message) from error
    except (Exception, SystemExit) as error:
        raise source.refusal(where, _own_fault(path, f"importing {module_name}", error, folder)) from error
    finally:
        sys.path.remove(folder)
    if not hasattr(module, attribute):
        raise source.refusal(where, f"{path}: {module_name} has no {attribute!r}{nearest(attribute, vars(module))}")
    return getattr(module, attribute)


def import_model(source: Source, where: KeyPath, reference: Any) -> fahmc.Model:
    """Import a model, or a function without arguments that returns one."""
    found, (_, _, attribute) = import_object(source, where, reference), str(reference).partition(":")
    if not isinstance(found, fahmc.Model) and callable(found):
        try:
            inspect.signature(found).bind()
        except TypeError as error:
            raise source.refusal(where, f"model.object: {attribute}() is called without arguments: {error}.") from error
        try:
            found = found()
        except (Exception, SystemExit) as error:
            folder = str(source.path.resolve().parent)
            raise source.refusal(where, _own_fault("model.object", f"{attribute}()", error, folder)) from error
    if not isinstance(found, fahmc.Model):
        message = f"model.object = {reference!r} is a {type(found).__name__}; it should be a fahmc.Model or a function "
        raise source.refusal(where, message + "without arguments that returns one.")
    return found


def _own_fault(path: str, what: str, error: BaseException, folder: str) -> str:
    """Say what the user's code raised, and in which line of a file next to the configuration."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if os.path.dirname(frame.filename) == folder]
    place = f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})" if frames else ""
    return f"{path}: {what} raised {type(error).__name__}: {error}{place}. Correct that code."
