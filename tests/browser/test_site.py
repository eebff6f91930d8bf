"""The documentation in a browser, from a plain server of files or from the files themselves: nothing else is there."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from looks import NARROW, WIDE, Open, overflows, serious_findings

pytestmark = pytest.mark.xdist_group("site")
# One of each kind: code, wide tables, formulas and signatures, pictures.
PAGES = ("index", "models", "api/theory", "figures/index")


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format, *args):
        pass


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_the_window_and_can_be_read(open_page: Open, address, name):
    for width, dark in ((NARROW, False), (NARROW, True), (WIDE, False), (WIDE, True)):
        page = open_page(f"{address}/{name}.html", width, dark)
        assert overflows(page) == 0
        if (width == WIDE) == dark:  # axe takes its time; each width and each scheme once
            page.wait_for_selector(".md-typeset__scrollwrap[tabindex], body:not(:has(table))", state="attached")
            assert serious_findings(page) == []
        page.close()


def test_mathematics_is_drawn(open_page: Open, site):
    page = open_page((site / "api" / "theory.html").as_uri())
    formulas = page.locator("math[display=block]")
    assert formulas.count() >= 7 and page.locator(".arithmatex").count() == 0
    assert "\\" not in "".join(formulas.all_text_contents())
    # A fraction is two storeys high, which letters in a row are not.
    fraction, letter = formulas.locator("mfrac").first.bounding_box(), formulas.locator("mi").first.bounding_box()
    assert fraction and letter and fraction["height"] > 1.5 * letter["height"]


def test_the_search_finds_a_name_also_without_a_server(open_page: Open, site):
    page = open_page((site / "index.html").as_uri(), WIDE)
    page.locator("input.md-search__input").fill("stage_schedule")
    found = page.locator(".md-search-result__link").first
    found.wait_for()
    assert "api/theory.html" in str(found.get_attribute("href"))
