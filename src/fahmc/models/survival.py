"""Times until something happens, some of them censored: proportional hazards.

    h(t) = h₀(t) exp(η),      η = xβ + α + offset,      P(T > t) = exp(−H₀(t) exp(η)),      H₀(t) = ∫₀ᵗ h₀

so that exp(β) is a hazard ratio in every family here. A row is a subject, seen until time y, when the event happened
(event 1; so all rows that hold no ``event``) or when the subject was last seen without it (event 0, right-censoring):

    log p(row | θ) = event (log h₀(y) + η) − H₀(y) exp(η)

Cox's partial likelihood is not offered: each of its terms compares a subject with all others still at risk, wherever
they are, so that it is no sum over one site's rows. The piecewise exponential model has the same answer in the limit of
fine cuts: under flat priors on log hazards, and with nobody censored inside an interval that has an event, its hazards
integrate out to Breslow's partial likelihood exactly.

`predict` gives the median time or, with ``horizon``, P(T > horizon), which averages over draws to a probability.

Drawn outcomes are times of events; a row that was censored keeps its own time if the drawn one comes later. When a row
with an event would have been censored is not known: means of y and of drawn times do not compare where rows are
censored, but the rank of y among its draws, ties broken at random, is uniform if the model holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Annotated, NamedTuple, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Len
from jaxtyping import Array

from fahmc.density.model import Model
from fahmc.errors import SettingsError, shown
from fahmc.hints import MAX_WIDTH, Positive
from fahmc.models.family import family
from fahmc.models.generalized_linear import SettingsWithoutIntercept, SharedSettings, generalized_linear
from fahmc.models.parameters import level_and_own, log_normal
from fahmc.models.rows import check_survival
from fahmc.types import Batch, Key, Position

_LOG_LOG_TWO = float(np.log(np.log(2)))


class _Baseline(NamedTuple):
    """h₀ and what follows from it; functions of [row] and the position."""

    log_hazard: Callable[[Array, Position], Array]
    """log h₀(t)"""
    log_mass: Callable[[Array, Position], Array]
    """log H₀(t)"""
    time_of: Callable[[Array, Position], Array]
    """t of log H₀(t)"""


@family
def exponential_survival(
    prior_scale: Positive | None = 1.0, *, horizon: Positive | None = None, **settings: Unpack[SharedSettings]
) -> Model:
    """Model a hazard that stays the same, h = exp(xβ + α); `predict` gives the median time, or P(T > horizon)."""
    baseline = _Baseline(
        log_hazard=lambda time, position: jnp.zeros_like(time),
        log_mass=lambda time, position: jnp.log(time),
        time_of=lambda log_mass, position: jnp.exp(log_mass),
    )
    return generalized_linear(prior_scale=prior_scale, **_proportional_hazards(baseline, horizon), **settings)


@family
def weibull_survival(
    prior_scale: Positive | None = 1.0,
    *,
    shape_scale: Positive = 1.0,
    horizon: Positive | None = None,
    **settings: Unpack[SharedSettings],
) -> Model:
    """Model a hazard h(t) = shape t^(shape − 1) exp(xβ + α); `predict` gives the median time, or P(T > horizon).

    The hazard rises with time where shape > 1 and falls where shape < 1; log shape has a N(0, shape_scale²) prior. As
    times are stretched by exp(−β / shape), the law is one of accelerated failure as well.
    """
    baseline = _Baseline(
        log_hazard=lambda time, at: jnp.log(at["shape"])[None] + (at["shape"][None] - 1) * jnp.log(time),
        log_mass=lambda time, at: at["shape"][None] * jnp.log(time),
        time_of=lambda log_mass, at: jnp.exp(log_mass / at["shape"][None]),
    )
    return generalized_linear(
        prior_scale=prior_scale,
        parameters={"shape": log_normal(shape_scale)},
        **_proportional_hazards(baseline, horizon),
        **settings,
    )


@family
def piecewise_exponential(
    cuts: Annotated[Sequence[Positive], Len(1, MAX_WIDTH)],
    prior_scale: Positive | None = 1.0,
    *,
    hazard_scale: Positive = 1.0,
    level_scale: Positive = 10.0,
    horizon: Positive | None = None,
    **settings: Unpack[SettingsWithoutIntercept],
) -> Model:
    """Model h(t) = exp(log_hazards_j + xβ), j the interval that t lies in; `predict`: median time, or P(T > horizon).

    ``cuts`` c_1 < … < c_J make J + 1 intervals (0, c_1], (c_1, c_2], …, (c_J, ∞), where hazards stay the same. The log
    hazards stand for the intercept: they share a level ~ N(0, level_scale²), about which each is N(0, hazard_scale²).
    A large hazard_scale lets every interval speak for itself; then each needs an event.
    """
    ends = [float(cut) for cut in cuts]
    if any(later <= earlier for earlier, later in pairwise(ends)):
        raise SettingsError(f"cuts are {shown(ends)}; they must increase from one to the next. Sort them, each once.")
    starts = [0.0, *ends]

    def pieces(time: Array) -> Array:
        """Return how long a time was in each interval, [row, interval]."""
        begin = jnp.asarray(starts, time.dtype)
        width = jnp.asarray([*np.diff(starts), np.inf], time.dtype)
        return jnp.clip(time[:, None] - begin[None], 0, width[None])

    def log_hazard(time: Array, position: Position) -> Array:
        # The interval in which a time lies is the last in which it was.
        return position["log_hazards"][jnp.sum(time[:, None] > jnp.asarray(ends, time.dtype)[None], axis=1)]

    def log_mass(time: Array, position: Position) -> Array:
        return jax.nn.logsumexp(position["log_hazards"][None], axis=1, b=pieces(time))

    def time_of(log_mass: Array, position: Position) -> Array:
        hazards, mass = jnp.exp(position["log_hazards"]), jnp.exp(log_mass)
        begin = jnp.asarray(starts, mass.dtype)
        reached = jnp.concatenate([begin[:1], jnp.cumsum(jnp.diff(begin) * hazards[:-1])])
        interval = jnp.sum(mass[:, None] > reached[None, 1:], axis=1)
        return begin[interval] + (mass - reached[interval]) / hazards[interval]

    intervals = [*(f"{a:g} to {b:g}" for a, b in zip(starts, ends, strict=False)), f"from {ends[-1]:g}"]
    return generalized_linear(
        prior_scale=prior_scale,
        intercept=False,
        parameters={"log_hazards": level_and_own(level_scale, hazard_scale, {"interval": intervals})},
        **_proportional_hazards(_Baseline(log_hazard, log_mass, time_of), horizon),
        **settings,
    )


class _ProportionalHazards(TypedDict):
    """What all survival models have in common, as `generalized_linear` takes it."""

    row_loglikelihood: Callable[[Array, Position, Batch], Array]
    inverse_link: Callable[[Array], Array]
    predict_row: Callable[[Array, Position, Batch], Array]
    sample_row: Callable[[Key, Array, Position, Batch], Array]
    validate_fn: Callable[[Batch], str | None]
    uses: Sequence[str]
    scale_words: str


def _proportional_hazards(baseline: _Baseline, horizon: float | None) -> _ProportionalHazards:
    def row_loglikelihood(eta: Array, position: Position, batch: Batch) -> Array:
        time = batch["y"].astype(eta.dtype)
        log_hazard = baseline.log_hazard(time, position) + eta
        happened = batch["event"].astype(eta.dtype) * log_hazard if "event" in batch else log_hazard
        return happened - jnp.exp(baseline.log_mass(time, position) + eta)

    def predict_row(eta: Array, position: Position, batch: Batch) -> Array:
        if horizon is None:
            return baseline.time_of(_LOG_LOG_TWO - eta, position)
        return jnp.exp(-jnp.exp(baseline.log_mass(jnp.full_like(eta, horizon), position) + eta))

    def sample_row(key: Key, eta: Array, position: Position, batch: Batch) -> Array:
        # H₀(T) exp(η) is exponential.
        mass = jax.random.exponential(key, eta.shape, eta.dtype)
        drawn = baseline.time_of(jnp.log(mass) - eta, position)
        if "event" not in batch:
            return drawn
        return jnp.where(batch["event"] == 1, drawn, jnp.minimum(drawn, batch["y"].astype(eta.dtype)))

    return {
        "row_loglikelihood": row_loglikelihood,
        "inverse_link": jnp.exp,
        "predict_row": predict_row,
        "sample_row": sample_row,
        "validate_fn": check_survival,
        "uses": ("event",),
        "scale_words": "hazard ratio",
    }
