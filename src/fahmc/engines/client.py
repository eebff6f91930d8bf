"""What a client does in a process of its own: from an order and its rows to a compiled round.

A client keeps nothing from one round to the next. Its rows, the program and the roots of its random keys are made once
an order; everything else comes with the call. A client that restarts therefore loses nothing.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fahmc.data.buckets import check_integers, single_client
from fahmc.data.federation import Federation
from fahmc.data.places import with_site
from fahmc.density.target import build_target
from fahmc.dynamics.sampler import Exchange, Sampler
from fahmc.engines.noise import noisy, with_simulated_noise
from fahmc.engines.order import Order
from fahmc.engines.run import first_chain, over_chains
from fahmc.errors import DataError, FederationError, ModelError
from fahmc.models.recipes import build_model
from fahmc.registry import structure
from fahmc.types import Batch, Message

# Row-gradients a second that no machine does: what needs more than the time there is at this rate cannot be done in it.
_FASTEST = 1e9
# The roots of a chain's two streams.
_KEY_BYTES = 16


class Limits(NamedTuple):
    """What a client gives an order of somebody else's."""

    num_bytes: float = math.inf
    """Memory of a round: the client's arrays, both messages, and what is computed in between."""
    seconds: float = math.inf
    """Time of a round."""


_NO_LIMITS = Limits()


class DrawNormal(Protocol):
    """Draws standard normal numbers that nobody else can draw: the same ones only for the same arguments."""

    def __call__(
        self, order: str, round_index: int, broadcast: Message, shapes: Mapping[str, tuple[int, ...]], /
    ) -> dict[str, np.ndarray]:
        """Return arrays of these shapes for a round of an order, given its text and what was broadcast."""
        ...


class TooLarge(FederationError):
    """An order takes more memory than the client gives."""


class TooLong(FederationError):
    """An order takes more time than the client gives."""


class SharedEffects(FederationError):
    """An order tells a client's own effect, which the client keeps."""


