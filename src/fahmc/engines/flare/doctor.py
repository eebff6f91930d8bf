"""What could be wrong with a participant, checked one by one, with what to do about it.

A check is a function of the `Case` that returns what it found to be well, or raises: a `FahmcError` whose sentence
says what is wrong, `_Unknown` if it cannot tell. Each has a limit of time, so that none holds up the others.
"""

from __future__ import annotations

import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib.metadata import requires
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import psutil
from packaging.requirements import Requirement

from fahmc.data.tables import Table, read_table
from fahmc.engines.flare import credentials
from fahmc.engines.flare.kits import Kit, require_flare
from fahmc.engines.flare.ledger import Ledger
from fahmc.engines.flare.line import LineFault, connect, resolve, shake_hands
from fahmc.engines.flare.port import check_port, listens
from fahmc.engines.flare.processes import find_processes, running_pid
from fahmc.engines.flare.rules import RULES_FILE, Rules, read_rules, read_settled_rules
from fahmc.engines.flare.server_rules import read_server_rules
from fahmc.engines.flare.state import State, read_state
from fahmc.engines.flare.versions import own_versions
from fahmc.errors import DataError, FahmcError, FederationError, SettingsError

# Seconds for one check, for the one that reads a table, and for an attempt to connect within one.
_LIMIT, _READING, _ATTEMPT = 10.0, 30.0, 5.0
_SOON = timedelta(days=30)
_CLOCKS_APART = 60.0
# A site's worker writes little, a server keeps a job's files; both write logs of up to 60 MB.
_FREE_BYTES = 500 * 10**6
_NOT_TRIED = ("name", "refused", "timeout", "network")


class Finding(NamedTuple):
    """What came of a check."""

    check: str
    status: Literal["ok", "problem", "unknown"]
    words: str


class Case(NamedTuple):
    """A kit, and how its owner starts it."""

    kit: Kit
    data: Path | None = None
    rules: Path | None = None

    @property
    def process(self) -> int | None:
        """The process that looks after the participant."""
        return None if self.kit.role == "analyst" else running_pid(self.kit)

    @property
    def state(self) -> State | None:
        """What the running participant last said."""
        return read_state(self.kit) if self.process is not None else None

    def settled_rules(self) -> Rules:
        """Return the rules that a start would take, or that the running site has taken."""
        if self.data is None and self.rules is None and self.process is not None:
            return read_settled_rules(self.kit.local)
        return read_rules(self.rules or self.kit.path / RULES_FILE, self.data)


class _Unknown(Exception):
    """A check that cannot be made here and now."""


def examine(case: Case, seconds: float) -> Iterator[Finding]:
    """Make all checks that concern a kit, within so many seconds."""
    deadline = time.monotonic() + seconds
    for name, check in _CHECKS.items():
        if case.kit.role in _ONLY_FOR.get(name, case.kit.role):
            limit = _READING if check is _data else _LIMIT
            yield _within(min(limit, max(0.0, deadline - time.monotonic())), name, partial(check, case))


def _within(seconds: float, name: str, check: Callable[[], str]) -> Finding:
    found: list[Finding] = []

    def run() -> None:
        try:
            found.append(Finding(name, "ok", check()))
        except FahmcError as error:
            found.append(Finding(name, "problem", str(error)))
        except Exception as error:
            found.append(Finding(name, "unknown", str(error) or type(error).__name__))

    thread = threading.Thread(target=run, daemon=True)  # a name server that is silent must not keep us here
    thread.start()
    thread.join(seconds)
    return found[0] if found else Finding(name, "unknown", f"it took longer than {seconds:.0f} s")


def _files(case: Case) -> str:
    credentials.check_files(case.kit)
    return f"complete, of {case.kit.name} in study {case.kit.study}"


def _certificate(case: Case) -> str:
    credentials.check_certificate(case.kit)
    return "its owner's, of the study's authority"


