"""`fahmc reproduce`: the paper's figures, with a progress bar on standard error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn
from rich.table import Table

from fahmc.cli.output import Output
from fahmc.errors import SettingsError
from fahmc.experiments.catalogue import FIGURES, choose, takes
from fahmc.experiments.folder import count_standings
from fahmc.experiments.image_sets import is_available
from fahmc.experiments.outcome import SCALES, Outcome, Scale, Standing
from fahmc.experiments.reproduce import WORK_FOLDER, reproduce
from fahmc.experiments.work import ShowJobs
from fahmc.report.quantities import in_time

_COLOURS = {Standing.REPRODUCED: "green", Standing.NOT_REPRODUCED: "yellow", Standing.OUT_OF_REACH: "cyan"}


def list_figures(output: Output) -> None:
    """Print the figures with what they need and how long they take."""
    table = Table("figure", "shows", "needs", *(f"{scale} takes" for scale in SCALES), title="fahmc reproduce FIGURE")
    rows = []
    for name, figure in FIGURES.items():
        is_here, times = all(map(is_available, figure.images)), takes(name)
        needs = figure.needs + ("" if is_here else " (not here yet: it will be downloaded)")
        table.add_row(name, figure.title, needs, *times.values())
        rows.append(dict(figure=name, title=figure.title, needs=figure.needs, is_here=is_here, takes=times))
    output.show(table, "Times are for two cores; those of paper scale follow from the others by the number of steps.")
    output.result("ok", figures=rows)


def run_reproduce(figures: list[str], folder: Path, scale: str, hidden: str | None, output: Output) -> None:
    """Make the figures one after another, and print their verdicts."""
    if "list" in figures:
        if len(figures) > 1:
            raise SettingsError("reproduce list takes no figure; give either list or figures.")
        return list_figures(output)
    chosen_scale: Scale | None = next((known for known in SCALES if known == scale), None)
    if chosen_scale is None:
        raise SettingsError(f"--scale is {scale!r}; it must be one of {', '.join(SCALES)}.")
    chosen, layers = choose(figures), None if hidden is None else _checked_layers(hidden)
    if layers is not None and "5" not in {figure.name for figure in chosen}:
        raise SettingsError("--hidden is for the network of figure 5, which is not among the figures asked for.")
    made = {}
    for figure in chosen:
        try:
            with _progress(f"figure {figure.name}", output) as show_jobs:
                outcome, seconds = reproduce(figure, folder, chosen_scale, show_jobs, hidden=layers)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"figure {figure.name} is not finished; the runs done so far are kept in {folder / WORK_FOLDER}, and "
                "the same command goes on from there"
            ) from None
        claims, place = [claim._asdict() for claim in outcome.claims], folder / figure.name
        made[figure.name] = {"folder": place, "seconds": seconds, "claims": claims, "notes": outcome.notes}
        counts = count_standings(claim.standing for claim in outcome.claims)
        output.show(_verdict_table(figure.name, outcome), f"{place}: {counts}; {in_time(seconds)}.")
    output.result("ok", scale=scale, figures=made)


def _checked_layers(text: str) -> tuple[int, ...]:
    try:
        layers = tuple(int(word) for word in text.split(","))
    except ValueError:
        layers = ()
    if not layers or min(layers) < 1:
        raise SettingsError(f"--hidden is {text!r}; it must be whole numbers with commas, such as 512,512.")
    return layers


def _verdict_table(name: str, outcome: Outcome) -> Table:
    table = Table(
        "the paper's claim", "what we got", "verdict", title=f"Figure {name}", title_justify="left", show_lines=True
    )
    for claim in outcome.claims:
        table.add_row(escape(claim.statement), escape(claim.found), f"[{_COLOURS[claim.standing]}]{claim.standing}[/]")
    return table


@contextmanager
def _progress(title: str, output: Output) -> Iterator[ShowJobs]:
    """Show the jobs done, and what is being done."""
    console = Console(stderr=True)
    if output.is_quiet or not console.is_terminal:
        yield lambda done, total, doing: None
        return
    counts = ("{task.description}", BarColumn(), MofNCompleteColumn(), "runs", TimeElapsedColumn())
    with Progress(*counts, "{task.fields[doing]}", console=console) as bar:
        task = bar.add_task(title, total=None, doing="making the reference")
        yield lambda done, total, doing: bar.update(task, completed=done, total=total or None, doing=escape(doing))