class ClientProgram:
    """A compiled round on one client's rows.

    Parameters
    ----------
    private_seed
        What the client's private randomness derives from; None for the order's own seed.
    own_models, own_samplers
        What else than fahmc's own may be imported, as ``"module:attribute"``.
    limits
        What the order may take; one that takes more is refused before anything is allocated.
    keeps_effects
        Whether a model whose position tells this client's own effect is refused.
    draw_normal
        Where the noise of private replies comes from, if not from the seed that private randomness derives from.
    before
        The program of an earlier order; it serves again where no more than numbers have changed.
    """

    def __init__(
        self,
        order: Order,
        name: str,
        rows: Batch,
        *,
        private_seed: int | None = None,
        own_models: Collection[str] = (),
        own_samplers: Collection[str] = (),
        limits: Limits = _NO_LIMITS,
        keeps_effects: bool = False,
        draw_normal: DrawNormal | None = None,
        before: ClientProgram | None = None,
    ):
        if name not in order.weights:
            raise FederationError(f"the order has no weight for {name!r}.")
        model, sampler = build_model(order.model, own_models), order.build_sampler(own_samplers)
        if model.is_by_site:
            if keeps_effects:
                raise SharedEffects("the order would tell this client's own effect.")
            rows = with_site(rows, list(order.weights).index(name), name)
        federation = Federation.from_clients({name: rows})
        self.order, self.exchange, self._draw_normal = order, order.exchange(sampler), draw_normal
        check_memory(message_bytes(order, self.exchange), limits)
        row_gradients = order.num_chains * (sampler.row_gradients(federation.sizes.astype(float)) or 0.0)
        check_time(row_gradients, limits)
        check_integers(federation, order.precision)
        sampler.check(federation)
        if model.validate_fn is not None and (complaint := model.validate_fn(rows)):
            raise DataError(f"the rows of {name!r} do not fit the model: {complaint}")
        self._is_double = order.precision == np.float64
        with jax.enable_x64(self._is_double):
            self._numbers = jax.tree.map(jnp.asarray, order.numbers(sampler))
            self._keys = order.chain_keys(private_seed)
            self._keys = self._keys if self.exchange.has_chains else first_chain(self._keys)
            self._key = self._program_key(sampler)
            if before is not None and before._key == self._key:
                self._client, self._program = before._client, before._program
                self._check_program(limits)
                return
            # This client as one of the whole federation's.
            client = single_client(federation, 0, order.precision)._replace(
                weight=np.asarray(order.weights[name], order.precision),
                scale=np.asarray(order.num_rows / federation.num_rows, order.precision),
            )
            self._client = jax.tree.map(jnp.asarray, client)
            client_round = sampler.build(build_target(model, order.position, client, name))
            if draw_normal is None:
                client_round = with_simulated_noise(self.exchange, client_round, len(order.weights))
            axes = (0, None, self.exchange.broadcast, None, None)
            program = jax.jit(over_chains(self.exchange, client_round, axes, self.exchange.reply))
            state = {
                field_name: jax.ShapeDtypeStruct(field.full_shape(order.num_chains), field.numpy_dtype(order.precision))
                for field_name, field in self.exchange.broadcast.items()
            }
            # Compiled now, so that no round has to wait for it.
            arguments = (self._keys, jnp.int32(0), state, self._numbers, self._client)
            self._program: Any = _traced(program, arguments).compile()
            self._check_program(limits)

    def _check_program(self, limits: Limits) -> None:
        """Refuse a program that the compiler says will take too much."""
        needs = self._program.memory_analysis()
        if needs is not None:  # not every backend can tell
            parts = (needs.argument_size_in_bytes, needs.output_size_in_bytes, needs.temp_size_in_bytes)
            check_memory(sum(parts), limits)

    def _program_key(self, sampler: Sampler) -> tuple[Any, ...]:
        shapes = {name: number.shape for name, number in self._numbers.items()}
        order = self.order
        run = (order.model, order.num_chains, order.dtype, order.leaf_shapes, order.weights, order.num_rows)
        return structure(sampler, sampler.NUMBERS), str(shapes), str(run), self._draw_normal is None

    def reply(self, round_index: int, state: Message) -> Message:
        """Run this client's part of one round of all chains."""
        with jax.enable_x64(self._is_double):
            made = self._program(self._keys, np.int32(round_index), state, self._numbers, self._client)
            return self._as_released(round_index, state, jax.device_get(made))

    def _as_released(self, round_index: int, state: Message, exact: Message) -> Message:
        """Add the noise of this client's own, where replies are private."""
        release = self.exchange.release
        if release is None or self._draw_normal is None:
            return exact
        deviations = jax.device_get(release.deviations(state, self._numbers, len(self.order.weights)))
        shapes = {name: exact[name].shape for name in sorted(deviations)}
        normal = self._draw_normal(self.order.text, round_index, state, shapes)
        return exact | {
            name: noisy(np.asarray(exact[name]), normal[name], float(deviations[name]), release.grid) for name in shapes
        }


def _traced(program: Any, arguments: tuple[Any, ...]) -> Any:
    """Follow the round by shapes alone; what an order says of them need not agree."""
    try:
        return program.lower(*arguments)
    except (TypeError, ValueError) as error:
        raise ModelError(f"the sampler does not fit the model: {str(error).strip()}") from error


def message_bytes(order: Order, exchange: Exchange) -> int:
    """Return the bytes of a position, of both messages and of the chains' keys, without making any of them."""
    fields = (*exchange.state.values(), *exchange.reply.values())
    messages = sum(field.num_bytes(order.num_chains, order.precision) for field in fields)
    return messages + order.dimension * order.precision.itemsize + order.num_chains * _KEY_BYTES


def check_time(row_gradients: float, limits: Limits) -> None:
    """Refuse what takes more time than there is to give, counted in gradients of a row, or likelihoods."""
    if row_gradients > limits.seconds * _FASTEST:
        raise TooLong(f"this takes {row_gradients:.3g} gradients of a row.")


def check_memory(num_bytes: int, limits: Limits) -> None:
    """Refuse what takes more memory than there is to give."""
    if num_bytes > limits.num_bytes:
        raise TooLarge(f"this takes {num_bytes // 2**20:,} MiB, and {limits.num_bytes / 2**20:,.0f} MiB may be used.")
