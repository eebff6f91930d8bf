"""From one table per client to one design matrix per client, where one process may read all tables.

It takes the same three steps as sites that only exchange summaries (`fahmc.data.encoding`), so that a study built here
and one built between sites hold the same numbers.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import pandas as pd

from fahmc.data.agreement import agree, choose_features
from fahmc.data.columns import Columns
from fahmc.data.encoding import encode
from fahmc.data.levels import level_remarks
from fahmc.data.public import encoded_bounds
from fahmc.data.scales import Scale
from fahmc.data.summaries import summarize
from fahmc.data.tables import Table, read_table
from fahmc.errors import DataError, nearest, shown

logger = logging.getLogger("fahmc")


@dataclass(frozen=True)
class Study:
    """One outcome and one design matrix per client, with the words to read them, which are those of an `Encoding`."""

    clients: dict[str, dict[str, np.ndarray]]
    """Client name to ``{"x": [row, dim], "y": [row]}`` and what says how the rows count (offset, weight, event,
    trials), as ``Federation.from_clients`` takes it."""
    feature_names: tuple[str, ...]
    outcome_levels: tuple[str, ...]
    standardization: dict[str, Scale]
    dropped: dict[str, int]
    """Client name to the number of rows left out because a value was missing."""
    remarks: tuple[str, ...] = ()
    """What is odd about the tables, though nothing is wrong: levels that only one client has, or spells otherwise."""
    baselines: dict[str, str] = field(default_factory=dict)
    """The level of each text feature that its others are compared with."""
    model_settings: dict[str, Any] = field(default_factory=dict)
    """What the formula says of the model rather than of the rows."""
    bounds: list[list[float]] | None = None
    """Public bounds of every column of x."""

    @property
    def about(self) -> dict[str, Any]:
        """All but the rows, as plain values."""
        return {
            "feature_names": list(self.feature_names),
            "outcome_levels": list(self.outcome_levels),
            "standardization": {name: list(scale) for name, scale in self.standardization.items()},
            "dropped": dict(self.dropped),
            "remarks": list(self.remarks),
            "baselines": dict(self.baselines),
            "model_settings": dict(self.model_settings),
            **({} if self.bounds is None else {"bounds": self.bounds}),
        }


def build_study(tables: Mapping[str, Table], columns: Columns) -> Study:
    """Choose and encode the outcome and the features of each client's table, the same way at every client."""
    present = {client: list(table.columns) for client, table in tables.items()}
    chosen = choose_features(columns, present, {client: table.file for client, table in tables.items()})
    summaries = {client: summarize(table, client, columns, chosen) for client, table in tables.items()}
    encoding, remarks = agree(columns, chosen, summaries), level_remarks(columns, chosen, summaries)
    for remark in remarks:
        logger.warning("%s", remark)
    return Study(
        clients={client: encode(table, client, columns, encoding) for client, table in tables.items()},
        feature_names=encoding.feature_names,
        outcome_levels=encoding.outcome_levels,
        standardization=encoding.standardization,
        dropped={client: summary.num_dropped for client, summary in summaries.items()},
        remarks=tuple(remarks),
        baselines=encoding.baselines,
        model_settings=columns.model_settings,
        bounds=encoded_bounds(columns, encoding),
    )


def study_of_tables(tables: Any, settings: Mapping[str, Any]) -> Study:
    """Build a study from frames or files by client, and settings of `Columns` by name."""
    if not isinstance(tables, Mapping):
        raise DataError(f"tables is {shown(tables)}; give a dict from clients' names to frames or files.")
    known = [field.name for field in fields(Columns)]
    if unknown := next((name for name in settings if name not in known), None):
        raise DataError(f"{unknown} is no setting of columns{nearest(unknown, known)} There are {', '.join(known)}.")
    columns = Columns(**settings)
    if columns.outcome is None:
        raise DataError("Tables need an outcome: give formula='y ~ ...', or outcome and features.")
    return build_study({client: _table(table, client) for client, table in tables.items()}, columns)


def _table(table: Any, client: Any) -> Table:
    if isinstance(table, pd.DataFrame):
        return Table.from_frame(table, "the table")
    if isinstance(table, str | os.PathLike):
        return read_table(table)
    raise DataError(f"the table of client {client!r} is {shown(table)}; give a pandas DataFrame or the path of a file.")
