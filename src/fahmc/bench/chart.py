"""All ratios in one figure: the median as a dot, the spread as a line, the aim as a stroke."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fahmc.bench.results import Finding, in_figures
from fahmc.durable import write_atomically
from fahmc.report.canvas import COLOURS, as_image, dress, legend_below_title, panels

_ROW_HEIGHT = 0.27
# Colour and shape: told apart in grey as well.
_LOOKS = {
    True: ("aim met", COLOURS[2], "o"),
    False: ("aim missed", COLOURS[1], "X"),
    None: ("no aim", COLOURS[6], "s"),
}


def write_chart(findings: Sequence[Finding], path: Path) -> None:
    """Draw the ratios, workload by workload from the top; times in seconds are left to the tables."""
    from matplotlib.ticker import LogLocator, NullLocator

    ratios = [finding for finding in findings if finding.unit == "x"]
    if not ratios:
        return
    height = 1.2 + _ROW_HEIGHT * len(ratios)
    figure, [axis] = panels(1, "fahmc bench: ratios", num_columns=1, panel=(10, height), has_legend=True)
    dress(axis)
    for is_met, (label, colour, marker) in _LOOKS.items():
        rows = [(place, finding) for place, finding in enumerate(ratios) if finding.is_met is is_met]
        if not rows:
            continue
        places = [place for place, _ in rows]
        axis.hlines(places, [f.spread.low for _, f in rows], [f.spread.high for _, f in rows], colour, linewidth=2)
        axis.plot([f.spread.median for _, f in rows], places, marker, color=colour, markersize=6, label=label)
    aims = [(place, finding.aim) for place, finding in enumerate(ratios) if finding.aim is not None]
    axis.plot(
        [aim.bound for _, aim in aims], [place for place, _ in aims], "|", color="black", markersize=13, label="aim"
    )
    for place, (finding, previous) in enumerate(zip(ratios, [None, *ratios], strict=False)):
        axis.annotate(
            in_figures(finding.spread.median),
            (1.01, place),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=8,
        )
        if previous is not None and previous.workload != finding.workload:
            axis.axhline(place - 0.5, color="0.85", linewidth=0.8)
    axis.axvline(1, color="0.6", linewidth=0.8, linestyle=":")
    axis.set_yticks(range(len(ratios)), [f"{f.workload}  {f.case}:  {f.words}" for f in ratios], fontsize=8)
    axis.set_xscale("log")
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_ylim(len(ratios) - 0.5, -0.5)
    axis.set_xlabel("ratio (logarithmic); aims are lower bounds, but for times and memory upper ones", fontsize=9)
    legend_below_title(figure, axis)
    write_atomically(path, as_image(figure, format="png"))
