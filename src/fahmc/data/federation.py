"""Who holds what: the clients' rows, sizes and weights, validated once.

n = sum_c n_c rows lie with N clients. The weights w_c default to n_c / n, so that sum_c w_c f_c is the potential of the
posterior given all rows; weights given by the user define the target sum_c w_c f_c instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from fahmc import door, tree
from fahmc.errors import DataError, shown
from fahmc.fitting import introduce
from fahmc.types import Batch

# Weights are shares that a person may have typed with a few digits.
_WEIGHT_TOLERANCE = 1e-6


@dataclass(frozen=True, eq=False)
class Federation:
    """The rows of every client. Build it with `Federation.from_clients` or, from tables, `Federation.from_tables`.

    Examples
    --------
    >>> import numpy as np
    >>> federation = Federation.from_clients({"north": {"x": np.ones((3, 2))}, "south": {"x": np.zeros((1, 2))}})
    >>> federation
    Federation(2 clients, 4 rows: north 3, south 1)
    >>> federation.weights
    array([0.75, 0.25])
    """

    names: tuple[str, ...]
    rows: tuple[Batch, ...]
    weights: np.ndarray
    row_weights: tuple[np.ndarray, ...]
    about: dict[str, Any] = field(default_factory=dict, kw_only=True)
    """What was agreed on to write tables as rows, as plain values: names of features, levels, scales, dropped rows, and
    under ``model_settings`` what a formula says of the model. Empty for rows that came as arrays."""

    @classmethod
    def from_tables(
        cls,
        tables: Mapping[str, Any],
        weights: Mapping[str, float] | None = None,
        **columns: Any,
    ) -> Federation:
        """Take one table a client, and write all of them as numbers in one way.

        `fahmc.sample` names the coefficients of a ready-made model after the columns that come out.

        Parameters
        ----------
        tables
            For each client by name a pandas frame, or the path of a CSV, Parquet or npz file.
        weights
            As in `from_clients`.
        columns
            Which columns to take and how: the settings of `fahmc.data.columns.Columns`, ``formula="y ~ age * group"``
            or ``outcome="y", features=["age", "group"]`` among them.

        Examples
        --------
        >>> import pandas as pd
        >>> north = pd.DataFrame({"ill": [0, 1, 0], "age": [50.0, 61.0, 43.0], "ward": ["a", "b", "a"]})
        >>> south = pd.DataFrame({"ill": [1, 0], "age": [47.0, 55.0], "ward": ["a", "b"]})
        >>> federation = Federation.from_tables({"north": north, "south": south}, formula="ill ~ age * ward")
        >>> federation.about["feature_names"]
        ['age', 'ward[T.b]', 'age:ward[T.b]']
        """
        from fahmc.data.study import study_of_tables  # which needs pandas

        study = study_of_tables(tables, columns)
        return replace(cls.from_clients(study.clients, weights), about=study.about)

    @classmethod
    def from_clients(
        cls,
        clients: Mapping[str, Batch] | Sequence[Batch],
        weights: Mapping[str, float] | Sequence[float] | None = None,
    ) -> Federation:
        """Take clients as a dict by name, or as a list (then named ``client_0``, ``client_1`` …).

        Parameters
        ----------
        clients
            For each client a pytree of arrays with rows first, of one structure for all clients.
        weights
            w_c ≥ 0 with sum 1, by name or in the clients' order; by default n_c / n.
        """
        if isinstance(clients, str | bytes) or not isinstance(clients, Iterable):
            raise DataError(
                f"clients is {shown(clients)}; give a dict from names to rows, or a list of the clients' rows."
            )
        if not isinstance(clients, Mapping):
            clients = {f"client_{index}": rows for index, rows in enumerate(clients)}
        if not clients:
            raise DataError("A federation needs at least one client; none was given.")
        for name in clients:
            if not isinstance(name, str) or not name:
                raise DataError(
                    f"A client's name must be a non-empty string, not {shown(name)}. Convert it with str()."
                )
        checked = {name: _checked_rows(name, rows) for name, rows in clients.items()}
        _check_same_structure(checked)
        sizes = {name: len(jax.tree.leaves(rows)[0]) for name, rows in checked.items()}
        row_weights = tuple(np.ones(size) for size in sizes.values())
        return cls(tuple(checked), tuple(checked.values()), checked_weights(sizes, weights), row_weights)

    @property
    def model_settings(self) -> dict[str, Any]:
        """What the formula that the rows were written by says of the model."""
        return self.about.get("model_settings", {})

    @property
    def num_clients(self) -> int:
        """N."""
        return len(self.names)

    @property
    def sizes(self) -> np.ndarray:
        """n_c for every client."""
        return np.array([len(row_weights) for row_weights in self.row_weights])

    @property
    def num_rows(self) -> int:
        """Rows of all clients together, n."""
        return int(self.sizes.sum())

    def pooled(self) -> Federation:
        """Put all rows into one client with the same target sum_c w_c f_c: what one machine would hold.

        With weights other than n_c / n, a row of client c counts w_c n / n_c times.
        """
        counts = self.weights * self.num_rows / self.sizes
        return Federation(
            names=("pooled",),
            rows=(jax.tree.map(lambda *leaves: np.concatenate(leaves), *self.rows),),
            weights=np.ones(1),
            row_weights=(np.concatenate([w * count for w, count in zip(self.row_weights, counts, strict=True)]),),
            about=self.about,
        )

    def __repr__(self) -> str:
        shown = ", ".join(f"{name} {size}" for name, size in zip(self.names[:6], self.sizes, strict=False))
        more = ", …" if self.num_clients > 6 else ""
        return f"Federation({self.num_clients} clients, {self.num_rows} rows: {shown}{more})"


introduce(
    Federation,
    "a fahmc.Federation (build it with fahmc.Federation.from_clients(...))",
    error=DataError,
)


def named_leaves(rows: Batch) -> dict[str, np.ndarray]:
    """Return one client's arrays by name."""
    return dict(zip(tree.leaf_names(rows, root="rows"), jax.tree.leaves(rows), strict=True))


