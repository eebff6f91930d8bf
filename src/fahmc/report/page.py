"""The page itself: what a report says, as HTML and as Markdown."""

from __future__ import annotations

import base64
import html
import itertools
import re
from collections.abc import Mapping, Sequence
from string import Template
from typing import NamedTuple, TypeAlias

from fahmc.report.verdict import Verdict

Table: TypeAlias = Mapping[str, Mapping[tuple[str, str], str]]
"""Row name -> (group, column) -> text; neighbouring columns of one group share a heading."""


class Section(NamedTuple):
    """A part of the report of its own."""

    title: str
    sentences: Sequence[str]
    tables: Mapping[str, Table]
    """By what their rows are called."""
    images: Mapping[str, tuple[str, bytes]]
    """Name -> (caption, PNG)."""


class Content(NamedTuple):
    """What a report says; plain text throughout, escaped where it is written."""

    title: str
    verdict: Verdict
    sentences: Sequence[str]
    parameters: Table
    marked: Sequence[str]
    """Rows of ``parameters`` to set off."""
    table_remark: str
    certificate_words: str
    """What tells how far means and standard deviations are off."""
    certificate: Table
    """By how much; empty where nothing tells it."""
    images: Mapping[str, tuple[str, bytes]]
    """Name -> (caption, PNG)."""
    settings: Table
    cost: Table
    fit: Section | None = None
    """Whether the model fits, if that was asked."""


_PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
       color: #1b1f24; background: #fff; max-width: 76rem; margin: 2rem auto 4rem; padding: 0 1.5rem; }
