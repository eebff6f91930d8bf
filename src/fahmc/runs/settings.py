"""Settings as JSON: what a run's draws depend on, for its files and for refusing to resume under other settings."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from fahmc.tree import digest

# Two schedules that agree at 0 and all powers of two up to 2^30 are taken for the same.
_SCHEDULE_BITS = 31


def describe(settings: Any) -> Any:
    """Turn a settings dataclass into nested JSON values, with its class as ``name``.

    A function of t is described by its values at t = 0, 1, 2, 4, …: what counts is what it returns.
    """
    if dataclasses.is_dataclass(settings):
        fields = {field.name: describe(getattr(settings, field.name)) for field in dataclasses.fields(settings)}
        return {"name": type(settings).__name__, **fields}
    if callable(settings):
        times = [0, *(2**power for power in range(_SCHEDULE_BITS))]
        schedule: Any = settings
        return {"name": "schedule", "values": {str(t): float(schedule(np.int32(t))) for t in times}}
    if settings is None or isinstance(settings, bool | int | float | str):
        return settings
    return f"array {digest(settings)}"