def _checked_rows(name: str, rows: Batch) -> Batch:
    """Convert one client's leaves to NumPy and refuse what no likelihood could use."""
    rows = tree.as_numbers(rows, f"Client {name!r}", DataError)
    leaves = named_leaves(rows)
    if not leaves:
        raise DataError(f"Client {name!r} holds no arrays; give it a pytree of arrays with rows first.")
    for leaf_name, leaf in leaves.items():
        if leaf.ndim == 0:
            raise DataError(
                f"Client {name!r}: {leaf_name} is a single number; arrays need a first axis, the rows. "
                "Turn lists into NumPy arrays."
            )
    counts = {leaf_name: len(leaf) for leaf_name, leaf in leaves.items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{leaf_name} has {count}" for leaf_name, count in counts.items())
        raise DataError(f"Client {name!r}: row counts differ ({listed}); every array of a client needs the same rows.")
    if 0 in counts.values():
        raise DataError(f"Client {name!r} has 0 rows; every client needs at least 1. Drop it or merge it with another.")
    for leaf_name, leaf in leaves.items():
        _check_finite(name, leaf_name, leaf)
    return rows


def _check_finite(name: str, leaf_name: str, leaf: np.ndarray) -> None:
    if leaf.dtype.kind != "f" or np.isfinite(leaf).all():
        return
    bad = np.argwhere(~np.isfinite(leaf))
    row, *column = (int(index) for index in bad[0])
    where = f"column {', '.join(map(str, column))} of {leaf_name}" if column else leaf_name
    raise DataError(
        f"Client {name!r}: {where} is {leaf[tuple(bad[0])]} in row {row} ({len(bad)} such values in {leaf_name}); "
        "every value must be finite. Drop or impute these rows."
    )


def _check_same_structure(clients: Mapping[str, Batch]) -> None:
    """Refuse clients whose pytrees, trailing shapes or kinds of numbers differ from the first client's."""
    kinds = {"f": "float", "i": "integer", "u": "integer", "b": "boolean"}

    def describe(leaf: np.ndarray) -> str:
        return f"{kinds[leaf.dtype.kind]} [row{''.join(f', {size}' for size in leaf.shape[1:])}]"

    (first_name, first_rows), *others = clients.items()
    first = {leaf_name: describe(leaf) for leaf_name, leaf in named_leaves(first_rows).items()}
    for name, rows in others:
        other = {leaf_name: describe(leaf) for leaf_name, leaf in named_leaves(rows).items()}
        for leaf_name in [*first, *other]:
            here, there = first.get(leaf_name, "absent"), other.get(leaf_name, "absent")
            if here != there:
                raise DataError(
                    f"Clients differ in structure: {leaf_name} is {here} at {first_name!r} but {there} at {name!r}. "
                    "Every client needs the same arrays and columns."
                )
        if jax.tree.structure(rows) != jax.tree.structure(first_rows):
            raise DataError(
                f"Clients differ in structure: {name!r} and {first_name!r} hold different kinds of containers."
            )


def checked_weights(sizes: Mapping[str, int], weights: Any) -> np.ndarray:
    """Return w_c in the clients' order with sum 1, by default n_c / n, or refuse what was given."""
    if weights is None:
        return np.array(list(sizes.values())) / sum(sizes.values())
    names = tuple(sizes)
    if isinstance(weights, Mapping):
        if set(weights) != set(names):
            unmatched = sorted(map(str, set(weights) ^ set(names)))
            raise DataError(
                f"Weights and clients do not match: {', '.join(unmatched)}. Give one weight for each client."
            )
        weights = [weights[name] for name in names]
    weights = door.admit("weights", Sequence[float], weights, DataError)
    values = np.asarray(weights, np.float64)
    if values.shape != (len(names),):
        raise DataError(
            f"There are {len(names)} clients but weights of shape {values.shape}; give one weight a client."
        )
    for name, value in zip(names, values, strict=True):
        if not value >= 0:
            raise DataError(f"Client {name!r} has weight {value:g}; weights must be at least 0.")
    if abs(values.sum() - 1) > _WEIGHT_TOLERANCE:
        raise DataError(f"The weights sum to {values.sum():.6g}; they must sum to 1. Divide them by their sum.")
    return values / values.sum()
