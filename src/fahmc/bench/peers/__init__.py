"""What one would use instead of fahmc. Their packages are an extra, imported only when they are timed."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from fahmc.bench.cases import BLACKJAX, FAHMC_ITSELF, NUMPY_PRODUCTS, NUMPYRO, TORCH, XLA_PRODUCTS, Case
from fahmc.errors import SettingsError

# Contender: the package it needs, the module and class here.
_CONTENDERS = {
    FAHMC_ITSELF: ("fahmc", "fahmc.bench.ours", "Ours"),
    TORCH: ("torch", "fahmc.bench.peers.torch_loop", "TorchLoop"),
    BLACKJAX: ("blackjax", "fahmc.bench.peers.blackjax_hmc", "BlackJaxHMC"),
    NUMPYRO: ("numpyro", "fahmc.bench.peers.numpyro_hmc", "NumPyroHMC"),
    NUMPY_PRODUCTS: ("numpy", "fahmc.bench.peers.products", "NumPyProducts"),
    XLA_PRODUCTS: ("jax", "fahmc.bench.peers.products", "XlaProducts"),
}


def require(contenders: Iterable[str]) -> None:
    """Refuse to start, rather than to stop half-way, where a package is missing."""
    packages = {_CONTENDERS[name][0] for name in contenders}
    if missing := sorted(package for package in packages if find_spec(package) is None):
        verb = "are" if len(missing) > 1 else "is"
        raise SettingsError(
            f"{' and '.join(missing)} {verb} not installed, so there is nothing to compare with; "
            'run: pip install "fahmc[bench]"'
        )


def build(contender: str, case: Case) -> Any:
    """Make a contender ready to run a case."""
    _, module, name = _CONTENDERS[contender]
    return getattr(import_module(module), name)(case)
