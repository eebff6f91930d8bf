"""What a sampler is: what is broadcast, what a client does with it, how the replies combine.

    reply_c = client_round(keys, round, state, numbers, client_c)     where the rows are
    state   ← merge(keys, round, state, combined replies)             at the server

Both are written for one chain; engines run all chains. The exchange declares the fields of both messages once; wire,
checkpoints and byte counts read that declaration. A sampler is one file: a frozen dataclass that implements `Sampler`
and is registered by ``@fahmc.register("sampler")``. Engines know it by this protocol alone.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from fahmc import registry
from fahmc.data.federation import Federation
from fahmc.density.target import Target
from fahmc.types import ChainKeys, Client, Message, Numbers, Position


class Field(NamedTuple):
    """One array of a message."""

    shape: tuple[int, ...]
    dtype: str = "float"
    """``"float"`` for the run's own precision, or the name of a NumPy dtype."""
    combine: Literal["mean", "sum", "each"] = "mean"
    """How the clients' replies become one: Σ_c w_c r_c, Σ_c r_c, or all of them with a leading client axis."""
    per_chain: bool = True
    """Whether every chain has its own. In an exchange where no field does, a client is asked once, not once a chain."""
    is_sent: bool = True
    """False for a part of the state that the server keeps to itself: clients do not see it, and it costs no bytes."""

    def full_shape(self, num_chains: int) -> tuple[int, ...]:
        """Return the shape with the chains' axis."""
        return (num_chains, *self.shape) if self.per_chain else self.shape

    def numpy_dtype(self, precision: np.dtype) -> np.dtype:
        """Return the dtype in a run of this precision."""
        return precision if self.dtype == "float" else np.dtype(self.dtype)

    def num_bytes(self, num_chains: int, precision: np.dtype) -> int:
        """Return the bytes of all chains."""
        return math.prod(self.full_shape(num_chains)) * self.numpy_dtype(precision).itemsize


class Release(NamedTuple):
    """What keeps the replies of an exchange differentially private: noise, added where a reply is made.

    A client's exact reply must be a multiple of `grid`, as its noise is, so that no digit of a float tells what the
    noise hides.
    """

    mu: float
    """What a round costs a row: how far all replies together move if it is replaced, in standard deviations."""
    deviations: Any
    """(broadcast, numbers, number of clients) -> by field of the reply, the standard deviation of a client's noise."""
    grid: float
    mu_left: float
    """What the rounds of the run cost together, from this one on: for a site that would rather not begin in vain."""
    is_shared: bool = False
    """Whether a single client has only its share of the noise, and its reply is private in the sum of all alone."""


class Exchange(NamedTuple):
    """All that a server needs to know of a sampler; no model, no rows."""

    state: dict[str, Field]
    """What is kept from round to round and, but for fields that say otherwise, broadcast. A sampler that draws has a
    field ``position`` of every chain."""
    reply: dict[str, Field]
    """What a client replies. With a field ``position`` its distance from the average, the client's drift, is told."""
    begin: Any
    """message -> state: the first state, from the last state of the phase before, in the first phase ``{"position":
    ...}``. In both there is ``start``, where the user's chain starts; in an exchange without chains [chain, dim]."""
    merge: Any
    """(ChainKeys, round index, state, combined replies) -> state"""
    watch: Any = lambda numbers, round_index, before, combined, after: {}
    """(numbers, round index, state before, combined replies, state after) -> statistics of the round, one number each.
    One called ``diverging`` tells, where it is above 0, that the draw should not be trusted."""
    draw: Any = lambda before, combined, after: {"position": after["position"]}
    """(state before, combined replies, state after) -> what a round leaves as its draw: a ``position`` and, where it is
    known, ``gradient``, that of the potential f there."""
    merge_takes_numbers: bool = False
    """Whether ``merge`` has a last argument more, the sampler's numbers: for steps that the server takes itself."""
    release: Release | None = None
    """The noise in the replies, where they have any."""

    @property
    def broadcast(self) -> dict[str, Field]:
        """The part of the state that clients see."""
        return {name: field for name, field in self.state.items() if field.is_sent}

    @property
    def has_chains(self) -> bool:
        """Whether chains have messages of their own."""
        return any(field.per_chain for field in (*self.state.values(), *self.reply.values()))


class ClientRound(Protocol):
    """What a client does between two broadcasts."""

    def __call__(
        self, keys: ChainKeys, round_index: Int[Array, ""], state: Message, numbers: Numbers, client: Client, /
    ) -> Message:
        """Return the reply to a broadcast."""
        ...


