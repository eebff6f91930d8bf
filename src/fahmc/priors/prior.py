"""What a prior of coefficients is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from jaxtyping import Array

from fahmc.registry import takes
from fahmc.types import Key

COEFFICIENTS = "coefficients"
"""What coefficients are called in a position."""

_Axis = TypeVar("_Axis")


class Prior(Protocol):
    """A prior of coefficients β, [feature, ...]: a frozen dataclass, registered by ``@fahmc.register("prior")``.

    By default β itself is sampled. A prior that makes β of other numbers says which (`parts`) and how
    (`coefficients`); the rows then see β alone.
    """

    def parts(self, axes: tuple[_Axis, ...]) -> dict[str, tuple[_Axis, ...]]:
        """Return what is sampled, by name, with its axes, given those of β: their lengths, or their names."""
        return {COEFFICIENTS: axes}

    def coefficients(self, sampled: Mapping[str, Array]) -> Array:
        """Return β."""
        return sampled[COEFFICIENTS]

    def log_density(self, sampled: Mapping[str, Array]) -> Any:
        """Return the log density of what is sampled, up to a constant."""
        ...

    def draw(self, key: Key, shape: tuple[int, ...]) -> dict[str, Array]:
        """Draw what is sampled, for β of this shape."""
        ...

    def words(self) -> str:
        """Say in a few words what it is, for reports."""
        ...

    def for_features(self, names: Sequence[str] | None) -> Prior:
        """Return the prior of features of these names, as far as they are known."""
        return self

    def for_rows(self, num_rows: int) -> Prior:
        """Return the prior for so many rows of all clients, if it depends on that and its user left it open."""
        return self


takes("prior", Prior)


def is_of_coefficients(prior: Prior) -> bool:
    """Whether β itself is sampled."""
    return set(prior.parts(())) == {COEFFICIENTS}
