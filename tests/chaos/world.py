"""A federation of which every process can be harmed: participants as their operators start them, lines by proxies."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil
from proxy import Proxy

from clinics import SIZES, write_tables
from fahmc.engines.flare.kits import Kit, make_kits
from fahmc.engines.flare.loopback import free_port
from fahmc.engines.flare.processes import find_processes

_TESTS = Path(__file__).parents[1]
_START = "from fahmc.cli.app import main; main()"
_RULES = """
file = "{file}"
columns = ["age", "group", "ill"]
minimum_rows = 20
rows_per_parameter = 1
maximum_runs = 1000
private_seed = 5
"""
# Longer than any fault lasts and anybody needs to come back.
HANGS = 200.0


class World:
    """Server, sites and lines, started when entered and gone when left."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.sites = list(SIZES)
        self._operators: dict[str, subprocess.Popen] = {}
        self.analyst: Analyst | None = None
        self._output = open(folder / "operators.txt", "ab")

    def __enter__(self) -> World:
        self._files = write_tables(self.folder)
        port = free_port()
        self.kits: dict[str, Kit] = make_kits(
            self.folder / "kits", study="chaos", server=f"localhost:{port}", sites=self.sites, analyst="a@chaos.local"
        )
        self.lines = {name: Proxy(port) for name in (*self.sites, "analyst")}
        for name, line in self.lines.items():
            self._lead_through(name, port, line.port)
        for name in ("server", *self.sites):
            self.start(name)
        return self

    def _lead_through(self, name: str, port: int, proxy_port: int) -> None:
        """Have a kit's owner reach the server by its own line."""
        kit = self.kits[name].path
        for file in (kit / "fahmc.json", *kit.glob("startup/fed_*.json")):
            text = file.read_text()
            file.write_text(
                text.replace(f"localhost:{port}", f"localhost:{proxy_port}").replace(f": {port}", f": {proxy_port}")
            )
        assert json.loads((kit / "fahmc.json").read_text())["server"] == f"localhost:{proxy_port}"
        if name != "analyst":
            (kit / "site.toml").write_text(_RULES.format(file=self._files[name]))

    def start(self, name: str) -> None:
        """Do what an operator does whose participant is not there."""
        command = [sys.executable, "-c", _START, "federation", "start", str(self.kits[name].path)]
        self._operators[name] = subprocess.Popen(command, stdout=self._output, stderr=self._output)

    def look_after(self) -> None:
        """Start again what has ended, as an operator or his service manager would."""
        for name, process in self._operators.items():
            if process.poll() is not None:
                self.start(name)

    def processes(self, name: str, kind: str) -> list[psutil.Process]:
        """Return a participant's processes of one kind."""
        if kind == "operator":
            return [psutil.Process(self._operators[name].pid)]
        workers = find_processes(self.kits[name], only_workers=True)
        others = [pid for pid in find_processes(self.kits[name]) if pid not in workers]
        pids = workers if kind == "worker" else others
        found = []
        for pid in pids:
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                is_main = "fahmc.engines.flare.program" in process.cmdline()
                if kind == "worker" or is_main == (kind == "main"):
                    found.append(process)
        return found

    def __exit__(self, *error: object) -> None:
        if self.analyst is not None:
            self.analyst.process.kill()
        for process in self._operators.values():
            process.send_signal(signal.SIGTERM)
        for process in self._operators.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(40)
        for line in self.lines.values():
            line.close()
        self._output.close()

    def leftovers(self) -> list[str]:
        """Say what is there though it should not be."""
        left = [f"process {pid} of {name}" for name, kit in self.kits.items() for pid in find_processes(kit)]
        left += [f"operator of {name}" for name, process in self._operators.items() if process.poll() is None]
        port = int(json.loads((self.kits["server"].path / "fahmc.json").read_text())["server"].rpartition(":")[2])
        ports = {port, *(line.port for line in self.lines.values())}
        connections = psutil.net_connections("tcp")
        listening = {entry.laddr[1] for entry in connections if entry.laddr and entry.status == psutil.CONN_LISTEN}
        return left + [f"port {port}" for port in sorted(ports & listening)]


class Analyst:
    """A run of the analyst's, started again when it is killed."""

    def __init__(self, world: World, study: str, folder: Path):
        self._world, self._study, self._folder = world, study, folder
        folder.mkdir()
        world.analyst = self
        self.rounds, self.number_of_starts = 0, 0
        self.start()

    def start(self) -> None:
        """Begin, or go on."""
        self.number_of_starts += 1
        arguments = [
            self._study,
            self._world.kits["analyst"].path,
            self._folder / "checkpoint",
            self._folder / "draws.npz",
        ]
        paths = [str(_TESTS), os.environ.get("PYTHONPATH", "")]
        with open(self._folder / "output.txt", "ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("analyst.py")), *map(str, arguments)],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
                stdout=subprocess.PIPE, stderr=output, text=True,
            )  # fmt: skip
        threading.Thread(target=self._listen, args=(self.process,), daemon=True).start()

    def _listen(self, process: subprocess.Popen) -> None:
        for line in process.stdout or ():
            self.rounds += int(line.split()[0])

    @property
    def is_over(self) -> bool:
        """Say whether the run has come to its end; one that failed is an error."""
        code = self.process.poll()
        if code is None or code == -signal.SIGKILL:
            return False
        if code:
            last = (self._folder / "output.txt").read_text().strip().splitlines()[-3:]
            raise AssertionError(f"the analyst's process ended with {code}: {' / '.join(last)}")
        return True

    def await_rounds(self, number: int, seconds: float = HANGS) -> float | None:
        """Wait until so many more rounds have come, and return how long that took; None if the run ended before."""
        began, goal = time.monotonic(), self.rounds + number
        while self.rounds < goal:
            if self.is_over:
                return None
            if time.monotonic() - began > seconds:
                raise AssertionError(f"no {number} rounds in {seconds:g} s: {self.last_words()}")
            self._world.look_after()
            time.sleep(0.05)
        return time.monotonic() - began

    def last_words(self) -> str:
        """Return what the analyst was told last."""
        return " / ".join((self._folder / "output.txt").read_text().strip().splitlines()[-3:])

    def draws(self) -> dict[str, np.ndarray]:
        """Return what was drawn."""
        with np.load(self._folder / "draws.npz", allow_pickle=False) as values:
            return dict(values)
