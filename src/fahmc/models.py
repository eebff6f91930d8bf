"""Ready-made models. Rows are ``{"x": [row, feature], "y": [row]}``; each model can `predict`.

Coefficients have independent N(0, prior_scale²) priors (None means flat), intercepts N(0, intercept_scale²).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ParamSpec

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fahmc.density.potential import Linear, Model
from fahmc.errors import SettingsError
from fahmc.types import Batch, Key, Position

_LOG_TWO_PI = 1.8378770664093453
_Settings = ParamSpec("_Settings")


def _ready_made(build: Callable[_Settings, Model]) -> Callable[_Settings, Model]:
    """Let a model remember its name and settings, so that a site that has fahmc can make the same."""

    @functools.wraps(build)
    def build_with_recipe(*args: _Settings.args, **kwargs: _Settings.kwargs) -> Model:
        settings = inspect.signature(build).bind(*args, **kwargs).arguments
        return replace(build(*args, **kwargs), recipe={"name": build.__name__, **settings})

    return build_with_recipe


@_ready_made
def linear_regression(
    prior_scale: float | None = 1.0,
    *,
    noise_scale: float | None = None,
    intercept: bool = True,
    intercept_scale: float | None = 10.0,
    feature_names: Sequence[str] | None = None,
    temperature: float = 1.0,
) -> Model:
    """Model y ~ N(xβ + α, s²); `predict` gives the mean.

    s is known (``noise_scale``) or, when None, sampled as ``log_noise`` = log s with a N(0, 1) prior.
    """
    if noise_scale is not None and not noise_scale > 0:
        raise SettingsError(f"noise_scale is {noise_scale}; it must be above 0, or None to have it sampled.")

    def row_loglikelihood(mean: Array, position: Position, batch: Batch) -> Array:
        log_noise = position["log_noise"] if noise_scale is None else jnp.log(noise_scale).astype(mean.dtype)
        residual = (batch["y"] - mean) / jnp.exp(log_noise)
        return -(residual**2) / 2 - log_noise - _LOG_TWO_PI / 2

    terms = _Terms(prior_scale, intercept, intercept_scale, feature_names, has_noise=noise_scale is None)
    return _build(terms, row_loglikelihood, lambda mean: mean, _check_columns, temperature)


@_ready_made
def logistic_regression(
    prior_scale: float | None = 1.0,
    *,
    intercept: bool = True,
    intercept_scale: float | None = 10.0,
    feature_names: Sequence[str] | None = None,
    temperature: float = 1.0,
) -> Model:
    """Model P(y = 1) = 1 / (1 + exp(−xβ − α)) for y in {0, 1}; `predict` gives P(y = 1)."""

    def row_loglikelihood(logits: Array, position: Position, batch: Batch) -> Array:
        return batch["y"].astype(logits.dtype) * logits - _softplus(logits)

    terms = _Terms(prior_scale, intercept, intercept_scale, feature_names)
    return _build(terms, row_loglikelihood, jax.nn.sigmoid, _check_classes(2), temperature)


@_ready_made
def poisson_regression(
    prior_scale: float | None = 1.0,
    *,
    intercept: bool = True,
    intercept_scale: float | None = 10.0,
    feature_names: Sequence[str] | None = None,
    temperature: float = 1.0,
) -> Model:
    """Model y ~ Poisson(exp(xβ + α)); `predict` gives the rate."""

    def row_loglikelihood(log_rate: Array, position: Position, batch: Batch) -> Array:
        y = batch["y"].astype(log_rate.dtype)
        return y * log_rate - jnp.exp(log_rate) - jax.lax.lgamma(y + 1)

    terms = _Terms(prior_scale, intercept, intercept_scale, feature_names)
    check_counts = _check_outcome(lambda y: (y >= 0) & (y == np.floor(y)), "a count, 0 or more")
    return _build(terms, row_loglikelihood, jnp.exp, check_counts, temperature)


@_ready_made
def softmax_regression(
    num_classes: int,
    prior_scale: float | None = 1.0,
    *,
    intercept: bool = True,
    intercept_scale: float | None = 10.0,
    feature_names: Sequence[str] | None = None,
    temperature: float = 1.0,
) -> Model:
    """Model P(y = j) ∝ exp((xβ + α)_j) for y in {0, …, num_classes − 1}; `predict` gives [row, class].

    All classes have coefficients: the prior, not a reference class, makes them identifiable.
    """
    _check_num_classes(num_classes)

    def row_loglikelihood(logits: Array, position: Position, batch: Batch) -> Array:
        return _class_loglikelihood(logits, batch["y"])

    terms = _Terms(prior_scale, intercept, intercept_scale, feature_names, outputs=(num_classes,))
    return _build(terms, row_loglikelihood, jax.nn.softmax, _check_classes(num_classes), temperature)


@_ready_made
def mlp(
    num_classes: int,
    hidden: Sequence[int] = (512, 512),
    prior_scale: float | None = 1.0,
    *,
    temperature: float = 1.0,
) -> Model:
    """Classify with a fully connected ReLU network; weights and biases have N(0, prior_scale²) priors.

    Position: a list of ``{"weights": [in, out], "biases": [out]}``; chains start at He's random initialisation.
    `predict` gives [row, class].
    """
    _check_num_classes(num_classes)
    if any(width < 1 for width in hidden):
        raise SettingsError(f"hidden is {tuple(hidden)}; every layer needs at least one unit.")

    def logits_fn(position: Position, batch: Batch) -> Array:
        *layers, last = position
        units = batch["x"].reshape(len(batch["x"]), -1)
        for layer in layers:
            units = jax.nn.relu(units @ layer["weights"] + layer["biases"])
        return units @ last["weights"] + last["biases"]

    def init(key: Key, batch: Batch) -> Position:
        x = batch["x"]
        widths = [x[0].size, *hidden, num_classes]
        keys = jax.random.split(key, len(widths) - 1)
        return [
            {
                # He et al. (2015): variance 2 / fan-in keeps the scale of ReLU units from layer to layer
                "weights": jax.random.normal(key, (fan_in, fan_out)) * (2 / fan_in) ** 0.5,
                "biases": jnp.zeros(fan_out),
            }
            for key, fan_in, fan_out in zip(keys, widths[:-1], widths[1:], strict=True)
        ]

    return Model(
        loglikelihood_fn=lambda position, batch: _class_loglikelihood(logits_fn(position, batch), batch["y"]),
        logprior_fn=lambda position: sum(_normal_prior(leaf, prior_scale) for leaf in jax.tree.leaves(position)),
        init=init,
        predict_fn=lambda position, batch: jax.nn.softmax(logits_fn(position, batch)),
        validate_fn=_check_classes(num_classes),
        temperature=temperature,
    )


@dataclass(frozen=True)
class _Terms:
    """The parameters of a generalised linear model and their priors."""

    prior_scale: float | None
    intercept: bool
    intercept_scale: float | None
    feature_names: Sequence[str] | None
    outputs: tuple[int, ...] = ()
    has_noise: bool = False

    def __post_init__(self):
        for name in ("prior_scale", "intercept_scale"):
            scale = getattr(self, name)
            if scale is not None and not scale > 0:
                raise SettingsError(f"{name} is {scale}; it must be above 0, or None for a flat prior.")

    def init(self, key: Key, batch: Batch) -> Position:
        """Scatter chains closely around zero: far-off starts would cost warm-up, equal ones would blind R-hat."""
        shapes = {"coefficients": (batch["x"].shape[1], *self.outputs)}
        shapes |= {"intercept": self.outputs} if self.intercept else {}
        shapes |= {"log_noise": ()} if self.has_noise else {}
        keys = jax.random.split(key, len(shapes))
        draws = zip(shapes.items(), keys, strict=True)
        return {name: 0.1 * jax.random.normal(key, shape) for (name, shape), key in draws}

    def logprior(self, position: Position) -> Any:
        scales = {"coefficients": self.prior_scale, "intercept": self.intercept_scale, "log_noise": 1.0}
        return sum(_normal_prior(value, scales[name]) for name, value in position.items())


def _build(terms: _Terms, row_loglikelihood, inverse_link, validate_fn, temperature: float) -> Model:
    """Put a generalised linear model together.

    Parameters
    ----------
    row_loglikelihood
        (xβ + α, position, batch) -> [row]
    inverse_link
        Maps xβ + α to the prediction.
    """
    classes = ["class"] if terms.outputs else []
    return Model(
        loglikelihood_fn=lambda position, batch: row_loglikelihood(_predictor(position, batch), position, batch),
        logprior_fn=terms.logprior,
        init=terms.init,
        predict_fn=lambda position, batch: inverse_link(_predictor(position, batch)),
        validate_fn=validate_fn,
        temperature=temperature,
        dims={"coefficients": ["feature", *classes], **({"intercept": classes} if classes else {})},
        coords={} if terms.feature_names is None else {"feature": list(terms.feature_names)},
        linear=Linear(
            parameter="coefficients",
            covariates="x",
            prior_scale=terms.prior_scale,
            loglikelihood_fn=lambda xb, others, batch: row_loglikelihood(_with_intercept(xb, others), others, batch),
            logprior_fn=terms.logprior,
        ),
    )


def _check_columns(batch: Batch) -> str | None:
    """Say what is wrong with a batch as such, or nothing."""
    if not isinstance(batch, dict) or not {"x", "y"} <= set(batch):
        found = ", ".join(map(str, batch)) if isinstance(batch, dict) else type(batch).__name__
        return f"a ready-made model takes rows {{'x': [row, feature], 'y': [row]}}, but these hold {found}."
    if np.ndim(batch["x"]) < 2 or np.ndim(batch["y"]) != 1:
        return f"x must be [row, feature] and y [row], but they have shapes {batch['x'].shape} and {batch['y'].shape}."
    return None


def _check_outcome(is_allowed: Callable[[np.ndarray], np.ndarray], allowed: str) -> Callable[[Batch], str | None]:
    def validate(batch: Batch) -> str | None:
        if complaint := _check_columns(batch):
            return complaint
        y = np.asarray(batch["y"])
        bad = np.flatnonzero(~is_allowed(y))
        return f"y must be {allowed}, but row {bad[0]} has {y[bad[0]]}." if bad.size else None

    return validate


def _check_classes(num_classes: int) -> Callable[[Batch], str | None]:
    return _check_outcome(lambda y: np.isin(y, np.arange(num_classes)), f"a class from 0 to {num_classes - 1}")


def _predictor(position: Position, batch: Batch) -> Array:
    """Return xβ + α."""
    return _with_intercept(batch["x"] @ position["coefficients"], position)


def _with_intercept(xb: Array, position: Position) -> Array:
    return xb + position["intercept"] if "intercept" in position else xb


@jax.custom_jvp
def _softplus(x: Array) -> Array:
    return jax.nn.softplus(x)


@_softplus.defjvp
def _softplus_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    # JAX differentiates log(1 + exp(x)) through its logarithm, though the derivative is no more than the sigmoid.
    return _softplus(*primals), jax.nn.sigmoid(*primals) * tangents[0]


def _class_loglikelihood(logits: Array, labels: Array) -> Array:
    return jnp.take_along_axis(jax.nn.log_softmax(logits), labels.astype(jnp.int32)[:, None], axis=1)[:, 0]


def _normal_prior(value: Array, scale: float | None) -> Any:
    return 0.0 if scale is None else -jnp.sum(value**2) / (2 * scale**2)


def _check_num_classes(num_classes: int) -> None:
    if num_classes < 2:
        raise SettingsError(f"num_classes is {num_classes}; a classification needs at least 2.")
