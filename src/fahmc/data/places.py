"""Which client a row is of: ``site``, its place among the names, for models with parameters of single sites."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fahmc.data.federation import Federation
from fahmc.errors import DataError, shown
from fahmc.types import Batch

SITE = "site"


def with_site(rows: Batch, place: int, name: str) -> Batch:
    """Return a client's rows with its place."""
    if not isinstance(rows, dict):
        raise DataError(
            f"Client {name!r} holds {shown(type(rows).__name__)}; a model with parameters of single sites takes rows "
            "as a dict of arrays by name."
        )
    if SITE in rows:
        raise DataError(
            f"Client {name!r} holds {SITE!r}, which is where a model with parameters of single sites finds the "
            "client's place; it is added by itself. Give the column another name."
        )
    return {**rows, SITE: np.full(len(next(iter(rows.values()))), place, np.int32)}


def with_places(federation: Federation) -> Federation:
    """Return a federation whose rows tell their client's place."""
    rows = [
        with_site(rows, place, name)
        for place, (name, rows) in enumerate(zip(federation.names, federation.rows, strict=True))
    ]
    return replace(federation, rows=tuple(rows))
