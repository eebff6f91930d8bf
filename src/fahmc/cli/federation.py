"""`fahmc federation`: kits, participants and who is there. Sampling itself is `fahmc sample --federation KIT`."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from fahmc.cli.config import load_config
from fahmc.cli.news import condition, news, title
from fahmc.cli.output import Output
from fahmc.engines.flare.connection import Connection, Unreachable
from fahmc.engines.flare.credentials import check_credentials
from fahmc.engines.flare.kits import Kit, make_kits
from fahmc.engines.flare.ledger import Ledger
from fahmc.engines.flare.line import find_fault
from fahmc.engines.flare.lookout import LOST_AFTER, in_words
from fahmc.engines.flare.messages import Status
from fahmc.engines.flare.processes import Participant, running_pid, stop_elsewhere
from fahmc.engines.flare.rules import RULES_FILE, Rules, read_rules
from fahmc.engines.flare.state import State, read_state
from fahmc.engines.flare.watch import Awaited
from fahmc.errors import FederationError, SettingsError

# Seconds between two looks at a federation that is not complete, and for an attempt to find out why.
_POLL, _ATTEMPT = 0.5, 5.0


def make_study_kits(file: Path, folder: Path, output: Output) -> None:
    """Make the kits that a study's file asks for."""
    config = load_config(file)
    if config.federation is None:
        raise config._source.refusal(
            ("federation",), 'a section [federation] is missing; add server = "host:port" and sites = [...].'
        )
    data, names = config.data, config.federation
    study = names.study or file.stem
    asked = data.columns
    columns = None if asked.features is None else asked.in_table(asked.features)
    with output.working("Making certificates"):
        who = names.model_dump(include={"server", "sites", "analyst"})
        kits = make_kits(folder, study=study, columns=columns, missing_values=asked.missing_values, **who)
    table = Table("kit", "goes to", "who runs there", title=f"Start-up kits of study {study}", title_justify="left")
    for name, kit in kits.items():
        owner, command = _instructions(kit, file)
        table.add_row(escape(str(folder / name)), owner, escape(command))
    output.show(table, "A kit holds its owner's private key: hand each over on a safe way, and keep no copies.")
    output.result(kits={name: kit.path for name, kit in kits.items()})


def _instructions(kit: Kit, file: Path) -> tuple[str, str]:
    if kit.role == "analyst":
        return kit.name, f"fahmc sample {file.name} --federation KIT"
    if kit.role == "server":
        return kit.server.rpartition(":")[0], "fahmc federation start KIT"
    return f"site {kit.name}", f"fahmc federation start KIT --data {kit.name}.csv"


