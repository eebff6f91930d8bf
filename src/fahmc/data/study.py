"""From one table per client to one design matrix per client, where one process may read all tables.

It takes the same three steps as sites that only exchange summaries (`fahmc.data.encoding`), so that a study built here
and one built between sites hold the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fahmc.data.columns import Columns
from fahmc.data.encoding import Scale, agree, choose_features, encode, summarize
from fahmc.data.tables import Table


@dataclass(frozen=True)
class Study:
    """One outcome and one design matrix per client, with the words to read them, which are those of an `Encoding`."""

    clients: dict[str, dict[str, np.ndarray]]
    """Client name to ``{"x": [row, dim], "y": [row]}``, as ``Federation.from_clients`` takes it."""
    feature_names: tuple[str, ...]
    outcome_levels: tuple[str, ...]
    standardization: dict[str, Scale]
    dropped: dict[str, int]
    """Client name to the number of rows left out because a value was missing."""


def build_study(tables: Mapping[str, Table], columns: Columns) -> Study:
    """Choose and encode the outcome and the features of each client's table, the same way at every client."""
    present = {client: list(table.columns) for client, table in tables.items()}
    chosen = choose_features(columns, present, {client: table.file for client, table in tables.items()})
    summaries = {client: summarize(table, client, columns, chosen) for client, table in tables.items()}
    encoding = agree(columns, chosen, summaries)
    return Study(
        clients={client: encode(table, client, columns, encoding) for client, table in tables.items()},
        feature_names=encoding.feature_names,
        outcome_levels=encoding.outcome_levels,
        standardization=encoding.standardization,
        dropped={client: summary.num_dropped for client, summary in summaries.items()},
    )
