"""What crosses the network in a round: a few arrays [chain, dim] as bytes, and how they are checked on arrival.

Bytes instead of arrays: FLARE moves arrays through an exchange of its own that costs more than the rest of a small
round, and bytes leave nothing to interpret. Numbers are little-endian.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from fahmc.dynamics import debiased, fa_hmc
from fahmc.dynamics.debiased import DebiasedFAHMC, DebiasedReply, DebiasedState
from fahmc.dynamics.fa_hmc import FAHMC, FAHMCState
from fahmc.errors import FederationError


class Layout(NamedTuple):
    """One kind of message: a NamedTuple of arrays of one shape and dtype, some of which may be absent."""

    kind: Any
    fields: tuple[str, ...]
    shape: tuple[int, int]
    """[chain, dim]"""
    dtype: np.dtype

    @property
    def num_bytes(self) -> int:
        """Bytes of one field."""
        return int(np.prod(self.shape)) * self.dtype.itemsize

    def pack(self, message: Any) -> dict[str, bytes]:
        """Write a message as bytes."""
        wire_dtype = self.dtype.newbyteorder("<")
        return {name: np.asarray(getattr(message, name), wire_dtype).tobytes() for name in self.fields}

    def unpack(self, fields: Any, sender: str) -> Any:
        """Read a message, or say what is wrong with it; NaN is not looked for here."""
        if not isinstance(fields, Mapping) or set(fields) != set(self.fields):
            came = sorted(map(str, fields)) if isinstance(fields, Mapping) else type(fields).__name__
            raise FederationError(f"{sender} sent {came}; {list(self.fields)} were expected.")
        arrays = {}
        for name in self.fields:
            content = fields[name]
            if not isinstance(content, bytes) or len(content) != self.num_bytes:
                size = f"{len(content)} bytes" if isinstance(content, bytes) else type(content).__name__
                raise FederationError(
                    f"{sender} sent {size} for {name}; {self.num_bytes} bytes were expected: {self.shape[0]} chains of "
                    f"{self.shape[1]} {self.dtype.name} numbers."
                )
            numbers = np.frombuffer(content, self.dtype.newbyteorder("<"))
            arrays[name] = numbers.astype(self.dtype, copy=False).reshape(self.shape)
        return self.kind(**{name: arrays.get(name) for name in self.kind._fields})


def state_layout(sampler: FAHMC, shape: tuple[int, int], dtype: np.dtype) -> Layout:
    """Return what is broadcast."""
    kind = DebiasedState if isinstance(sampler, DebiasedFAHMC) else FAHMCState
    return Layout(kind, _present(kind, sampler), shape, dtype)


def reply_layout(sampler: FAHMC, shape: tuple[int, int], dtype: np.dtype) -> Layout:
    """Return what a client replies."""
    kind = DebiasedReply if isinstance(sampler, DebiasedFAHMC) else FAHMCState
    return Layout(kind, _present(kind, sampler), shape, dtype)


def merge_fn(sampler: FAHMC) -> Any:
    """Return how the mean of the replies becomes the next state."""
    return debiased.merge if isinstance(sampler, DebiasedFAHMC) else fa_hmc.merge


def _present(kind: Any, sampler: FAHMC) -> tuple[str, ...]:
    """Name the fields that travel: a momentum does only where averaging may fall inside a trajectory."""
    return tuple(name for name in kind._fields if name != "momentum" or sampler.sync_unit == "leapfrog")


def to_text(content: bytes) -> str:
    """Write bytes for a JSON message."""
    return base64.b64encode(content).decode("ascii")


def from_text(text: str) -> bytes:
    """Read bytes of a JSON message."""
    return base64.b64decode(text, validate=True)
