"""What was measured, as JSON and Markdown."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fahmc.bench.cases import Aim
from fahmc.bench.timing import Rates, Spread
from fahmc.durable import write_atomically
from fahmc.experiments.machine import machine_facts


@dataclass(frozen=True)
class Finding:
    """One number with its spread over the repeats, and the aim it is held against."""

    workload: str
    title: str
    case: str
    words: str
    spread: Spread
    unit: str = "x"
    aim: Aim | None = None
    rates: tuple[float, float] | None = None
    """Of a ratio: the median rates of its two sides, in chain-leapfrog steps a second."""
    details: dict[str, float] = field(default_factory=dict)

    @property
    def is_met(self) -> bool | None:
        """Whether the median keeps to the aim; None without one."""
        return None if self.aim is None else self.aim.is_met_by(self.spread.median)

    @property
    def value_words(self) -> str:
        """The median with its spread."""
        low, high = in_figures(self.spread.low), in_figures(self.spread.high)
        return f"{in_figures(self.spread.median)} {self.unit} ({low} to {high})"

    @property
    def verdict(self) -> str:
        """Met, missed, or nothing to meet."""
        return {None: "no aim", True: "met", False: "MISSED"}[self.is_met]


@dataclass
class Results:
    """All findings of a run, and what they were measured on."""

    settings: dict[str, Any]
    findings: list[Finding] = field(default_factory=list)
    rates: list[dict[str, Any]] = field(default_factory=list)
    errors: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=machine_facts)

    def add_rates(self, workload: str, case: str, rates: Rates) -> None:
        """Keep the rates of every repeat."""
        self.rates.append({"workload": workload, "case": case, "steps_a_second": rates})

    def conclusion(self) -> str:
        """Say how many aims are met, and where they are not."""
        num_aims = Counter(finding.workload for finding in self.findings if finding.aim is not None)
        num_missed = Counter(finding.workload for finding in self.findings if finding.is_met is False)
        if not num_aims:
            return "Nothing was held against an aim."
        counts = f"{num_aims.total() - num_missed.total()} of {num_aims.total()} aims are met"
        places = ", ".join(f"{count} of {num_aims[name]} in {name}" for name, count in num_missed.items())
        return f"{counts}; missed: {places}." if places else f"{counts}."

    def as_values(self) -> dict[str, Any]:
        """Return everything as JSON has it."""
        findings = [asdict(finding) | {"is_met": finding.is_met} for finding in self.findings]
        for values, finding in zip(findings, self.findings, strict=True):
            values["spread"] = finding.spread._asdict()
            values["aim"] = None if finding.aim is None else str(finding.aim)
        return {
            "machine": self.machine,
            "settings": self.settings,
            "notes": self.notes,
            "agreement": self.errors,
            "findings": findings,
            "rates": self.rates,
        }

    def write(self, folder: Path) -> list[Path]:
        """Write results.json, table.md and ratios.png."""
        from fahmc.bench.chart import write_chart

        files = [folder / name for name in ("results.json", "table.md", "ratios.png")]
        write_atomically(files[0], (json.dumps(self.as_values(), indent=1) + "\n").encode())
        write_atomically(files[1], markdown(self).encode())
        write_chart(self.findings, files[2])
        return files


def markdown(results: Results) -> str:
    """Write one table per workload."""
    machine = results.machine
    packages = ", ".join(f"{name} {number}" for name, number in machine["packages"].items())
    settings = results.settings
    lines = [
        "# fahmc bench",
        "",
        f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}; Python {machine['python']}; {packages}. "
        f"{machine['date']}.",
        "",
        f"Contenders took turns in one process: {settings['repeats']} repeats of about {settings['seconds']:g} s each. "
        "Rates are medians, in leapfrog steps of one chain at all clients a second; ratios are taken within a repeat, "
        "and their smallest and largest stand in brackets.",
        "",
        results.conclusion(),
    ]
    lines += [f"\n{note}" for note in results.notes]
    for name in dict.fromkeys(finding.workload for finding in results.findings):
        group = [finding for finding in results.findings if finding.workload == name]
        lines += ["", f"## {name}: {group[0].title}", "", *_table(group)]
    return "\n".join(lines) + "\n"


def row(finding: Finding) -> tuple[str, ...]:
    """Return a finding as cells: case, what, the two rates, the number, the aim, the verdict."""
    rates = tuple(f"{rate:,.0f}" if rate >= 100 else in_figures(rate) for rate in finding.rates or ()) or ("", "")
    aim = "" if finding.aim is None else f"{finding.aim} {finding.unit}"
    return (finding.case, finding.words, *rates, finding.value_words, aim, finding.verdict)


HEADINGS = ("case", "compared", "rate", "of the other", "median (min to max)", "aim", "verdict")


def in_figures(value: float) -> str:
    """Write a number with three figures."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _table(findings: Iterable[Finding]) -> list[str]:
    rows = [HEADINGS, tuple("---" for _ in HEADINGS), *(row(finding) for finding in findings)]
    return ["| " + " | ".join(cells) + " |" for cells in rows]
