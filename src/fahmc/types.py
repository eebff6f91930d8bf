"""Names for what flows through the library.

Inside, a position is one flat vector: every update then reads like its equation. The user's pytree appears only where
the user's functions are called and where draws are handed back.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, TypeAlias

import jax
from jaxtyping import Array, Float

Position: TypeAlias = Any
"""A pytree of floating arrays, as the user's model takes it."""

Batch: TypeAlias = Any
"""A pytree of arrays whose first axis is the row."""

Vector: TypeAlias = Float[Array, " dim"]
"""A position, momentum or gradient, flattened."""

Key: TypeAlias = jax.Array
"""A typed JAX random key."""

Message: TypeAlias = dict[str, Any]
"""Arrays by name: what is broadcast, what a client replies, what replies combine to (`fahmc.dynamics.sampler`)."""

Numbers: TypeAlias = dict[str, Any]
"""A sampler's settings that reach its compiled round as arrays, by name."""


class Client(NamedTuple):
    """One client as its round sees it; ``jax.vmap`` adds a leading client axis. On the host it holds NumPy arrays."""

    rows: Batch
    row_weights: Any
    """[row] 1 for a row, 0 for padding; other values where a pooled federation carries unequal client weights."""
    num_rows: Any
    """n_c"""
    weight: Any
    """w_c, its share in every average."""
    scale: Any
    """n / n_c: the client works as if it held all n rows."""
    identity: Any
    """[2] 64 bits of its name's hash: its random streams follow the name, not the place in a list."""


class ChainKeys(NamedTuple):
    """The two roots of one chain's randomness (see `fahmc.keys`)."""

    shared: Key
    private: Key


class GradientFn(Protocol):
    """An estimator of grad f_c."""

    def __call__(self, key: Key, position: Vector, client: Client) -> Vector:
        """Return the (possibly random) gradient of the client's potential."""
        ...


class Schedule(Protocol):
    """A step size that depends on the trajectory's index."""

    def __call__(self, trajectory: Any, /) -> Any:
        """Return eta(t); t is an integer that JAX may trace, so no Python branches on its value."""
        ...
