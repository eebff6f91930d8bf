"""Jobs that are done once: each result goes to a file at once, so an interrupted figure goes on where it stopped."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from fahmc.durable import append_record, read_records
from fahmc.experiments.machine import machine_facts
from fahmc.runs.checkpoint import lock_folder

Values = dict[str, Any]

# To be raised when the samplers or the measures change, so that old results are not mixed with new ones.
_FORMAT = 1
_ENTRY = {"job", "result", "seconds", "machine"}


class ShowJobs(Protocol):
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
        Where results, references and unfinished runs are kept; locked until `close`.
    """

    def __init__(self, folder: Path, show_jobs: ShowJobs = lambda done, total, doing: None):
        self.folder, self._show_jobs = folder, show_jobs
        self._path = folder / "results.jsonl"
        self._done = self._total = 0
        self._used: set[str] = set()
        self._spent = 0.0
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = lock_folder(folder)
        self._known = _read_lines(self._path)

    def close(self) -> None:
        """Let other processes in."""
        self._lock.release()

    @property
    def seconds(self) -> float:
        """What the results that were asked for took to make, now or earlier."""
        return self._spent + sum(self._known[key]["seconds"] for key in self._used)

    @property
    def jobs(self) -> list[Values]:
        """The settings of all results that were asked for."""
        return [self._known[key]["job"] for key in sorted(self._used)]

    @property
    def machines(self) -> list[Values]:
        """Where and when those results were made, each combination once."""
        texts = {json.dumps(self._known[key]["machine"], sort_keys=True) for key in self._used}
        return [json.loads(text) for text in sorted(texts)]

    def spent(self, seconds: float) -> None:
        """Count work that is kept elsewhere."""
        self._spent += seconds

    def expect(self, num_jobs: int) -> None:
        """Announce jobs to come, for the progress bar."""
        self._total += num_jobs
        self._show_jobs(self._done, self._total, "")

    def once(self, job: Mapping[str, Any], compute: Callable[[Path], Values], label: str = "") -> Values:
        """Return the job's result: the one on file, or else what ``compute`` returns, which is filed.

        ``compute`` is given a folder of its own for a run's checkpoints; it is removed when the result is on file.
        """
        job = {"format": _FORMAT, **job}
        key = json.dumps(job, sort_keys=True)
        checkpoints = self.folder / hashlib.sha256(key.encode()).hexdigest()[:16]
        self._show_jobs(self._done, self._total, label)
        if key not in self._known:
            began = time.perf_counter()
            result = compute(checkpoints)
            seconds = time.perf_counter() - began
            self._keep(key, {"job": job, "result": result, "seconds": seconds, "machine": _machine()})
        shutil.rmtree(checkpoints, ignore_errors=True)
        # A job that two scores or two sweeps ask for is one.
        self._done += key not in self._used
        self._used.add(key)
        self._show_jobs(self._done, max(self._total, self._done), label)
        return self._known[key]["result"]

    def _keep(self, key: str, entry: Values) -> None:
        # Once through JSON, so that a result is the same now and when it is read again.
        self._known[key] = json.loads(json.dumps(entry))
        append_record(self._path, entry)


def _machine() -> Values:
    facts = machine_facts()
    packages = {name: facts["packages"][name] for name in ("fahmc", "jax")}
    return {name: facts[name] for name in ("date", "cpu", "cores")} | packages


def _read_lines(path: Path) -> dict[str, Values]:
    entries = [entry for entry in read_records(path) if _ENTRY <= entry.keys()]
    return {json.dumps(entry["job"], sort_keys=True): entry for entry in entries}
