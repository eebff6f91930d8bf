"""Families of models: functions of settings that return a model which remembers how it was made."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import ParamSpec

from fahmc import door
from fahmc.density.model import Model
from fahmc.errors import SettingsError
from fahmc.registry import name_of, register, unknown_key

_Settings = ParamSpec("_Settings")


def family(build: Callable[_Settings, Model]) -> Callable[_Settings, Model]:
    """Register a function that makes models, as ``@fahmc.models.family``.

    Its models can then be named in files, and made anew by the sites of a real federation that have its module and list
    it in their own rules (``own_models``).
    """

    @functools.wraps(build)
    def build_with_recipe(*args: _Settings.args, **kwargs: _Settings.kwargs) -> Model:
        for key in kwargs:
            if key not in (known := door.parameters_of(build)):
                raise SettingsError(unknown_key(f"{build.__name__}({key}=...)", key, known))
        positional, named = door.admitted(build, args, kwargs)
        settings = dict(zip(inspect.signature(build).parameters, positional, strict=False)) | named
        if settings.get("prior") is not None and "prior_scale" in settings:
            raise SettingsError(
                f"prior is {settings['prior']!r}, and prior_scale is {settings['prior_scale']!r}, which is short for "
                "prior=Normal(prior_scale). Give one of them."
            )
        return replace(build(*positional, **named), recipe={**(name_of(build_with_recipe) or {}), **settings})

    return register("model")(build_with_recipe)
