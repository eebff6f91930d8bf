"""How sites make a model themselves: by name and settings, as models' functions are not sent."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fahmc import registry
from fahmc.density.model import Model
from fahmc.errors import FederationError, ModelError, SettingsError


def model_recipe(model: Model) -> dict[str, Any]:
    """Write how sites can make the model themselves."""
    if model.recipe is None:
        raise ModelError(
            "The model is made of Python functions, which are not sent to sites. Use one of fahmc.models; or give the "
            'sites your module, let them list it in their own files, and sample fahmc.Model.named("module:attribute").'
        )
    recipe = {name: registry.encode(value, f"the model's {name}") for name, value in model.recipe.items()}
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
    reference = recipe.get("object")
    if reference is not None and reference not in own_models:
        raise FederationError(
            f"The model {reference!r} is not ready-made and not listed here. To allow it, install its module here and "
            f'add it to the site\'s own file: own_models = ["{reference}"].'
        )
    if reference is not None and len(recipe) == 1:
        return Model.named(reference)
    if reference is None and recipe.get("name") not in (known := registry.choices("model")):
        raise FederationError(f"There is no ready-made model {recipe.get('name')!r}; there are {', '.join(known)}.")
    try:
        return registry.decode("model", recipe, ("model",), own_models)
    except SettingsError as error:
        raise FederationError(str(error)) from error


def with_feature_names(model: Model, names: Sequence[str]) -> Model:
    """Name the coefficients of a ready-made model whose user left that open."""
    recipe = dict(model.recipe or {})
    build = registry.find("model", recipe.pop("name", None) or recipe.pop("object", None))
    if build is None or recipe.get("feature_names") is not None or "feature_names" not in registry.parameters_of(build):
        return model
    return build(**recipe | {"feature_names": list(names)})
