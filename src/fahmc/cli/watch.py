"""`fahmc watch` and `fahmc sample --watch`: a page that shows a run while it goes on.

The page is served by a process of its own, of the lowest priority, that reads what the run leaves on disk: whatever
happens to it, the run goes on.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
import webbrowser
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from rich.text import Text

from fahmc.cli.folder import ResultFolder, find_run
from fahmc.cli.output import Output
from fahmc.errors import SettingsError
from fahmc.live.server import LiveServer
from fahmc.live.watcher import Place, Watcher
from fahmc.runs.checkpoint import RunFolder
from fahmc.runs.journal import FILE, Journal

_LOOK_EVERY = 0.5
# A page asks every second. One that has not asked for this long is closed.
_CLOSED_AFTER = 10.0
# After the end has been told: for other pages that are open, and for what the page fetches last.
_LINGER = 2.0
# A run that was over from the start is shown when somebody comes to look, within this time.
_PATIENCE = 600.0


def watch_run(folder: Path, port: int, is_opening: bool, output: Output) -> None:
    """Serve the page of a run until it is over, or Ctrl-C."""
    if output.is_quiet and not (is_opening or output.as_json):
        raise SettingsError(
            "--quiet would not print the page's address, so nobody could look. Leave it out, or add --open."
        )
    watcher = Watcher(_find(folder))
    try:
        server = LiveServer(watcher, port)
    except OSError as error:
        raise SettingsError(
            f"Port {port} of the loopback cannot be had: {error.strerror}. Leave out --port."
        ) from error
    with suppress(OSError):
        os.nice(19)  # whatever the run can use, it shall have
    with server, _opened(server.address, is_opening):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        output.show(
            "Watch here; Ctrl-C ends watching, not the run:", Text(server.address, no_wrap=True, overflow="ignore")
        )
        output.result("watching", address=server.address)
        patience = _PATIENCE if watcher.is_over else _CLOSED_AFTER
        with suppress(KeyboardInterrupt):  # the way to end it
            while not _is_done(server, patience):
                time.sleep(_LOOK_EVERY)
                if not watcher.is_over:
                    watcher.look()
        server.shutdown()


@contextmanager
def watching(results: ResultFolder, is_opening: bool) -> Iterator[None]:
    """Have a run watched that is about to begin in a folder which this process holds."""
    with closing(RunFolder(results.checkpoint)) as folder:
        Journal(folder.path)  # what an earlier run told is no news
    command = [sys.executable, "-m", "fahmc.cli.app", "watch", str(results.path), *(["--open"] if is_opening else [])]
    # What it prints goes to standard error; and Ctrl-C is for the run, whose end it shall show.
    page = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=2, start_new_session=True)
    try:
        yield
    finally:
        try:
            page.wait(_CLOSED_AFTER + _LINGER)
        except subprocess.TimeoutExpired:
            page.terminate()
            page.wait()


def _find(folder: Path) -> Place:
    """Return where a run is: the folder of `fahmc sample`, or the checkpoint of a Python call."""
    if (folder / FILE).exists() and not (folder.parent / "job.json").exists():
        return Place(folder)
    results = find_run(folder)
    return Place(results.checkpoint, results.path)


def _is_done(server: LiveServer, patience: float) -> bool:
    """Whether nobody needs the page any more: the run is over, and whoever looks has seen it."""
    now = time.monotonic()
    if server.end_told_at is not None:
        return now - server.end_told_at > _LINGER
    return server.watcher.is_over and now - server.asked_at > patience


@contextmanager
def _opened(address: str, is_opening: bool) -> Iterator[None]:
    """Open the page in the user's browser, which learns the address from a file: others see what programs are given."""
    if not is_opening:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="fahmc-watch-") as folder:  # for this account alone
        file = Path(folder) / "open.html"
        file.write_text(f'<!DOCTYPE html><meta http-equiv="refresh" content="0;url={address}"><title>fahmc</title>')
        threading.Thread(target=webbrowser.open, args=(file.as_uri(),), daemon=True).start()
        yield
