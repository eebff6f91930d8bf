"""Values that programs stumble over, and bytes turned at random: what several parts put into their inputs."""

from __future__ import annotations

import random

ODD_NUMBERS = (
    0, -1, 1e200, -1e308, 1e-320, 1e31, float("inf"), float("-inf"), float("nan"), 2**63, 2**64, 10**30, -0.0, "1e400",
    "0x10", "1_000", "١٢", "1,5", "1e5", "01", True, "TRUE", " 7 ", "",
)  # fmt: skip
ODD_TEXTS = (
    "", " ", "NA", "nan", "None", "a\0b", "a\nb", "a\tb", "\x1b[31m", "<script>alert(1)</script>", "a|b", "`x`", '"',
    "'", "$x$", r"$\frac{", "😀", "עברית", "\u202eevil", "x" * 300, "x" * 100_000, "\\", "../../etc/passwd", "%s{0}",
    "T", "[T]", "a[0]", "chain", "draw", "=1+1", "\u2028", "İ", "ß", "e\u0301",
)  # fmt: skip
ODD_NAMES = (*ODD_TEXTS, "Unnamed: 0", "group[mild]", "age[0]", "y", "Y", "coefficients", "intercept", "site", "a/b")


def flip_bytes(rng: random.Random, content: bytes) -> bytes:
    """Turn, cut or repeat some bytes."""
    damaged = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(damaged) + 1)
        kind = rng.randrange(5)
        if kind == 0 and damaged:
            damaged[place % len(damaged)] ^= 1 << rng.randrange(8)
        elif kind == 1 and damaged:
            damaged[place % len(damaged)] = rng.randrange(256)
        elif kind == 2:
            del damaged[place : place + rng.choice((1, 4, 100))]
        elif kind == 3:
            damaged[place:place] = damaged[place : place + rng.choice((1, 8, 64))] * rng.choice((1, 2, 50))
        else:
            damaged[place:place] = rng.choice((b"\0", b"\xff", b",", b"\n", b'"', b"\r"))
    return bytes(damaged)
