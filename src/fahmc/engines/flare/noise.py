"""A site's own noise, which nobody else can draw: from its secret of 256 bits, by SHAKE-256.

It follows from the secret, the rows, the order, the round and everything that was broadcast, and from nothing else.
The same question again has the same noise, hence the same answer, which tells nothing new; any other question has noise
of its own. Were it the same at two points of one round, or before and after a row was changed, the difference of two
answers would be exact.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Mapping

import numpy as np
from scipy.special import ndtri

from fahmc.engines.client import DrawNormal
from fahmc.types import Message

_WORD = np.dtype("<u8")
_HALF = 2.0**-64


def normal_of(secret: bytes, rows: str) -> DrawNormal:
    """Return what draws a site's noise, for rows of this mark."""

    def draw(
        order: str, round_index: int, broadcast: Message, shapes: Mapping[str, tuple[int, ...]]
    ) -> dict[str, np.ndarray]:
        asked = release_of(rows, order, round_index, broadcast)
        return {name: _standard_normal(secret, asked, name, shape) for name, shape in shapes.items()}

    return draw


def release_of(rows: str, order: str, round_index: int, broadcast: Message) -> bytes:
    """Return a digest of all that a private answer follows from, each part with its length."""
    digest = hashlib.sha256()
    parts = [rows.encode(), order.encode(), str(round_index).encode()]
    for name in sorted(broadcast):
        array = np.ascontiguousarray(broadcast[name])
        parts += [name.encode(), f"{array.dtype.str} {array.shape}".encode(), array.tobytes()]
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()


def _standard_normal(secret: bytes, asked: bytes, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return Φ⁻¹ of uniform numbers.

    63 bits make a number between 0 and 1/2, whose quantile keeps its digits far out, and one bit its sign: the law of
    a number is off by less than 10⁻¹⁵, which no δ is near.
    """
    key = hmac.digest(secret, b"fahmc noise" + asked + name.encode(), hashlib.sha256)
    words = np.frombuffer(hashlib.shake_256(key).digest(8 * math.prod(shape)), _WORD)
    tails = ndtri(((words >> np.uint64(1)).astype(np.float64) + 0.5) * _HALF)
    return np.where(words & np.uint64(1), tails, -tails).reshape(shape)
