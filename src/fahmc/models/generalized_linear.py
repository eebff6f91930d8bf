"""What generalised linear models have in common: rows, xβ + α + offset, row weights, and priors.

    log p(rows | θ) = Σ_i weight_i log p(y_i | η_i, θ),      η = xβ + α + offset

Rows are those of `fahmc.models.rows`; offset and weight count where the rows hold them. With ``site_effects`` every
site has an effect of its own in η (`fahmc.models.site_effects`). What the rows see of a position are β, α, further
parameters and effects, whatever these are made of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

import jax
from jaxtyping import Array

from fahmc import door
from fahmc.density.model import Linear, Model
from fahmc.hints import Name, Positive, Width
from fahmc.models.parameters import Parameter
from fahmc.models.rows import check_columns, check_extras, check_offset
from fahmc.models.site_effects import Shifted, SiteEffects, with_site_effects
from fahmc.priors.normal import Flat, Normal, flat_draw, normal_prior, normal_words
from fahmc.priors.prior import COEFFICIENTS, Prior, is_of_coefficients
from fahmc.types import Batch, Key, Position


class SettingsWithoutIntercept(TypedDict, total=False):
    """The settings that every generalised linear model passes on, beside its prior_scale."""

    prior: Prior | None
    site_effects: SiteEffects | None
    site_scale: Positive
    feature_names: Sequence[Name] | None
    temperature: Positive


class SharedSettings(SettingsWithoutIntercept, total=False):
    """The settings of those that have an intercept."""

    intercept: bool
    intercept_scale: Positive | None


@door.checked()
def generalized_linear(
    row_loglikelihood: Callable[[Array, Position, Batch], Array],
    inverse_link: Callable[[Array], Array],
    prior_scale: Positive | None = 1.0,
    *,
    prior: Prior | None = None,
    intercept: bool = True,
    intercept_scale: Positive | None = 10.0,
    scalars: Mapping[Name, Positive | None] | None = None,
    outputs: tuple[Width, ...] = (),
    site_effects: SiteEffects | None = None,
    site_scale: Positive = 1.0,
    feature_names: Sequence[Name] | None = None,
    validate_fn: Callable[[Batch], str | None] | None = None,
    temperature: Positive = 1.0,
    parameters: Mapping[Name, Parameter] | None = None,
    predict_row: Callable[[Array, Position, Batch], Array] | None = None,
    sample_row: Callable[[Key, Array, Position, Batch], Array] | None = None,
    uses: Sequence[Name] = (),
    scale_words: Name | None = None,
) -> Model:
    """Put a generalised linear model together.

    Parameters
    ----------
    row_loglikelihood
        (η, position, batch) -> [row]; of the position it sees β, α and further parameters.
    inverse_link
        Maps η to the prediction.
    prior_scale
        Short for ``prior=Normal(prior_scale)``, None for ``Flat()``.
    prior
        Of the coefficients, see `fahmc.priors`.
    intercept, intercept_scale
        Whether there is an α, and the scale of its N(0, intercept_scale²) prior; None for a flat one.
    scalars
        Further parameters, one number each, with the scale of their N(0, scale²) prior.
    outputs
        Shape of η for one row.
    site_effects, site_scale
        ``"intercept"`` or ``"private intercept"``: an effect a_c ~ N(0, τ²) of every site in η, τ ~ N⁺(0, site_scale²),
        of which the analyst sees each, or τ alone (`fahmc.models.site_effects`).
    validate_fn
        ``batch -> None or a complaint`` about the outcome; x, y, offset and weight are looked at anyway.
    parameters
        Further parameters with supports and priors of their own, by name (`fahmc.models.parameters`).
    predict_row
        ``(η, position, batch) -> [row, ...]``, in the place of ``inverse_link``, where a prediction takes more than η.
    sample_row
        ``(key, η, position, batch) -> [row]``: an outcome for every row, drawn from the model.
    uses
        What the family reads of the rows beside x, y, offset and weight: event, trials.
    scale_words
        What exp of a coefficient is: ``"odds ratio"``, or ``"difference"`` if coefficients are that.
    """
    prior = prior or (Flat() if prior_scale is None else Normal(prior_scale))
    prior = prior.for_features(feature_names)
    scales = {**({"intercept": intercept_scale} if intercept else {}), **(scalars or {})}
    further = dict(parameters or {})

    def init(key: Key, batch: Batch) -> Position:
        # Chains are scattered closely around zero: far-off starts would cost warm-up, equal ones would blind R-hat.
        shapes = prior.parts((batch["x"].shape[1], *outputs))
        shapes |= {name: outputs if name == "intercept" else () for name in scales}
        names = [*shapes, *further]
        keys = dict(zip(names, jax.random.split(key, len(names)), strict=True))
        start = {name: 0.1 * jax.random.normal(keys[name], shape) for name, shape in shapes.items()}
        return start | {name: parameter.start(keys[name]) for name, parameter in further.items()}

    def draw_prior(key: Key, batch: Batch) -> Position:
        key_coefficients, *keys = jax.random.split(key, 1 + len(scales) + len(further))
        drawn = prior.draw(key_coefficients, (batch["x"].shape[1], *outputs))
        for own_key, name in zip(keys, [*scales, *further], strict=True):
            if name in further:
                drawn[name] = further[name].draw_fn(own_key)
            elif (scale := scales[name]) is None:
                raise flat_draw(name)
            else:
                drawn[name] = scale * jax.random.normal(own_key, outputs if name == "intercept" else ())
        return drawn

    def logprior_of_others(position: Position, start: Any = 0.0) -> Any:
        terms = [normal_prior(position[name], scale) for name, scale in scales.items() if name in position]
        terms += [parameter.logprior_fn(position[name]) for name, parameter in further.items() if name in position]
        return sum(terms, start=start)

    def logprior(position: Position) -> Any:
        return logprior_of_others(position, start=prior.log_density(position))

    def view(position: Position) -> Position:
        return {COEFFICIENTS: prior.coefficients(position)} | {name: position[name] for name in (*scales, *further)}

    def loglikelihood(xb: Array, seen: Position, batch: Batch, shift: Array | None = None) -> Array:
        return weighted(row_loglikelihood(_predictor(xb, seen, batch, shift), seen, batch), batch)

    def predictor(seen: Position, batch: Batch, shift: Array | None) -> Array:
        return _predictor(_products(seen, batch), seen, batch, shift)

    def predict(seen: Position, batch: Batch, shift: Array | None) -> Array:
        eta = predictor(seen, batch, shift)
        return inverse_link(eta) if predict_row is None else predict_row(eta, seen, batch)

    def sample(key: Key, seen: Position, batch: Batch, shift: Array | None) -> Array:
        assert sample_row is not None
        eta = predictor(seen, batch, shift)
        return sample_row(key, eta, seen, batch).astype(eta.dtype)

    def validate(batch: Batch) -> str | None:
        complaint = check_columns(batch) or check_extras(batch, has_classes=bool(outputs), uses=uses)
        complaint = complaint or check_offset(batch, inverse_link)
        return complaint or (None if validate_fn is None else validate_fn(batch))

    rows = Shifted(
        fits=lambda seen, batch, shift: loglikelihood(_products(seen, batch), seen, batch, shift),
        predict=predict,
        draw=None if sample_row is None else sample,
    )
    is_made = not is_of_coefficients(prior)
    is_normal = isinstance(prior, Flat) or (isinstance(prior, Normal) and prior.mean == 0)
    seen_of = view if is_made else lambda position: position
    draw = rows.draw
    classes = ["class"] if outputs else []
    model = Model(
        loglikelihood_fn=lambda seen, batch: rows.fits(seen, batch, None),
        logprior_fn=logprior,
        view_fn=view if is_made else None,
        init=init,
        prior_fn=draw_prior,
        predict_fn=lambda position, batch: rows.predict(seen_of(position), batch, None),
        sample_fn=None if draw is None else lambda key, at, batch: draw(key, seen_of(at), batch, None),
        outcome=None if draw is None else "y",
        validate_fn=validate,
        temperature=temperature,
        supports={name: parameter.support for name, parameter in further.items()} or None,
        derived_fn=(lambda position: {COEFFICIENTS: prior.coefficients(position)}) if is_made else None,
        dims={
            COEFFICIENTS: ["feature", *classes],
            **{name: list(axes) for name, axes in prior.parts(("feature", *classes)).items()},
            **({"intercept": classes} if classes else {}),
            **{name: list(parameter.coords) for name, parameter in further.items() if parameter.coords},
        },
        coords={
            **({} if feature_names is None else {"feature": list(feature_names)}),
            **{dim: list(labels) for parameter in further.values() for dim, labels in parameter.coords.items()},
        },
        linear=Linear(
            parameter=COEFFICIENTS,
            covariates="x",
            prior_scale=prior.scale if isinstance(prior, Normal) else None,
            loglikelihood_fn=loglikelihood,
            logprior_fn=logprior_of_others,
        )
        if is_normal
        else None,
        prior_words={
            COEFFICIENTS: prior.words(),
            **{name: normal_words(scale) for name, scale in scales.items()},
            **{name: parameter.words for name, parameter in further.items()},
        },
        scale_words=scale_words,
    )
    return model if site_effects is None else with_site_effects(model, site_effects, rows, outputs, site_scale)


def weighted(fits: Array, batch: Batch) -> Array:
    """Return log likelihoods of rows, each times its weight."""
    return fits * batch["weight"].astype(fits.dtype) if "weight" in batch else fits


def _products(seen: Position, batch: Batch) -> Array:
    """Return xβ."""
    coefficients = seen[COEFFICIENTS]
    return batch["x"].astype(coefficients.dtype) @ coefficients


def _predictor(xb: Array, seen: Position, batch: Batch, shift: Array | None) -> Array:
    """Return η = xβ + α + offset, and what is added to every row."""
    eta = xb + seen["intercept"][None] if "intercept" in seen else xb
    eta = eta + batch["offset"].astype(eta.dtype) if "offset" in batch else eta
    return eta if shift is None else eta + shift
