"""What generalised linear models have in common: rows ``{"x": [row, feature], "y": [row]}``, xβ + α, and its priors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fahmc.density.model import Linear, Model
from fahmc.errors import SettingsError
from fahmc.types import Batch, Key, Position


class SharedSettings(TypedDict, total=False):
    """The settings that every generalised linear model passes on, beside its prior_scale."""

    intercept: bool
    intercept_scale: float | None
    feature_names: Sequence[str] | None
    temperature: float


def generalized_linear(
    row_loglikelihood: Callable[[Array, Position, Batch], Array],
    inverse_link: Callable[[Array], Array],
    prior_scale: float | None = 1.0,
    *,
    intercept: bool = True,
    intercept_scale: float | None = 10.0,
    scalars: Mapping[str, float] | None = None,
    outputs: tuple[int, ...] = (),
    feature_names: Sequence[str] | None = None,
    validate_fn: Callable[[Batch], str | None] | None = None,
    temperature: float = 1.0,
) -> Model:
    """Put a generalised linear model together.

    Coefficients have independent N(0, prior_scale²) priors (None means flat), intercepts N(0, intercept_scale²).

    Parameters
    ----------
    row_loglikelihood
        (xβ + α, position, batch) -> [row]
    inverse_link
        Maps xβ + α to the prediction.
    scalars
        Further parameters, one number each, with the scale of their N(0, scale²) prior.
    outputs
        Shape of xβ + α for one row.
    validate_fn
        ``batch -> None or a complaint``; by default that there are x and y.
    """
    scales = {"coefficients": prior_scale, **({"intercept": intercept_scale} if intercept else {}), **(scalars or {})}
    for name, scale in {"prior_scale": prior_scale, "intercept_scale": intercept_scale, **(scalars or {})}.items():
        if scale is not None and not scale > 0:
            raise SettingsError(f"{name} is {scale}; it must be above 0, or None for a flat prior.")

    def init(key: Key, batch: Batch) -> Position:
        # Chains are scattered closely around zero: far-off starts would cost warm-up, equal ones would blind R-hat.
        shapes = {"coefficients": (batch["x"].shape[1], *outputs), "intercept": outputs}
        keys = jax.random.split(key, len(scales))
        return {
            name: 0.1 * jax.random.normal(key, shapes.get(name, ())) for name, key in zip(scales, keys, strict=True)
        }

    def logprior(position: Position) -> Any:
        return sum(normal_prior(value, scales[name]) for name, value in position.items())

    classes = ["class"] if outputs else []
    return Model(
        loglikelihood_fn=lambda position, batch: row_loglikelihood(_predictor(position, batch), position, batch),
        logprior_fn=logprior,
        init=init,
        predict_fn=lambda position, batch: inverse_link(_predictor(position, batch)),
        validate_fn=validate_fn or check_columns,
        temperature=temperature,
        dims={"coefficients": ["feature", *classes], **({"intercept": classes} if classes else {})},
        coords={} if feature_names is None else {"feature": list(feature_names)},
        linear=Linear(
            parameter="coefficients",
            covariates="x",
            prior_scale=prior_scale,
            loglikelihood_fn=lambda xb, others, batch: row_loglikelihood(_with_intercept(xb, others), others, batch),
            logprior_fn=logprior,
        ),
    )


def normal_prior(value: Array, scale: float | None) -> Any:
    """Return the log density of N(0, scale²) on every entry, up to a constant; 0 for a flat prior."""
    return 0.0 if scale is None else -jnp.sum(value**2) / (2 * scale**2)


def check_columns(batch: Batch) -> str | None:
    """Say what is wrong with a batch as such, or nothing."""
    if not isinstance(batch, dict) or not {"x", "y"} <= set(batch):
        found = ", ".join(map(str, batch)) if isinstance(batch, dict) else type(batch).__name__
        return f"a ready-made model takes rows {{'x': [row, feature], 'y': [row]}}, but these hold {found}."
    if np.ndim(batch["x"]) < 2 or np.ndim(batch["y"]) != 1:
        return f"x must be [row, feature] and y [row], but they have shapes {batch['x'].shape} and {batch['y'].shape}."
    return None


def check_outcome(is_allowed: Callable[[np.ndarray], np.ndarray], allowed: str) -> Callable[[Batch], str | None]:
    """Return a check that every outcome is what the model can have made."""

    def validate(batch: Batch) -> str | None:
        if complaint := check_columns(batch):
            return complaint
        y = np.asarray(batch["y"])
        bad = np.flatnonzero(~is_allowed(y))
        return f"y must be {allowed}, but row {bad[0]} has {y[bad[0]]}." if bad.size else None

    return validate


check_counts = check_outcome(lambda y: (y >= 0) & (y == np.floor(y)), "a count, 0 or more")


def _predictor(position: Position, batch: Batch) -> Array:
    """Return xβ + α."""
    coefficients = position["coefficients"]
    return _with_intercept(batch["x"].astype(coefficients.dtype) @ coefficients, position)


def _with_intercept(xb: Array, position: Position) -> Array:
    return xb + position["intercept"][None] if "intercept" in position else xb
