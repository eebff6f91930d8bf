"""Real numbers as integers whose sum over clients is exact, whatever the order: what a secure sum adds up.

Of N summands, each is one word or two, integers mod 2⁶⁴:

    narrow    x = a 2⁻⁴⁴                  |x| < 2¹⁹ / N      off by at most 2⁻⁴⁵
    wide      x = a 2¹⁶ + b 2⁻⁴⁰          |x| < 2⁷⁹ / N      off by at most 2⁻⁴¹

Narrow is for how far a round moves a chain, which bears on the draws to the last digits; wide for potentials, gradients
and curvatures, which may be enormous. Neither word of a sum can overflow: |a| < 2⁶³ / N, and |b| ≤ 2⁵⁵ with N < 2⁸.

After all words x_1, …, x_m comes a check, t = 1 + Σ_i r_i x_i mod 2⁶⁴ with r_i = 1, 3, 5, …. Of a sum of N it is
N + Σ_i r_i Σ x_i; as r_i is odd, no change of a single word goes unnoticed. It says nothing that the others do not.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import numpy as np
from numpy.typing import NDArray

from fahmc.errors import FahmcError

MOST_SUMMANDS = 2**8 - 1
WORD = np.dtype("<u8")
Words = NDArray[np.uint64]
_NARROW, _COARSE, _FINE = 2.0**-44, 2.0**16, 2.0**-40
_WORD_RANGE = 2.0**63


class Unfit(FahmcError):
    """Numbers that are not finite, or larger than a summand may be."""

    def __init__(self, where: Mapping[str, np.ndarray]):
        super().__init__(f"{', '.join(where)}: not all numbers are finite and in range")
        self.where = where
        """Which, of each array that has such numbers."""


class Mismatch(FahmcError):
    """Words that are no sum of what so many clients wrote."""


def num_words(shapes: Mapping[str, tuple[int, ...]], narrow: Collection[str] = ()) -> int:
    """Return how many words arrays of these shapes take."""
    return 1 + sum(math.prod(shape) * (1 if name in narrow else 2) for name, shape in shapes.items())


def to_words(values: Mapping[str, np.ndarray], num_summands: int, narrow: Collection[str] = ()) -> Words:
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
    words = np.concatenate([*parts, np.zeros(1, np.int64)]).view(WORD)
    words[-1] = _check(words, 1)
    return words


def from_words(
    words: Words, num_summands: int, shapes: Mapping[str, tuple[int, ...]], narrow: Collection[str] = ()
) -> dict[str, np.ndarray]:
    """Read a sum of what so many clients wrote with `to_words`; raises `Mismatch`."""
    if words[-1] != _check(words, num_summands):
        raise Mismatch("the words do not add up to a sum")
    values, place = {}, 0
    signed = words.view(np.int64)

    def take(shape: tuple[int, ...]) -> np.ndarray:
        nonlocal place
        place += math.prod(shape)
        return signed[place - math.prod(shape) : place].reshape(shape).astype(np.float64)

    for name, shape in shapes.items():
        values[name] = take(shape) * _NARROW if name in narrow else take(shape) * _COARSE + take(shape) * _FINE
    return values


def _check(words: Words, num_summands: int) -> int:
    """Return N + Σ_i r_i x_i, of all words but the last."""
    odd = np.arange(1, 2 * len(words) - 2, 2, dtype=WORD)
    return (num_summands + int(np.dot(odd, words[:-1]))) % 2**64
