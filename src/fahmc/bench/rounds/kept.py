"""Finished runs in a file, one JSON object a line, so that the same command goes on where it was stopped."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Generic, TypeVar

Record = TypeVar("Record")


class Kept(Generic[Record]):
    """Records of one dataclass by some of their fields."""

    def __init__(self, path: Path, kind: Callable[..., Record], fields: tuple[str, ...]):
        self._path, self._kind, self._fields = path, kind, fields
        self._records: dict[tuple[Any, ...], Record] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                if line.endswith("}"):  # a last line that a kill cut short is not a record
                    self._remember(kind(**json.loads(line)))

    def __len__(self) -> int:
        return len(self._records)

    def get(self, *names: Any) -> Record | None:
        """Return the record with these fields, if there is one."""
        return self._records.get(names)

    def add(self, record: Record) -> Record:
        """Keep a record, on disk too."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(record)) + "\n")  # type: ignore[call-overload]
        return self._remember(record)

    def _remember(self, record: Record) -> Record:
        self._records[tuple(getattr(record, name) for name in self._fields)] = record
        return record
