"""A whole federation on this machine: server and sites as processes of their own that talk over loopback.

Certificates are made on the spot. Nothing differs from a federation between organisations but the distance, which is
what makes it good for a demonstration, for tests and for measuring.
"""

from __future__ import annotations

import signal
import socket
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

from fahmc.engines.flare.job import SAMPLING, Job
from fahmc.engines.flare.kits import Kit, make_kits
from fahmc.engines.flare.processes import Participant
from fahmc.engines.flare.rules import Rules


class Loopback:
    """Start a federation when entered, and stop every process of it when left.

    Parameters
    ----------
    folder
        Where the kits go; it must be empty or absent.
    sites
        The sites' rules by name, in the order in which their replies are summed.
    job
        Who works at server and sites.
    """

    def __init__(self, folder: Path, sites: Mapping[str, Rules], study: str = "loopback", job: Job = SAMPLING):
        self._folder, self._rules, self._study, self._job = Path(folder).resolve(), dict(sites), study, job
        self.kits: dict[str, Kit] = {}
        self.participants: dict[str, Participant] = {}

    def __enter__(self) -> Loopback:
        # A polite request to end must not leave processes behind, so it becomes an exception like Ctrl-C.
        self._previous = None
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGTERM, _exit)
        self.kits = make_kits(
            self._folder,
            study=self._study,
            server=f"localhost:{free_port()}",
            sites=list(self._rules),
            analyst="analyst@loopback.local",
            job=self._job,
        )
        try:
            for name in ("server", *self._rules):
                self.start(name)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self, name: str) -> None:
        """Start one participant."""
        self.participants[name] = Participant(self.kits[name], self._rules.get(name)).start()

    def stop(self) -> None:
        """Stop everybody."""
        participants, self.participants = list(self.participants.values()), {}
        with ThreadPoolExecutor(max(1, len(participants))) as threads:
            list(threads.map(Participant.stop, participants))
        if self._previous is not None:
            signal.signal(signal.SIGTERM, self._previous)


def _exit(number: int, frame: object) -> NoReturn:
    sys.exit(128 + number)


def free_port() -> int:
    """Return a port that nobody listens on just now."""
    with socket.socket() as taken:
        taken.bind(("localhost", 0))
        return taken.getsockname()[1]
