"""Models and samplers as JSON values: what a job says to sites that have fahmc but may not be sent code.

Only classes named here, and ready-made models, come back from JSON. A model of the user's own is named, never sent; it
is imported only if the reader lists its name (`fahmc.Model.named`).
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fahmc import models
from fahmc.density.gradient import FullGradient, GaussianNoise, Minibatch
from fahmc.density.potential import Model
from fahmc.dynamics.debiased import DebiasedFAHMC
from fahmc.dynamics.fa_hmc import FAHMC
from fahmc.dynamics.hmc import HMC
from fahmc.dynamics.schedules import Stages
from fahmc.errors import FederationError, ModelError, SettingsError

READY_MADE = ("linear_regression", "logistic_regression", "poisson_regression", "softmax_regression", "mlp")
_CLASSES = {kind.__name__: kind for kind in (FAHMC, DebiasedFAHMC, FullGradient, Minibatch, GaussianNoise, Stages)}


def sampler_recipe(sampler: Any) -> dict[str, Any]:
    """Write a sampler as JSON values."""
    if isinstance(sampler, HMC):
        raise SettingsError("HMC runs on one machine; a federation takes FAHMC, FALD or DebiasedFAHMC.")
    return _to_json(sampler, "sampler")


def build_sampler(recipe: Mapping[str, Any]) -> FAHMC:
    """Make the sampler of a recipe."""
    sampler = _from_json(recipe)
    if not isinstance(sampler, FAHMC):
        raise FederationError(f"The recipe {recipe.get('class')!r} is not a sampler that a site can run.")
    return sampler


def model_recipe(model: Model) -> dict[str, Any]:
    """Write how sites can make the model themselves."""
    if model.recipe is None:
        raise ModelError(
            "The model is made of Python functions, which are not sent to sites. Use one of fahmc.models; or give the "
            'sites your module, let them list it in their own files, and sample fahmc.Model.named("module:attribute").'
        )
    recipe = {name: _to_json(value, f"the model's {name}") for name, value in model.recipe.items()}
    anew = build_model(recipe, own_models=[recipe.get("object", "")])
    if anew.temperature != model.temperature or any(
        _code(getattr(anew, name)) != _code(getattr(model, name)) for name in ("loglikelihood_fn", "logprior_fn")
    ):
        raise ModelError(
            "The model was changed after it was made, and sites would make it as it was. Set its temperature where it "
            "is made; a model with other functions is one of your own: fahmc.Model.named."
        )
    return recipe


def _code(function: Any) -> Any:
    return getattr(getattr(function, "__func__", function), "__code__", function)


def build_model(recipe: Mapping[str, Any], own_models: Collection[str] = ()) -> Model:
    """Make the model of a recipe; one that is not ready-made only if ``own_models`` lists it."""
    settings = {name: _from_json(value) for name, value in recipe.items()}
    if "object" in settings:
        reference = settings["object"]
        if reference not in own_models:
            raise FederationError(
                f"The model {reference!r} is not ready-made and not listed here. To allow it, install its module here "
                f'and add it to the site\'s own file: own_models = ["{reference}"].'
            )
        return Model.named(reference)
    name = settings.pop("name", None)
    if name not in READY_MADE:
        raise FederationError(f"There is no ready-made model {name!r}; there are {', '.join(READY_MADE)}.")
    return getattr(models, name)(**settings)


def with_feature_names(model: Model, names: Sequence[str]) -> Model:
    """Name the coefficients of a ready-made model whose user left that open."""
    recipe = dict(model.recipe or {})
    build = getattr(models, str(recipe.pop("name", "")), None)
    if (
        build is None
        or recipe.get("feature_names") is not None
        or "feature_names" not in inspect.signature(build).parameters
    ):
        return model
    return build(**recipe | {"feature_names": list(names)})


def _to_json(value: Any, what: str) -> Any:
    if type(value) is list or type(value) is tuple:  # a NamedTuple is neither: its class would be lost
        items = [_to_json(item, what) for item in value]
        return items if isinstance(value, list) else {"tuple": items}
    if dataclasses.is_dataclass(value) and type(value).__name__ in _CLASSES:
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {"class": type(value).__name__} | {name: _to_json(item, name) for name, item in fields.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return _to_json(value.item(), what)
    if isinstance(value, np.ndarray | jax.Array):
        array = np.asarray(value)
        if array.dtype.kind not in "fiub":
            return [_to_json(item, what) for item in array.tolist()]
        return {"array": array.tolist(), "dtype": array.dtype.name}
    if isinstance(value, Mapping):
        return {"dict": {str(key): _to_json(item, what) for key, item in value.items()}}
    raise SettingsError(
        f"{what} is {value!r}, which cannot be sent to sites: they take numbers, text, arrays, and the gradients and "
        "schedules of fahmc (for a step size, fahmc.schedules), but no Python functions."
    )


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_json(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    if "array" in value:
        return np.asarray(value["array"], dtype=value["dtype"])
    if "tuple" in value:
        return tuple(_from_json(item) for item in value["tuple"])
    if "dict" in value:
        return {key: _from_json(item) for key, item in value["dict"].items()}
    fields = dict(value)
    kind = fields.pop("class", None)
    if kind not in _CLASSES:
        raise FederationError(f"The job names {kind!r}, which is not among {', '.join(_CLASSES)}.")
    return _CLASSES[kind](**{name: _from_json(item) for name, item in fields.items()})
