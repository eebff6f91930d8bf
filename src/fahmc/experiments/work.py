"""Jobs that are done once: each result goes to a file at once, so an interrupted figure goes on where it stopped."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

Values = dict[str, Any]


class Report(Protocol):
    """Told how many jobs are done, of how many, and what is being done."""

    def __call__(self, done: int, total: int, doing: str, /) -> None:
        """Move the bar."""
        ...


class Work:
    """The jobs of one figure, in a folder that figures share: they have some runs in common.

    A job is known by its settings: a mapping of JSON values that everything in its result depends on. Its result is
    another such mapping. Results are kept as lines of JSON; a line that was cut off by a kill is done again.

    Parameters
    ----------
    folder
        Where results, references and unfinished runs are kept.
    """

    def __init__(self, folder: Path, report: Report = lambda done, total, doing: None):
        self.folder, self._report = folder, report
        self._path = folder / "results.jsonl"
        self._done = self._total = 0
        self._used: set[str] = set()
        self._spent = 0.0
        folder.mkdir(parents=True, exist_ok=True)
        self._known = _read_lines(self._path)

    @property
    def seconds(self) -> float:
        """What the results that were asked for took to make, now or earlier."""
        return self._spent + sum(self._known[key]["seconds"] for key in self._used)

    def spent(self, seconds: float) -> None:
        """Count work that is kept elsewhere."""
        self._spent += seconds

    def expect(self, num_jobs: int) -> None:
        """Announce jobs to come, for the progress bar."""
        self._total += num_jobs
        self._report(self._done, self._total, "")

    def once(self, job: Mapping[str, Any], compute: Callable[[Path], Values], label: str = "") -> Values:
        """Return the job's result: the one on file, or else what ``compute`` returns, which is filed.

        ``compute`` is given a folder of its own for a run's checkpoints; it is removed when the result is on file.
        """
        key = json.dumps(job, sort_keys=True)
        self._report(self._done, self._total, label)
        if key not in self._known:
            checkpoints = self.folder / hashlib.sha256(key.encode()).hexdigest()[:16]
            began = time.perf_counter()
            result = compute(checkpoints)
            self._keep(key, {"job": dict(job), "result": result, "seconds": time.perf_counter() - began})
            shutil.rmtree(checkpoints, ignore_errors=True)
        self._done += 1
        self._report(self._done, max(self._total, self._done), label)
        self._used.add(key)
        return self._known[key]["result"]

    def _keep(self, key: str, entry: Values) -> None:
        # Once through JSON, so that a result is the same now and when it is read again.
        line = json.dumps(entry)
        self._known[key] = json.loads(line)
        is_torn = self._path.exists() and not self._path.read_bytes().endswith(b"\n")
        with self._path.open("a", encoding="utf-8") as file:
            file.write(("\n" if is_torn else "") + line + "\n")
            file.flush()
            os.fsync(file.fileno())


def _read_lines(path: Path) -> dict[str, Values]:
    known = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            entry = json.loads(line)
            known[json.dumps(entry["job"], sort_keys=True)] = entry
        except (json.JSONDecodeError, KeyError, TypeError):
            continue
    return known
