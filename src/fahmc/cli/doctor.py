"""`fahmc federation doctor`: what is wrong with a server's, site's or analyst's kit, and what to do about it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from rich.markup import escape

from fahmc.cli.output import Output
from fahmc.engines.flare.doctor import Case, examine
from fahmc.engines.flare.kits import Kit

_PROBLEM = 6
_MARKS = {"ok": "[green]ok     [/]", "problem": "[red]problem[/]", "unknown": "[yellow]unknown[/]"}


def examine_kit(kit: Path, data: Path | None, rules: Path | None, seconds: float, output: Output) -> None:
    """Check everything that a participant needs, and say what to do about what is wrong."""
    findings = []
    for finding in examine(Case(Kit.load(kit), data, rules), seconds):
        output.show(f"{_MARKS[finding.status]} {finding.check:<13} {escape(finding.words)}")
        findings.append(finding)
    counts = Counter(finding.status for finding in findings)
    exit_code = _PROBLEM if counts["problem"] else 0
    unknown = f" {counts['unknown']} could not be checked." if counts["unknown"] else ""
    output.show(f"{counts['problem'] or 'No'} problem{'s' if counts['problem'] != 1 else ''}.{unknown}")
    output.result(exit_code=exit_code, findings=[finding._asdict() for finding in findings])
    output.end(exit_code)
