"""`fahmc federation`: kits, participants and who is there. Sampling itself is `fahmc sample --federation KIT`."""

from __future__ import annotations

import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from fahmc.cli.config import load_config
from fahmc.cli.output import Output
from fahmc.engines.flare.connection import Connection, Unreachable
from fahmc.engines.flare.kits import Kit, make_kits
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
        kits = make_kits(
            folder,
            study=file.stem,
            server=names.server,
            sites=names.sites,
            analyst=names.analyst,
            columns=columns,
        )
    table = Table("kit", "goes to", "who runs there", title=f"Start-up kits of study {file.stem}", title_justify="left")
    for name, kit in kits.items():
        owner, command = _instructions(kit, file)
        table.add_row(escape(str(folder / name)), owner, escape(command))
    output.show(
        table,
        "A kit holds its owner's private key: hand each over on a safe way, and keep no copies.",
    )
    paths = {name: str(kit.path) for name, kit in kits.items()}
    output.result({"command": "federation init", "status": "complete", "exit_code": 0, "kits": paths})


def _instructions(kit: Kit, file: Path) -> tuple[str, str]:
    if kit.role == "analyst":
        return kit.name, f"fahmc sample {file.name} --federation KIT"
    if kit.role == "server":
        return kit.server.rpartition(":")[0], "fahmc federation start KIT"
    return f"site {kit.name}", f"fahmc federation start KIT --data {kit.name}.csv"


def run_participant(folder: Path, data: Path | None, rules_file: Path | None, output: Output) -> None:
    """Run a server or site until it is asked to stop."""
    kit = Kit.load(folder)
    rules = None
    if kit.role == "site":
        rules = read_rules(rules_file or kit.path / RULES_FILE, data)
    elif data is not None or rules_file is not None:
        raise SettingsError(
            f"{folder} is the kit of the {kit.role}, which holds no rows; --data and --rules are for sites."
        )
    asked_to_stop = threading.Event()
    participant = Participant(kit, rules)
    previous = {
        number: signal.signal(number, lambda *_: asked_to_stop.set()) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        participant.start()
        output.log(_greeting(kit, rules))
        while not asked_to_stop.is_set():
            participant.wait(0.5)
    finally:
        participant.stop()
        for number, handler in previous.items():
            signal.signal(number, handler)
    output.log(f"{_title(kit)} is stopped.")
    output.result({"command": "federation start", "status": "stopped", "exit_code": 0, "kit": str(kit.path)})


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


def show_status(folder: Path, wait: float, output: Output) -> None:
    """Say who is there, once all are or the time to wait for them is over."""
    kit = Kit.load(folder)
    values: dict[str, Any] = {"command": "federation status", "status": "complete", "exit_code": 0}
    if kit.role != "analyst":
        pid = running_pid(kit)
        output.show(f"{_title(kit)} {'does not run' if pid is None else f'runs (process {pid})'} on this machine.")
        output.result(values | {kit.role: kit.name, "process": pid})
        return
    connection = Connection(kit)
    try:
        connected = _await_sites(connection, kit, wait)
        jobs = connection.running_jobs()
        rounds = {str(job["job_id"]): _round_of(connection, str(job["job_id"])) for job in jobs}
    except Unreachable as error:
        raise FederationError(f"{kit.server}: {error}. Is the server running, and reachable from here?") from error
    finally:
        connection.close()
    table = Table("site", "")
    for site in kit.sites:
        table.add_row(site, "[green]connected[/]" if site in connected else "[yellow]not connected[/]")
    output.show(f"Study {kit.study}, server {kit.server}", table)
    for number in rounds.values():
        output.show("A run is starting." if number is None else f"A run is in round {number:,}.")
    if not rounds:
        output.show("Nothing is being sampled.")
    sites = {site: site in connected for site in kit.sites}
    output.result(values | {"server": kit.server, "sites": sites, "rounds": list(rounds.values())})


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
        return connection.command(job, {"do": "status"}, wait=0.0).get("round")
    except Unreachable:
        return None


def stop_participant(folder: Path, output: Output) -> None:
    """Stop a server or site that runs on this machine."""
    kit = Kit.load(folder)
    if kit.role == "analyst":
        raise SettingsError(f"{folder} is the analyst's kit, of which nothing runs; Ctrl-C ends `fahmc sample`.")
    was_running = stop_elsewhere(kit)
    output.log(f"{_title(kit)} {'is stopped' if was_running else 'was not running'}.")
    output.result({"command": "federation stop", "status": "complete", "exit_code": 0, "was_running": was_running})


def _title(kit: Kit) -> str:
    return "The server" if kit.role == "server" else f"Site {kit.name}"