def _dates(case: Case) -> str:
    credentials.check_dates(case.kit)
    ends = credentials.valid_window(case.kit).ends
    left = ends - datetime.now(UTC)
    until = f"{credentials.in_minutes(ends)}, {left.days} days from now"
    if left < _SOON:
        raise SettingsError(f"It holds until {until}. Plan new kits for everybody: nobody can connect after that.")
    return f"holds until {until}"


def _key(case: Case) -> str:
    credentials.check_key(case.kit)
    file = credentials.key_file(case.kit)
    mode = stat.S_IMODE(file.stat().st_mode)
    if mode & 0o077:
        raise SettingsError(f"Others on this machine may use {file} (mode {mode:o}). Run: chmod 600 {file}")
    return f"fits the certificate, mode {mode:o}"


def _clock(case: Case) -> str:
    state = case.state
    if case.kit.role == "server" or state is None or state.clock is None or state.silence:
        raise _Unknown(
            f"it is {credentials.in_minutes(datetime.now(UTC))} here; only the certificate's dates were held "
            "against it. A connected site compares its clock with the server's."
        )
    if abs(state.clock) > _CLOCKS_APART:
        raise FederationError(
            f"The server's clock is {abs(state.clock):.0f} s {'ahead of' if state.clock > 0 else 'behind'} this one. "
            "Set the wrong one right: certificates are held against it."
        )
    return f"within {max(1.0, abs(state.clock)):.0f} s of the server's"


def _versions(case: Case) -> str:
    require_flare()
    found = own_versions()
    for needed in map(Requirement, requires("fahmc") or ()):
        if needed.name in found and not needed.specifier.contains(found[needed.name], prereleases=True):
            raise SettingsError(
                f"{needed.name} {found[needed.name]} is installed here, but fahmc {found['fahmc']} works with "
                f'{needed.name}{needed.specifier}. Run: pip install "{needed.name}{needed.specifier}"'
            )
    words = ", ".join(f"{name} {number}" for name, number in found.items())
    return f"{words}; all participants need the same up to the second number"


def _name(case: Case) -> str:
    host, addresses = case.kit.address[0], resolve(case.kit)
    words = f"{host} is {', '.join(addresses)}"
    own = {entry.address for entries in psutil.net_if_addrs().values() for entry in entries}
    if case.kit.role == "server" and not own & set(addresses):
        raise _Unknown(f"{words}, which is no address of this machine. That is right only if a router passes it on.")
    return words


def _port(case: Case) -> str:
    kit = case.kit
    if kit.role != "server":
        _known(lambda: connect(kit, _ATTEMPT).close(), "name")
        return f"{kit.server} can be reached"
    if case.process is None:
        check_port(kit)
        return f"{kit.address[1]} is free"
    if not any(listens(kit, process) for process in find_processes(kit)):
        raise FederationError(
            f"The server runs, but does not listen at {kit.server}. `fahmc federation logs` may tell."
        )
    return f"the server listens on {kit.address[1]}"


def _tls(case: Case) -> str:
    kit = case.kit
    host = None
    if kit.role == "server":
        if case.process is None:
            raise _Unknown("the server does not run.")
        host = "127.0.0.1"
    _known(lambda: shake_hands(kit, connect(kit, _ATTEMPT, host), _ATTEMPT), *_NOT_TRIED)
    return "the server is of the study's authority, has the right name, and takes this kit's certificate"


def _known(attempt: Callable[[], Any], *told_before: str) -> None:
    """Make an attempt; what an earlier check has said is not said again."""
    try:
        attempt()
    except LineFault as fault:
        if fault.reason in told_before:
            raise _Unknown("not tried, see above.") from fault
        raise


def _rules(case: Case) -> str:
    if case.kit.role == "server":
        own = read_server_rules(case.kit.local).own_samplers
        return f"samplers that are not fahmc's own: {', '.join(own) or 'none'}"
    rules = case.settled_rules()
    columns = "every column" if rules.columns == "all" else ", ".join(rules.columns)
    return f"others may use {columns}, with at least {rules.minimum_rows} complete rows"


