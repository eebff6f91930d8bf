"""The page itself: what a report says, as HTML and as Markdown."""

from __future__ import annotations

import html
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from string import Template
from typing import NamedTuple, TypeAlias

from fahmc.report.panels import Group
from fahmc.report.verdict import Verdict

Table: TypeAlias = Mapping[str, Mapping[tuple[str, str], str]]
"""Row name -> (group, column) -> text; neighbouring columns of one group share a heading."""

_WORDS = {"good": "Good", "unknown": "Not known", "bad": "Not yet"}
# Tables with more columns become cards on a telephone.
_MOST_COLUMNS = 2


class Section(NamedTuple):
    """A part of the report under a heading of its own."""

    title: str
    sentences: Sequence[str] = ()
    tables: Mapping[str, Table] = {}
    """By what their rows are called."""
    groups: Sequence[Group] = ()
    images: Mapping[str, bytes] = {}
    """The same as files, by name."""
    remarks: Sequence[str] = ()
    """What to know after the tables."""


class Content(NamedTuple):
    """What a report says; plain text throughout, escaped where it is written."""

    title: str
    question: str
    answer: Sequence[str]
    picture: Group
    verdict: Verdict
    caution: Sequence[str]
    """What the verdict is not about, and speaks against the answer."""
    error_words: str
    """What tells how far means and standard deviations are off."""
    sections: Sequence[Section]
    marked: Sequence[str]
    """Rows to set off, wherever they stand."""


def as_html(content: Content) -> str:
    """Return the report as one self-contained page."""
    verdict, marked = content.verdict, content.marked
    return _template().substitute(
        title=html.escape(content.title),
        question=f'<p class="question">{html.escape(content.question)}</p>' if content.question else "",
        answer=_paragraphs(content.answer),
        picture=_figure(content.picture),
        status=verdict.status,
        word=_WORDS[verdict.status],
        headline=html.escape(verdict.headline),
        advice=_paragraphs([*verdict.words, *content.caution]),
        remarks=_remarks(verdict.remarks),
        error_words=_paragraphs([content.error_words]),
        body="\n".join(part for section in content.sections for part in _html_section(section, marked)),
    )


def as_markdown(content: Content) -> str:
    """Return the report in Markdown, without figures."""
    verdict = content.verdict
    parts = [f"# {_markdown(content.title)}"]
    parts += [_markdown(content.question)] if content.question else []
    parts += [*map(_markdown, content.answer), "## How far to trust it", f"**{_markdown(verdict.headline)}**"]
    parts += [_markdown(text) for text in (*verdict.words, *content.caution, content.error_words, *verdict.remarks)]
    parts += [part for section in content.sections for part in _markdown_section(section)]
    return "\n\n".join(parts) + "\n"


@cache
def _template() -> Template:
    return Template(files("fahmc.report").joinpath("page.html").read_text(encoding="utf-8"))


def _html_section(section: Section, marked: Sequence[str]) -> Iterator[str]:
    yield f"<h2>{html.escape(section.title)}</h2>"
    yield _paragraphs(section.sentences)
    yield from (_html_table(corner, table, marked) for corner, table in section.tables.items() if table)
    yield from map(_figure, section.groups)
    yield _remarks(section.remarks)


def _markdown_section(section: Section) -> Iterator[str]:
    yield f"## {section.title}"
    yield from map(_markdown, section.sentences)
    yield from (_markdown_table(corner, table) for corner, table in section.tables.items() if table)
    yield from map(_markdown, section.remarks)


def _paragraphs(sentences: Sequence[str]) -> str:
    return "\n".join(f"<p>{_with_code(sentence)}</p>" for sentence in sentences)


def _remarks(sentences: Sequence[str]) -> str:
    return f'<div class="remark">{_paragraphs(sentences)}</div>' if sentences else ""


def _with_code(sentence: str) -> str:
    """Escape a sentence; what stands in backquotes is code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(sentence))


def _figure(group: Group) -> str:
    legend = "".join(
        f'<li><span style="background:{_ink(colour)}"></span>{html.escape(label)}</li>'
        for label, colour in group.legend.items()
    )
    panels = "".join(
        f"<div>{f'<h4>{html.escape(panel.heading)}</h4>' if panel.heading else ''}{panel.svg}</div>"
        for panel in group.panels
    )
    kind = "panels one" if len(group.panels) == 1 else "panels"
    return (
        f'<figure id="{group.name}">{f"<ul class=legend>{legend}</ul>" if legend else ""}'
        f'<div class="{kind}">{panels}</div><figcaption>{html.escape(group.caption)}</figcaption></figure>'
    )


def _ink(colour: str) -> str:
    return "var(--ink)" if colour == "#000000" else colour


def _html_table(corner: str, table: Table, marked: Sequence[str] = ()) -> str:
    """Return a table; groups of columns, where there are any, get a heading of their own."""
    columns = _columns(table)
    heads = "".join(f'<th scope="col">{html.escape(column)}</th>' for _, column in columns)
    head = f'<tr><th scope="col">{html.escape(corner)}</th>{heads}</tr>'
    if any(group for group, _ in columns):
        groups = [(group, len(list(members))) for group, members in itertools.groupby(group for group, _ in columns)]
        spans = "".join(f'<th scope="colgroup" colspan="{size}">{html.escape(group)}</th>' for group, size in groups)
        head = f"<tr><td></td>{spans}</tr>{head}"
    body = ""
    for name, row in table.items():
        cells = "".join(
            f'<td data-label="{html.escape(_heading(*column))}">{html.escape(row[column])}</td>' for column in columns
        )
        mark = ' class="marked"' if name in marked else ""
        body += f'<tr{mark}><th scope="row">{html.escape(name)}</th>{cells}</tr>'
    kind = "wide" if len(columns) > _MOST_COLUMNS else "words"
    return f'<table class="{kind}"><thead>{head}</thead><tbody>{body}</tbody></table>'


def _markdown_table(corner: str, table: Table) -> str:
    columns = _columns(table)
    head = [corner, *(_heading(*column) for column in columns)]
    body = [[name, *(row[column] for column in columns)] for name, row in table.items()]
    rows = [head, ["---", *("---:" for _ in columns)], *body]
    return "\n".join("| " + " | ".join(map(_markdown, row)) + " |" for row in rows)


def _markdown(text: str) -> str:
    """Write text so that Markdown shows it as it is: no tags, no code, no emphasis, no end of a line or a cell."""
    return re.sub(r"[\\`*|]", r"\\\g<0>", " ".join(text.split())).replace("<", "&lt;")


def _heading(group: str, column: str) -> str:
    return f"{group}: {column}" if group else column


def _columns(table: Table) -> list[tuple[str, str]]:
    return list(next(iter(table.values()), {}))
