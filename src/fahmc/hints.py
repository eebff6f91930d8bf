"""What settings may be: type hints with their limits, which `fahmc.door` holds values against.

Pydantic reads the same hints, so that files and messages are held to the same limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypeAlias

from annotated_types import Interval, Len

from fahmc.fitting import Of

MAX_CHAINS = 100_000
MAX_THREADS = 10_000
MAX_STEPS = 1_000_000
"""Of K, and of T."""
MAX_ROUNDS = 100_000_000
MAX_TRAJECTORIES = 2**31 - 1
"""Their index, from which random keys are derived, has 32 bits with a sign."""
MAX_ROWS = 2**31 - 1
"""Of a client: an index of a row has as many bits."""
MAX_CLASSES = 100_000
MAX_WIDTH = 1_000_000
MAX_LAYERS = 100
MAX_ESS = 1_000_000
MAX_DIMENSION = 100_000_000
"""Numbers in a position."""
MAX_NUMBERS = 1_000_000_000
"""Numbers in the positions of all chains."""
MAX_AXES = 32
MAX_NESTING = 64
"""Of tables in tables, in plain values."""
DTYPES = frozenset(
    ["bool", "float16", "float32", "float64", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))]
)
"""What arrays in files and messages may hold."""

Count: TypeAlias = Annotated[int, Interval(ge=1, le=2**31 - 1)]
Steps: TypeAlias = Annotated[int, Interval(ge=1, le=MAX_STEPS)]
Rounds: TypeAlias = Annotated[int, Interval(ge=1, le=MAX_ROUNDS)]
WarmupRounds: TypeAlias = Annotated[int, Interval(ge=0, le=MAX_ROUNDS)]
Chains: TypeAlias = Annotated[int, Interval(ge=1, le=MAX_CHAINS)]
Threads: TypeAlias = Annotated[int, Interval(ge=1, le=MAX_THREADS)]
Effective: TypeAlias = Annotated[int, Interval(ge=1, le=MAX_ESS), Of("effective draws")]
Rows: TypeAlias = Annotated[int, Interval(ge=1, le=MAX_ROWS), Of("rows")]
Classes: TypeAlias = Annotated[int, Interval(ge=2, le=MAX_CLASSES)]
Width: TypeAlias = Annotated[int, Interval(ge=1, le=MAX_WIDTH)]
Layers: TypeAlias = Annotated[Sequence[Width], Len(0, MAX_LAYERS)]
Seed: TypeAlias = Annotated[int, Interval(ge=0, le=2**64 - 1)]

Positive: TypeAlias = Annotated[float, Interval(gt=0)]
NotNegative: TypeAlias = Annotated[float, Interval(ge=0)]
AboveOne: TypeAlias = Annotated[float, Interval(gt=1)]
Seconds: TypeAlias = Annotated[float, Interval(gt=0), Of("seconds")]
Probability: TypeAlias = Annotated[float, Interval(ge=0, le=1)]
Jitter: TypeAlias = Annotated[float, Interval(ge=0, lt=1)]
Share: TypeAlias = Annotated[float, Interval(gt=0, le=1)]

Name: TypeAlias = Annotated[str, Len(1)]
