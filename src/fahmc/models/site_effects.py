"""A site's own effect in the linear predictor: rows of one site are more alike than rows of two.

    η_i = x_i β + α + offset_i + a_c,      a_c = τ z_c,      z_c ~ N(0, 1),      τ ~ N⁺(0, site_scale²)

for a row i of site c. Sites are pooled in part: τ → 0 is one intercept for all, a large τ one for each.

``"intercept"``: z and τ are sampled with β and α, and the posterior is that of all of them given all rows. The rows see
a, so z and τ stay at the server where prior and likelihood are treated apart.

``"private intercept"``: a site integrates its own effect out over its own rows (`fahmc.density.marginal`),

    p(rows of c | β, α, τ) = ∫ N(z; 0, 1) Π_i p(y_i | η_i(z), θ)^(weight_i) dz,

and the posterior is that of β, α and τ given all rows: the same as theirs in the first form, as there the integral is
taken by sampling. What crosses are values, gradients and curvatures of the logarithm of that integral; nobody draws, or
could draw, the effect of a site.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fahmc.data.places import SITE
from fahmc.density.marginal import marginal_shares
from fahmc.density.model import Model
from fahmc.density.supports import positive
from fahmc.errors import SettingsError
from fahmc.priors.normal import normal_prior
from fahmc.types import Batch, Key, Position

SiteEffects: TypeAlias = Literal["intercept", "private intercept"]

EFFECT, SPREAD = "site_effect", "site_sd"
"""What a and τ are called in draws."""
_Z = "site_z"


class Shifted(NamedTuple):
    """What a model makes of rows when something is added to their linear predictor, [row or 1, ...] or None."""

    fits: Callable[[Any, Batch, Array | None], Array]
    """``(what the rows see, batch, shift) -> [row]``: log likelihoods."""
    predict: Callable[[Any, Batch, Array | None], Array]
    draw: Callable[[Key, Any, Batch, Array | None], Array] | None
    """``(key, what the rows see, batch, shift) -> [row]``: outcomes, if the model can draw them."""


def with_site_effects(
    model: Model, form: SiteEffects, rows: Shifted, outputs: tuple[int, ...], site_scale: float
) -> Model:
    """Add an effect of every site to a model without.

    Parameters
    ----------
    rows
        What the model makes of rows.
    outputs
        Shape of η for one row, and so of an effect.
    """
    if form == "private intercept" and outputs:
        raise SettingsError(
            f'site_effects is "private intercept", but η has {outputs[0]} entries a row, and so has an effect, which a '
            'site integrates out one by one only. Use site_effects = "intercept".'
        )
    with_spread = _with_spread(model, site_scale)
    return _shared(with_spread, rows, outputs) if form == "intercept" else _private(with_spread, rows)


def _with_spread(model: Model, site_scale: float) -> Model:
    """Add τ to a model."""
    logprior_fn, view_fn, prior_fn = model.logprior_fn, model.view, model.prior_fn

    def init(key: Key, batch: Batch) -> Position:
        key_others, key_spread = jax.random.split(key)
        # Well above 0, where the likelihood is flat in log τ.
        spread = 0.5 * site_scale * jnp.exp(0.1 * jax.random.normal(key_spread, ()))
        return model.initial_position(key_others, batch) | {SPREAD: spread}

    def draw_prior(key: Key, batch: Batch) -> Position:
        assert prior_fn is not None
        key_others, key_spread = jax.random.split(key)
        return prior_fn(key_others, batch) | {SPREAD: site_scale * jnp.abs(jax.random.normal(key_spread, ()))}

    return replace(
        model,
        init=init,
        logprior_fn=lambda position: logprior_fn(position) + normal_prior(position[SPREAD], site_scale),
        view_fn=lambda position: view_fn(position) | {SPREAD: position[SPREAD]},
        prior_fn=draw_prior,
        supports={**(model.supports or {}), SPREAD: positive},
        linear=None,
        prior_words={**(model.prior_words or {}), EFFECT: f"N(0, {SPREAD}²)", SPREAD: f"N⁺(0, {site_scale:g}²)"},
    )


def _shared(model: Model, rows: Shifted, outputs: tuple[int, ...]) -> Model:
    """Sample z."""
    logprior_fn, view_fn, derived_fn, prior_fn = model.logprior_fn, model.view, model.derived_fn, model.prior_fn
    draw = rows.draw

    def effects(position: Position) -> Array:
        return position[SPREAD] * position[_Z]

    def view(position: Position) -> Position:
        # The rows see a, where `local` looks for it: under the name of what is sampled.
        seen = {name: value for name, value in view_fn(position).items() if name != SPREAD}
        return seen | {_Z: effects(position)}

    def derived(position: Position) -> dict[str, Any]:
        return {EFFECT: effects(position)} | ({} if derived_fn is None else derived_fn(position))

    def draw_prior(key: Key, batch: Batch, num_sites: int) -> Position:
        assert prior_fn is not None
        key_others, key_z = jax.random.split(key)
        return prior_fn(key_others, batch) | {_Z: jax.random.normal(key_z, (num_sites, *outputs))}

    def of_rows(position: Position, batch: Batch) -> Array | None:
        """Return the effects of the rows' sites. Rows that do not tell theirs are of a site in the middle, a = 0."""
        if SITE not in batch:
            return None
        return effects(position).at[batch[SITE]].get(mode="fill", fill_value=jnp.nan)

    classes = ["class"] if outputs else []
    return replace(
        model,
        local={_Z: lambda key: 0.1 * jax.random.normal(key, outputs)},
        loglikelihood_fn=lambda seen, batch: rows.fits(seen, batch, seen[_Z][None]),
        logprior_fn=lambda position: logprior_fn(position) + normal_prior(position[_Z], 1.0),
        view_fn=view,
        derived_fn=derived,
        prior_fn=draw_prior,
        predict_fn=lambda position, batch: rows.predict(view_fn(position), batch, of_rows(position, batch)),
        sample_fn=None if draw is None else lambda key, at, batch: draw(key, view_fn(at), batch, of_rows(at, batch)),
        dims={**model.dims, _Z: classes, EFFECT: [SITE, *classes]},
    )


def _private(model: Model, rows: Shifted) -> Model:
    """Integrate z out."""
    view_fn, draw = model.view, rows.draw

    def row_fits(seen: Position, z: Array, batch: Batch) -> Array:
        return rows.fits(seen, batch, (seen[SPREAD] * z)[None])

    def sample(key: Key, position: Position, batch: Batch) -> Array:
        """Draw outcomes of the rows of one site, with an effect that they share."""
        assert draw is not None
        key_z, key_rows = jax.random.split(key)
        z = jax.random.normal(key_z, (1,), position[SPREAD].dtype)
        return draw(key_rows, view_fn(position), batch, position[SPREAD][None] * z)

    return replace(
        model,
        together=True,
        loglikelihood_fn=lambda seen, batch, row_weights: marginal_shares(row_fits, seen, batch, row_weights),
        predict_fn=lambda position, batch: rows.predict(view_fn(position), batch, None),
        sample_fn=None if draw is None else sample,
    )
