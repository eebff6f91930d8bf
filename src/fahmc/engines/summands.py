"""What a client adds to a sum over clients, and what the sum tells: replies that nobody needs to see one by one.

    θ_c of a field that was broadcast as θ     w_c (θ_c − θ)            Σ_c w_c θ_c = θ + Σ_c w_c (θ_c − θ)
    another field that is averaged             w_c r_c                  Σ_c w_c r_c
    a field that is summed                     r_c                      Σ_c r_c
    where positions are replied                w_c |θ_c − θ|²           Σ_c w_c |θ_c − θ̄|² + |θ̄ − θ|²

Moves are narrow numbers (`fixed_point`), or, if some chain moves too far for these, all numbers are wide.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fahmc.dynamics.sampler import Exchange
from fahmc.engines.fixed_point import WORD, num_words
from fahmc.types import Message

_SPREAD = "|θ_c − θ|²"
"""No field can be called so."""


class Summands:
    """What clients add in the rounds of one exchange, none of whose fields is told client by client."""

    def __init__(self, exchange: Exchange, num_chains: int, precision: np.dtype):
        self._exchange, self._precision = exchange, precision
        self.shapes = {name: field.full_shape(num_chains) for name, field in exchange.reply.items()}
        broadcast = {name: field.full_shape(num_chains) for name, field in exchange.broadcast.items()}
        self._moves = frozenset(
            name
            for name, field in exchange.reply.items()
            if field.combine == "mean" and broadcast.get(name) == self.shapes[name]
        )
        if "position" in exchange.reply:
            self.shapes[_SPREAD] = self.shapes["position"][:-1]

    def narrow(self, is_wide: bool) -> frozenset[str]:
        """Name the arrays of narrow numbers."""
        return frozenset() if is_wide else self._moves

    def num_bytes(self, is_wide: bool = False) -> int:
        """Return the bytes of one client's summands."""
        return num_words(self.shapes, self.narrow(is_wide)) * WORD.itemsize

    def of(self, state: Message, reply: Message, weight: float, is_wide: bool) -> dict[str, np.ndarray]:
        """Return what a client adds."""
        added = {}
        for name, field in self._exchange.reply.items():
            value = np.asarray(reply[name], np.float64)
            gap = value - np.asarray(state[name], np.float64) if name in self._moves else value
            added[name] = gap if field.combine == "sum" else weight * gap
            if name == "position":
                added[_SPREAD] = _finer(is_wide) * weight * np.einsum("...d,...d->...", gap, gap)
        return {name: added[name] for name in self.shapes}

    def combined(
        self, state: Message, totals: Mapping[str, np.ndarray], is_wide: bool
    ) -> tuple[Message, np.ndarray | None]:
        """Return combined replies, and Σ_c w_c |θ_c − θ̄|² of each chain where positions were replied."""
        combined: Message = {}
        for name, field in self._exchange.reply.items():
            total, dtype = totals[name], field.numpy_dtype(self._precision)
            if field.combine == "mean":
                total = total + np.asarray(state[name], np.float64) if name in self._moves else total
                dtype = np.promote_types(dtype, self._precision) if dtype.kind == "f" else self._precision
            elif dtype.kind == "b":
                dtype = np.dtype(np.int32)  # how many said yes
            combined[name] = (np.rint(total) if dtype.kind in "iu" else total).astype(dtype)
        if _SPREAD not in totals:
            return combined, None
        spread = totals[_SPREAD] / _finer(is_wide) - (totals["position"] ** 2).sum(axis=-1)
        return combined, np.maximum(spread, 0).astype(self._precision)

    def chains(self, where: Mapping[str, np.ndarray]) -> list[int]:
        """Name the chains that numbers belong to; the first, where chains have none of their own."""
        reply, found = self._exchange.reply, set()
        for name, numbers in where.items():
            field = reply["position" if name == _SPREAD else name]
            rows = numbers.reshape(len(numbers), -1).any(axis=1) if field.per_chain else np.array([numbers.any()])
            found.update(int(chain) for chain in np.flatnonzero(rows))
        return sorted(found)


def _finer(is_wide: bool) -> float:
    """Return what squares are multiplied by: clients that stray little differ in late digits of these."""
    return 1.0 if is_wide else 2.0**20


def told_apart(exchange: Exchange) -> list[str]:
    """Name the fields that the server gets from each client, which no sum can hide."""
    return [name for name, field in exchange.reply.items() if field.combine == "each"]
