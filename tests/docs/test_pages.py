"""The documentation site: it builds (fixture `site`, strict: links to nowhere fail), and is whole."""

from __future__ import annotations

import re
import zlib
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import pytest

import fahmc

pytestmark = pytest.mark.xdist_group("site")
ROOT = Path(__file__).parents[2]


def public_names() -> list[str]:
    """Everything in `fahmc.__all__`, and what its modules offer in turn."""
    names = []
    for name in fahmc.__all__:
        thing = getattr(fahmc, name)
        if not isinstance(thing, ModuleType):
            names.append(f"fahmc.{name}")
            continue
        own = [key for key, value in vars(thing).items() if getattr(value, "__module__", None) == thing.__name__]
        offered = getattr(thing, "__all__", [key for key in own if not key.startswith("_")])
        names += [f"fahmc.{name}.{key}" for key in offered]
    return names


class Page(HTMLParser):
    """What a page asks a browser to fetch."""

    def __init__(self, html: str):
        super().__init__()
        self.fetched = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        if tag in ("script", "img", "iframe", "source") or (tag == "link" and values.get("rel") != "canonical"):
            self.fetched.append(values.get("src") or values.get("href"))


def test_every_public_name_has_an_entry(site):
    inventory = zlib.decompress((site / "objects.inv").read_bytes().split(b"\n", 4)[4]).decode()
    entries = {line.split()[0] for line in inventory.splitlines()}
    names = public_names()
    assert len(names) > 120 and "fahmc.priors.Horseshoe" in names and "fahmc.partition.dirichlet" in names
    # A function that is named like its module stands under its full name.
    missing = [name for name in names if not {name, f"{name}.{name.split('.')[-1]}"} & entries]
    assert missing == [], "name them in docs/api, each with a line `::: fahmc...`"


def test_nothing_is_fetched_from_elsewhere_and_no_markup_is_left_over(site):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        text = page.read_text()
        assert [place for place in Page(text).fetched if place and re.match(r"(\w+:)?//", place)] == [], page
        assert 'class="arithmatex"' not in text and "<autoref" not in text, page
        assert re.search(r"--8\s*(<|&lt;)", re.sub("<[^>]*>", "", text)) is None, page


def test_docstrings_hold_no_markup_that_nothing_renders():
    for file in (ROOT / "src").rglob("*.py"):
        left = re.findall(
            r"^\s*\.\. \w+::|:(?:class|func|meth|mod|math|ref):`|::$", file.read_text(), flags=re.MULTILINE
        )
        assert left == [], f"{file}: write `name`, $formula$ and indented blocks"


def test_links_of_pages_at_the_root_lead_somewhere():
    """The site's own links are checked when it is built; these are read on their own, too."""
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"):
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            place, _, anchor = link.partition("#")
            if re.match(r"https://[\w.-]+\.[a-z]+(/\S*)?$", place):
                continue
            assert (ROOT / place).exists(), f"{page.name}: {link}"
            if anchor:
                titles = re.findall(r"^#+ (.*)", (ROOT / place).read_text(), flags=re.MULTILINE)
                assert anchor in {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}, link


def test_links_to_other_sites_are_whole():
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for link in re.findall(r"\]\((\w+:[^)\s]*)\)|<(https?:[^>]*)>", page.read_text()):
            assert re.match(r"https://[\w.-]+\.[a-z]+(/\S*)?$", "".join(link)), f"{page}: {link}"
