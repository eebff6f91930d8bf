"""Deal one table out to clients, for simulations.

Every function takes a pytree of arrays with the rows first, decides which client owns each row, and returns a dict
from client name to that client's rows, in their original order. Each row lands at exactly one client, and no client is
empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike

from fahmc import door, tree
from fahmc.errors import DataError, shown
from fahmc.hints import Count, Positive, Rows, Seed

# A Dirichlet split that leaves a client too small is drawn again; one that fails this often is as good as impossible.
_MAX_REDRAWS = 1000


@door.checked(DataError)
def iid(rows: Any, num_clients: Count, seed: Seed) -> dict[str, Any]:
    """Send each row to a client drawn uniformly, so that sizes vary as they do by chance.

    One row per client is placed first, to keep every client from being empty.
    """
    num_rows = _require_rows(rows, num_clients)
    rng = np.random.default_rng(seed)
    owner = np.concatenate([np.arange(num_clients), rng.integers(num_clients, size=num_rows - num_clients)])
    return _deal(rows, rng.permutation(owner), _names(num_clients))


@door.checked(DataError)
def equal(rows: Any, num_clients: Count, seed: Seed) -> dict[str, Any]:
    """Shuffle the rows and cut them into clients whose sizes differ by at most one."""
    num_rows = _require_rows(rows, num_clients)
    owner = np.random.default_rng(seed).permutation(np.arange(num_rows) % num_clients)
    return _deal(rows, owner, _names(num_clients))


@door.checked(DataError)
def dirichlet(
    rows: Any, labels: ArrayLike, num_clients: Count, concentration: Positive, *, seed: Seed, min_rows: Rows = 1
) -> dict[str, Any]:
    """Share each label's rows out by Dirichlet proportions, so that clients see different mixes of labels.

    Parameters
    ----------
    labels
        One label per row.
    concentration
        Towards 0 each label sits at one client; large values give every client the same mix.
    min_rows
        The split is drawn again until every client has at least this many rows.

    References
    ----------
    Hsu, Qi and Brown (2019), arXiv:1909.06335, who draw label proportions per client; here client proportions are drawn
    per label, so that every row is used exactly once.
    """
    num_rows = _require_rows(rows, num_clients, min_rows)
    label_of_row = _one_per_row(labels, num_rows, "labels")
    rng = np.random.default_rng(seed)
    distinct, label_sizes = np.unique(label_of_row, return_counts=True)
    for _ in range(_MAX_REDRAWS):
        shares = rng.dirichlet(np.full(num_clients, concentration), size=distinct.size)
        counts = rng.multinomial(label_sizes, shares)
        if counts.sum(axis=0).min() >= min_rows:
            owner = np.empty(num_rows, dtype=int)
            for label, label_counts in zip(distinct, counts, strict=True):
                owner[label_of_row == label] = rng.permutation(np.repeat(np.arange(num_clients), label_counts))
            return _deal(rows, owner, _names(num_clients))
    raise DataError(
        f"{_MAX_REDRAWS} Dirichlet splits of {num_rows} rows over {num_clients} clients with concentration "
        f"{concentration} each left a client with fewer than {min_rows} rows. "
        "Raise the concentration, or lower min_rows or num_clients."
    )


def by_column(rows: Any, column: str | ArrayLike) -> dict[str, Any]:
    """Give each distinct value of a column its own client, named after the value.

    Parameters
    ----------
    column
        An array with one value per row, or the key of one in ``rows``; the keyed array is then left out of the clients'
        rows, since the client's name says it.
    """
    from fahmc.data.tables import as_text  # only here, since it imports pandas

    if isinstance(column, str):
        if not isinstance(rows, dict) or column not in rows:
            held = ", ".join(map(repr, rows)) if isinstance(rows, dict) else f"a {type(rows).__name__}"
            raise DataError(f"there is no column {shown(column)} to split by; the rows hold {held}. Name one of those.")
        column, rows = rows[column], {name: values for name, values in rows.items() if name != column}
    values = _one_per_row(column, _count_rows(rows), "column")
    is_missing = np.array([value is None or value != value for value in values.tolist()])
    if is_missing.any():
        first = int(np.flatnonzero(is_missing)[0])
        raise DataError(
            f"row {first} (from 0) has no value in the column to split by, so no client owns it. Fill it in."
        )
    if values.dtype.kind in "SUO":
        values = as_text(values)
    distinct, owner = np.unique(values, return_inverse=True)
    names = as_text(distinct) if distinct.dtype.kind == "f" else distinct
    return _deal(rows, owner, [str(name) for name in names])


def _deal(rows: Any, owner: np.ndarray, names: Sequence[str]) -> dict[str, Any]:
    """Collect each client's rows; ``owner[i]`` is the position in ``names`` of row i's client."""
    where = {name: np.flatnonzero(owner == client) for client, name in enumerate(names)}
    return {name: jax.tree.map(lambda leaf, kept=kept: np.asarray(leaf)[kept], rows) for name, kept in where.items()}


def _names(num_clients: int) -> list[str]:
    """Name clients so that alphabetical order is numerical order."""
    width = len(str(num_clients - 1))
    return [f"client_{client:0{width}d}" for client in range(num_clients)]


def _count_rows(rows: Any) -> int:
    shapes = [leaf.shape for leaf in jax.tree.leaves(tree.as_arrays(rows, "rows", DataError))]
    counts = {shape[0] if shape else None for shape in shapes}
    if len(counts) != 1 or None in counts:
        raise DataError(
            f"the arrays to split have shapes {shapes}; all must have the same number of rows in their first axis."
        )
    return int(counts.pop() or 0)


def _require_rows(rows: Any, num_clients: int, min_rows: int = 1) -> int:
    num_rows = _count_rows(rows)
    if num_rows < num_clients * min_rows:
        raise DataError(f"{num_rows} rows cannot give {num_clients} clients at least {min_rows} each. Ask for fewer.")
    return num_rows


def _one_per_row(values: ArrayLike, num_rows: int, what: str) -> np.ndarray:
    try:
        array = np.asarray(values)
    except Exception as error:  # ragged, too deep, or no array at all
        raise DataError(f"{what} is {shown(values)}; one value for each of the {num_rows} rows is needed.") from error
    if array.shape != (num_rows,):
        raise DataError(f"{what} has shape {array.shape}; one value for each of the {num_rows} rows is needed.")
    return array
