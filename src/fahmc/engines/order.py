"""What a run says to clients in other processes, and to the server between them: plain values, no code.

Everything derives from it there: what the messages look like, the client's round, the roots of its randomness.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import jax
import numpy as np
import pydantic
from annotated_types import Len

from fahmc import keys, registry, tree
from fahmc.dynamics.sampler import Exchange, Phase, Sampler
from fahmc.engines.run import Run
from fahmc.errors import FederationError, SettingsError
from fahmc.hints import MAX_AXES, Name, Probability, Seed
from fahmc.models.recipes import model_recipe
from fahmc.types import ChainKeys, Numbers, Position


@dataclass(frozen=True)
class Order:
    """One phase of a run."""

    model: dict[str, Any]
    """How to make the model (`fahmc.models.recipes`)."""
    sampler: dict[str, Any]
    """How to make the sampler (`fahmc.registry`)."""
    leader: dict[str, Any]
    """How to make the run's own sampler, as whose phases come: often the same."""
    phase: str
    stream: str
    """What the phase's random streams are called."""
    seed: Seed
    num_chains: pydantic.PositiveInt
    dtype: Literal["float32", "float64"]
    template: Any
    """The structure of a position (`fahmc.tree.skeleton`)."""
    leaf_shapes: dict[str, Annotated[list[pydantic.NonNegativeInt], Len(0, MAX_AXES)]]
    weights: dict[Name, Probability]
    """w_c by client, in the order in which replies are summed."""
    num_rows: pydantic.PositiveInt
    """n, of all clients."""

    @classmethod
    def of(cls, run: Run, phase: Phase) -> Order:
        """Write down what a phase of a run is."""
        template = run.target.template
        leaves = zip(tree.leaf_names(template), jax.tree.leaves(template), strict=True)
        weights = zip(run.federation.names, map(float, run.federation.weights), strict=True)
        leader, sampler = sampler_recipe(run.sampler), sampler_recipe(phase.sampler)
        if sampler != leader and "name" in sampler and sampler["name"] not in (leader.get("name"), *run.sampler.PARTS):
            raise SettingsError(
                f"{type(run.sampler).__name__} gives out a phase of {sampler['name']!r}, which its PARTS do not name: "
                "no site would run it. Add it there."
            )
        return cls(
            model=model_recipe(run.model),
            sampler=sampler,
            leader=leader,
            phase=phase.name,
            stream=run.stream(phase),
            seed=run.seed,
            num_chains=run.num_chains,
            dtype=run.dtype.name,  # type: ignore
            template=tree.skeleton(template),
            leaf_shapes={name: list(leaf.shape) for name, leaf in leaves},
            weights=dict(weights),
            num_rows=run.federation.num_rows,
        )

    @classmethod
    def read(cls, text: str) -> Order:
        """Read what `text` wrote, or refuse it."""
        try:
            return _ADAPTER.validate_json(text, strict=True)
        except pydantic.ValidationError as error:
            raise FederationError("the order cannot be read; is this fahmc as new as the analyst's?") from error

    @property
    def text(self) -> str:
        """The order as JSON; the same order is the same text."""
        return _ADAPTER.dump_json(self).decode()

    @property
    def identity(self) -> str:
        """What the order is called: a checksum of its text."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]

    @property
    def run_identity(self) -> str:
        """What the run is called: the same for all of its phases."""
        whole = dataclasses.replace(self, sampler={}, phase="", stream="")
        return whole.identity

    @property
    def precision(self) -> np.dtype:
        """The run's dtype."""
        return np.dtype(self.dtype)

    @property
    def dimension(self) -> int:
        """Length of a flat position."""
        return sum(map(math.prod, self.leaf_shapes.values()))

    @property
    def position(self) -> Position:
        """A position of the run's structure, all zeros."""
        leaves = {leaf: np.zeros(shape, self.precision) for leaf, shape in self.leaf_shapes.items()}
        try:
            position = tree.fill(self.template, leaves)
            if sorted(map(id, jax.tree.leaves(position))) != sorted(map(id, leaves.values())):
                raise ValueError("a leaf is not used, or used twice")
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
            raise FederationError("the order's template does not fit its leaves.") from error
        return position

    def build_sampler(self, own_samplers: Collection[str] = ()) -> Sampler:
        """Make the sampler; one that is not fahmc's only if it is listed."""
        try:
            sampler = registry.decode("sampler", self.sampler, ("sampler",), own_samplers)
        except SettingsError as error:
            raise FederationError(str(error)) if "not listed here" in str(error) else error from None
        _check_runs_at_sites(sampler)
        return sampler

    def exchange(self, sampler: Sampler) -> Exchange:
        """Return the messages."""
        return sampler.exchange(self.dimension)

    def numbers(self, sampler: Sampler) -> Numbers:
        """Return the sampler's settings that are data."""
        return sampler.numbers(self.position, self.precision)

    def chain_keys(self, private_seed: int | None = None) -> ChainKeys:
        """Return the roots of the chains' randomness; the private ones from a seed of the caller's own."""
        return keys.chain_keys(self.seed, self.num_chains, private_seed, self.stream)


_ADAPTER = pydantic.TypeAdapter(Order)


def sampler_recipe(sampler: Any) -> dict[str, Any]:
    """Write a sampler as JSON values, or say why other processes cannot run it."""
    _check_runs_at_sites(sampler)
    return registry.encode(sampler, "sampler")


def _check_runs_at_sites(sampler: Any) -> None:
    registry.require("sampler", sampler)
    if sampler.pools_rows:
        raise SettingsError(
            f"{type(sampler).__name__} runs on one machine; a federation takes FAHMC, FALD or DebiasedFAHMC."
        )
