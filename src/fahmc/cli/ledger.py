"""`fahmc federation ledger`: what a site was asked, by whom and when, and how much more may be asked."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from fahmc.cli.output import Output
from fahmc.engines.flare.counts import content_of
from fahmc.engines.flare.kits import Kit
from fahmc.engines.flare.ledger import Ledger, begin_ledger
from fahmc.engines.flare.privacy import budget_left
from fahmc.engines.flare.processes import running_pid
from fahmc.engines.flare.refusals import Refused
from fahmc.engines.flare.rules import RULES_FILE, Rules, read_rules, read_settled_rules, site_secret
from fahmc.engines.flare.statement import Item, items, left
from fahmc.errors import FahmcError, SettingsError


def show_ledger(kit: Path, is_begun_anew: bool, output: Output) -> None:
    """Print a site's ledger, or put it aside and begin another."""
    own = Kit.load(kit)
    if own.role != "site":
        raise SettingsError(f"{kit} is the kit of the {own.role}; a ledger is kept by each site, in its own kit.")
    if is_begun_anew:
        if running_pid(own) is not None:
            raise SettingsError(
                f"Site {own.name} runs, and counts by its ledger. Stop it first: fahmc federation stop {own.path}"
            )
        kept = begin_ledger(own.path, site=own.name, study=own.study)
        words = f" The one before is kept as {kept}." if kept else ""
        output.log(f"The ledger of site {own.name} is begun anew: everything that it allows may be asked again.{words}")
    ledger = Ledger(own.path)
    found = items(ledger)
    rules = _rules(own)
    more = None
    if rules is not None:
        with suppress(Refused):  # the file is not there: `doctor` says so
            more = left(ledger, rules, content_of(rules.file, site_secret(own.local)))
    output.show(_table(own, found))
    if ledger.is_torn:
        output.show("A crash cut the last line short; nothing was answered on its account.")
    if rules is not None and more is not None:
        output.show(
            f"Left of the file as it is now: {more['survey']} of {rules.maximum_runs} choices of columns, "
            f"{more['run']} of {rules.maximum_runs} runs of up to {rules.maximum_rounds:,} rounds, "
            f"{more['question']} of {rules.maximum_questions} questions about draws."
        )
    if rules is not None and rules.privacy is not None:
        output.show(f"Left of the budget of privacy: {budget_left(rules.privacy, ledger)}.")
    output.result(site=own.name, study=own.study, items=[item._asdict() for item in found], left=more)


def _rules(kit: Kit) -> Rules | None:
    """Return the rules that count here: those of the running site, or else those of its file."""
    with suppress(FahmcError):
        return read_settled_rules(kit.local) if running_pid(kit) is not None else read_rules(kit.path / RULES_FILE)
    with suppress(FahmcError):
        return read_settled_rules(kit.local)  # a table that was named at the start
    return None


def _table(kit: Kit, found: list[Item]) -> Table:
    begun = next((item.first for item in found if item.what == "begun"), "")
    title = f"Ledger of site {kit.name}, study {kit.study}, begun {_moment(begun)}"
    table = Table(title=title, title_justify="left")
    table.add_column("when (UTC)", no_wrap=True)
    for heading in ("who", "what", "columns", "model, sampler"):
        table.add_column(heading)
    table.add_column("rounds", justify="right", no_wrap=True)
    for item in found:
        if item.what == "begun":
            continue
        when = _moment(item.first)
        if item.last != item.first:
            when += f"\n{_moment(item.last)}"
        program = "\n".join(filter(None, (item.model, item.sampler)))
        rounds = "" if item.rounds is None else f"{item.rounds:,}"
        table.add_row(*map(escape, (when, item.who, item.what, ", ".join(item.columns), program, rounds)))
    return table


def _moment(text: str) -> str:
    """Return a time to the minute, as people write it."""
    return text.replace("T", " ")[:16]
