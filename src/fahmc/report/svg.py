"""Figures as SVG inside of a page: small, in the page's own letters, and in its colours, light or dark.

matplotlib draws; what is done here is to its text: letters stay letters, numbers lose digits that no screen shows, and
black and white become the page's ink and paper.
"""

from __future__ import annotations

import html
import io
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DIGITS = re.compile(r"(?<![#\w])(-?\d+\.\d{2})\d+")
# Nothing refers to them, and every figure has the same.
_OWN_IDS = re.compile(r' id="(?:[a-z]+|line2d|matplotlib\.axis|[A-Za-z]+Collection)_\d+"')
_THEME = {
    "#000000": "var(--ink)",
    "#1a1a1a": "var(--ink)",
    "#262626": "var(--ink)",
    "#333333": "var(--ink)",
    "#595959": "var(--soft)",
    "#999999": "var(--soft)",
    "#ffffff": "var(--paper)",
}


def as_svg(figure: Figure, words: str) -> str:
    """Return a figure as an ``<svg>`` element; ``words`` say to those who do not see it what it shows."""
    from matplotlib import rc_context

    buffer = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": words, "path.simplify_threshold": 0.5}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->\s*", "", text, flags=re.DOTALL)
    text = re.sub(r"<[^>]*>", lambda tag: _tag(tag[0]), text)
    # A coordinate a line is for people who edit it.
    text = re.sub(r"\s*\n\s*", " ", text)
    text = re.sub(r' (width|height)="[\d.]+pt"', "", text, count=2)
    return f'<svg role="img" aria-label="{html.escape(words)}"{text.removeprefix("<svg")}'.strip()


def _tag(text: str) -> str:
    """Adapt one tag; what stands between tags are letters that somebody chose."""
    text = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", text)
    text = re.sub("|".join(_THEME), lambda found: _THEME[found[0]], text)
    return _DIGITS.sub(r"\1", _OWN_IDS.sub("", text))
