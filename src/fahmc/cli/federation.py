"""`fahmc federation`: kits, participants and who is there. Sampling itself is `fahmc sample --federation KIT`."""

from __future__ import annotations

import signal
import socket
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from fahmc.cli.config import load_config
from fahmc.cli.output import Output
from fahmc.engines.flare.connection import Connection, Unreachable
from fahmc.engines.flare.kits import Kit, make_kits
from fahmc.engines.flare.messages import Status
from fahmc.engines.flare.processes import Participant, running_pid, stop_elsewhere
from fahmc.engines.flare.rules import RULES_FILE, read_rules
from fahmc.errors import FederationError, SettingsError

# Between two looks at a federation that is not complete.
_POLL = 0.5


def make_study_kits(file: Path, folder: Path, output: Output) -> None:
    """Make the kits that a study's file asks for."""
    config = load_config(file)
    if config.federation is None:
        raise config._source.refusal(
            ("federation",), 'a section [federation] is missing; add server = "host:port" and sites = [...].'
        )
    data, names = config.data, config.federation
    columns = None if data.features is None or data.outcome is None else [data.outcome, *data.features]
    with output.working("Making certificates"):
        who = names.model_dump(include={"server", "sites", "analyst"})
        kits = make_kits(folder, study=file.stem, columns=columns, **who)
    table = Table("kit", "goes to", "who runs there", title=f"Start-up kits of study {file.stem}", title_justify="left")
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
    asked_to_stop = threading.Event()
    participant = Participant(own, allowed)
    previous = {
        number: signal.signal(number, lambda *_: asked_to_stop.set()) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        participant.start()
        output.log(_greeting(own, allowed))
        while not asked_to_stop.is_set():
            participant.wait(0.5)
    finally:
        participant.stop()
        for number, handler in previous.items():
            signal.signal(number, handler)
    output.log(f"{_title(own)} is stopped.")
    output.result("stopped", kit=own.path)


def _greeting(kit: Kit, rules: Any) -> str:
    words = f"{_title(kit)} of study {kit.study} is running; Ctrl-C, or `fahmc federation stop {kit.path}`, stops it."
    if kit.role == "server":
        return words
    columns = "every column" if rules.columns == "all" else f"the columns {', '.join(rules.columns)}"
    words += f"\nOthers may compute with {columns} of {rules.file}, if at least {rules.minimum_rows} rows are complete."
    host, _, port = kit.server.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=2.0).close()
    except OSError as error:
        reason = error.strerror or str(error)
        words += f"\nThe server {kit.server} does not answer yet ({reason}); the site goes on trying."
    return words


def show_status(kit: Path, wait: float, output: Output) -> None:
    """Say who is there, once all are or the time to wait for them is over."""
    own = Kit.load(kit)
    if own.role != "analyst":
        pid = running_pid(own)
        output.show(f"{_title(own)} {'does not run' if pid is None else f'runs (process {pid})'} on this machine.")
        return output.result(**{own.role: own.name, "process": pid})
    try:
        with closing(Connection(own)) as connection:
            connected = _await_sites(connection, own, wait)
            rounds = [_round_of(connection, str(job["job_id"])) for job in connection.running_jobs()]
    except Unreachable as error:
        raise FederationError(f"{own.server}: {error}. Is the server running, and reachable from here?") from error
    table, sites = Table("site", ""), {site: site in connected for site in own.sites}
    for site, is_connected in sites.items():
        table.add_row(site, "[green]connected[/]" if is_connected else "[yellow]not connected[/]")
    runs = ["A run is starting." if number is None else f"A run is in round {number:,}." for number in rounds]
    output.show(f"Study {own.study}, server {own.server}", table, *(runs or ["Nothing is being sampled."]))
    output.result(server=own.server, sites=sites, rounds=rounds)


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


def _round_of(connection: Connection, job: str) -> int | None:
    try:
        return connection.command(job, Status(), wait=0.0).get("round")
    except Unreachable:
        return None


def stop_participant(kit: Path, output: Output) -> None:
    """Stop a server or site that runs on this machine."""
    own = Kit.load(kit)
    if own.role == "analyst":
        raise SettingsError(f"{kit} is the analyst's kit, of which nothing runs; Ctrl-C ends `fahmc sample`.")
    was_running = stop_elsewhere(own)
    output.log(f"{_title(own)} {'is stopped' if was_running else 'was not running'}.")
    output.result(was_running=was_running)


def _title(kit: Kit) -> str:
    return "The server" if kit.role == "server" else f"Site {kit.name}"
