"""Make a figure: run what is missing, judge the claims, write the folder."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from fahmc.durable import write_atomically
from fahmc.errors import SettingsError
from fahmc.experiments import folder as folders
from fahmc.experiments.catalogue import FIGURES
from fahmc.experiments.outcome import SCALES, Figure, Outcome, Run, Scale
from fahmc.experiments.work import ShowJobs, Work
from fahmc.own_folder import own_folder

# Results of single runs and references, next to the figures but out of sight.
WORK_FOLDER = ".work"


def reproduce(
    figure: Figure,
    out: Path,
    scale: Scale,
    show_jobs: ShowJobs = lambda done, total, doing: None,
    *,
    hidden: tuple[int, ...] | None = None,
) -> tuple[Outcome, float]:
    """Make a figure in ``out/<name>``; return it and the seconds of all its runs, earlier calls' included.

    ``hidden`` gives figure 5's network other layers than 512 and 512 units.
    """
    folder = out / figure.name
    _refuse_larger_scale(folder, scale)
    # Before the runs: a place that cannot be written to is better found out now.
    own_folder(out, "fahmc reproduce")
    folder.mkdir(exist_ok=True)
    with closing(Work(out / WORK_FOLDER / scale, show_jobs)) as work:
        outcome = figure.make(Run(scale, work, lambda name: folders.read_table(out / name, scale), hidden))
        folders.write(folder, figure, outcome, scale, work)
        seconds = work.seconds
    index = folders.index_page(out, FIGURES)
    if index is not None:
        write_atomically(out / "index.md", index.encode())
    return outcome, seconds


def _refuse_larger_scale(folder: Path, scale: Scale) -> None:
    """Keep a quick look from replacing what took hours."""
    made = folders.read_settings(folder)
    if made is not None and SCALES.index(made["scale"]) > SCALES.index(scale):
        raise SettingsError(
            f"{folder} holds this figure at {made['scale']} scale, which one at {scale} scale would replace; give "
            "another folder with --out, or delete that one."
        )
