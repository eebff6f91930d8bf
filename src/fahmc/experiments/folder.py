"""A figure's folder: table.csv, figure.png, figure.svg, verdict.md and settings.json; over several, index.md."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from fahmc.durable import write_atomically
from fahmc.experiments.outcome import Figure, Outcome, Scale, Standing, Table
from fahmc.experiments.work import Work
from fahmc.report.canvas import as_image
from fahmc.report.quantities import in_time

_DIGITS = "%.6g"
_WRITTEN = {"figure", "title", "scale", "machines", "seconds", "claims"}


def write(folder: Path, figure: Figure, outcome: Outcome, scale: Scale, work: Work) -> None:
    """Write everything about a figure. The settings come last: a folder that has them is whole."""
    (folder / "settings.json").unlink(missing_ok=True)
    for name, table in {"table": outcome.table, **outcome.tables}.items():
        write_atomically(folder / f"{name}.csv", table.to_csv(index=False, float_format=_DIGITS).encode())
    picture = outcome.draw()
    write_atomically(folder / "figure.png", as_image(picture, format="png", dpi=150))
    # Without a date and with fixed names of parts, the same numbers give the same file.
    from matplotlib import rc_context

    with rc_context({"svg.hashsalt": "fahmc"}):
        write_atomically(folder / "figure.svg", as_image(picture, format="svg", metadata={"Date": None}))
    write_atomically(folder / "verdict.md", verdict_page(figure, outcome, scale, work).encode())
    settings = {
        "figure": figure.name,
        "title": figure.title,
        "scale": scale,
        "machines": work.machines,
        "seconds": round(work.seconds, 1),
        "claims": [claim._asdict() for claim in outcome.claims],
        "notes": outcome.notes,
        "settings": dict(outcome.settings),
        "runs": work.jobs,
    }
    write_atomically(folder / "settings.json", (json.dumps(settings, indent=1, ensure_ascii=False) + "\n").encode())


def verdict_page(figure: Figure, outcome: Outcome, scale: Scale, work: Work) -> str:
    """Write the verdict: each claim of the paper, what we got, and whether it shows."""
    made = "; ".join(
        f"{m['date']}, {m['cpu']}, {m['cores']} cores, fahmc {m['fahmc']}, JAX {m['jax']}" for m in work.machines
    )
    lines = [
        f"# Figure {figure.name}: {figure.title}",
        "",
        f"Scale: {scale}. Command: `fahmc reproduce {figure.name} --scale {scale}`. Data: {figure.needs}.",
        f"Runs made on {made}; {in_time(work.seconds)}.",
        "",
        f"![Figure {figure.name}](figure.png)",
        "",
        "| the paper's claim | what we got | verdict |",
        "| --- | --- | --- |",
        *(f"| {_cell(c.statement)} | {_cell(c.found)} | {_strong(c.standing)} |" for c in outcome.claims),
        "",
        "## To know before believing it",
        "",
        *(f"- {note}" for note in outcome.notes),
        "",
        "All numbers: `table.csv`"
        + "".join(f", `{name}.csv`" for name in outcome.tables)
        + "; settings: `settings.json`.",
        "",
    ]
    return "\n".join(lines)


def index_page(folder: Path, names: Iterable[str]) -> str | None:
    """Write the index of the figures that lie in a folder, or None if there are none."""
    made = [settings for name in names if (settings := read_settings(folder / name)) is not None]
    if not made:
        return None
    standings = [claim["standing"] for settings in made for claim in settings["claims"]]
    lines = [
        "# The paper's figures",
        "",
        "Made by `fahmc reproduce` for Liang, Zhang, Deng, Song and Lin (2024), arXiv:2407.06935. Each folder holds",
        "the table, the picture, the verdict and the settings.",
        "",
        f"Of {len(standings)} claims: {count_standings(standings)}.",
        "",
        "| figure | scale | made | claims that show | |",
        "| --- | --- | --- | --- | --- |",
    ]
    for settings in made:
        name, claims = settings["figure"], settings["claims"]
        shown = sum(claim["standing"] == Standing.REPRODUCED for claim in claims)
        dates, cores = (sorted({machine[name] for machine in settings["machines"]}) for name in ("date", "cores"))
        when = f"{' to '.join(dict.fromkeys((dates[0], dates[-1])))}, {cores[-1]} cores, {in_time(settings['seconds'])}"
        link = f"[{name}: {settings['title']}]({name}/verdict.md)"
        lines.append(
            f"| {link} | {settings['scale']} | {when} | {shown} of {len(claims)} | ![{name}]({name}/figure.png) |"
        )
    return "\n".join([*lines, ""])


def read_settings(folder: Path) -> dict[str, Any] | None:
    """Return a whole folder's settings; None where there are none, or none that can be read."""
    path = folder / "settings.json"
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return settings if isinstance(settings, dict) and _WRITTEN <= settings.keys() else None


def read_table(folder: Path, scale: Scale) -> Table | None:
    """Return a figure's table if its folder is whole and of this scale."""
    settings = read_settings(folder)
    return pd.read_csv(folder / "table.csv") if settings is not None and settings["scale"] == scale else None


def count_standings(standings: Iterable[str]) -> str:
    """Write how many claims stand how."""
    counts = Counter(standings)
    return ", ".join(f"{counts[standing]} {standing}" for standing in Standing if counts[standing])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _strong(standing: Standing) -> str:
    return f"**{standing}**" if standing == Standing.NOT_REPRODUCED else str(standing)
