"""Finished runs in a file, one JSON object a line, so that the same command goes on where it was stopped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Generic, TypeVar

from fahmc.durable import append_record, read_records

Record = TypeVar("Record")


class Kept(Generic[Record]):
    """Records of one dataclass by some of their fields."""

    def __init__(self, path: Path, kind: Callable[..., Record], fields: tuple[str, ...]):
        self._path, self._kind, self._fields = path, kind, fields
        self._records: dict[tuple[Any, ...], Record] = {}
        for entries in read_records(path):
            self._remember(kind(**entries))

    def __len__(self) -> int:
        return len(self._records)

    def get(self, *names: Any) -> Record | None:
        """Return the record with these fields, if there is one."""
        return self._records.get(names)

    def add(self, record: Record) -> Record:
        """Keep a record, on disk too."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        append_record(self._path, asdict(record))  # type: ignore[call-overload]
        return self._remember(record)

    def _remember(self, record: Record) -> Record:
        self._records[tuple(getattr(record, name) for name in self._fields)] = record
        return record
