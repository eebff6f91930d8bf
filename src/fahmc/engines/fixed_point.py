"""Real numbers as integers whose sum over clients is exact, whatever the order: what a secure sum adds up.

Of N summands, each is one word or two, integers mod 2⁶⁴:

    narrow    x = a 2⁻⁴⁴                  |x| < 2¹⁹ / N      off by at most 2⁻⁴⁵
    wide      x = a 2¹⁶ + b 2⁻⁴⁰          |x| < 2⁷⁹ / N      off by at most 2⁻⁴¹

Narrow is for how far a round moves a chain, which bears on the draws to the last digits; wide for potentials, gradients
and curvatures, which may be enormous. Neither word of a sum can overflow: |a| < 2⁶³ / N, and |b| ≤ 2⁵⁵ with N < 2⁸.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import numpy as np

from fahmc.errors import FahmcError

MOST_SUMMANDS = 2**8 - 1
WORD = np.dtype("<u8")
_NARROW, _COARSE, _FINE = 2.0**-44, 2.0**16, 2.0**-40
_WORD_RANGE = 2.0**63


class Unfit(FahmcError):
    """Numbers that are not finite, or larger than a summand may be."""

    def __init__(self, where: Mapping[str, np.ndarray]):
        super().__init__(f"{', '.join(where)}: not all numbers are finite and in range")
        self.where = where
        """Which, of each array that has such numbers."""


def num_words(shapes: Mapping[str, tuple[int, ...]], narrow: Collection[str] = ()) -> int:
    """Return how many words arrays of these shapes take."""
    return sum(math.prod(shape) * (1 if name in narrow else 2) for name, shape in shapes.items())


def to_words(values: Mapping[str, np.ndarray], num_summands: int, narrow: Collection[str] = ()) -> np.ndarray:
    """Write arrays one after the other, the wide ones as all a, then all b; raises `Unfit`."""
    if num_summands > MOST_SUMMANDS:
        raise FahmcError(f"{num_summands} clients are more than a secure sum takes, {MOST_SUMMANDS}.")
    limit, parts, unfit = _WORD_RANGE / num_summands, [], {}
    for name, value in values.items():
        numbers = np.ravel(value).astype(np.float64)
        large = np.rint(numbers * (1 / _NARROW if name in narrow else 1 / _COARSE))
        # What is NaN is neither below nor above; compared as a whole, which takes no further array.
        if large.size and not (large.max() < limit and large.min() > -limit):
            unfit[name] = ~(np.abs(large) < limit).reshape(np.shape(value))
            continue
        parts.append(large.astype(np.int64))
        if name not in narrow:
            # Exact: what is left has fewer digits than the number.
            parts.append(np.rint((numbers - large * _COARSE) * (1 / _FINE)).astype(np.int64))
    if unfit:
        raise Unfit(unfit)
    return np.concatenate(parts).view(WORD) if parts else np.zeros(0, WORD)


def from_words(
    words: np.ndarray, shapes: Mapping[str, tuple[int, ...]], narrow: Collection[str] = ()
) -> dict[str, np.ndarray]:
    """Read a sum of what `to_words` wrote."""
    values, place = {}, 0
    signed = words.view(np.int64)

    def take(shape: tuple[int, ...]) -> np.ndarray:
        nonlocal place
        place += math.prod(shape)
        return signed[place - math.prod(shape) : place].reshape(shape).astype(np.float64)

    for name, shape in shapes.items():
        values[name] = take(shape) * _NARROW if name in narrow else take(shape) * _COARSE + take(shape) * _FINE
    return values
