"""Whether the chains agree, and how precise their averages are.

The estimators are ArviZ's. Everything here takes a `Draws`, a pytree of arrays [chain, draw, ...] or one such array,
and answers with a dictionary: variable name -> array of the variable's shape.

R-hat compares the variance between chains with the variance within them. It sees chains that have not yet met; it
cannot see a bias that they share, such as that of a sampler without accept/reject step (`difference_in_mcse` against a
reference run can).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import jax
import numpy as np
from annotated_types import Interval

from fahmc import door
from fahmc.errors import DataError, SettingsError, shown
from fahmc.fitting import Of
from fahmc.hints import MAX_ROUNDS, AboveOne, Positive
from fahmc.tree import as_numbers, leaf_names

if TYPE_CHECKING:
    from fahmc.draws import Draws

# Those of ArviZ's methods that need no further argument.
_METHODS = {
    "rhat": ("rank", "split", "folded", "z_scale", "identity"),
    "ess": ("bulk", "tail", "mean", "sd", "median"),
    "mcse": ("mean", "sd", "median"),
}

# ArviZ splits each chain in two and needs a variance of each half.
_MIN_DRAWS = 4
_Every: TypeAlias = Annotated[int, Interval(ge=_MIN_DRAWS, le=MAX_ROUNDS), Of("draws")]


def r_hat(draws: Draws | Any, *, method: str = "rank") -> dict[str, np.ndarray]:
    """Return R-hat per parameter; NaN for a constant parameter, a single chain, or fewer than 4 draws.

    ``method`` is ArviZ's: ``"rank"`` (the larger of the rank-normalised split and folded-split R-hat; Vehtari et al.
    2021), ``"split"`` (Gelman et al.), ``"folded"``, ``"z_scale"`` or ``"identity"``.
    """
    return _diagnose("rhat", draws, method)


def ess(draws: Draws | Any, *, method: str = "bulk") -> dict[str, np.ndarray]:
    """Return the effective sample size per parameter, all chains together.

    ``method`` is ArviZ's: ``"bulk"`` for averages, ``"tail"`` for the ends of intervals, ``"mean"``, ``"sd"``,
    ``"median"``.
    """
    return _diagnose("ess", draws, method)


def mcse(draws: Draws | Any, *, method: str = "mean") -> dict[str, np.ndarray]:
    """Return the Monte Carlo standard error per parameter, of its ``"mean"``, ``"sd"`` or ``"median"``."""
    return _diagnose("mcse", draws, method)


def max_r_hat(draws: Draws | Any, *, method: str = "rank") -> float:
    """Return the largest R-hat of all scalar parameters; NaN if any of them has none."""
    values = r_hat(draws, method=method).values()
    # np.max lets a NaN through, as it should: a parameter without R-hat must not hide behind the others.
    return float(np.max(np.concatenate([np.ravel(value) for value in values])))


def difference_in_mcse(a: Draws | Any, b: Draws | Any) -> dict[str, np.ndarray]:
    """Return the difference of the means of two runs in units of its Monte Carlo standard error.

    z = (mean_a − mean_b) / √(MCSE_a² + MCSE_b²)

    Two runs of the same law give about standard normal values; over m parameters a maximum above
    Φ⁻¹(1 − α / 2m) has probability at most α. Where both runs are constant, z is 0 if they agree and else infinite.
    The runs are independent and have the same parameters; numbers of chains and draws may differ.
    """
    first, second = named_arrays(a), named_arrays(b)
    if {k: v.shape[2:] for k, v in first.items()} != {k: v.shape[2:] for k, v in second.items()}:
        raise DataError(
            f"The runs have different parameters: {_shapes(first)} and {_shapes(second)}. Compare runs of one model."
        )
    error_a, error_b = mcse(first), mcse(second)
    scores = {}
    for name in first:
        difference = np.asarray(first[name].mean(axis=(0, 1)) - second[name].mean(axis=(0, 1)))
        error = np.hypot(error_a[name], error_b[name])
        with np.errstate(divide="ignore", invalid="ignore"):
            scores[name] = np.where((difference == 0) & (error == 0), 0.0, difference / error)
    return scores


def relative_drift(draws: Draws) -> float:
    """Return how far clients stray before they are averaged, as a share of the posterior's width √tr Cov(θ).

    With common momentum this distance is what biases federated averaging. NaN where the draws have no width, or the
    sampler no such distance.
    """
    drift = np.sqrt(np.mean(np.square(draws.stats.get("client_drift", np.nan), dtype=np.float64)))
    width = np.sqrt(np.var(draws.flat_unconstrained(), axis=(0, 1), dtype=np.float64).sum())
    return float(drift / width) if width > 0 else float("nan")


@dataclass(frozen=True)
class RHatBelow:
    """Stop when every scalar parameter's R-hat is below a threshold.

    This is the stopping rule that follows Theorem 4.1 of the FA-HMC paper (there with Gelman et al.'s R-hat:
    ``method="split"``); the default threshold is Vehtari et al.'s (2021). A parameter without R-hat (constant
    so far, or not finite) counts as not converged.
    """

    threshold: AboveOne = 1.01
    every: _Every = 100
    """Draws per chain between two checks, at least 4. Looking often makes an early stop by luck more likely."""
    method: str = "rank"
    """As in `r_hat`."""

    def __post_init__(self):
        door.check(self)
        _check_method("rhat", self.method)

    def __call__(self, positions: Any) -> bool:
        """Say whether sampling may stop, given all positions kept so far [chain, draw, ...]."""
        arrays = named_arrays(positions)
        if len(next(iter(arrays.values()))) < 2:
            raise SettingsError(
                "RHatBelow compares chains, and there is only 1; set num_chains to 2 or more (4 is usual)."
            )
        return max_r_hat(arrays, method=self.method) < self.threshold


@dataclass(frozen=True)
class EssAbove:
    """Stop when every scalar parameter has so many effective draws, of bulk and tail, and the chains agree."""

    size: Positive = 400.0
    r_hat: AboveOne = 1.01
    every: _Every = 100
    """Draws per chain between two checks."""

    def __post_init__(self):
        door.check(self)

    def __call__(self, positions: Any) -> bool:
        """Say whether sampling may stop, given all positions kept so far [chain, draw, ...]."""
        sizes = [value for method in ("bulk", "tail") for value in ess(positions, method=method).values()]
        return min(float(np.min(value)) for value in sizes) >= self.size and RHatBelow(self.r_hat)(positions)


def named_arrays(draws: Draws | Any) -> dict[str, np.ndarray]:
    """Return the variables by name as float64 arrays [chain, draw, ...], checked."""
    positions = as_numbers(draws.positions if hasattr(draws, "positions") else draws, "draws", DataError)
    leaves = zip(leaf_names(positions), jax.tree.leaves(positions), strict=True)
    arrays = {name: np.asarray(leaf, dtype=np.float64) for name, leaf in leaves}
    if not any(array.size for array in arrays.values()):
        raise DataError("There are no draws; give at least one parameter with one chain and one draw.")
    if any(array.ndim < 2 for array in arrays.values()) or len({array.shape[:2] for array in arrays.values()}) != 1:
        raise DataError(
            f"Every array must be [chain, draw, ...] with the same chains and draws; got {_shapes(arrays)}."
        )
    return arrays


def _diagnose(function: str, draws: Draws | Any, method: str) -> dict[str, np.ndarray]:
    """Apply one of ArviZ's diagnostics to every variable."""
    from fahmc._arviz import dataset, diagnose

    _check_method(function, method)
    return diagnose(function, dataset(named_arrays(draws)), method)


def _check_method(function: str, method: str) -> None:
    if method not in _METHODS[function]:
        raise SettingsError(f"{function} has no method {shown(method)}; choose one of {', '.join(_METHODS[function])}.")


def _shapes(arrays: dict[str, np.ndarray]) -> str:
    return ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items())
