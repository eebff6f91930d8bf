"""Where a variable lies over all clients' rows, and how far it spreads."""

from __future__ import annotations

from typing import NamedTuple


class Scale(NamedTuple):
    """What a standardised feature was centred on and divided by."""

    mean: float
    sd: float
