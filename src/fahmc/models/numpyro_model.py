"""A model that is written for NumPyro, as it is.

    p(θ) = Π_latent sites p(θ_s | θ_before s)        log p(row i | θ) = Σ_observed sites log p(y_i | x_i, θ)

Supports, bijections and densities are NumPyro's; what of the model is whose is found in `fahmc.models.numpyro_anatomy`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpyro.distributions import CategoricalLogits, CategoricalProbs

from fahmc import door, tree
from fahmc.density.model import Model
from fahmc.errors import ModelError, nearest, shown
from fahmc.hints import Name, Positive
from fahmc.models.numpyro_anatomy import Anatomy, Look
from fahmc.models.numpyro_program import (
    Program,
    Trace,
    about,
    by_row,
    log_density,
    near_median,
    prior_terms,
    row_sums,
)
from fahmc.models.numpyro_sites import innermost
from fahmc.types import Batch, Key, Position


@door.checked(ModelError)
def from_numpyro(
    model: Callable[..., Any],
    example: Mapping[Name, Any],
    *,
    rows: Name | None = None,
    constants: Mapping[Name, Any] | None = None,
    sees: Sequence[Name] | None = None,
    outcome: Name | None = None,
    dims: Mapping[Name, Sequence[Name]] | None = None,
    coords: Mapping[Name, Sequence[Any]] | None = None,
    temperature: Positive = 1.0,
) -> Model:
    """Make a `Model` of a function that is written for NumPyro.

    The function is written for any number of rows, with what is observed in a plate of rows. Its arguments are found by
    name: columns of the rows, ``constants``, and, if it takes them, ``site`` (the place of the row's client, [row]) and
    ``num_sites`` (how many clients there are), for effects of clients: ``a[site]``. docs/numpyro.md has examples, and
    what is refused.

    Parameters
    ----------
    example
        A few rows, real ones or made up, by column: ``{"x": np.zeros((1, 3)), "y": np.zeros(1)}``. Shapes and dtypes
        are those of everybody's rows.
    rows
        The name of the plate of rows; by default the plate whose size is the number of rows.
    constants
        Arguments that are no columns.
    sees
        Names of latent or deterministic sites from which, without the others, the likelihood follows. The fewer
        they are, and the nearer to what it is quadratic in, the fewer rounds (`Model.view_fn`). By default the
        latent sites that it depends on.
    outcome
        The column whose outcomes are predicted and drawn, where several sites are observed.
    dims, coords, temperature
        As those of `Model`; plates name their dimensions by themselves.
    """
    columns = _checked_example(example)
    program = Program.of(model, columns, constants or {})
    look = Look(program, rows)
    anatomy = look.anatomy
    parts = _Parts(program, anatomy, _seen(program, look, sees))
    target = _outcome_site(anatomy, outcome)
    return Model(
        loglikelihood_fn=parts.loglikelihood,
        logprior_fn=parts.logprior,
        init=_no_sites_yet if program.is_by_site else parts.start,
        predict_fn=None if target is None else parts.prediction_of(target, look),
        temperature=temperature,
        validate_fn=parts.complaint,
        dims={**anatomy.dims, **(dims or {})},
        coords=coords or {},
        view_fn=None if set(parts.sees) == set(anatomy.latents) else parts.view,
        supports=anatomy.supports,
        derived_fn=parts.derived if anatomy.derived else None,
        sample_fn=None if target is None else parts.draw_of(target),
        outcome=None if target is None else anatomy.columns.get(target),
        prior_fn=None if program.is_by_site else parts.prior_fn(),
        at_sites_fn=parts.at_sites if program.is_by_site else None,
    )


@dataclass(frozen=True, eq=False)
class _Parts:
    """A NumPyro model's functions as `Model` takes them."""

    program: Program
    anatomy: Anatomy
    sees: tuple[str, ...]

    def loglikelihood(self, seen: Position, batch: Batch) -> Float[Array, " row"]:
        """Return log p(row | φ), φ being the values of the sites in ``sees``."""
        return _row_fits(self.program, self.anatomy, seen, batch)

    def logprior(self, position: Position) -> Array:
        first, *others = prior_terms(self._at(position), self.anatomy.prior).values()
        return sum(others, first)

    def view(self, position: Position) -> Position:
        trace = self._at(position)
        return {name: jnp.asarray(trace[name]["value"]) for name in self.sees}

    def derived(self, position: Position) -> dict[str, Array]:
        trace = self._at(position)
        return {name: trace[name]["value"] for name in self.anatomy.derived}

    def start(self, key: Key, num_sites: int = 1) -> Position:
        trace = self.program.run({}, num_sites=num_sites, key=key, fill=near_median)
        return {name: trace[name]["value"] for name in self.anatomy.latents}

    def prior_fn(self, num_sites: int = 1) -> Callable[[Key, Batch], Position] | None:
        """Return how to draw from the prior; None where it is improper, or has terms that are observed."""
        if len(self.anatomy.prior) > len(self.anatomy.latents):
            return None

        def draw(key: Key, batch: Batch) -> Position:
            trace = self.program.run({}, num_sites=num_sites, key=key)
            return {name: trace[name]["value"] for name in self.anatomy.latents}

        try:
            jax.eval_shape(draw, jax.random.key(0), None)
        except NotImplementedError:
            return None
        return draw

    def prediction_of(self, name: str, look: Look) -> Callable[[Position, Batch], Array] | None:
        """Return the mean of an observed site, [row, ...], as a function; None where it has none."""

        def predict(position: Position, batch: Batch) -> Array:
            site = self._observed(name, position, batch)
            mean, event_dim = _mean(site["fn"])
            return by_row(mean, site, self.anatomy.rows, event_dim)

        try:
            with jax.enable_x64(True):  # as values and rows are
                jax.eval_shape(predict, look.values, look.tries)
        except NotImplementedError:
            return None
        return predict

    def draw_of(self, name: str) -> Callable[[Key, Position, Batch], Array] | None:
        """Return how to draw an observed site; None where what is observed is no column as it stands."""
        if name not in self.anatomy.columns:
            return None

        def draw(key: Key, position: Position, batch: Batch) -> Array:
            site = self._observed(name, position, batch)
            return by_row(site["fn"].sample(key), site, self.anatomy.rows, site["fn"].event_dim)

        return draw

    def complaint(self, batch: Batch) -> str | None:
        """Say what is wrong with a client's rows, or nothing."""
        for column, values in self.program.example.items():
            if not isinstance(batch, Mapping) or column not in batch:
                found = ", ".join(map(str, batch)) if isinstance(batch, Mapping) else type(batch).__name__
                return f"the NumPyro model takes {column!r}, but the rows hold {found}."
            if batch[column].shape[1:] != values.shape[1:]:
                shapes = list(batch[column].shape[1:]), list(values.shape[1:])
                return f"{column} has shape {shapes[0]} for a row, but {shapes[1]} in the model's example."
        for name, support in self.anatomy.outcomes.items():
            values = np.asarray(batch[self.anatomy.columns[name]])
            inside = np.asarray(support(values)).reshape(len(values), -1).all(axis=1)
            if not inside.all():
                first = int(np.flatnonzero(~inside)[0])
                return f"{self.anatomy.columns[name]} of row {first} is {values[first]}, outside of {support}."
        return None

    def at_sites(self, model: Model, names: Sequence[str]) -> Model:
        """Return the model of these clients."""
        num_sites = len(names)
        return replace(
            model,
            init=lambda key: self.start(key, num_sites),
            prior_fn=self.prior_fn(num_sites),
            coords={self.anatomy.site_dim: list(names), **model.coords},
        )

    def _at(self, position: Position) -> Trace:
        return self.program.run(position, num_sites=self.anatomy.num_sites(position))

    def _observed(self, name: str, position: Position, batch: Batch) -> dict[str, Any]:
        # What is observed may not be there yet; it is then drawn, and what is drawn is not used.
        key = jax.random.key(0)
        return self.program.run(position, batch, num_sites=self.anatomy.num_sites(position), key=key)[name]


def _row_fits(program: Program, anatomy: Anatomy, seen: Position, batch: Batch) -> Float[Array, " row"]:
    trace = program.run(seen, batch, num_sites=anatomy.num_sites(seen), fill=about(0.0))
    sites = [trace[name] for name in anatomy.observed]
    first, *others = (row_sums(log_density(site), site, anatomy.rows) for site in sites)
    return sum(others, first)


def _seen(program: Program, look: Look, sees: Sequence[str] | None) -> tuple[str, ...]:
    """Return the sites that the likelihood is to see: those named if it follows from them, else all that it needs."""
    anatomy = look.anatomy
    if sees is None:
        return look.needed(lambda values, rows: _row_fits(program, anatomy, values, rows))
    known = [*anatomy.latents, *anatomy.derived]
    for name in sees:
        if name not in known:
            raise ModelError(
                f"sees names {name!r}, which is neither a latent site nor a deterministic one that is the same "
                f"whatever the rows; these are {', '.join(known)}{nearest(name, known)}"
            )
    parts = _Parts(program, anatomy, tuple(sees))

    def through(values: Position, rows: Batch) -> Array:
        return parts.loglikelihood(parts.view(values), rows)

    if not look.same_fits(through, lambda values, rows: _row_fits(program, anatomy, values, rows)):
        raise ModelError(
            f"The likelihood does not follow from {', '.join(sees)}, which sees names: other sites change it too. Name "
            "them as well; of a deterministic site the model must use what numpyro.deterministic returns."
        )
    return tuple(sees)


def _outcome_site(anatomy: Anatomy, outcome: str | None) -> str | None:
    if outcome is None:
        return anatomy.observed[0] if len(anatomy.observed) == 1 else None
    for name, column in anatomy.columns.items():
        if column == outcome:
            return name
    columns = ", ".join(anatomy.columns.values()) or "none"
    raise ModelError(f"outcome is {outcome!r}; columns that are observed as they stand (obs=y) are {columns}.")


def _mean(distribution: Any) -> tuple[Array, int]:
    """Return the mean, [*plates, *event], and the number of event axes; of categories, their probabilities."""
    inner = innermost(distribution)
    if isinstance(inner, CategoricalProbs | CategoricalLogits):
        shares = jnp.asarray(inner.probs)
        return jnp.broadcast_to(shares, (*distribution.batch_shape, shares.shape[-1])), 1
    return distribution.mean, distribution.event_dim


def _checked_example(example: Mapping[str, Any]) -> dict[str, np.ndarray]:
    columns = tree.as_numbers({name: np.asarray(values) for name, values in example.items()}, "example", ModelError)
    sizes = {name: np.shape(values)[:1] for name, values in columns.items()}
    if not columns or len(set(sizes.values())) != 1 or not all(sizes.values()) or (0,) in sizes.values():
        raise ModelError(
            f"example has columns of lengths {shown(sizes)}; give at least one row, as a dict of arrays of one length."
        )
    return columns


def _no_sites_yet(key: Key) -> Position:
    raise ModelError("the model has effects of clients, and so no position without a federation")
