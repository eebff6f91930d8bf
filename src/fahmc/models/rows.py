"""The rows of ready-made models, and what is wrong with some.

========  =============  ============================================================================================
x         [row, feature]
y         [row]          the outcome
offset    [row]          optional: added to xβ + α; the log of an exposure
weight    [row]          optional: multiplies the row's log likelihood
event     [row]          survival, optional: 1 if it happened at y, 0 if the row was last seen, without it, at y
trials    [row]          binomial counts, needed: of how many
========  =============  ============================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fahmc.types import Batch

_FOR_SOME = {"event": "survival models", "trials": "binomial_regression"}


def check_columns(batch: Batch) -> str | None:
    """Say what is wrong with a batch as such, or nothing."""
    if not isinstance(batch, dict) or not {"x", "y"} <= set(batch):
        found = ", ".join(map(str, batch)) if isinstance(batch, dict) else type(batch).__name__
        return f"a ready-made model takes rows {{'x': [row, feature], 'y': [row]}}, but these hold {found}."
    if np.ndim(batch["x"]) < 2 or np.ndim(batch["y"]) != 1:
        return f"x must be [row, feature] and y [row], but they have shapes {batch['x'].shape} and {batch['y'].shape}."
    return None


def check_extras(batch: Batch, has_classes: bool, uses: Collection[str] = ()) -> str | None:
    """Say what is wrong with a batch's offset and weight, or with what this model has no use for."""
    for name in _FOR_SOME:
        if name in batch and name not in uses:
            return f"the rows hold {name!r}, which is for {_FOR_SOME[name]}. Leave it out, or choose such a model."
    if "offset" in batch and has_classes:
        return "the rows hold 'offset', which would be added to every class and so change nothing. Leave it out."
    for name, allowed in {"offset": "a finite number", "weight": "a finite number, 0 or more"}.items():
        if name in batch and (complaint := check_array(batch, name, _IS_ALLOWED[name], allowed)):
            return complaint
    return None


def check_offset(batch: Batch, inverse_link: Callable[[Array], Array]) -> str | None:
    """Say where an offset alone makes predictions overflow: an exposure as it stands, whose logarithm was meant."""
    if "offset" not in batch:
        return None
    offset = np.asarray(batch["offset"])
    bad = np.flatnonzero(~np.isfinite(inverse_link(jnp.asarray(offset, jnp.float32))))
    return (
        f"offset of row {bad[0]} is {offset[bad[0]]:g}, with which what the model predicts is too large a number. An "
        "offset is added to the predictor: of an exposure give the logarithm; in a table, name the column as exposure."
    ) if bad.size else None  # fmt: skip


def check_outcome(is_allowed: Callable[[np.ndarray], np.ndarray], allowed: str) -> Callable[[Batch], str | None]:
    """Return a check that every outcome is what the model can have made."""
    return lambda batch: check_columns(batch) or check_array(batch, "y", is_allowed, allowed)


def check_array(batch: Batch, name: str, is_allowed: Callable[[np.ndarray], np.ndarray], allowed: str) -> str | None:
    """Say which row of a [row] array is not allowed, if one is."""
    values = np.asarray(batch[name])
    if values.ndim != 1:
        return f"{name} must be [row], but it has shape {values.shape}."
    bad = np.flatnonzero(~is_allowed(values))
    return f"{name} must be {allowed}, but row {bad[0]} has {values[bad[0]]}." if bad.size else None


_IS_ALLOWED: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "offset": np.isfinite,
    "weight": lambda weight: np.isfinite(weight) & (weight >= 0),
}


def check_successes(batch: Batch) -> str | None:
    """Say what is wrong with counts out of so many trials."""
    if "trials" not in batch:
        return (
            "the rows hold no 'trials', of how many y counts the successes. Add it, [row]; in a table it is the column "
            "that the setting trials names."
        )
    trials = np.asarray(batch["trials"])
    complaint = check_array(
        batch, "trials", lambda n: np.isfinite(n) & (n >= 0) & (n == np.floor(n)), "a whole number, 0 or more"
    )
    return complaint or check_outcome(
        lambda y: (y >= 0) & (y == np.floor(y)) & (y <= trials), "a count from 0 to the row's trials"
    )(batch)


def check_survival(batch: Batch) -> str | None:
    """Say what is wrong with times, some of them censored."""
    if "event" in batch and (complaint := check_array(batch, "event", lambda event: np.isin(event, (0, 1)), "0 or 1")):
        return complaint
    return check_positive(batch)


def _is_count(values: np.ndarray) -> np.ndarray:
    return np.isfinite(values) & (values >= 0) & (values == np.floor(values))


check_counts = check_outcome(_is_count, "a count, 0 or more")
check_positive = check_outcome(lambda y: np.isfinite(y) & (y > 0), "above 0")
