"""Names for what flows through the library.

Inside, a position is one flat vector: every update then reads like its equation, and a message is one array. The user's
pytree appears only where the user's functions are called and where draws are handed back.
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


class Kernel(NamedTuple):
    """A sampler as an engine sees it: what is broadcast, what a client does with it, how the mean comes back in.

    A round is ``reply_c = client_round(keys, round, state, client_c)``, then ``merge(state, sum_c w_c reply_c)``.
    States and replies are NamedTuples of vectors with a field ``position``.
    """

    init: Any
    """position -> state"""
    client_round: Any
    """(ChainKeys, round index, state, Client) -> (reply, stats: dict of scalars)"""
    merge: Any
    """(state, mean reply) -> state"""
    step_size: Any
    """round index -> step size at the start of the round"""
    leapfrog_steps: int
    """Leapfrog steps of one client in one round."""
    estimates: int
    """Evaluations of the gradient estimator, per client and round."""
    full_gradients: int
    """Evaluations of the full gradient on top of these."""
    speed: float
    """(E|F p|²)^½: how far a momentum carries a position in unit time."""
