"""`fahmc reproduce`: the paper's figures, with a progress bar on standard error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from fahmc.cli.output import Output
from fahmc.data.images import is_available
from fahmc.errors import SettingsError
from fahmc.experiments.catalogue import FIGURES, choose, takes
from fahmc.experiments.folder import count_standings
from fahmc.experiments.outcome import SCALES, Outcome, Scale, Standing
from fahmc.experiments.reproduce import WORK_FOLDER, reproduce
from fahmc.experiments.work import ShowJobs
from fahmc.report.quantities import in_time

_COLOURS = {Standing.REPRODUCED: "green", Standing.NOT_REPRODUCED: "yellow", Standing.OUT_OF_REACH: "cyan"}


def list_figures(output: Output) -> None:
    """Print the figures with what they need and how long they take."""
    table = Table("figure", "shows", "needs", *(f"{scale} takes" for scale in SCALES), title="fahmc reproduce FIGURE")
    rows: list[dict[str, Any]] = [
        {
            "figure": f.name,
            "title": f.title,
            "needs": f.needs,
            "is_here": all(map(is_available, f.images)),
            "takes": takes(f.name),
        }
        for f in FIGURES.values()
    ]
    for row in rows:
        needs = row["needs"] + ("" if row["is_here"] else " (not here yet: it will be downloaded)")
        table.add_row(row["figure"], row["title"], needs, *row["takes"].values())
    output.show(table, "Times are for two cores; those of paper scale follow from the others by the number of steps.")
    output.result({"command": "reproduce", "status": "ok", "figures": rows})


def run_reproduce(names: Sequence[str], out: Path, scale: str, hidden: str | None, output: Output) -> None:
    """Make the figures one after another, and print their verdicts."""
    if "list" in names:
        if len(names) > 1:
            raise SettingsError("reproduce list takes no figure; give either list or figures.")
        list_figures(output)
        return
    chosen_scale = _checked_scale(scale)
    figures = choose(list(names))
    layers = None if hidden is None else _checked_layers(hidden)
    if layers is not None and "5" not in {figure.name for figure in figures}:
        raise SettingsError("--hidden is for the network of figure 5, which is not among the figures asked for.")
    made = {}
    for figure in figures:
        try:
            with _progress(f"figure {figure.name}", output) as show_jobs:
                outcome, seconds = reproduce(figure, out, chosen_scale, show_jobs, hidden=layers)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"figure {figure.name} is not finished; the runs done so far are kept in {out / WORK_FOLDER}, and the "
                "same command goes on from there"
            ) from None
        made[figure.name] = {
            "folder": out / figure.name,
            "seconds": seconds,
            "claims": [claim._asdict() for claim in outcome.claims],
            "notes": outcome.notes,
        }
        output.show(
            _verdict_table(figure.name, outcome),
            f"{out / figure.name}: {count_standings(claim.standing for claim in outcome.claims)}; {in_time(seconds)}.",
        )
    output.result({"command": "reproduce", "status": "ok", "scale": scale, "figures": made})


def _checked_scale(scale: str) -> Scale:
    for known in SCALES:
        if scale == known:
            return known
    raise SettingsError(f"--scale is {scale!r}; it must be one of {', '.join(SCALES)}.")


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
    columns = [
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("runs"), TimeElapsedColumn(),
        TextColumn("{task.fields[doing]}"),
    ]  # fmt: skip
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(title, total=None, doing="making the reference")
        yield lambda done, total, doing: bar.update(task, completed=done, total=total or None, doing=escape(doing))