class Sampler(Protocol):
    """Settings of a sampler, and what it does. Only `exchange` and `build` must be written."""

    pools_rows: ClassVar[bool] = False
    """Whether it runs on one machine that holds all rows; a federation given to it is pooled."""
    makes_draws: ClassVar[bool] = True
    """Whether it samples; otherwise it can only be a phase before one that does."""
    decides_rounds: ClassVar[bool] = False
    """Whether its course finds out by itself how many rounds it takes."""
    PARTS: ClassVar[tuple[str, ...]] = ()
    """Names of fahmc's other samplers whose phases its course may give out: a site that lets it run lets these, too."""
    NUMBERS: ClassVar[tuple[str, ...]] = ()
    """The fields of the dataclass whose values reach the round through `numbers` alone, never as ``self.…``. Settings
    that differ in nothing else share one compiled program, so these may be changed between rounds at no cost."""

    def exchange(self, dimension: int) -> Exchange:
        """Declare the messages, for positions of this length."""
        ...

    def build(self, target: Target) -> ClientRound:
        """Make the client's round; it runs where the rows are."""
        ...

    @property
    def rounds_per_draw(self) -> int:
        """How many rounds a draw takes; `fahmc.sample` keeps every so many, unless it is told otherwise."""
        return 1

    def numbers(self, template: Position, dtype: np.dtype) -> Numbers:
        """Return the settings that are data: by default `NUMBERS`, as int32 if whole, else in the run's precision.

        ``template`` has the position's structure and shapes.
        """
        values = {name: getattr(self, name) for name in self.NUMBERS}
        return {name: np.asarray(value, np.int32 if _is_whole(value) else dtype) for name, value in values.items()}

    def setup(self) -> tuple[Phase, ...]:
        """Return what has to be asked of the clients before the first round."""
        return ()

    def course(self, run: Any) -> Generator[Phase, PhaseResult, Outcome | None]:
        """Lead a run (`fahmc.engines.run.Run`): give out one phase, look at what it came to, decide on the next.

        By default `setup`, then rounds of its own. What is decided must follow from the run and from the results: a run
        that was interrupted is led anew through the results it has. Returns draws if they are not simply those that its
        phases kept.
        """
        for phase in run.phases:  # whose results decide nothing, so they cannot be sent on  # noqa: UP028
            yield phase
        return None

    def check(self, federation: Federation) -> None:
        """Refuse a federation that it cannot sample."""

    def row_gradients(self, sizes: np.ndarray) -> float | None:
        """Return how many row-gradients a round of one chain costs clients of these sizes, if that is known."""
        return None

    def remedy(self, round_index: int) -> str:
        """Say what to do if a chain diverges in a round, to stand between 'Use' and a comma."""
        return "other settings"


registry.takes("sampler", Sampler)


class Leader(Sampler):
    """A sampler without rounds of its own: its course decides which rounds of others are asked for, and how many."""

    decides_rounds: ClassVar[bool] = True

    def exchange(self, dimension: int) -> Exchange:
        """Refuse: it has no messages."""
        raise NotImplementedError(f"{type(self).__name__} leads a run and has no rounds of its own")

    def build(self, target: Target) -> ClientRound:
        """Refuse: it has no rounds."""
        raise NotImplementedError(f"{type(self).__name__} leads a run and has no rounds of its own")


class Phase(NamedTuple):
    """Rounds of one exchange. A run is a sequence of phases; each begins with the state in which the last one ended."""

    name: str
    sampler: Sampler
    num_rounds: int
    num_warmup_rounds: int | None = None
    """Rounds from which no draw is kept; by default all."""
    thin: int = 1
    state: Message | None = None
    """Where it begins, if not where the exchange's ``begin`` says."""
    may_diverge: bool = False
    """Whether numbers that are not finite end the phase alone, for the course to see, and not the run."""
    course: Mapping[str, Any] = {}
    """What was decided before it and is known by then, as JSON values, for those who watch."""

    def is_due(self, round_index: Any) -> Any:
        """Whether the position after a round is kept as a draw; the index may be traced."""
        sampled = self.rounds_sampled(round_index)
        return (sampled > 0) & (sampled % self.thin == 0)

    def rounds_sampled(self, round_index: Any) -> Any:
        """Return how many rounds after warm-up are done when this one is; below 1 in warm-up."""
        warmup = self.num_rounds if self.num_warmup_rounds is None else self.num_warmup_rounds
        return round_index + 1 - warmup

    def draws_after(self, num_rounds: int) -> int:
        """Return how many draws a chain has kept after so many rounds."""
        return max(0, self.rounds_sampled(num_rounds - 1)) // self.thin


class PhaseResult(NamedTuple):
    """What a phase came to."""

    state: Message
    positions: np.ndarray
    """[chain, draw, dim]: what it kept."""
    stats: dict[str, np.ndarray]
    num_rounds: int
    has_diverged: bool
    gradients: np.ndarray | None = None
    """∇f at each of the positions, where it is known."""


class Outcome(NamedTuple):
    """What a course came to."""

    positions: np.ndarray | None
    """[chain, draw, dim]; None for what the phases kept."""
    stats: dict[str, np.ndarray]
    account: dict[str, Any]
    """What was decided and what is known of the draws, as JSON values (`fahmc.Draws.account`)."""
    gradients: np.ndarray | None = None
    """∇f at each of the positions, if they are given and it is known."""


def _is_whole(value: Any) -> bool:
    return np.asarray(value).dtype.kind in "iu"


def position_fields(dimension: int, **others: Field) -> dict[str, Field]:
    """Declare a message with a position."""
    return {"position": Field((dimension,)), **others}


def displacement(before: Message, after: Message) -> Array:
    """Return |θ′ − θ|, how far a round went."""
    return jnp.linalg.norm(after["position"] - before["position"])
