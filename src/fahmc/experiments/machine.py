"""What the numbers were measured on, and whether anybody else was using it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import psutil

_PACKAGES = ("fahmc", "jax", "jaxlib", "numpy", "torch", "blackjax", "numpyro")
# By system: what prints the name of the processor, and what its line begins with.
_CPU_MODELS = {"Linux": (["lscpu"], "Model name:"), "Darwin": (["sysctl", "-n", "machdep.cpu.brand_string"], "")}


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
    """Ask the system: Python itself often knows no more than the architecture."""
    command, label = _CPU_MODELS.get(platform.system(), ([], ""))
    lines: list[str] = []
    if command and shutil.which(command[0]):
        done = subprocess.run(command, env=os.environ | {"LC_ALL": "C"}, capture_output=True, text=True, check=False)
        lines = done.stdout.splitlines()
    told = [line.removeprefix(label).strip() for line in lines if line.startswith(label)]
    return next(iter(told), platform.processor()) or "unknown processor"


def num_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def busy_share() -> float:
    """Return the share of the machine that others use while this process sleeps."""
    return psutil.cpu_percent(interval=0.3) / 100
