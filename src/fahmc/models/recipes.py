"""How sites make a model themselves: by name and settings, as models' functions are not sent."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fahmc import registry
from fahmc.density.model import Model
from fahmc.errors import FederationError, ModelError, SettingsError, shown


def model_recipe(model: Model) -> dict[str, Any]:
    """Write how sites can make the model themselves."""
    if model.recipe is None:
        raise ModelError(
            "The model is made of Python functions, which are not sent to sites. Use one of fahmc.models; or give the "
            'sites your module, let them list it in their own files, and sample fahmc.Model.named("module:attribute").'
        )
    recipe = {name: registry.encode(value, f"the model's {name}") for name, value in model.recipe.items()}
    anew = build_model(recipe, own_models=registry.references(recipe))
    if (anew.temperature, anew.supports) != (model.temperature, model.supports) or any(
        _code(getattr(anew, name)) != _code(getattr(model, name)) for name in ("loglikelihood_fn", "logprior_fn")
    ):
        raise ModelError(
            "The model was changed after it was made, and sites would make it as it was. Set its temperature where it "
            "is made; a model with other functions is one of your own: fahmc.Model.named."
        )
    return recipe


def _code(function: Any) -> Any:
    return getattr(getattr(function, "__func__", function), "__code__", function)


def build_model(recipe: Any, own_models: Collection[str] = ()) -> Model:
    """Make the model of a recipe; one that is not ready-made only if ``own_models`` lists it."""
    if not isinstance(recipe, Mapping):
        raise FederationError(f"The model's recipe is {shown(recipe)}; it must be a table with its name and settings.")
    reference, name = recipe.get("object"), recipe.get("name")
    if reference is not None and not (isinstance(reference, str) and reference in own_models):
        raise FederationError(
            f"The model {shown(reference)} is not ready-made and not listed here. To allow it, install its module here "
            f'and add it to the site\'s own file: own_models = ["{reference if isinstance(reference, str) else "…"}"].'
        )
    if reference is not None and len(recipe) == 1:
        return Model.named(reference)
    if reference is None and not (isinstance(name, str) and name in registry.choices("model")):
        known = ", ".join(registry.choices("model"))
        raise FederationError(f"There is no ready-made model {shown(name)}; there are {known}.")
    try:
        return registry.decode("model", recipe, ("model",), own_models)
    except SettingsError as error:
        raise FederationError(str(error)) from error


def with_num_rows(model: Model, num_rows: int) -> Model:
    """Tell the prior of a ready-made model how many rows there are, if it depends on that and its user left it open."""
    recipe = dict(model.recipe or {})
    prior: Any = recipe.get("prior")
    build = registry.find("model", recipe.pop("name", None) or recipe.pop("object", None))
    if build is None or not callable(getattr(prior, "for_rows", None)) or (told := prior.for_rows(num_rows)) is prior:
        return model
    anew = build(**recipe | {"prior": told})
    # What the user has changed since stays.
    kept = ("logprior_fn", "prior_fn", "prior_words", "recipe")
    return replace(model, **{name: getattr(anew, name) for name in kept})


def with_feature_names(model: Model, names: Sequence[str]) -> Model:
    """Name the coefficients of a ready-made model whose user left that open."""
    build = _family_of(model)
    if build is None or "feature_names" not in registry.parameters_of(build):
        return model
    return _with_open(model, build, {"feature_names": list(names)})


def following_formula(model: Model, settings: Mapping[str, Any]) -> Model:
    """Give a ready-made model what the formula of its rows says of it, where its user left that open.

    ``settings`` are those of `fahmc.data.columns.Columns.model_settings`.
    """
    build = _family_of(model)
    if build is None:
        if "site_effects" in settings and not model.is_by_site:
            raise ModelError(
                "The formula has (1 | site), which ready-made models have as a setting; this model is one of your own. "
                "Give it Model(local=...), or leave (1 | site) out."
            )
        return model
    for name in settings:
        if name not in registry.parameters_of(build):
            raise ModelError(
                f"The formula has {_IN_FORMULA.get(name, name)}, but {build.__name__} has no setting {name}. Choose "
                "another model, or leave it out of the formula."
            )
    return _with_open(model, build, settings)


_IN_FORMULA = {"site_effects": "(1 | site)", "intercept": "no intercept"}


def _family_of(model: Model) -> Any:
    recipe = model.recipe or {}
    return registry.find("model", recipe.get("name") or recipe.get("object"))


def _with_open(model: Model, build: Any, settings: Mapping[str, Any]) -> Model:
    """Make a ready-made model anew with settings that its user left open."""
    given = {name: value for name, value in (model.recipe or {}).items() if name not in ("name", "object")}
    left_open = {name: value for name, value in settings.items() if given.get(name) is None}
    return build(**given | left_open) if left_open else model
