"""Arrays in a JSON message: of each its dtype, its shape, and its bytes in base 64.

There is nothing in it to unpack or to run: what an array takes was in the text already.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import numpy as np
import pydantic

from fahmc.errors import FederationError

NumberType = Annotated[str, pydantic.Field(pattern=r"^(bool|u?int(8|16|32|64)|float(16|32|64))$")]


class _Written(NamedTuple):
    dtype: NumberType
    shape: list[pydantic.NonNegativeInt]
    content: str


_READER = pydantic.TypeAdapter(dict[str, _Written])


def arrays_to_text(arrays: Mapping[str, Any]) -> str:
    """Write arrays of numbers for a JSON message."""
    return json.dumps({name: _write(name, np.asarray(array)) for name, array in arrays.items()})


def text_to_arrays(text: str) -> dict[str, np.ndarray]:
    """Read arrays of a JSON message, or refuse them."""
    try:
        return {name: _read(written) for name, written in _READER.validate_json(text).items()}
    except (pydantic.ValidationError, binascii.Error, ValueError) as error:
        raise FederationError("Arrays came in a form that cannot be read; does the same fahmc run there?") from error


def _write(name: str, array: np.ndarray) -> _Written:
    if array.dtype.kind not in "fiub":
        raise FederationError(f"{name} holds {array.dtype}; only numbers are sent.")
    content = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
    return _Written(array.dtype.name, list(array.shape), base64.b64encode(content).decode("ascii"))


def _read(written: _Written) -> np.ndarray:
    content, dtype = base64.b64decode(written.content, validate=True), np.dtype(written.dtype)
    if len(content) != math.prod(written.shape) * dtype.itemsize:
        raise ValueError("the bytes are not those of the shape")
    return np.frombuffer(content, dtype.newbyteorder("<")).astype(dtype).reshape(written.shape)
