"""Names that tables, figures and files can show: of columns, levels, parameters and clients."""

from __future__ import annotations

import unicodedata

MAX_NAME = 200
"""Letters."""

# Controls, halves of characters, and ends of lines and paragraphs.
_UNSEEN = ("Cc", "Cs", "Zl", "Zp")


def unprintable(name: str) -> str | None:
    """Say why a name cannot be shown in tables, figures and files, or nothing."""
    if len(name) > MAX_NAME:
        return f"has {len(name):,} letters, of {MAX_NAME} at most"
    if odd := next((letter for letter in name if unicodedata.category(letter) in _UNSEEN), None):
        return f"holds the control character {odd!r}"
    return None
