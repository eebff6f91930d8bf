"""What a client does in a process of its own: from an order and its rows to a compiled round.

A client keeps nothing from one round to the next. Its rows, the program and the roots of its random keys are made once
an order; everything else comes with the call. A client that restarts therefore loses nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fahmc.data.buckets import check_integers, single_client
from fahmc.data.federation import Federation
from fahmc.density.target import build_target
from fahmc.dynamics.sampler import Sampler
from fahmc.engines.order import Order
from fahmc.engines.run import first_chain, over_chains
from fahmc.errors import DataError
from fahmc.models.recipes import build_model
from fahmc.registry import structure
from fahmc.types import Batch, Message

logger = logging.getLogger("fahmc")


class ClientProgram:
    """A compiled round on one client's rows.

    Parameters
    ----------
    private_seed
        What the client's private randomness derives from; None for the order's own seed.
    own_models, own_samplers
        What else than fahmc's own may be imported, as ``"module:attribute"``.
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
        before: ClientProgram | None = None,
    ):
        model, sampler = build_model(order.model, own_models), order.build_sampler(own_samplers)
        federation = Federation.from_clients({name: rows})
        self.order, self.exchange = order, order.exchange(sampler)
        check_integers(federation, order.precision)
        sampler.check(federation)
        if model.validate_fn is not None and (complaint := model.validate_fn(rows)):
            logger.warning("the rows do not fit the model: %s", complaint)
            raise DataError("its rows do not fit the model; its log says why.")
        self._is_double = order.precision == np.float64
        with jax.enable_x64(self._is_double):
            self._numbers = jax.tree.map(jnp.asarray, order.numbers(sampler))
            self._keys = order.chain_keys(private_seed)
            self._keys = self._keys if self.exchange.has_chains else first_chain(self._keys)
            self._key = self._program_key(sampler)
            if before is not None and before._key == self._key:
                self._client, self._program = before._client, before._program
                return
            # This client as one of the whole federation's.
            client = single_client(federation, 0, order.precision)._replace(
                weight=np.asarray(order.weights[name], order.precision),
                scale=np.asarray(order.num_rows / federation.num_rows, order.precision),
            )
            self._client = jax.tree.map(jnp.asarray, client)
            client_round = sampler.build(build_target(model, order.position, client, name))
            axes = (0, None, self.exchange.broadcast, None, None)
            program = jax.jit(over_chains(self.exchange, client_round, axes, self.exchange.reply))
            state = {
                field_name: jax.ShapeDtypeStruct(field.full_shape(order.num_chains), field.numpy_dtype(order.precision))
                for field_name, field in self.exchange.broadcast.items()
            }
            # Compiled now, so that no round has to wait for it.
            self._program: Any = program.lower(self._keys, jnp.int32(0), state, self._numbers, self._client).compile()

    def _program_key(self, sampler: Sampler) -> tuple[Any, ...]:
        shapes = {name: number.shape for name, number in self._numbers.items()}
        order = self.order
        run = (order.model, order.num_chains, order.dtype, order.leaf_shapes, order.weights, order.num_rows)
        return structure(sampler, sampler.NUMBERS), str(shapes), str(run)

    def reply(self, round_index: int, state: Message) -> Message:
        """Run this client's part of one round of all chains."""
        with jax.enable_x64(self._is_double):
            return jax.device_get(self._program(self._keys, np.int32(round_index), state, self._numbers, self._client))
