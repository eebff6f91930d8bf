"""Counts that may be told: neighbouring bins are put together until none of them is about too few rows.

A bin with a few rows tells of these rows, and so does the difference between a total and the other bins. So a site
does not leave bins out; it puts neighbours together. An edge between two bins stays if on both sides of it either there
is no row, or there are at least ``minimum`` rows of every class: a group of rows that all have the same outcome would
tell the outcome of each. Edges are tried from the middle outwards, halving: edges that many sites can keep come first,
as what is known of all sites together has the edges that all of them keep.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float


def edges_told(cells: Float[np.ndarray, "class bin"], minimum: int) -> Bool[np.ndarray, " edge"] | None:
    """Return which edges between bins stay; None if not even the rows of all bins together may be told."""
    num_bins = cells.shape[1]
    if minimum <= 1:
        return np.ones(num_bins - 1, bool)
    before = np.pad(np.cumsum(cells, axis=1), ((0, 0), (1, 0)))

    def may_be_told(first: int, end: int) -> bool:
        rows = before[:, end] - before[:, first]
        return bool(np.all(rows == 0) or np.all(rows >= minimum))

    if not may_be_told(0, num_bins):
        return None
    starts = [0, num_bins]
    for edge in sorted(range(1, num_bins), key=lambda edge: -(edge & -edge)):
        place = int(np.searchsorted(starts, edge))
        if may_be_told(starts[place - 1], edge) and may_be_told(edge, starts[place]):
            starts.insert(place, edge)
    told = np.zeros(num_bins - 1, bool)
    told[np.array(starts[1:-1], int) - 1] = True
    return told


def gather(values: Float[np.ndarray, "... bin"], edges: Bool[np.ndarray, " edge"]) -> Float[np.ndarray, "... bin"]:
    """Put what is in a group of bins into the first of them; the others are 0. The shape stays."""
    starts = np.flatnonzero(np.concatenate([[True], edges]))
    gathered = np.zeros_like(values)
    gathered[..., starts] = np.add.reduceat(values, starts, axis=-1)
    return gathered


def common_edges(edges: Sequence[np.ndarray]) -> Bool[np.ndarray, " edge"]:
    """Return the edges that all sites keep."""
    return np.all([np.asarray(kept) > 0 for kept in edges], axis=0)


def groups_of(values: Sequence[np.ndarray], edges: Bool[np.ndarray, " edge"]) -> Float[np.ndarray, "... group"]:
    """Sum the sites' gathered values in the groups that all sites tell."""
    starts = np.flatnonzero(np.concatenate([[True], edges]))
    return np.add.reduceat(np.sum(values, axis=0), starts, axis=-1)


def limits_of(limits: Sequence[float], edges: Bool[np.ndarray, " edge"]) -> list[tuple[float, float]]:
    """Return where each group begins and ends, given where the bins do."""
    kept = [limits[0], *(limits[int(place) + 1] for place in np.flatnonzero(edges)), limits[-1]]
    return list(itertools.pairwise(kept))
