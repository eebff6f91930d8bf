"""What the numbers were measured on, and whether anybody else was using it."""

from __future__ import annotations

import os
import platform
import time
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_PACKAGES = ("fahmc", "jax", "jaxlib", "numpy", "torch", "blackjax", "numpyro")
_STAT = Path("/proc/stat")
_WATCHED_FOR = 0.3


def machine_facts() -> dict[str, Any]:
    """Say what the numbers were measured on."""
    return {
        "cpu": _cpu_model(),
        "cores": num_cores(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": {name: number for name in _PACKAGES if (number := _version(name))},
        "date": datetime.now(UTC).date().isoformat(),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown processor"
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown processor")


def num_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def busy_share() -> float:
    """Return the share of the machine that others use while this process sleeps; 0 where that cannot be seen."""
    if not _STAT.exists():
        return 0.0
    before = _ticks()
    time.sleep(_WATCHED_FOR)
    idle, total = (later - earlier for later, earlier in zip(_ticks(), before, strict=True))
    return 1 - idle / max(total, 1)


def _ticks() -> tuple[int, int]:
    """Return the ticks that all cores idled or waited for a disk, and all ticks."""
    ticks = [int(word) for word in _STAT.read_text(encoding="utf-8").splitlines()[0].split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)