h1 { font-size: 1.7rem; margin: 0 0 1rem; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .7rem; }
p { margin: .5rem 0; max-width: 60rem; }
.verdict { border-left: .35rem solid; padding: .6rem 1rem; border-radius: .2rem; margin: 1rem 0; }
.verdict.good { border-color: #009e73; background: #eef8f4; }
.verdict.unknown { border-color: #b38600; background: #fdf9e8; }
.verdict.bad { border-color: #d55e00; background: #fdf2ea; }
.verdict strong { display: block; }
.remark { color: #57606a; font-size: .92rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .84rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .5rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #e3e7eb; }
thead th { border-bottom: 2px solid #8c959f; vertical-align: bottom; }
thead th.group { text-align: center; border-bottom: 1px solid #8c959f; }
thead th.corner { border-bottom: none; }
th:first-child, td:first-child { text-align: left; font-weight: 500; }
.settings td { white-space: normal; text-align: left; }
tr.marked { background: #fff8dc; font-weight: 600; }
.side { display: flex; flex-wrap: wrap; gap: 0 4rem; }
figure { margin: 1.2rem 0; }
figure img { max-width: 100%; height: auto; }
figcaption { color: #57606a; font-size: .92rem; }
</style>
</head>
<body>
<h1>$title</h1>
<div class="verdict $verdict_class"><strong>$headline</strong>$advice</div>
$sentences
<div class="remark">$remarks</div>
<h2>Parameters</h2>
<div class="scroll">$parameters</div>
<div class="remark">$table_remark</div>
<h2>How far off</h2>
$certificate_words
<div class="scroll">$certificate</div>
<h2>Figures</h2>
$figures
$fit
<div class="side">
<section class="settings"><h2>Settings</h2>$settings</section>
<section><h2>Cost</h2>$cost</section>
</div>
</body>
</html>
""")


def as_html(content: Content) -> str:
    """Return the report as one self-contained page."""
    verdict = content.verdict
    return _PAGE.substitute(
        title=html.escape(content.title),
        verdict_class=verdict.status,
        headline=html.escape(verdict.headline),
        advice=_paragraphs(verdict.words),
        sentences=_paragraphs(content.sentences),
        remarks=_paragraphs(verdict.remarks),
        parameters=_html_table("parameter", content.parameters, content.marked),
        table_remark=_paragraphs([content.table_remark] if content.table_remark else []),
        certificate_words=_paragraphs([content.certificate_words]),
        certificate=_html_table("parameter", content.certificate, content.marked) if content.certificate else "",
        figures="\n".join(_figure(name, caption, png) for name, (caption, png) in content.images.items()),
        fit="" if content.fit is None else _html_section(content.fit),
        settings=_html_table("setting", content.settings),
        cost=_html_table("quantity", content.cost),
    )


def as_markdown(content: Content) -> str:
    """Return the report in Markdown, without figures."""
    verdict = content.verdict
    parts = [f"# {_markdown(content.title)}", f"**{_markdown(verdict.headline)}**"]
    parts += map(_markdown, (*verdict.words, *content.sentences, *verdict.remarks))
    parts += [_markdown_table("parameter", content.parameters), *filter(None, [content.table_remark])]
    parts += ["## How far off", content.certificate_words]
    parts += [_markdown_table("parameter", content.certificate)] if content.certificate else []
    parts += [] if content.fit is None else _markdown_section(content.fit)
    parts += ["## Settings", _markdown_table("setting", content.settings)]
    parts += ["## Cost", _markdown_table("quantity", content.cost)]
    return "\n\n".join(parts) + "\n"


def _html_section(section: Section) -> str:
    tables = (f'<div class="scroll">{_html_table(corner, table)}</div>' for corner, table in section.tables.items())
    figures = (_figure(name, caption, png) for name, (caption, png) in section.images.items())
    return "\n".join([f"<h2>{html.escape(section.title)}</h2>", _paragraphs(section.sentences), *figures, *tables])


def _markdown_section(section: Section) -> list[str]:
    tables = (_markdown_table(corner, table) for corner, table in section.tables.items())
    return [f"## {section.title}", *map(_markdown, section.sentences), *tables]


def _paragraphs(sentences: Sequence[str]) -> str:
    return "\n".join(f"<p>{html.escape(sentence)}</p>" for sentence in sentences)


def _figure(name: str, caption: str, png: bytes) -> str:
    source = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    text = html.escape(caption)
    return f'<figure id="{name}"><img alt="{text}" src="{source}"><figcaption>{text}</figcaption></figure>'


def _html_table(corner: str, table: Table, marked: Sequence[str] = ()) -> str:
    """Return a table; groups of columns, where there are any, get a heading of their own."""
    columns = _columns(table)
    head = f"<tr><th>{corner}</th>{''.join(f'<th>{html.escape(column)}</th>' for _, column in columns)}</tr>"
    if any(group for group, _ in columns):
        groups = [(group, len(list(members))) for group, members in itertools.groupby(group for group, _ in columns)]
        spans = "".join(f'<th class="group" colspan="{size}">{html.escape(group)}</th>' for group, size in groups)
        head = f'<tr><th class="corner"></th>{spans}</tr>{head}'
    body = ""
    for name, row in table.items():
        cells = "".join(f"<td>{html.escape(text)}</td>" for text in (name, *(row[column] for column in columns)))
        body += f'<tr class="marked">{cells}</tr>' if name in marked else f"<tr>{cells}</tr>"
    return f"<table><thead>{head}</thead><tbody>{body}</tbody></table>"


def _markdown_table(corner: str, table: Table) -> str:
    columns = _columns(table)
    head = [corner, *(f"{group}: {column}" if group else column for group, column in columns)]
    body = [[name, *(row[column] for column in columns)] for name, row in table.items()]
    rows = [head, ["---", *("---:" for _ in columns)], *body]
    return "\n".join("| " + " | ".join(map(_markdown, row)) + " |" for row in rows)


def _markdown(text: str) -> str:
    """Write text so that Markdown shows it as it is: no tags, no code, no emphasis, no end of a line or a cell."""
    return re.sub(r"[\\`*|]", r"\\\g<0>", " ".join(text.split())).replace("<", "&lt;")


def _columns(table: Table) -> list[tuple[str, str]]:
    return list(next(iter(table.values()), {}))
