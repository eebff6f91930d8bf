"""Pages as people have them: in Chromium, at two widths, light and dark, looked at by axe, an accessibility engine.

The browser is the system's (Debian: ``apt-get install chromium``), found on the path or named by ``FAHMC_BROWSER``;
where there is none these tests are skipped.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from looks import WIDE, Open

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    found = os.environ.get("FAHMC_BROWSER") or next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        pytest.skip("no browser: neither $FAHMC_BROWSER nor chromium is there (Debian: apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    # Chromium has no sandbox for root, as whom containers run tests.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Open pages; whatever they complain about on the console, throw or fail to load fails the test."""
    contexts, complaints = [], []

    def call(address: str, width: int = WIDE, dark: bool = False) -> Page:
        scheme: Any = "dark" if dark else "light"
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("requestfailed", lambda request: complaints.append(f"{request.url} failed: {request.failure}"))
        page.goto(address)
        return page

    yield call
    for context in contexts:
        context.close()
    assert not complaints, complaints
