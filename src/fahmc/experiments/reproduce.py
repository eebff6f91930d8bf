"""Make a figure: run what is missing, judge the claims, write the folder."""

from __future__ import annotations

from pathlib import Path

from fahmc.experiments import folder as folders
from fahmc.experiments.catalogue import FIGURES
from fahmc.experiments.outcome import Figure, Outcome, Run, Scale
from fahmc.experiments.work import Report, Work
from fahmc.runs.machine import machine_facts

# Results of single runs and references, next to the figures but out of sight.
WORK_FOLDER = ".work"


def reproduce(
    figure: Figure, out: Path, scale: Scale, report: Report = lambda done, total, doing: None
) -> tuple[Outcome, float]:
    """Make a figure in ``out/<name>``; return it and the seconds of all its runs, earlier calls' included."""
    kept = out / WORK_FOLDER / scale
    work = Work(kept, report)
    run = Run(scale, work, lambda name: folders.read_table(out / name, scale))
    outcome = figure.make(run)
    folders.write(out / figure.name, figure, outcome, scale, work.seconds, machine_facts())
    index = folders.index_page(out, FIGURES)
    if index is not None:
        (out / "README.md").write_text(index, encoding="utf-8")
    return outcome, work.seconds