def run_participant(kit: Path, data: Path | None, rules: Path | None, output: Output) -> None:
    """Run a server or site until it is asked to stop."""
    own = Kit.load(kit)
    if own.role != "site" and (data or rules):
        raise SettingsError(
            f"{kit} is the kit of the {own.role}, which holds no rows; --data and --rules are for sites."
        )
    allowed = read_rules(rules or own.path / RULES_FILE, data) if own.role == "site" else None
    if own.role == "site":
        Ledger(own.path)  # without which it would refuse everything
    asked_to_stop = threading.Event()
    participant = Participant(own, allowed)
    previous = {
        number: signal.signal(number, lambda *_: asked_to_stop.set()) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        participant.start()
        if allowed is not None:
            output.log(_greeting(own, allowed))
        state, was_up = State("starting"), False
        while not asked_to_stop.is_set():
            participant.wait(0.5)
            before, state = state, read_state(own) or state
            for words in news(own, before, state, was_up):
                output.log(words)
            was_up = was_up or state.word in ("connected", "listening")
    finally:
        participant.stop()
        for number, handler in previous.items():
            signal.signal(number, handler)
    output.log(f"{title(own)} is stopped.")
    output.result("stopped", kit=own.path)


def _greeting(kit: Kit, rules: Rules) -> str:
    columns = "every column" if rules.columns == "all" else f"the columns {', '.join(rules.columns)}"
    return (
        f"Site {kit.name} of study {kit.study} is started; Ctrl-C, or `fahmc federation stop {kit.path}`, stops it.\n"
        f"Others may compute with {columns} of {rules.file}, if at least {rules.minimum_rows} rows are complete."
    )


def show_status(kit: Path, wait: float, output: Output) -> None:
    """Say who is there, once all are or the time to wait for them is over."""
    own = Kit.load(kit)
    if own.role != "analyst":
        return _show_own_status(own, output)
    check_credentials(own)
    try:
        with closing(Connection(own)) as connection:
            connected = _await_sites(connection, own, wait)
            statuses = [_status_of(connection, str(job["job_id"])) for job in connection.running_jobs()]
    except Unreachable as error:
        fault = find_fault(own, _ATTEMPT)
        raise fault or FederationError(f"{own.server}: {error}. The server listens; is it just starting?") from error
    sites = {site: site in connected for site in own.sites}
    rounds = [status.get("round") for status in statuses]
    runs = [_run_in_words(status) for status in statuses] or ["Nothing is being sampled."]
    if missing := [site for site, is_connected in sites.items() if not is_connected]:
        runs.append(f"Waiting for {', '.join(missing)}: a run begins, or goes on, when all sites are there.")
    output.show(f"Study {own.study}, server {own.server}", _sites_table(sites), *runs)
    output.result(server=own.server, sites=sites, rounds=rounds)


def _show_own_status(kit: Kit, output: Output) -> None:
    """Say how a server or site fares that runs on this machine, as far as it can know."""
    process = running_pid(kit)
    state = read_state(kit) if process is not None else None
    output.show(*map(escape, condition(kit, process, state)))
    values: dict[str, Any] = {kit.role: kit.name, "process": process}
    if state is not None:
        values |= {"state": state.word, "reason": state.reason, "since": state.since, "silent_for": state.silence}
        if kit.role == "server":
            values["sites"] = {site: site in state.sites for site in kit.sites}
            output.show(_sites_table(values["sites"]))
    output.result(**values)


def _sites_table(sites: dict[str, bool]) -> Table:
    table = Table("site", "")
    for site, is_connected in sites.items():
        table.add_row(site, "[green]connected[/]" if is_connected else "[yellow]not connected[/]")
    return table


def _await_sites(connection: Connection, kit: Kit, seconds: float) -> list[str]:
    deadline = time.monotonic() + seconds
    while True:
        try:
            connected = connection.connected_sites()
            if set(kit.sites) <= set(connected) or time.monotonic() > deadline:
                return connected
        except Unreachable:
            if time.monotonic() > deadline:
                raise
        time.sleep(_POLL)


def _status_of(connection: Connection, job: str) -> dict[str, Any]:
    try:
        return connection.command(job, Status(), wait=0.0)
    except Unreachable:
        return {}


_SUM_IN_WORDS = {
    "required": "the server sees sums over sites alone",
    "allowed": "the server sees sums over sites alone, where the sampler lets it",
    "off": "the server sees each site's replies",
}


def _run_in_words(status: dict[str, Any]) -> str:
    number = status.get("round")
    words = "A run is starting" if number is None else f"A run is in round {number:,}"
    awaited = [Awaited(*entry) for entry in status.get("awaited", ())]
    slow = [in_words(one) for one in awaited if one.asked_for >= LOST_AFTER]
    secure_sum = status.get("secure_sum")  # what was agreed on, once the sites were asked
    how = [] if secure_sum is None else [_SUM_IN_WORDS[secure_sum]]
    return f"{'; '.join([words, *slow, *how])}."


def stop_participant(kit: Path, output: Output) -> None:
    """Stop a server or site that runs on this machine."""
    own = Kit.load(kit)
    if own.role == "analyst":
        raise SettingsError(f"{kit} is the analyst's kit, of which nothing runs; Ctrl-C ends `fahmc sample`.")
    was_running = stop_elsewhere(own)
    output.log(f"{title(own)} {'is stopped' if was_running else 'was not running'}.")
    output.result(was_running=was_running)
