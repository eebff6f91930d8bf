"""What is odd about the levels of text columns, once all clients' summaries are known.

Another spelling at one client makes a coefficient of its own: nothing is wrong with the table, and yet nobody wants it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from fahmc.data.columns import Columns
from fahmc.data.summaries import ColumnSummary, TableSummary

# Of each kind, as many are named; a column of regions may well have a level for every client.
_MAX_NAMED = 10


def level_remarks(columns: Columns, features: Sequence[str], summaries: Mapping[str, TableSummary]) -> list[str]:
    """Name levels that differ only by case or spaces, and those that occur at one client only."""
    remarks = []
    for column in features:
        remarks += _of_column(column, {client: summary.features[column] for client, summary in summaries.items()})
    return remarks + list(_of_column(columns.named_outcome, {name: one.outcome for name, one in summaries.items()}))


def _of_column(column: str, at_clients: Mapping[str, ColumnSummary]) -> Iterator[str]:
    owners: dict[str, list[str]] = {}
    for client, summary in at_clients.items():
        for level in summary.levels:
            owners.setdefault(level, []).append(client)
    spellings: dict[str, list[str]] = {}
    for level in owners:
        spellings.setdefault("".join(level.split()).casefold(), []).append(level)
    alike = [" and ".join(map(repr, sorted(group))) for group in spellings.values() if len(group) > 1]
    if alike:
        yield (
            f"Levels of {column!r} that differ only by case or spaces count as different: {_listed(alike)}. Spell them "
            "alike at all clients if they mean the same."
        )
    alone = [f"{level!r} ({clients[0]})" for level, clients in sorted(owners.items()) if len(clients) == 1]
    if alone and len(at_clients) > 1:
        yield (
            f"Levels of {column!r} that occur at one client only: {_listed(alone)}. Each has a coefficient of its own, "
            "which that client alone informs."
        )


def _listed(words: Sequence[str]) -> str:
    return ", ".join(words[:_MAX_NAMED]) + (f" and {len(words) - _MAX_NAMED} more" if len(words) > _MAX_NAMED else "")
