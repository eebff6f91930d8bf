"""Who may work together: server, sites and analyst agree in the versions of what computes and what carries.

fahmc     the same 0.X: messages and samplers may change from one to the next, and draws with them
jax       the same 0.X: every site derives the shared momentum from the seed, so all must draw the same normal numbers.
          JAX keeps the right to change these with X; what differs within one X is rounding
nvflare   the same 2.X: FLARE's own messages, and the parts of it that the server's gate and a site's doors know
"""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Mapping
from typing import Any

from fahmc.errors import FederationError

PACKAGES = ("fahmc", "jax", "nvflare")
# How many numbers of a version count.
_AGREED = 2


@functools.cache
def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def own_versions() -> dict[str, str]:
    """Return what runs here."""
    return {package: _version(package) for package in PACKAGES}


def check_versions(who: str, theirs: Any) -> None:
    """Refuse to work with somebody whose packages may compute something else; ``who`` begins a sentence."""
    own = own_versions()
    if not isinstance(theirs, Mapping) or not all(isinstance(theirs.get(name), str) for name in PACKAGES):
        raise FederationError(f"{who} does not tell its versions; the server runs {_in_words(own)}. Use the same.")
    theirs = {name: str(theirs[name])[:40] for name in PACKAGES}
    for name in PACKAGES:
        if (agreed := _leading(own[name])) != _leading(theirs[name]):
            raise FederationError(
                f"{who} runs {_in_words(theirs)}, the server {_in_words(own)}. They need the same {name} up to the "
                f"second number, to compute the same: install {name} {agreed}.* there, or the other one here."
            )


def _leading(version: str) -> str:
    return ".".join(version.split(".")[:_AGREED])


def _in_words(versions: Mapping[str, str]) -> str:
    *first, last = (f"{name} {version}" for name, version in versions.items())
    return f"{', '.join(first)} and {last}"
