"""What was measured, as JSON and Markdown: how many runs are as they must be, what they cost, and who else does it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pydantic_core import to_jsonable_python

from fahmc.bench.rounds.measure import ESS_LIMIT, MEAN_LIMIT, NUM_CHAINS, SD_LIMIT, Measured
from fahmc.bench.rounds.references import Reference
from fahmc.bench.rounds.rivals import MOST_ROUNDS, Contest
from fahmc.durable import write_atomically
from fahmc.experiments.machine import machine_facts
from fahmc.report.quantities import in_bytes

HEADINGS = (
    "problem",
    "good",
    "rounds",
    "allowed",
    "to clients",
    "to server",
    "least ESS",
    "means off, sd",
    "sds off",
    "k-hat",
    "doubts",
    "seconds",
)
RIVAL_HEADINGS = ("problem", "rival", "settings", "rounds", "to clients", "to server", "means off, sd", "sds off")
REFERENCE_HEADINGS = ("problem", "R-hat", "ESS", "Monte Carlo error, sd", "divergences")


@dataclass(frozen=True)
class Judged:
    """All runs on one problem."""

    problem: str
    data_seed: int
    limit: int
    reference: Reference
    runs: Sequence[Measured]
    is_unseen: bool = False

    @property
    def title(self) -> str:
        """The name, and which rows."""
        return self.problem if self.data_seed == 0 else f"{self.problem}, rows {self.data_seed}"

    @property
    def num_good(self) -> int:
        """How many runs have no fault."""
        return sum(not run.faults for run in self.runs)

    @property
    def is_good(self) -> bool:
        """Whether all runs are as they must be, and the reference is one to hold them against."""
        return self.num_good == len(self.runs) and not self.reference.faults

    def row(self) -> tuple[str, ...]:
        """Return it as cells: of sizes the worst run, of costs the median."""

        def each(name: str) -> np.ndarray:
            return np.array([getattr(run, name) for run in self.runs if run.error is None], dtype=float)

        def reduced(reduce: Any, name: str) -> float:
            values = each(name)
            values = values[~np.isnan(values)]
            return float(reduce(values)) if len(values) else np.nan

        low, high = reduced(np.min, "rounds"), reduced(np.max, "rounds")
        return (
            self.title,
            f"{self.num_good} of {len(self.runs)}",
            f"{low:.0f}" if low == high else f"{low:.0f} to {high:.0f}",
            str(self.limit),
            in_bytes(reduced(np.median, "bytes_to_clients")),
            in_bytes(reduced(np.median, "bytes_to_server")),
            f"{reduced(np.min, 'ess'):,.0f}",
            f"{reduced(np.max, 'mean_error'):.3f}",
            f"{100 * reduced(np.max, 'sd_error'):.1f} %",
            _in_k_hat(reduced(np.max, "k_hat")),
            str(sum(bool(run.doubts) for run in self.runs)),
            f"{reduced(np.median, 'seconds'):.1f}",
        )

    def reference_row(self) -> tuple[str, ...]:
        """Return what the reference is worth."""
        against = self.reference
        return (
            self.title,
            f"{against.r_hat:.4f}",
            f"{against.ess:,.0f}",
            f"{against.error:.3f}",
            str(int(against.num_divergent)),
        )

    def faults(self) -> list[str]:
        """Say what is wrong, run by run."""
        words = [f"{self.title}, the reference: {', '.join(self.reference.faults)}."] if self.reference.faults else []
        return words + [f"{self.title}, seed {run.seed}: {', '.join(run.faults)}." for run in self.runs if run.faults]


@dataclass
class Results:
    """Everything that was measured."""

    settings: dict[str, Any]
    judged: list[Judged] = field(default_factory=list)
    contests: list[Contest] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=machine_facts)

    def conclusion(self) -> str:
        """Say on how many problems every run is good."""
        good = sum(one.is_good for one in self.judged)
        return (
            f"On {good} of {len(self.judged)} problems every run keeps to the rounds that are allowed, with an ESS of "
            f"{ESS_LIMIT:.0f} or more, means within {MEAN_LIMIT} sd and sds within {100 * SD_LIMIT:.0f} %."
        )

    def faults(self) -> list[str]:
        """Say what is wrong anywhere."""
        return [words for one in self.judged for words in one.faults()]

    def rival_rows(self) -> list[tuple[str, ...]]:
        """Return `Auto` (the worst of its runs), then its rivals, problem by problem."""
        rows = []
        for one in self.judged:
            contests = [contest for contest in self.contests if contest.problem == one.problem]
            if contests and one.data_seed == 0:
                cells = dict(zip(HEADINGS, one.row(), strict=True)) | {"rival": "Auto", "settings": "none"}
                rows.append(tuple(cells[heading] for heading in RIVAL_HEADINGS))
                rows += map(_rival_row, contests)
        return rows

    def as_values(self) -> dict[str, Any]:
        """Return everything as JSON has it."""
        problems = [
            {
                "problem": one.problem,
                "data_seed": one.data_seed,
                "limit": one.limit,
                "is_good": one.is_good,
                "is_unseen": one.is_unseen,
                "reference": asdict(one.reference),
                "runs": [asdict(run) | {"faults": run.faults} for run in one.runs],
            }
            for one in self.judged
        ]
        values = {
            "machine": self.machine,
            "settings": self.settings,
            "notes": self.notes,
            "problems": problems,
            "rivals": [asdict(contest) for contest in self.contests],
        }
        return to_jsonable_python(values, inf_nan_mode="null", fallback=lambda value: value.tolist())

    def write(self, folder: Path) -> list[Path]:
        """Write results.json and table.md."""
        files = [folder / name for name in ("results.json", "table.md")]
        write_atomically(files[0], (json.dumps(self.as_values(), indent=1) + "\n").encode())
        write_atomically(files[1], self.as_markdown().encode())
        return files

    def as_markdown(self) -> str:
        """Write the tables."""
        machine = self.machine
        lines = [
            "# fahmc bench rounds",
            "",
            f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}; {machine['date']}. {NUM_CHAINS} chains, "
            "single precision, no settings. Errors and ESS are those of the worst parameter in the worst run, bytes "
            "and seconds those of the median run.",
            "",
            self.conclusion(),
            *(f"\n{note}" for note in self.notes),
        ]
        known = [one for one in self.judged if not one.is_unseen]
        unseen = [one for one in self.judged if one.is_unseen]
        for title, group in (("Problems", known), ("Tables not looked at before", unseen)):
            if group:
                lines += ["", f"## {title}", "", *table(HEADINGS, (one.row() for one in group))]
        if words := self.faults():
            lines += ["", "## What is not as it must be", "", *(f"- {fault}" for fault in words)]
        if rows := self.rival_rows():
            lines += ["", "## Rivals", "", f"Given up after {MOST_ROUNDS:,} rounds.", "", *table(RIVAL_HEADINGS, rows)]
        rows = [one.reference_row() for one in self.judged]
        lines += ["", "## References", "", *table(REFERENCE_HEADINGS, rows)]
        return "\n".join(lines) + "\n"


def table(headings: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    """Write a table in Markdown."""
    return ["| " + " | ".join(cells) + " |" for cells in (headings, tuple("---" for _ in headings), *rows)]


def _rival_row(contest: Contest) -> tuple[str, ...]:
    return (
        contest.problem,
        contest.rival,
        contest.settings,
        f"{contest.rounds:,.0f}" if contest.is_good else f"never in {contest.tried:,.0f}",
        in_bytes(contest.bytes_to_clients),
        in_bytes(contest.bytes_to_server),
        f"{contest.mean_error:.3f}",
        f"{100 * contest.sd_error:.1f} %",
    )


def _in_k_hat(value: float) -> str:
    # Weights that hardly differ have no tail to speak of.
    return "n/a" if np.isnan(value) else "flat" if value < -1 else f"{value:.2f}"
