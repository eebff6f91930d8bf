"""What is refused before anything is compiled: wrong arguments, and names that files could not keep."""

from __future__ import annotations

from collections import Counter
from typing import Any

import jax

from fahmc import door, tree
from fahmc.data.federation import Federation
from fahmc.data.sites import RemoteFederation
from fahmc.density.model import Model
from fahmc.dynamics.sampler import Sampler
from fahmc.errors import DataError, ModelError, SettingsError, first_line, shown
from fahmc.fitting import introduce
from fahmc.hints import MAX_TRAJECTORIES
from fahmc.names import unprintable
from fahmc.report.convergence import EssAbove, RHatBelow
from fahmc.types import Batch, Position

MANY_ROUNDS = 1_000_000
"""Where a stopping rule ends a run, rounds are not counted; but they do end."""


for rule in (RHatBelow, EssAbove):
    introduce(rule, "a rule such as fahmc.RHatBelow(1.01)")


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
    return num_rounds


def check_length(num_rounds: int | None, num_warmup_rounds: int, thin: int, sampler: Any) -> None:
    """Refuse a run that keeps no draw, or whose trajectories could not be told apart by their keys."""
    if num_rounds is None:
        return
    if thin > num_rounds:
        raise SettingsError(f"thin = {thin} keeps no draw of num_rounds = {num_rounds}; thin at most that much.")
    per_round = getattr(sampler, "num_local_steps", 1)
    if (num_rounds + num_warmup_rounds) * per_round > MAX_TRAJECTORIES:
        raise SettingsError(
            f"num_rounds = {num_rounds:,} and num_warmup_rounds = {num_warmup_rounds:,} of num_local_steps = "
            f"{per_round:,} each are more than {MAX_TRAJECTORIES:,} local steps, the most of a run. Ask for fewer."
        )


def check_stop_when(stop_when: RHatBelow | EssAbove | None, num_chains: int, num_draws: int | None) -> None:
    """Refuse a stopping rule that could never hold."""
    if stop_when is None:
        return
    if num_chains < 2:
        raise SettingsError("stop_when needs R-hat, which compares chains; use num_chains of at least 2.")
    if num_draws is not None and stop_when.every > num_draws:
        raise SettingsError(
            f"stop_when looks every {stop_when.every} draws, but a chain keeps only {num_draws}; lower every."
        )


@door.checked()
def check_arguments(model: Model, federation: Federation, sampler: Sampler) -> None:
    """Refuse what is no model, no federation or no sampler, and rows that the model cannot have made."""
    if not sampler.makes_draws:
        raise SettingsError(f"{sampler!r} draws nothing by itself; other samplers use it as a phase.")
    check_rows(model, federation)


def check_rows(model: Model, federation: Federation) -> None:
    """Refuse rows that the model cannot have made."""
    for name in federation.names:
        if complaint := unprintable(name):
            raise DataError(f"A client is called {shown(name)}, which {complaint}. Rename it.")
    own_rows = () if isinstance(federation, RemoteFederation) else federation.rows  # sites check theirs
    for name, rows in zip(federation.names, own_rows, strict=False):
        if complaint := _complaint(model, rows):
            raise DataError(f"Client {name!r}: {complaint.rstrip('.')}.")


def check_can_pool(model: Model, sampler: Sampler) -> None:
    """Refuse to pool rows that a likelihood takes site by site."""
    if model.together:
        raise SettingsError(
            f"{type(sampler).__name__} puts all rows together, but this model integrates every site's own effect out "
            'over that site\'s rows. Use Auto or FAHMC; or site_effects="intercept", whose common parameters have the '
            "same posterior."
        )


def _complaint(model: Model, rows: Batch) -> str | None:
    try:
        complaint = None if model.validate_fn is None else model.validate_fn(rows)
    except Exception as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise ModelError(f"validate_fn failed: {reason}. It should return None, or a complaint.") from error
    if complaint is not None and not isinstance(complaint, str):
        raise ModelError(f"validate_fn returned {shown(complaint)}; it should return None, or a complaint as text.")
    return complaint


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
    for name, count in Counter(names).items():
        if count > 1 or name in ("chain", "draw") or "/" in name or unprintable(name):
            raise ModelError(
                f"A parameter is called {shown(name)}, which is taken or cannot be stored; give it another name."
            )
    for dim, labels in model.coords.items():
        for label, count in Counter(map(str, labels)).items():
            if complaint := "stands for two entries" if count > 1 else unprintable(label):
                raise ModelError(f"Along {dim!r} a name is {shown(label)}, which {complaint}; give it another.")
    shapes = {name: leaf.shape for name, leaf in zip(names, jax.tree.leaves(position), strict=True)}
    for name, dims in model.dims.items():
        if name in shapes and (isinstance(dims, str) or len(dims) != len(shapes[name])):
            raise ModelError(
                f"dims of {name!r} is {shown(dims)}, but it has {len(shapes[name])} axes; give a list with a name each."
            )
        for dim, size in zip(dims, shapes.get(name, ()), strict=False):
            if dim in model.coords and len(model.coords[dim]) != size:
                raise ModelError(
                    f"{name} has {size} entries along {dim!r}, but {len(model.coords[dim])} names were given for them; "
                    "give one name an entry (feature_names of a ready-made model, coords of your own)."
                )
