"""`sample_prior`: what a model believes before it has seen an outcome, of its parameters and of outcomes.

    θ ~ p(θ),    y_i ~ p(y_i | θ) for every row i

A prior is easier to judge by the outcomes that it expects than by its scales.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fahmc import door, tree
from fahmc.data.federation import Federation
from fahmc.data.places import with_places
from fahmc.density.local import at_sites
from fahmc.density.model import Model
from fahmc.errors import FahmcError, ModelError, first_line
from fahmc.hints import Count, Seed
from fahmc.models.recipes import with_num_rows
from fahmc.runs.checks import check_rows
from fahmc.types import Batch, Position

# Draws that outcomes are made of at a time: what is needed in between, for all of them, could be large.
_AT_ONCE = 50


@dataclass(frozen=True, eq=False)
class PriorDraws:
    """Draws from a prior."""

    positions: Position
    """The parameters, as the model's functions see them, and what derives from them: a pytree of arrays [draw, ...]."""
    outcomes: Mapping[str, np.ndarray]
    """[draw, row, ...] by name: an outcome for every row, clients in their order; empty if the model draws none."""
    dims: Mapping[str, Any] = field(default_factory=dict)
    coords: Mapping[str, Any] = field(default_factory=dict)

    def to_arviz(self) -> Any:
        """Convert to ArviZ: groups ``prior`` and, where there are outcomes, ``prior_predictive``, in one chain."""
        from fahmc._arviz import dataset, inference_data

        variables = {"prior": tree.named_leaves(self.positions), "prior_predictive": self.outcomes}
        return inference_data(
            {
                group: dataset({name: values[None] for name, values in named.items()}, self.dims, self.coords)
                for group, named in variables.items()
                if named
            }
        )


@door.checked()
def sample_prior(
    model: Model, rows: Federation | Mapping[str, Any], num_draws: Count = 1000, *, seed: Seed = 0
) -> PriorDraws:
    """Draw from a model's prior, and what outcomes it expects of these rows.

    Parameters
    ----------
    rows
        A federation, or the rows of one client as a dict of arrays. Of their outcomes nothing but the shape is used.
    """
    if model.prior_fn is None:
        raise ModelError(
            "The model does not say how to draw from its prior; give Model(prior_fn=...) a function of (key, batch)."
        )
    federation = rows if isinstance(rows, Federation) else Federation.from_clients({"rows": dict(rows)})
    check_rows(model, federation)
    model = with_num_rows(model, federation.num_rows)
    if model.is_by_site:
        model, federation = at_sites(model, federation.names), with_places(federation)
    clients = [jax.tree.map(jnp.asarray, own) for own in federation.rows]
    key_prior, *keys = jax.random.split(jax.random.key(seed), 1 + len(clients))
    positions = _called("prior_fn", _drawn, model, jax.random.split(key_prior, num_draws), clients[0])
    parts = [] if model.sample_fn is None else [
        _called("sample_fn", _outcomes, model, jax.random.split(key, num_draws), positions, own)
        for key, own in zip(keys, clients, strict=True)
    ]  # fmt: skip
    derived = {} if model.derived_fn is None else jax.jit(jax.vmap(model.derived_fn))(positions)
    positions = jax.device_get({**positions, **derived} if derived else positions)
    outcomes = {model.outcome or "y": np.concatenate(parts, axis=1)} if parts else {}
    return PriorDraws(positions, outcomes, model.dims, model.coords)


def _drawn(model: Model, keys: Any, batch: Batch) -> Position:
    assert model.prior_fn is not None
    prior_fn = model.prior_fn
    return jax.jit(lambda keys, batch: jax.vmap(lambda key: prior_fn(key, batch))(keys))(keys, batch)


def _outcomes(model: Model, keys: Any, positions: Position, batch: Batch) -> np.ndarray:
    """Return [draw, row, ...]."""
    assert model.sample_fn is not None
    sample_fn = model.sample_fn
    draw = jax.jit(
        lambda keys, at, rows: jax.lax.map(lambda one: sample_fn(one[0], one[1], rows), (keys, at), batch_size=_AT_ONCE)
    )
    values = np.asarray(draw(keys, positions, batch))
    num_rows = len(jax.tree.leaves(batch)[0])
    if values.ndim < 2 or values.shape[1] != num_rows:
        raise ModelError(f"sample_fn returned shape {values.shape[1:]} for {num_rows} rows; give one outcome a row.")
    return values


def _called(name: str, call: Any, *arguments: Any) -> Any:
    """Call a function of the user's, whose faults are told in a sentence."""
    try:
        return call(*arguments)
    except FahmcError:
        raise  # it is a sentence already
    except Exception as error:
        raise ModelError(f"The model's {name} failed: {type(error).__name__}: {first_line(error)}.") from error