def _data(case: Case) -> str:
    try:
        rules = case.settled_rules()
    except FahmcError as error:
        raise _Unknown("not tried, see above.") from error
    table = read_table(rules.file)
    _check_columns(rules, table)
    allowed = [cells for name, cells in table.columns.items() if rules.allows(name)]
    if not allowed:
        raise DataError(f"{rules.file} has none of the columns that {RULES_FILE} allows. Correct one of the two.")
    has_gap = np.logical_or.reduce([pd.isna(cells) for cells in allowed])
    num_rows, num_whole = len(has_gap), int(np.sum(~has_gap))
    words = f"{rules.file} has {num_rows} rows, {num_whole} of them complete; {rules.minimum_rows} are needed"
    if num_whole < rules.minimum_rows:
        if rules.columns == "all" and num_rows >= rules.minimum_rows:
            raise _Unknown(f"{words}. Enough may be complete in the columns that a study takes.")
        raise DataError(f"{words}. Fill the gaps, leave out columns with many, or lower minimum_rows in the rules.")
    return words


def _check_columns(rules: Rules, table: Table) -> None:
    arrays = {name.partition("[")[0] for name in table.columns}
    absent = [name for name in rules.columns if name not in table.columns and name not in arrays]
    if rules.columns != "all" and absent:
        raise DataError(
            f"The rules name {', '.join(map(repr, absent))}, but {rules.file} has no such column. It has "
            f"{', '.join(table.columns)}. Correct one of the two."
        )


def _ledger(case: Case) -> str:
    ledger = Ledger(case.kit.path)
    count = len(ledger.entries) - 1
    return f"whole, {count} {'entries' if count != 1 else 'entry'} since it was begun"


def _folder(case: Case) -> str:
    for folder in (case.kit.path, case.kit.local):
        try:
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise SettingsError(
                f"{folder} cannot be written to: {error.strerror}. Logs and settings go there."
            ) from None
    free = shutil.disk_usage(case.kit.path).free
    if free < _FREE_BYTES:
        raise SettingsError(
            f"Only {free / 1e6:.0f} MB are free at {case.kit.path}. Make room for {_FREE_BYTES / 1e6:.0f}."
        )
    return f"can be written to, {free / 1e9:.1f} GB free"


def _participant(case: Case) -> str:
    kit, process, state = case.kit, case.process, case.state
    if process is None:
        if left := find_processes(kit):
            raise FederationError(
                f"Process {left[0]} of this kit runs, and nobody looks after it. Run: fahmc federation stop {kit.path}"
            )
        return "does not run"
    if state is None or state.word == "starting":
        raise _Unknown(f"it is starting (process {process}).")
    if state.silence:
        raise FederationError(
            f"Process {state.process} has said nothing for {state.silence:.0f} s: it hangs. Restart it."
        )
    if state.word in ("refused", "unreached"):
        raise FederationError(
            f"It runs, but {'is refused' if state.word == 'refused' else 'is cut off'}: {state.reason}"
        )
    connected = f", connected: {', '.join(state.sites) or 'nobody'}" if kit.role == "server" else ""
    return f"runs (process {process}), {state.word}{connected}"


_CHECKS: dict[str, Callable[[Case], str]] = {
    "kit": _files,
    "certificate": _certificate,
    "dates": _dates,
    "private key": _key,
    "clock": _clock,
    "versions": _versions,
    "server's name": _name,
    "port": _port,
    "TLS": _tls,
    "rules": _rules,
    "data": _data,
    "ledger": _ledger,
    "folder": _folder,
    "participant": _participant,
}
_ONLY_FOR = {"rules": ("site", "server"), "data": ("site",), "ledger": ("site",), "participant": ("site", "server")}
