"""What all figures share: panels, titles, legends, colours.

Figures are made without pyplot, so no backend is chosen and no global setting of the caller's is touched.
"""

from __future__ import annotations

import io
import textwrap
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's palette, told apart with any common colour blindness."""
LINE_STYLES = ("-", "--", ":", "-.")
"""Repeat the distinction where a page is printed in grey."""
MARKERS = ("o", "D", "s", "^")

_MAX_LABEL, _MAX_LEGEND, _MAX_LINES = 60, 8, 3
_LETTERS_PER_INCH = 16  # of an axis not yet laid out, which takes 70 % of its panel; in the panel there is room for 14
# Inches kept free above the panels, for the title and under it the legend; matplotlib's own layout lets them overlap.
_TITLE_HEIGHT, _LEGEND_HEIGHT = 0.4, 0.3


def panels(
    num_panels: int, title: str, *, num_columns: int, panel: tuple[float, float], has_legend: bool
) -> tuple[Figure, list[Axes]]:
    """Return a figure with ``num_panels`` axes of ``panel`` inches each, filled row by row.

    ``has_legend`` keeps room for `legend_below_title`.
    """
    from matplotlib.figure import Figure

    num_columns = min(num_columns, num_panels)
    num_rows = -(-num_panels // num_columns)
    head = _TITLE_HEIGHT + _LEGEND_HEIGHT * has_legend
    height = panel[1] * num_rows + head
    figure = Figure(figsize=(max(4.5, panel[0] * num_columns), height), dpi=110)
    figure.set_layout_engine("constrained", rect=(0, 0, 1, 1 - head / height))
    axes = list(figure.subplots(num_rows, num_columns, squeeze=False).flat)
    for spare in axes[num_panels:]:
        spare.remove()
    figure.suptitle(title, y=1 - 0.1 / height, va="top", fontsize=12, fontweight="bold")
    return figure, axes[:num_panels]


def dress(axis: Axes, title: str | None = None) -> None:
    """Give an axis the common look, and a title that does not run into its neighbours'."""
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(labelsize=9)
    if title is not None:
        axis.set_title(plain(title, int(_LETTERS_PER_INCH * axis.bbox.width / axis.figure.dpi)), fontsize=10)


def plain(name: str, max_letters: int = _MAX_LABEL) -> str:
    """Return somebody's name for something as matplotlib must have it: in a few short lines, with no formula in it."""
    return textwrap.fill(name, max_letters, max_lines=_MAX_LINES, placeholder=" …").replace("$", r"\$")


def label_decades(axis: Axes, *which: str) -> None:
    """Make axes ("x", "y") logarithmic, with plain numbers at 1, 2 and 5 of every decade."""
    from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

    for name in which:
        getattr(axis, f"set_{name}scale")("log")
        ticks = getattr(axis, f"{name}axis")
        ticks.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ticks.set_major_formatter(FormatStrFormatter("%g"))
        ticks.set_minor_formatter(NullFormatter())


def legend_below_title(figure: Figure, axis: Axes) -> None:
    """Put one legend for all panels between title and panels; entries past the eighth are left to the eye."""
    handles, labels = axis.get_legend_handles_labels()
    if len(handles) > 1:
        legend = figure.legend(
            handles[:_MAX_LEGEND],
            [plain(label) for label in labels[:_MAX_LEGEND]],
            loc="upper center",
            bbox_to_anchor=(0.5, 1 - _TITLE_HEIGHT / figure.get_figheight()),
            borderaxespad=0,
            ncols=_MAX_LEGEND,
            fontsize=9,
            frameon=False,
        )
        for line in legend.get_lines():
            line.set_linewidth(max(line.get_linewidth(), 2.0))
            line.set_alpha(1.0)


def as_image(figure: Figure, **options: Any) -> bytes:
    """Return the content of an image file; ``options`` are those of ``savefig``."""
    buffer = io.BytesIO()
    figure.savefig(buffer, **options)
    return buffer.getvalue()
