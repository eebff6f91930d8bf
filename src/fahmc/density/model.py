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
from numpyro.distributions.constraints import Constraint

from fahmc import door, tree
from fahmc.density.local import own_loglikelihoods
from fahmc.errors import FahmcError, ModelError, first_line, shown
from fahmc.fitting import introduce
from fahmc.hints import Name, Positive
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

    parameter: Name
    covariates: Name
    prior_scale: Positive | None
    loglikelihood_fn: Callable[[Array, Position, Batch], Float[Array, " row"]]
    logprior_fn: Callable[[Position], Any] = _flat_prior

    def __post_init__(self):
        door.check(self, ModelError)


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
    supports
        Where parameters live that are not free, by name: ``{"sigma": fahmc.positive}``; see `fahmc.density.supports`.
        All functions here take and return parameters as they are, in their supports, and so does ``init``; chains move
        on the whole line, and the Jacobian is seen to.
    derived_fn
        ``position -> dict of further quantities``, of any shapes: they stand beside the parameters in the draws.
    sample_fn, outcome
        ``(key, position, batch) -> [row, ...]``: an outcome for every row, drawn from the model; and which entry of the
        batch it is drawn for. For predictive checks.
    prior_fn
        ``(key, batch) -> position``, drawn from the prior; with ``local``, ``(key, batch, num_sites) -> position``.
    prior_words
        What the prior is, in a few words a parameter, for settings and reports: ``{"beta": "N(0, 2.5²)"}``.
    scale_words
        What exp of a coefficient is, for reports: ``"odds ratio"``; ``"difference"`` if a coefficient is itself what
        people ask for; None where neither is.
    recipe
        How to make the model anew where its functions cannot be sent: the name and settings of a ready-made one, or
        where it can be imported from (`Model.named`). Sites of a real federation need it.
    local
        Parameters that live at a site: for each name what one site's starts from, a number, an array or a function of a
        key. The position, a dict, then holds ``name: [site, ...]`` beside what ``init`` gives; ``logprior_fn`` sees all
        sites', ``loglikelihood_fn`` in their place the row's own site's (of what ``view_fn`` returns under the name, if
        there is one). Rows must be dicts (`fahmc.density.local`, docs/site-effects.md).
    at_sites_fn
        ``(model, names of the clients) -> the model for them``: for parameters of which there are as many as clients,
        and of which rows may see all. Rows then tell their client's place as ``site``.
    together
        That a site's log likelihood is not a sum of terms of single rows: ``loglikelihood_fn`` is then ``(position,
        batch, row_weights) -> [row]``, weights included, and only the sum over a site's rows has a meaning.
    """

    loglikelihood_fn: Callable[[Position, Batch], Float[Array, " row"]]
    logprior_fn: Callable[[Position], Any] = _flat_prior
    init: Any = None
    predict_fn: Callable[[Position, Batch], Array] | None = None
    temperature: Positive = 1.0
    validate_fn: Callable[[Batch], str | None] | None = None
    dims: Mapping[Name, Sequence[Name]] = field(default_factory=dict)
    coords: Mapping[Name, Sequence[Any]] = field(default_factory=dict)
    linear: Linear | None = None
    recipe: Mapping[str, Any] | None = None
    view_fn: Callable[[Position], Any] | None = None
    local: Mapping[Name, Any] | None = None
    together: bool = False
    supports: Mapping[Name, Constraint] | None = None
    derived_fn: Callable[[Position], dict[str, Any]] | None = None
    sample_fn: Callable[[Key, Position, Batch], Array] | None = None
    outcome: Name | None = None
    prior_fn: Callable[..., Position] | None = None
    prior_words: Mapping[Name, str] | None = None
    scale_words: Name | None = None
    at_sites_fn: Callable[[Model, Sequence[str]], Model] | None = None

    @classmethod
    def named(cls, reference: str) -> Model:
        """Import a model, or a function without arguments that returns one, as ``"module:attribute"``.

        Such a model can be sampled by the sites of a real federation that have the module, and whose own rules list it.
        """
        module_name, _, attribute = door.admit("reference", Name, reference, ModelError).partition(":")
        try:
            found = getattr(importlib.import_module(module_name), attribute)
        except Exception as error:  # also of the module's own code
            raise ModelError(
                f"The model {reference!r} cannot be imported: {first_line(error)}. Write it as 'module:attribute', "
                "with the module installed or in the working folder."
            ) from error
        if callable(found) and not isinstance(found, Model):
            try:
                found = found()
            except Exception as error:
                reason = f"{type(error).__name__}: {first_line(error)}"
                raise ModelError(
                    f"{reference!r}, called without arguments to make a model, failed: {reason}."
                ) from error
        if not isinstance(found, Model):
            raise ModelError(f"{reference!r} is a {type(found).__name__}; it should be a fahmc.Model or return one.")
        return replace(found, recipe={"object": reference})

    def __post_init__(self):
        door.check(self, ModelError)
        if self.view_fn is not None and self.linear is not None:
            raise ModelError("linear speaks of the position, but with view_fn the likelihood sees something else.")
        if self.linear is not None and self.linear.parameter in (self.supports or {}):
            raise ModelError(
                f"linear says that {self.linear.parameter!r} has a normal or flat prior, but supports confine it; "
                "leave one of them out."
            )

    @property
    def summary(self) -> dict[str, Any] | None:
        """What kind of model it is, as JSON values: its name, its plain settings, what its effects are called."""
        if self.recipe is None:
            return None
        plain = {name: value for name, value in self.recipe.items() if isinstance(value, bool | int | float | str)}
        return plain | ({} if self.scale_words is None else {"scale": self.scale_words})

    @property
    def is_by_site(self) -> bool:
        """Whether there are parameters of single clients, so that rows must tell whose they are."""
        return bool(self.local) or self.at_sites_fn is not None

    def view(self, position: Position) -> Any:
        """Return what the likelihood sees of a position."""
        return position if self.view_fn is None else self.view_fn(position)

    def row_loglikelihoods(self, position: Position, batch: Batch) -> Float[Array, " row"]:
        """Return log p(z | position) of every row."""
        if self.together:
            raise ModelError(
                "This model keeps the sites' own effects private: its likelihood is one of a site's rows together, and "
                'single rows have none. What needs one a row takes site_effects="intercept".'
            )
        return self.seen_loglikelihoods(self.view(position), batch)

    def seen_loglikelihoods(self, seen: Any, batch: Batch) -> Float[Array, " row"]:
        """Return log p(z | φ) of every row, φ being what the likelihood sees of a position."""
        if self.local is None:
            return self.loglikelihood_fn(seen, batch)
        return own_loglikelihoods(self.loglikelihood_fn, self.local, seen, batch)

    def weighted_loglikelihoods(
        self, seen: Any, batch: Batch, row_weights: Float[Array, " row"]
    ) -> Float[Array, " row"]:
        """Return terms, 0 for rows of weight 0, whose sum is the log likelihood of a client's rows."""
        if self.together:
            return self.loglikelihood_fn(seen, batch, row_weights)  # type: ignore[call-arg]
        return row_weights * self.seen_loglikelihoods(seen, batch)

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
            raise ModelError(f"The model's init failed: {type(error).__name__}: {first_line(error)}.") from error

    def predict(self, position: Position, batch: Batch) -> Array:
        """Return the model's prediction for each row at one position."""
        if self.predict_fn is None:
            raise ModelError("The model has no predict_fn; give Model(predict_fn=...) a function of (position, batch).")
        return self.predict_fn(position, batch)


introduce(Model, "a fahmc.Model, or one of fahmc.models", error=ModelError)
introduce(Constraint, "a support such as fahmc.positive, or one of numpyro.distributions.constraints", error=ModelError)


def as_position(position: Position, dtype: np.dtype, origin: str) -> Position:
    """Convert a user's position to floating arrays of ``dtype``, or say why it cannot be one."""
    position = tree.as_numbers(position, origin, ModelError)
    leaves = jax.tree.leaves(position)
    if not sum(leaf.size for leaf in leaves):
        raise ModelError(f"{origin} is {shown(position)}, without a number in it; a position needs at least one.")
    if not all(np.isfinite(leaf.astype(dtype)).all() for leaf in leaves):
        raise ModelError(f"{origin} holds NaN or infinity in {dtype}; chains must start at finite numbers.")
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), position)


def try_shape(name: str, where: str, function: Callable, *arguments: Any) -> Any:
    """Evaluate shapes only, so that a user's mistake surfaces as a sentence before anything is compiled."""
    try:
        return jax.eval_shape(function, *arguments)
    except FahmcError:
        raise  # it is a sentence already
    except Exception as error:
        raise ModelError(f"{name} failed{where}: {type(error).__name__}: {first_line(error)}.") from error
