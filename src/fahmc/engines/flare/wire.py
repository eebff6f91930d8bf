"""What crosses between server and sites in a round: arrays as bytes, checked on arrival against their declaration.

Bytes instead of arrays: FLARE moves arrays through an exchange of its own that costs more than the rest of a small
round, and bytes leave nothing to interpret. Numbers are little-endian.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from fahmc.dynamics.sampler import Field
from fahmc.errors import FederationError
from fahmc.types import Message


class Layout(NamedTuple):
    """One kind of message in one run."""

    fields: dict[str, Field]
    num_chains: int
    precision: np.dtype

    @property
    def num_bytes(self) -> int:
        """Bytes of a whole message."""
        return sum(field.num_bytes(self.num_chains, self.precision) for field in self.fields.values())

    def check(self, message: Mapping[str, np.ndarray], sender: str) -> None:
        """Refuse arrays that are not this message."""
        for name in {**self.fields, **message}:
            field, array = self.fields.get(name), message.get(name)
            expected = None if field is None else (self._dtype(field), field.full_shape(self.num_chains))
            came = None if array is None else (array.dtype, array.shape)
            if came != expected:
                raise FederationError(f"{sender} sent {_in_words(came)} for {name}; expected is {_in_words(expected)}.")

    def _dtype(self, field: Field) -> np.dtype:
        return field.numpy_dtype(self.precision)

    def pack(self, message: Message) -> dict[str, bytes]:
        """Write a message as bytes."""
        return {
            name: np.asarray(message[name], self._dtype(field).newbyteorder("<")).tobytes()
            for name, field in self.fields.items()
        }

    def unpack(self, content: Any, sender: str) -> Message:
        """Read a message, or say what is wrong with it; NaN is not looked for here."""
        if not isinstance(content, Mapping) or set(content) != set(self.fields):
            came = sorted(map(str, content)) if isinstance(content, Mapping) else type(content).__name__
            raise FederationError(f"{sender} sent {came}; {list(self.fields)} were expected.")
        return {name: self._unpack_field(name, field, content[name], sender) for name, field in self.fields.items()}

    def _unpack_field(self, name: str, field: Field, content: Any, sender: str) -> np.ndarray:
        shape, dtype = field.full_shape(self.num_chains), self._dtype(field)
        expected = field.num_bytes(self.num_chains, self.precision)
        if not isinstance(content, bytes) or len(content) != expected:
            size = f"{len(content)} bytes" if isinstance(content, bytes) else type(content).__name__
            raise FederationError(
                f"{sender} sent {size} for {name}; {expected} bytes were expected: {dtype.name} numbers of shape "
                f"{list(shape)}."
            )
        return np.frombuffer(content, dtype.newbyteorder("<")).astype(dtype, copy=False).reshape(shape)


def _in_words(array: tuple[np.dtype, tuple[int, ...]] | None) -> str:
    return "nothing" if array is None else f"{array[0].name} numbers of shape {list(array[1])}"
