"""What is refused before anything is compiled: wrong arguments, and names that files could not keep."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from fahmc import tree
from fahmc.data.federation import Federation
from fahmc.data.sites import RemoteFederation
from fahmc.density.model import Model
from fahmc.errors import DataError, ModelError, SettingsError
from fahmc.registry import require
from fahmc.report.convergence import EssAbove, RHatBelow
from fahmc.types import Position

MANY_ROUNDS = 1_000_000
"""Where a stopping rule ends a run, rounds are not counted; but they do end."""


def checked_count(name: str, value: Any, least: int = 1) -> int:
    """Return a whole number, or refuse."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise SettingsError(f"{name} is {value!r}; it must be a whole number of at least {least}.")
    return int(value)


def checked_seed(name: str, value: Any) -> int:
    """Return a seed of up to 64 bits, or refuse."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 0 <= value < 2**64:
        raise SettingsError(f"{name} is {value!r}; it must be a whole number from 0 to 2^64 - 1.")
    return int(value)


def checked_num_rounds(num_rounds: Any, sampler: Any, stop_when: Any) -> int | None:
    """Return the number of rounds; None where the sampler decides."""
    if getattr(sampler, "decides_rounds", False):
        if num_rounds is not None or stop_when is not None:
            came = "num_rounds" if stop_when is None else "stop_when"
            raise SettingsError(
                f"{came} came with {type(sampler).__name__}, which decides by itself when to stop: leave it out, or "
                "set target_ess and max_rounds of the sampler."
            )
        return None
    if num_rounds is None and stop_when is not None:
        return MANY_ROUNDS
    if num_rounds is None:
        raise SettingsError(
            f"num_rounds is missing; {type(sampler).__name__} needs it, or stop_when=fahmc.EssAbove(400). Without a "
            "sampler, fahmc decides itself."
        )
    return checked_count("num_rounds", num_rounds)


def check_stop_when(stop_when: Any, num_chains: int, num_draws: int | None) -> None:
    """Refuse a stopping rule that could never hold."""
    if stop_when is None:
        return
    if not isinstance(stop_when, RHatBelow | EssAbove):
        raise SettingsError(f"stop_when is {stop_when!r}; give a rule such as fahmc.RHatBelow(1.01).")
    if num_chains < 2:
        raise SettingsError("stop_when needs R-hat, which compares chains; use num_chains of at least 2.")
    if num_draws is not None and stop_when.every > num_draws:
        raise SettingsError(
            f"stop_when looks every {stop_when.every} draws, but a chain keeps only {num_draws}; lower every."
        )


def check_arguments(model: Any, federation: Any, sampler: Any) -> None:
    """Refuse what is no model, no federation or no sampler, and rows that the model cannot have made."""
    if not isinstance(model, Model):
        raise ModelError(f"model is {model!r}; give a fahmc.Model or one of fahmc.models.")
    if not isinstance(federation, Federation):
        kind = type(federation).__name__
        raise DataError(f"federation is a {kind}; build it with fahmc.Federation.from_clients(...).")
    require("sampler", sampler)
    if not sampler.makes_draws:
        raise SettingsError(f"{sampler!r} draws nothing by itself; other samplers use it as a phase.")
    own_rows = () if isinstance(federation, RemoteFederation) else federation.rows  # sites check theirs
    for name, rows in zip(federation.names, own_rows, strict=False):
        if model.validate_fn is not None and (complaint := model.validate_fn(rows)):
            raise DataError(f"Client {name!r}: {complaint}")


def check_names(model: Model, position: Position) -> None:
    """Refuse positions and names that files and ArviZ could not hold; they would notice only after the run."""
    try:
        tree.skeleton(position)
    except TypeError as error:
        message = (
            f"The position holds {error}; build positions of dicts with string keys, lists, tuples and NamedTuples."
        )
        raise ModelError(message) from None
    names = tree.leaf_names(position)
    for name in names:
        if names.count(name) > 1 or name in ("chain", "draw") or "/" in name:
            raise ModelError(
                f"A parameter is called {name!r}, which is taken or cannot be stored; give it another name."
            )
    shapes = {name: leaf.shape for name, leaf in zip(names, jax.tree.leaves(position), strict=True)}
    for name, dims in model.dims.items():
        if name in shapes and (isinstance(dims, str) or len(dims) != len(shapes[name])):
            raise ModelError(
                f"dims of {name!r} is {dims!r}, but it has {len(shapes[name])} axes; give a list with a name each."
            )
        for dim, size in zip(dims, shapes.get(name, ()), strict=False):
            if dim in model.coords and len(model.coords[dim]) != size:
                raise ModelError(
                    f"{name} has {size} entries along {dim!r}, but {len(model.coords[dim])} names were given for them; "
                    "give one name an entry (feature_names of a ready-made model, coords of your own)."
                )
