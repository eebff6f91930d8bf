"""Numbers of any size as digits, whose sums over clients are exact: what a survey adds up in a secure sum.

    x = Σ_k d_k 2^(40 k),    k = −14, …, 6,   |d_k| < 2⁴⁰, all of the sign of x

Fixed point alone would lose a column that is written in small units, or be too short for one in large ones.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

_BITS, _LOWEST = 40, -14
NUM_DIGITS = 21
LARGEST = 2.0 ** (_BITS * (NUM_DIGITS + _LOWEST) - 1)
"""Numbers up to this size have digits."""
_UNIT = Fraction(2) ** (_BITS * _LOWEST)


def to_digits(number: float) -> np.ndarray:
    """Write a finite number as digits, the lowest first; what is below the lowest one is left out."""
    whole = int(abs(Fraction(number)) / _UNIT)
    digits = [whole >> (_BITS * place) & (2**_BITS - 1) for place in range(NUM_DIGITS)]
    return np.copysign(1.0, number) * np.array(digits, float)


def from_digits(digits: np.ndarray) -> float:
    """Read a sum of numbers that were written as digits."""
    whole = sum(round(digit) << (_BITS * place) for place, digit in enumerate(digits.tolist()))
    return float(whole * _UNIT)
