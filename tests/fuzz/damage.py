"""Damage to bytes and to JSON, as disks, editors and other programs do it."""

from __future__ import annotations

import json
import random
from typing import Any

_ODD: list[Any] = [None, True, -1, 0, 2**70, 1e308, float("nan"), "", "x" * 3000, "\x00", [], {}, [[]], {"a": {"b": 1}}]


def damaged_bytes(rng: random.Random, content: bytes) -> bytes:
    """Flip, cut, fill, insert or append."""
    place = rng.randrange(len(content) + 1)
    length = rng.choice([1, 1, 8, 100, 5000])
    some = rng.randbytes(length)
    return rng.choice(
        [
            lambda: content[:place] + bytes(byte ^ 1 << rng.randrange(8) for byte in content[place : place + 1])
            + content[place + 1 :],
            lambda: content[:place],
            lambda: content[place:],
            lambda: content[:place] + bytes(length) + content[place + length :],
            lambda: content[:place] + some + content[place + length :],
            lambda: content[:place] + some + content[place:],
            lambda: content + rng.choice([b"\n", some, content]),
            lambda: rng.choice([b"", some, b"\x00" * length]),
        ]
    )()  # fmt: skip


def damaged_json(rng: random.Random, value: Any) -> str:
    """Change one entry, somewhere in a tree of JSON values; or their text."""
    if rng.random() < 0.1:
        return rng.choice(
            ["[" * 50_000, '{"a":' * 50_000, '{"seed": ' + "7" * 5000 + "}", "NaN", "7", "[1]", '"a"', "{}"]
        )
    value = json.loads(json.dumps(value))
    if rng.random() < 0.1:
        return json.dumps(value, indent=rng.choice([None, 0, 7]), sort_keys=rng.random() < 0.5)
    node, path = value, []
    while isinstance(node, dict | list) and node and (not path or rng.random() < 0.7):
        path.append((node, rng.choice(list(node) if isinstance(node, dict) else range(len(node)))))
        node = path[-1][0][path[-1][1]]
    if not path:
        return json.dumps(rng.choice(_ODD))
    container, key = path[-1]
    how = rng.randrange(4)
    if how == 0:
        del container[key]
    elif how == 1:
        container[key] = rng.choice(_ODD)
    elif how == 2 and isinstance(container, dict):
        container[rng.choice(["extra", f"{key} ", "versions", "format"])] = rng.choice([*_ODD, node])
    else:
        container[key] = _neighbour(rng, node)
    return json.dumps(value)


def _neighbour(rng: random.Random, value: Any) -> Any:
    """Another value of the same kind, or nearly."""
    if isinstance(value, bool):
        return rng.choice([not value, int(value)])
    if isinstance(value, int | float):
        return rng.choice([value + 1, -value, value * (1 + 1e-7), float(value), str(value), [value]])
    if isinstance(value, str):
        return rng.choice([value + "a", value[1:], value.upper(), [value], {value: value}])
    return rng.choice([list(value) if value is not None else 0, {"inner": value}])
