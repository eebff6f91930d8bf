"""What MkDocs lacks: mathematics as MathML, public names as links, and pages that lie at the repository's root.

MathML is drawn by browsers themselves: no script, no font, nothing from elsewhere.
"""

from __future__ import annotations

import html
import re
from pathlib import Path, PurePosixPath

from math_core import LatexToMathML
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
# Pages of the site, and where GitHub and its like look for them.
AT_THE_ROOT = {"changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md"}

_LINK_TO_ROOT = re.compile(rf"\]\(\.\./({'|'.join(AT_THE_ROOT.values())})")
_FILE_AS_NAME = re.compile(r"\[(?:docs/)?[\w/-]+\.md\]\(([\w/-]+\.md)(#[\w-]+)?\)")
_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', flags=re.DOTALL)
# `Auto`, `fahmc.sample(...)`, `sample(...)`, `models.mlp(num_classes)`; a bare lower-case word may be anything.
_NAME = re.compile(r"<code>((?:fahmc\.)?([A-Z]\w+|[\w.]+(?=\()|(?<=fahmc\.)[\w.]+)(?:\([^<]*\))?)</code>(?!</a>)")


def on_files(files, config):
    """Add the pages of the root; their links are seen from there."""
    for uri, name in AT_THE_ROOT.items():
        text = (ROOT / name).read_text().replace("](docs/", "](")
        files.append(File.generated(config, uri, content=text))
    return files


def on_page_markdown(markdown, page, config, files):
    """Lead links to the root's pages to theirs on the site, and call pages by their titles instead of their files."""

    def with_title(link: re.Match) -> str:
        there = files.get_file_from_path(str(PurePosixPath(page.file.src_uri).parent / link[1]))
        title = there and re.match(r"# (.*)", there.content_string)
        return f"[{title[1]}]({link[1]}{link[2] or ''})" if title else link[0]

    return _FILE_AS_NAME.sub(with_title, _LINK_TO_ROOT.sub(lambda link: f"]({link[1].lower()}", markdown))


def on_page_content(html, page, config, files):
    """Replace TeX by MathML, where TeX that cannot be read ends the build, and link names that have an entry."""
    return _NAME.sub(_as_link, _FORMULA.sub(_as_mathml, html))


def on_post_page(output, page, config):
    """Give the theme's search dialog the name that screen readers ask for."""
    dialog = 'data-md-component="search" role="dialog"'
    return output.replace(dialog, f'{dialog} aria-label="Search"')


def _as_mathml(found: re.Match) -> str:
    return LatexToMathML().convert_with_local_state(html.unescape(found[2]), displaystyle=found[1] == "div")


def _as_link(found: re.Match) -> str:
    return f'<autoref identifier="fahmc.{found[2]}" optional>{found[0]}</autoref>'
