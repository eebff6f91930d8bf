"""How draws are asked about: which of them go to the rows, and how the rows' owners are reached."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from fahmc import tree
from fahmc.checks.check import Answer, Check, Fit, answer_here
from fahmc.data.federation import Federation
from fahmc.data.places import with_site
from fahmc.data.sites import Sites
from fahmc.density.model import Model
from fahmc.errors import DataError, ModelError, SettingsError
from fahmc.types import Batch, Position

MAX_DRAWS = 4000
"""Draws that go to the rows unless said otherwise: more tell little more, and each is evaluated on each row."""
_FEWEST_DRAWS = 20


class Asked(NamedTuple):
    """A model, draws of it and where its rows are: what an engine takes to the sites."""

    model: Model
    positions: Position
    """A pytree of [draw, ...]."""
    rows: Federation | Sites
    settings: Mapping[str, Any]
    """Of the run: what its sites agreed on."""


class AskingEngine(Protocol):
    """An engine that reaches rows which are not here."""

    def ask(self, check: Check, asked: Sequence[Asked]) -> Mapping[str, Answer]:
        """Have every site answer, in the sites' order."""
        ...


def ask(check: Check, asked: Sequence[Asked], engine: Any = None) -> Mapping[str, Answer]:
    """Have the question answered where the rows are: here, or at the sites that an engine reaches."""
    if all(isinstance(one.rows, Federation) for one in asked):
        return ask_here(check, asked)
    if not callable(getattr(engine, "ask", None)):
        raise SettingsError(
            "The rows lie with the sites of a real federation, so an engine has to reach them: "
            "engine=fahmc.engines.Flare(kit=...)."
        )
    if not all(isinstance(one.rows, Sites) for one in asked):
        raise SettingsError("Give fahmc.Sites for all models, or a fahmc.Federation for all: rows lie in one place.")
    return engine.ask(check, asked)


def ask_here(check: Check, asked: Sequence[Asked], minimum: int = 1) -> dict[str, Answer]:
    """Answer for one client after the other, with rows that are here."""
    first, *others = asked
    assert isinstance(first.rows, Federation)
    for other in others:
        if other.rows.names != first.rows.names:  # type: ignore[union-attr]
            raise DataError("The models were fitted to rows of different clients; compare models of the same rows.")

    def fits(place: int, name: str) -> list[Fit]:
        return [Fit(one.model, one.positions, _rows_of(one, place, name), name) for one in asked]

    return {name: answer_here(check, fits(place, name), minimum) for place, name in enumerate(first.rows.names)}


def _rows_of(one: Asked, place: int, name: str) -> Batch:
    rows = one.rows.rows[place]  # type: ignore[union-attr]
    return with_site(rows, place, name) if one.model.is_by_site else rows


def kept_draws(positions: Position, max_draws: int) -> Position:
    """Return every so many-th draw of each chain, [chain, draw, ...], so that there are at most ``max_draws``."""
    leaf = jax.tree.leaves(positions)[0]
    num_chains, num_draws = leaf.shape[:2]
    if num_chains * num_draws < _FEWEST_DRAWS:
        raise DataError(f"There are {num_chains * num_draws} draws; a check of the fit needs {_FEWEST_DRAWS} or more.")
    per_chain = max(1, max_draws // num_chains)
    places = np.arange(0, num_draws, -(-num_draws // per_chain))
    return jax.tree.map(lambda leaf: np.asarray(leaf)[:, places], positions)


def side_by_side(positions: Position) -> Position:
    """Put chains side by side: [chain, draw, ...] becomes [draw, ...]."""
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), positions)


def efficiency(positions: Position) -> float:
    """Return the mean effective size of the parameters over the number of draws, as ArviZ's ``loo`` takes it."""
    from fahmc._arviz import dataset, diagnose

    named = dict(zip(tree.leaf_names(positions), jax.tree.leaves(positions), strict=True))
    num_chains, num_draws = next(iter(named.values())).shape[:2]
    if num_chains == 1:
        return 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of constant parameters alone
        sizes = diagnose("ess", dataset(named), "mean")
        mean = float(np.nanmean(np.hstack([np.ravel(values) for values in sizes.values()]))) / (num_chains * num_draws)
    return mean if np.isfinite(mean) and mean > 0 else 1.0


def check_untempered(model: Model, rows: Any, what: str) -> None:
    """Refuse posteriors in which a row does not count once."""
    weights = rows.weights
    is_plain = weights is None
    if isinstance(rows, Federation):
        ones = all((weight == 1).all() for weight in rows.row_weights)
        is_plain = ones and np.allclose(weights, rows.sizes / rows.num_rows, rtol=1e-9)
    if model.temperature != 1 or not is_plain:
        raise ModelError(
            f"{what} is of a posterior in which every row counts once; with a temperature, or weights other than "
            "n_c / n, rows count more or less. Sample without them first."
        )
