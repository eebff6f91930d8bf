"""What an engine is given, a run, and what it gives back: blocks of consecutive rounds of all chains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fahmc import keys
from fahmc.data.buckets import Bucket, bucket_clients
from fahmc.data.federation import Federation
from fahmc.data.sites import RemoteFederation, Sites
from fahmc.density.model import Model
from fahmc.density.target import Target
from fahmc.dynamics.sampler import Exchange, Field, Phase, Sampler, position_fields
from fahmc.engines.summands import Summands, told_apart
from fahmc.errors import SettingsError
from fahmc.fitting import introduce
from fahmc.registry import structure
from fahmc.types import ChainKeys, Message, Numbers

# Draws of one block wait in memory twice, in the compiled program and outside.
_BLOCK_BYTES = 16 * 2**20
_SHORT_BLOCK = 256
SAMPLING = "sampling"
"""The name of the phase that the user asked for."""


@dataclass(frozen=True, eq=False)
class Run:
    """A run before its first round: everything about it that does not change while it runs."""

    target: Target
    """The model, as functions of a flat position."""
    federation: Federation
    """As it is sampled: pooled for samplers of one machine."""
    sampler: Sampler
    start: np.ndarray
    """[chain, dim] where the chains start."""
    seed: int
    private_seed: int | None
    num_rounds: int | None
    """None where the sampler decides."""
    num_warmup_rounds: int
    thin: int
    is_stopping: Callable[[], bool] = lambda: False
    """Whether the user wants no more rounds. An engine that waits for others looks, and raises `Abandoned`."""

    @property
    def model(self) -> Model:
        """What is sampled."""
        return self.target.model

    @property
    def num_chains(self) -> int:
        """Chains that run side by side."""
        return len(self.start)

    @property
    def dimension(self) -> int:
        """Length of a flattened position."""
        return self.start.shape[1]

    @property
    def dtype(self) -> np.dtype:
        """The run's precision."""
        return self.start.dtype

    @property
    def phases(self) -> tuple[Phase, ...]:
        """What a sampler that does not decide on the way does: what it asks for first, then its own rounds."""
        return *self.sampler.setup(), self.sampling

    @cached_property
    def sampling(self) -> Phase:
        """The rounds that the user asked for."""
        total = self.num_warmup_rounds + (self.num_rounds or 0)
        return Phase(SAMPLING, self.sampler, total, self.num_warmup_rounds, self.thin)

    @cached_property
    def buckets(self) -> list[Bucket]:
        """The clients' rows, stacked; engines that hold no rows do not ask."""
        return bucket_clients(self.federation, self.dtype)

    def capacity(self, phase: Phase) -> int:
        """Return the largest number of draws that one block keeps; it sizes the buffers. None in set-up phases."""
        if phase.num_warmup_rounds is None:
            return 0
        # In coarse steps, so that phases of about one length share a program.
        wanted = 1 << phase.draws_after(phase.num_rounds).bit_length()
        return max(1, min(_BLOCK_BYTES // self.start.nbytes, max(_SHORT_BLOCK, wanted)))

    def exchange(self, phase: Phase) -> Exchange:
        """Return the messages of a phase."""
        return phase.sampler.exchange(self.dimension)

    def numbers(self, phase: Phase) -> Numbers:
        """Return the settings of a phase that are data."""
        return phase.sampler.numbers(self.target.template, self.dtype)

    def program_key(self, phase: Phase) -> str:
        """Return a text that is equal for phases that one compiled program serves."""
        shapes = {name: np.shape(number) for name, number in self.numbers(phase).items()}
        return f"{structure(phase.sampler, phase.sampler.NUMBERS)} {shapes} {self.capacity(phase)}"

    def stream(self, phase: Phase) -> str:
        """Return what the phase's randomness is called; what comes before the sampling has streams of its own."""
        return "" if phase.name == SAMPLING else phase.name

    def chain_keys(self, phase: Phase) -> ChainKeys:
        """Return the roots of the phase's randomness."""
        return keys.chain_keys(self.seed, self.num_chains, self.private_seed, self.stream(phase))

    def message_bytes(self, phase: Phase) -> dict[str, int]:
        """Return the bytes of one round of all chains and clients; on one machine, what would cross a network."""
        exchange, clients = self.exchange(phase), 0 if self.sampler.pools_rows else self.federation.num_clients

        def size(fields: dict[str, Any]) -> int:
            return clients * sum(field.num_bytes(self.num_chains, self.dtype) for field in fields.values())

        return {"bytes_to_clients": size(exchange.broadcast), "bytes_to_server": size(exchange.reply)}

    def is_masked(self, phase: Phase) -> bool:
        """Whether clients' replies are told in sums alone."""
        asked = isinstance(self.federation, RemoteFederation) and self.federation.secure_sum != "off"
        return asked and not told_apart(self.exchange(phase))

    def crossing_bytes(self, phase: Phase) -> dict[str, int]:
        """Return the bytes of `message_bytes` as they really cross: words take more room than numbers."""
        sizes = self.message_bytes(phase)
        if self.is_masked(phase):
            reply = Summands(self.exchange(phase), self.num_chains, self.dtype).num_bytes()
            sizes["bytes_to_server"] = self.federation.num_clients * reply
        return sizes


class Abandoned(Exception):
    """The engine waited for others until the user wanted no more rounds."""


class Divergence(NamedTuple):
    """Where a chain first left the finite numbers."""

    chain: int
    round: int
    client: int
    """One more than the last where all replies were finite, but the state that they were merged into is not."""


class Block(NamedTuple):
    """Rounds ``first_round`` to ``first_round + num_rounds`` (exclusive) of all chains."""

    first_round: int
    num_rounds: int
    positions: np.ndarray
    """[chain, draw, dim]: the positions kept in this block."""
    stats: dict[str, np.ndarray]
    """Each [chain, draw]."""
    drift_squares: np.ndarray | None
    """[chain, client]: sum over the block's rounds after warm-up of |θ_c − θ|²; None where replies hold no position."""
    state: Message
    """What the next round starts from, as NumPy arrays."""
    divergence: Divergence | None = None
    gradients: np.ndarray | None = None
    """[chain, draw, dim]: ∇f at each of the positions; None where the sampler does not know it."""


class Session(Protocol):
    """An engine at work for one run."""

    path: str
    """Which way through the same chains it takes; a run goes on only on the way that it began."""

    def advance(self, phase: Phase, state: Message, first_round: int, num_rounds: int) -> Block:
        """Run rounds of a phase, fewer if a chain diverges. The first state is what the exchange's ``begin`` returns.

        Given the same state and round, every engine gives the same block, to float rounding.
        """
        ...


class Engine(Protocol):
    """Knows where clients run: what `fahmc.sample(engine=...)` takes."""

    def start(self, run: Run) -> Session:
        """Make ready, without waiting for anybody."""
        ...


introduce(
    Engine,
    "one of fahmc.engines, such as fahmc.engines.InProcess()",
    lambda engine: not isinstance(engine, type) and callable(getattr(engine, "start", None)),
)


class TellSites(Protocol):
    """Told how the sites of a federation are."""

    def __call__(self, sites: Mapping[str, str], reason: str, /) -> None:
        """Take a word on each site, ``"connected"`` or what it is instead, and why nothing goes on, if so."""
        ...


class RemoteEngine(Engine, Protocol):
    """One whose clients hold rows that are not here: it takes `Sites` in the place of a `Federation`."""

    def open(
        self, model: Model, sites: Sites, sampler: Any, is_stopping: Callable[[], bool], tell_sites: TellSites
    ) -> tuple[Model, RemoteFederation]:
        """Ask the sites what they hold; the model comes back with its coefficients named after their columns.

        Until they are let go, ``tell_sites`` hears how they are.

        Raises `Abandoned` if the user wants no more before they answer.
        """
        ...

    def release(self) -> None:
        """Let the sites go, unless more runs are to come."""
        ...


def begin(run: Run, phase: Phase, ended: tuple[Phase, Message] | None = None) -> Message:
    """Return the first state of a phase, from the chains' start and the state in which the phase before ended."""
    if phase.state is not None:
        return {name: np.asarray(value) for name, value in phase.state.items()}
    exchange, chains = run.exchange(phase), {"start": Field((run.dimension,))}
    fields, carried = position_fields(run.dimension), {"position": run.start}
    if ended is not None:
        fields, carried = fields | run.exchange(ended[0]).state, carried | ended[1]
    # Last: however the phase before calls its own, this is where the user's chains start.
    fields, carried = fields | chains, carried | {"start": run.start}
    state = over_chains(exchange, exchange.begin, (fields,), exchange.state)(carried)
    return jax.tree.map(np.asarray, jax.device_get(state))


def over_chains(exchange: Exchange, function: Callable, arguments: tuple[Any, ...], result: Any) -> Callable:
    """Run a function that is written for one chain on all of them; what all chains share stays as it is.

    ``arguments`` and ``result`` say what each is: the fields of a message, 0 for what has a chain axis, or None.
    """

    def checked(*values: Any) -> Any:
        message = function(*values)
        if isinstance(result, dict):
            _check_message(getattr(function, "__qualname__", "a function of the sampler"), message, result)
        return message

    if not exchange.has_chains:
        return checked

    def axes(what: Any, value: Any = None) -> Any:
        if not isinstance(what, dict):
            return what
        return {name: 0 if what[name].per_chain else None for name in (what if value is None else value)}

    def call(*values: Any) -> Any:
        in_axes = tuple(axes(what, value) for what, value in zip(arguments, values, strict=True))
        return jax.vmap(checked, in_axes=in_axes, out_axes=axes(result))(*values)

    return call


def _check_message(origin: str, message: Any, fields: dict[str, Field]) -> None:
    """Refuse a message that is not what the exchange declares, as long as names and shapes of one chain are known."""
    shapes = {name: jnp.shape(value) for name, value in message.items()}
    declared = {name: field.shape for name, field in fields.items()}
    if shapes != declared:
        raise SettingsError(f"{origin} returned arrays of shapes {shapes}, but the exchange declares {declared}.")


def first_chain(chain_keys: ChainKeys) -> ChainKeys:
    """Return the keys for an exchange that does not know of chains."""
    return ChainKeys(chain_keys.shared[0], chain_keys.private[0])
