"""Values that nobody should give, and plain values with something changed."""

from __future__ import annotations

import copy
import random
from typing import Any

import numpy as np


def deep(levels: int) -> list[Any]:
    """Return lists in each other."""
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


# What JSON can carry, but for the depth that its readers refuse by themselves.
PLAIN: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 7, 2**31, 2**40, 2**63, 2**64, -(2**63), 10**5000, -(10**5000), 0.0, -0.0,
    0.1, 0.5, 1.0, 1.5,
    -1.5, 1e-300, 1e200, 1e308, "", "no", "none", "0.1", "FAHMC", "full", "stages", "x" * 10_000, "\x00", "ä$\n",
    "os:system",
    "this:s", ":", [], [[]], [1], [1.0, 2.0], [1, "a"], [[1, 2], [3]], [10**5000], [None], {}, {"name": "full"},
    {"name": "minibatch", "size": 2}, {"name": "minibatch", "size": 2**40}, {"name": ["full"]}, {"name": "stages",
    "step_size": 0.1, "first_stage": 3},
    {"object": "this:s"}, {"object": ["this:s"]}, {"array": [1.0, 2.0], "dtype": "float64"}, {"array": [1, 300],
    "dtype": "uint8"},
    {"array": [1.0], "dtype": "U1000000000"}, {"array": [[1.0], [1.0, 2.0]], "dtype": "float64"}, {"array": ["a"],
    "dtype": "float32"},
    {"array": 1.5, "dtype": ["float64"]}, {"tuple": [1, 2]}, {"tuple": 3}, {"dict": {"a": 1.0}}, {"dict": [1]},
    {"a": {"b": {"c": 1}}}, deep(40),
    deep(300),
]  # fmt: skip


class Hostile:
    """An object that objects."""

    def __repr__(self) -> str:
        raise RuntimeError("no words")

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no array")


def failing(*args: Any, **kwargs: Any) -> Any:
    """Fail, at length."""
    raise RuntimeError("failed " + "at length " * 1000)


PYTHON: list[Any] = [
    *PLAIN, b"bytes", b"x" * 100_000, 1j, complex("nan"), float("nan"), float("inf"), np.float32(0.25), np.int64(3),
    np.uint64(2**64 - 1),
    np.bool_(True), np.array(2), np.ones(2), np.ones((2, 2)), np.ones((2, 2)) * 1j, np.array(["a", "b"]),
    np.array([None, 1], dtype=object),
    np.zeros(0), np.datetime64("2020-01-01"), object(), Hostile(), [Hostile()], {"a": Hostile()}, failing, int,
    print, lambda: None,
    lambda t: 0.1, lambda *a: 0.0, {1: 2, "a": 3}, {3: 4}, {"a", "b"}, range(3), iter([1]), deep(5000), ...,
    NotImplemented, Exception("e"),
]  # fmt: skip


def mutated(rng: random.Random, value: Any, pool: list[Any] = PLAIN) -> Any:
    """Return a copy of plain values in which something is replaced, left out, added or repeated."""
    value = copy.deepcopy(value)
    places = [(holder, key) for holder, key in _places(value)]
    if not places or rng.random() < 0.02:
        return rng.choice(pool)
    holder, key = rng.choice(places)
    kind = rng.random()
    if kind < 0.75:
        holder[key] = rng.choice(pool)
    elif kind < 0.85:
        del holder[key]
    elif isinstance(holder, dict):
        holder[rng.choice(["", "name", "object", "step_size", "x" * 5000, "\x00"])] = rng.choice(pool)
    else:
        one, times = rng.choice(pool), rng.choice([1, 1000])
        # A thousand times the same list would grow in a thousand places with the next mutation.
        holder += [copy.deepcopy(one) if isinstance(one, list | dict) else one for _ in range(times)]
    return value


def _places(value: Any) -> list[tuple[Any, Any]]:
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    return [(value, key) for key in keys] + [place for key in keys for place in _places(value[key])]
