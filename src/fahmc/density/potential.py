"""From a model's log densities to the clients' potentials.

    f_c(θ) = ( (n / n_c) Σ_{rows z of c} −log p(z | θ)  −  log prior(θ) ) / τ

Since Σ_c w_c = 1, the prior counts once in f = Σ_c w_c f_c, and with w_c = n_c / n the target exp(−f) is the posterior
given all rows (at temperature τ). This file is the only place where the sign changes.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from fahmc.errors import ModelError, SettingsError
from fahmc.types import Batch, Client, Key, Position, Vector


def _flat_prior(position: Position) -> float:
    return 0.0


@dataclass(frozen=True, eq=False)
class Linear:
    """Says that a model is a generalised linear one: it sees a parameter only through ``covariates @ parameter``.

    It adds nothing to the model and need not be given; chains whose clients hold fewer rows than the parameter has
    entries run faster with it (`fahmc.dynamics.row_space`, docs/benchmarks.md). The position must be a dict.

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
        if not isinstance(self.temperature, int | float) or not 0 < self.temperature < float("inf"):
            raise SettingsError(f"temperature is {self.temperature}; it must be above 0 (1 is the posterior itself).")

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


class Potentials(NamedTuple):
    """The clients' potentials as functions of a flat position."""

    dimension: int
    template: Position
    """Structure and shapes of the user's position, without values."""
    unravel: Callable[[Vector], Position]
    value: Callable[[Vector, Client], Float[Array, ""]]
    """f_c"""
    gradient: Callable[[Vector, Client], Vector]
    """grad f_c"""
    value_and_gradient: Callable[[Vector, Client], tuple[Float[Array, ""], Vector]]


def build_potentials(model: Model, position: Position, client: Client, name: str) -> Potentials:
    """Flatten the model and check that its functions fit the client's rows.

    Parameters
    ----------
    position
        Any position; only its structure and shapes count.
    client, name
        A client on which the functions are tried (by shape alone), and its name for error messages.
    """
    flat, unravel = ravel_pytree(position)
    _check_likelihood(model, position, client, name)
    _check_prior(model, position)

    def value(vector: Vector, client: Client) -> Float[Array, ""]:
        position = unravel(vector)
        loss = -jnp.sum(client.row_weights * model.loglikelihood_fn(position, client.rows))
        # weak: a Python number from a flat prior must not widen the dtype
        return (client.scale * loss - jnp.asarray(model.logprior_fn(position), loss.dtype)) / model.temperature

    return Potentials(
        dimension=flat.size,
        template=jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), position),
        unravel=unravel,
        value=value,
        gradient=jax.grad(value),
        value_and_gradient=jax.value_and_grad(value),
    )


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


def _check_likelihood(model: Model, position: Position, client: Client, name: str) -> None:
    num_rows = client.row_weights.shape[0]
    result = try_shape("loglikelihood_fn", f" on client {name!r}", model.loglikelihood_fn, position, client.rows)
    if getattr(result, "shape", None) != (num_rows,):
        shapes = jax.tree.map(lambda leaf: leaf.shape, result)
        raise ModelError(
            f"loglikelihood_fn returned shape {shapes} for the {num_rows} rows of client {name!r}; it must return one "
            f"value per row, shape ({num_rows},). Return the rows' terms, not their sum."
        )


def _check_prior(model: Model, position: Position) -> None:
    result = try_shape("logprior_fn", "", model.logprior_fn, position)
    if np.shape(result) != ():
        raise ModelError(f"logprior_fn returned shape {np.shape(result)}; it must return one number. Sum its terms.")


def try_shape(name: str, where: str, function: Callable, *arguments: Any) -> Any:
    """Evaluate shapes only, so that a user's mistake surfaces as a sentence before anything is compiled."""
    try:
        return jax.eval_shape(function, *arguments)
    except Exception as error:
        raise ModelError(f"{name} failed{where}: {type(error).__name__}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]
