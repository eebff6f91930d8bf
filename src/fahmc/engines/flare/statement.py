"""A site's ledger as a person reads it: one item for what was asked, however often it came, and what is left."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from fahmc.engines.flare.ledger import Ledger
from fahmc.engines.flare.refusals import Refusal
from fahmc.engines.flare.rules import Rules

_WHAT = {"survey": "which rows there are", "run": "run", "question": "question", "spent": "private answer"}
# What a refusal's sentence calls the line of the site's own file.
_RULE = re.compile(r"\((\w+) in (?:its|the site's) own file\)")


class Item(NamedTuple):
    """Something that was asked, and when first and last."""

    first: str
    last: str
    who: str
    what: str
    columns: list[str]
    model: str
    sampler: str
    rounds: int | None
    """Of a run: those that were computed or are reserved."""
    content: str
    """Of which content of the site's file; refusals are of none."""


def items(ledger: Ledger) -> list[Item]:
    """Return what was asked, by when it came first."""
    found: dict[tuple[Any, ...], Item] = {}
    for entry in ledger.entries:
        what = entry["what"]
        if what in ("rounds", "torn"):
            continue
        key = (what, entry.get("content"), entry.get(what))
        if what == "refusal":
            key = (what, entry.get("who"), entry["rule"], entry["during"], *entry.get("named", ()))
        elif what == "spent":
            key = (what, entry["content"], entry["release"])
        found[key] = _later(found.get(key), _item(ledger, entry))
    return list(found.values())


def left(ledger: Ledger, rules: Rules, content: str) -> dict[str, int]:
    """Return how much more may be asked of one content of the site's file."""
    asked = ledger.accounts[content].asked if content in ledger.accounts else {}
    most = {"survey": rules.maximum_runs, "run": rules.maximum_runs, "question": rules.maximum_questions}
    return {kind: max(0, number - len(asked.get(kind, ()))) for kind, number in most.items()}


def rule_of(refusal: str) -> str:
    """Return the line of a site's own file that a refusal is about, or else the refusal's name in words."""
    sentence = Refusal[refusal].sentence() if refusal in Refusal.__members__ else ""
    found = _RULE.search(sentence)
    return found[1] if found else refusal.lower().replace("_", " ")


def _item(ledger: Ledger, entry: dict[str, Any]) -> Item:
    what = entry["what"]
    rounds = ledger.rounds.get(entry["run"], 0) if what == "run" else None
    words = _WHAT.get(what, what)
    if what == "question":
        words = f"question: {entry.get('check', '')}"
    elif what == "refusal":
        named = _listed(entry.get("named", ()))
        words = f"refused {entry['times']} times: {rule_of(entry['rule'])}{named and f' ({named})'}"
        words = words.replace("refused 1 times", "refused")
    elif what == "spent":
        words = f"private answer: epsilon {entry['epsilon']:g}, delta {entry['delta']:g}"
    return Item(
        first=entry["at"],
        last=entry["at"],
        who=str(entry.get("who", "")),
        what=words,
        columns=[str(name) for name in entry.get("columns", ())],
        model=str(entry.get("model", "")),
        sampler=str(entry.get("sampler", "")),
        rounds=rounds,
        content=entry.get("content", ""),
    )


def _later(before: Item | None, item: Item) -> Item:
    return item if before is None else item._replace(first=before.first)


def _listed(words: Iterable[object]) -> str:
    return ", ".join(map(str, words))
