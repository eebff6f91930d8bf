"""What the user says of a model: log densities of rows and of the prior, a start, and names."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fahmc.errors import ModelError, SettingsError
from fahmc.types import Batch, Key, Position


def _flat_prior(position: Position) -> float:
    return 0.0


@dataclass(frozen=True, eq=False)
class Linear:
    """Says that a model is a generalised linear one: it sees a parameter only through ``covariates @ parameter``.

    It adds nothing to the model and need not be given; chains whose clients hold fewer rows than the parameter has
    entries run faster with it (`fahmc.engines.in_process.row_space`, docs/benchmarks.md). The position must be a dict.

    Parameters
    ----------
    parameter, covariates
        Names of the parameter, [feature, ...], in the position and of the covariates, [row, feature], in the batch.
    prior_scale
        The parameter's prior is N(0, prior_scale²) on every entry, independent of the other parameters; None: flat.
    loglikelihood_fn
        ``(covariates @ parameter, position without it, batch) -> [row]``.
    logprior_fn
        ``position without the parameter -> scalar``.
    """

    parameter: str
    covariates: str
    prior_scale: float | None
    loglikelihood_fn: Callable[[Array, Position, Batch], Float[Array, " row"]]
    logprior_fn: Callable[[Position], Any] = _flat_prior


@dataclass(frozen=True, eq=False)
class Model:
    """What is sampled.

    Parameters
    ----------
    loglikelihood_fn
        ``(position, batch) -> [row]``: one log-likelihood for each row of the batch.
    logprior_fn
        ``position -> scalar``; flat by default.
    view_fn
        ``position -> what the likelihood sees of it``, any pytree; ``loglikelihood_fn`` then takes that in the
        position's place. By default the position itself. Scales of a hierarchy, auxiliary variables and transforms
        that stay out of it stay at the server: samplers that treat prior and likelihood apart need fewer rounds.
    init
        Where chains start: a position, or a function of a key, or of a key and a batch (for models that take their
        dimension from the data).
    predict_fn
        ``(position, batch) -> [row, ...]``: what the model predicts; used by `Draws.predict`.
    temperature
        τ in exp(−f / τ).
    validate_fn
        ``batch -> None or a complaint``: looks at one client's rows, as NumPy arrays, before anything runs.
    dims, coords
        Names of the axes of a parameter and of their entries, as in ArviZ: ``dims={"beta": ["feature"]}``,
        ``coords={"feature": ["age", "bmi"]}``.
    linear
        That the model is a generalised linear one, see `Linear`.
    recipe
        How to make the model anew where its functions cannot be sent: the name and settings of a ready-made one, or
        where it can be imported from (`Model.named`). Sites of a real federation need it.
    """

    loglikelihood_fn: Callable[[Position, Batch], Float[Array, " row"]]
    logprior_fn: Callable[[Position], Any] = _flat_prior
    init: Any = None
    predict_fn: Callable[[Position, Batch], Array] | None = None
    temperature: float = 1.0
    validate_fn: Callable[[Batch], str | None] | None = None
    dims: Mapping[str, Sequence[str]] = field(default_factory=dict)
    coords: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    linear: Linear | None = None
    recipe: Mapping[str, Any] | None = None
    view_fn: Callable[[Position], Any] | None = None

    @classmethod
    def named(cls, reference: str) -> Model:
        """Import a model, or a function without arguments that returns one, as ``"module:attribute"``.

        Such a model can be sampled by the sites of a real federation that have the module, and whose own rules list it.
        """
        module_name, _, attribute = reference.partition(":")
        try:
            found = getattr(importlib.import_module(module_name), attribute)
        except (ImportError, ValueError, AttributeError) as error:
            raise ModelError(
                f"The model {reference!r} cannot be imported: {error}. Write it as 'module:attribute', with the module "
                "installed or in the working folder."
            ) from error
        found = found if isinstance(found, Model) or not callable(found) else found()
        if not isinstance(found, Model):
            raise ModelError(f"{reference!r} is a {type(found).__name__}; it should be a fahmc.Model or return one.")
        return replace(found, recipe={"object": reference})

    def __post_init__(self):
        for name in ("loglikelihood_fn", "logprior_fn"):
            if not callable(getattr(self, name)):
                raise ModelError(f"{name} is {getattr(self, name)!r}; it must be a function.")
        if self.view_fn is not None and not callable(self.view_fn):
            raise ModelError(f"view_fn is {self.view_fn!r}; it must be a function of the position.")
        if self.view_fn is not None and self.linear is not None:
            raise ModelError("linear speaks of the position, but with view_fn the likelihood sees something else.")
        if not isinstance(self.temperature, int | float) or not 0 < self.temperature < float("inf"):
            raise SettingsError(f"temperature is {self.temperature}; it must be above 0 (1 is the posterior itself).")

    def view(self, position: Position) -> Any:
        """Return what the likelihood sees of a position."""
        return position if self.view_fn is None else self.view_fn(position)

    def row_loglikelihoods(self, position: Position, batch: Batch) -> Float[Array, " row"]:
        """Return log p(z | position) of every row."""
        return self.loglikelihood_fn(self.view(position), batch)

    def initial_position(self, key: Key, batch: Batch) -> Position:
        """Return the position where a chain with this key starts."""
        if self.init is None:
            raise ModelError("The model has no init; give Model(init=...) a position or a function of a key.")
        if not callable(self.init):
            return self.init
        required = [
            parameter
            for parameter in inspect.signature(self.init).parameters.values()
            if parameter.default is parameter.empty
            and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        ]
        try:
            return self.init(key, batch) if len(required) > 1 else self.init(key)
        except Exception as error:
            raise ModelError(f"The model's init failed: {type(error).__name__}: {_first_line(error)}") from error

    def predict(self, position: Position, batch: Batch) -> Array:
        """Return the model's prediction for each row at one position."""
        if self.predict_fn is None:
            raise ModelError("The model has no predict_fn; give Model(predict_fn=...) a function of (position, batch).")
        return self.predict_fn(position, batch)


def as_position(position: Position, dtype: np.dtype, origin: str) -> Position:
    """Convert a user's position to floating arrays of ``dtype``, or say why it cannot be one."""
    leaves = jax.tree.leaves(position)
    if not leaves:
        raise ModelError(f"{origin} is {position!r}, which holds no arrays; a position needs at least one number.")
    for leaf in leaves:
        if not np.issubdtype(np.asarray(leaf).dtype, np.number) or np.iscomplexobj(leaf):
            raise ModelError(f"{origin} holds {leaf!r}; a position is made of real numbers.")
        if not np.isfinite(np.asarray(leaf)).all():
            raise ModelError(f"{origin} holds NaN or infinity; chains must start at finite numbers.")
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), position)


def try_shape(name: str, where: str, function: Callable, *arguments: Any) -> Any:
    """Evaluate shapes only, so that a user's mistake surfaces as a sentence before anything is compiled."""
    try:
        return jax.eval_shape(function, *arguments)
    except Exception as error:
        raise ModelError(f"{name} failed{where}: {type(error).__name__}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]
