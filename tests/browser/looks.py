"""What tests look for on a page."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

NARROW, WIDE = 420, 1280

Open = Callable[..., "Page"]
"""``(address, width=WIDE, dark=False) -> page``; what goes wrong on it fails the test in the end."""


def serious_findings(page: Page) -> list[str]:
    """Return what axe finds serious or critical: rule, how often, and where first."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    return [
        f"{rule['id']} ({len(rule['nodes'])}): {rule['nodes'][0]['html'][:200]} {rule['nodes'][0]['failureSummary']}"
        for rule in found
        if rule["impact"] in ("serious", "critical")
    ]


def overflows(page: Page) -> int:
    """Return by how many pixels the page is wider than its window."""
    return page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
