"""Clients of like size, stacked: what `jax.vmap` over clients needs, without paying for the largest client everywhere.

All clients of a bucket are padded to its largest one. A bucket is closed when its padding would exceed a fixed share of
its rows, so neither memory nor time depends on how unequal the clients are.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np

from fahmc import keys
from fahmc.data.federation import Federation, named_leaves
from fahmc.errors import DataError
from fahmc.types import Client

# A bucket is padded by at most this share of its rows, or by this many rows where that is more. Every bucket costs
# compilation time, so it has to save something.
_PADDING_SHARE, _PADDING_ROWS = 0.25, 1000


class Bucket(NamedTuple):
    """Some of a federation's clients, with a leading client axis."""

    indices: np.ndarray
    """The clients' places in the federation."""
    clients: Client


def bucket_clients(federation: Federation, dtype: np.dtype) -> list[Bucket]:
    """Stack the clients into buckets of like size; floating arrays are converted to ``dtype``."""
    return [_stack(federation, indices, dtype) for indices in _group_by_size(federation.sizes)]


def single_client(federation: Federation, index: int, dtype: np.dtype) -> Client:
    """Return one client without padding."""
    bucket = _stack(federation, np.array([index]), dtype)
    return jax.tree.map(lambda leaf: leaf[0], bucket.clients)


def check_integers(federation: Federation, dtype: np.dtype) -> None:
    """Refuse integers that single precision would wrap around."""
    limit = np.iinfo(np.int32).max
    for name, rows in zip(federation.names, federation.rows, strict=True):
        for leaf_name, leaf in named_leaves(rows).items():
            if dtype == np.float32 and leaf.dtype.kind in "iu" and max(int(leaf.max()), -int(leaf.min())) > limit:
                raise DataError(
                    f"Client {name!r}: {leaf_name} holds integers beyond {limit}, which do not fit a float32 run. Make "
                    "the array floating, or use dtype='float64'."
                )


def _group_by_size(sizes: np.ndarray) -> list[np.ndarray]:
    """Walk from the largest client down; start a new group where padding would exceed its share."""
    groups: list[list[int]] = []
    num_rows, num_padded, capacity = 0, 0, 0
    for index in np.argsort(-sizes, kind="stable"):
        size = int(sizes[index])
        allowed = max(_PADDING_ROWS, _PADDING_SHARE * (num_rows + size))
        if not groups or num_padded + capacity - size > allowed:
            groups.append([])
            num_rows, num_padded, capacity = 0, 0, size
        groups[-1].append(int(index))
        num_rows, num_padded = num_rows + size, num_padded + capacity - size
    # Inside a bucket the clients keep the federation's order, so that equal sizes need no reordering at all.
    return [np.sort(np.array(group)) for group in groups]


def _stack(federation: Federation, indices: np.ndarray, dtype: np.dtype) -> Bucket:
    sizes = federation.sizes[indices]
    capacity = int(sizes.max())

    def pad(leaf: np.ndarray) -> np.ndarray:
        # Padding repeats a real row: its weight is 0, and no likelihood meets a value that never occurs.
        leaf = leaf.astype(dtype) if leaf.dtype.kind == "f" else leaf
        return np.concatenate([leaf, np.broadcast_to(leaf[:1], (capacity - len(leaf), *leaf.shape[1:]))])

    def pad_weights(row_weights: np.ndarray) -> np.ndarray:
        return np.pad(row_weights, (0, capacity - len(row_weights))).astype(dtype)

    rows = [jax.tree.map(pad, federation.rows[index]) for index in indices]
    return Bucket(
        indices=indices,
        clients=Client(
            rows=jax.tree.map(lambda *leaves: np.stack(leaves), *rows),
            row_weights=np.stack([pad_weights(federation.row_weights[index]) for index in indices]),
            num_rows=sizes.astype(np.int32),
            weight=federation.weights[indices].astype(dtype),
            scale=(federation.num_rows / sizes).astype(dtype),
            identity=np.stack([keys.client_identity(federation.names[index]) for index in indices]),
        ),
    )
