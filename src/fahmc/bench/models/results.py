"""What came of the comparison with NumPyro, as JSON and Markdown."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pydantic_core import to_jsonable_python

from fahmc.bench.certificate import TOO_FAR, TOO_WIDE
from fahmc.bench.rounds.results import table
from fahmc.durable import write_atomically
from fahmc.experiments.machine import machine_facts

HEADINGS = ("model", "rounds", "least ESS", "means off, sd", "worst sd ratio", "verdict", "NumPyro's own error, sd")


@dataclass(frozen=True)
class Compared:
    """One case: what the run cost, and how far it is from NumPyro's posterior, the worst of all parameters."""

    model: str
    rounds: float = np.nan
    ess: float = np.nan
    mean_error: float = np.nan
    """|mean − NumPyro's|, in NumPyro's standard deviations."""
    sd_ratio: float = np.nan
    """sd / NumPyro's, of the parameter where it is furthest from 1."""
    verdict: str = "error"
    reference_error: float = np.nan
    reference_faults: tuple[str, ...] = ()
    error: str | None = None

    @property
    def is_close(self) -> bool:
        """Whether means and standard deviations are as a good verdict has them; what is not a number is not."""
        return self.mean_error <= TOO_FAR and abs(self.sd_ratio - 1) <= TOO_WIDE

    @property
    def is_false_green(self) -> bool:
        """Whether the verdict was good, and should not have been."""
        return self.verdict == "good" and not self.is_close

    @property
    def words(self) -> str:
        """One line."""
        return self.error or f"{self.rounds:.0f} rounds, means {self.mean_error:.3f} sd off, verdict {self.verdict}"

    def row(self) -> tuple[str, ...]:
        """Return it as cells."""
        numbers = (f"{self.rounds:.0f}", f"{self.ess:,.0f}", f"{self.mean_error:.3f}", f"{self.sd_ratio:.3f}")
        return (self.model, *numbers, self.verdict, f"{self.reference_error:.3f}")


@dataclass
class Results:
    """All cases."""

    is_quick: bool = False
    compared: list[Compared] = field(default_factory=list)
    seconds: float = 0.0
    machine: dict[str, Any] = field(default_factory=machine_facts)

    @property
    def false_greens(self) -> list[Compared]:
        """Return the cases whose good verdict is wrong."""
        return [one for one in self.compared if one.is_false_green]

    def conclusion(self) -> str:
        """Say how many verdicts are good, and whether they are right."""
        num_good = sum(one.verdict == "good" for one in self.compared)
        return (
            f"{num_good} of {len(self.compared)} verdicts are good; {len(self.false_greens)} of these are wrong: a "
            f"mean off by more than {TOO_FAR} sd, or an sd by more than {100 * TOO_WIDE:.0f} %."
        )

    def notes(self) -> list[str]:
        """Say what could not be compared as it should."""
        failed = [f"{one.model}: {one.error}" for one in self.compared if one.error]
        doubtful = [
            f"{one.model}: NumPyro's posterior is none to hold others against ({', '.join(one.reference_faults)})."
            for one in self.compared
            if one.reference_faults
        ]
        return failed + doubtful

    def as_values(self) -> dict[str, Any]:
        """Return everything as JSON has it."""
        cases = [asdict(one) | {"is_close": one.is_close} for one in self.compared]
        values = {"machine": self.machine, "is_quick": self.is_quick, "seconds": self.seconds, "models": cases}
        return to_jsonable_python(values, inf_nan_mode="null")

    def write(self, folder: Path) -> list[Path]:
        """Write results.json and table.md."""
        files = [folder / name for name in ("results.json", "table.md")]
        write_atomically(files[0], (json.dumps(self.as_values(), indent=1) + "\n").encode())
        write_atomically(files[1], self.as_markdown().encode())
        return files

    def as_markdown(self) -> str:
        """Write the table."""
        machine = self.machine
        lines = [
            "# fahmc bench models",
            "",
            f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}; {machine['date']}. No settings, single "
            "precision; NumPyro's NUTS on pooled rows in double precision.",
            "",
            self.conclusion(),
            *(f"\n{note}" for note in self.notes()),
            "",
            *table(HEADINGS, (one.row() for one in self.compared)),
        ]
        return "\n".join(lines) + "\n"
