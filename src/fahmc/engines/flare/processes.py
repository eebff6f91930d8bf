"""A participant's processes: FLARE's own, and the workers that it starts for a job. Started, watched, stopped.

A process that dies is started again, so that a run can go on; if it keeps dying, that is said and nothing is left
behind. Workers are sessions of their own and outlive a parent that is killed, so they are looked for by their kit. If
the process that looks after all this is killed itself, they notice (`program`).
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil

from fahmc.engines.flare.credentials import check_credentials
from fahmc.engines.flare.kits import Kit, clear_workplace, require_flare
from fahmc.engines.flare.port import PROGRAM, check_port
from fahmc.engines.flare.rules import Rules, write_settled_rules
from fahmc.engines.flare.state import State, remove_state, write_state
from fahmc.errors import FederationError, SettingsError

# Workers are copies of a process of Python's own (`launcher`), which is known by the kit in its environment.
_HELPERS, _KIT_VARIABLE = "from multiprocessing.", "FAHMC_KIT"
# FLARE writes the command of a worker as one text, without quotes.
_SPLITTING = re.compile(r"""[\s'"\\]""")
_PID_FILE = "fahmc.pid"
_COMPILED = "compiled"
OUTPUT_FILE = "output.txt"
# A process that dies this often within this many seconds will not come up.
_MANY_DEATHS, _SHORT_TIME = 4, 60.0
_GRACE = 5.0


class Participant:
    """A server or site that runs on this machine until it is stopped."""

    def __init__(self, kit: Kit, rules: Rules | None = None):
        if kit.role == "analyst":
            raise SettingsError(f"{kit.path} is the analyst's kit; start the server's and the sites' kits.")
        if odd := _SPLITTING.search(f"{kit.path}{sys.executable}"):
            raise SettingsError(
                f"{kit.path} or {sys.executable} has {odd[0]!r} in its path; FLARE cannot start workers there. Move it."
            )
        require_flare()
        self.kit, self._rules = kit, rules
        self._process: subprocess.Popen | None = None
        self._lifeline: tuple[int, int] | None = None
        """A pipe from here to the process. It breaks when this process ends, however it ends."""
        self._is_stopping = threading.Event()
        self._watcher: threading.Thread | None = None
        self._deaths: list[float] = []
        self.trouble: str | None = None
        """Why the participant is not started again."""

    def start(self) -> Participant:
        """Start, and watch from a thread."""
        if other := running_pid(self.kit):
            raise SettingsError(f"{self.kit.path} is running already (process {other}); stop it first.")
        check_credentials(self.kit)
        if self._rules is not None:
            write_settled_rules(self.kit.local, self._rules)
        end_all(self.kit)  # of somebody who could not clean up
        self._check_port()
        (self.kit.path / _PID_FILE).write_text(f"{os.getpid()} {_started_at(os.getpid())}")
        clear_workplace(self.kit)
        shutil.rmtree(self.kit.path / _COMPILED, ignore_errors=True)  # so that it cannot grow for ever
        self._lifeline = os.pipe()
        self._spawn()
        self._watcher = threading.Thread(target=self._watch, name=f"fahmc-{self.kit.name}", daemon=True)
        self._watcher.start()
        return self

    def wait(self, seconds: float | None = None) -> None:
        """Wait until the participant is stopped or in trouble."""
        if self._watcher is not None:
            self._watcher.join(seconds)
        if self.trouble is not None:
            raise FederationError(self.trouble)

    def stop(self) -> None:
        """Stop everything that belongs to the participant, if this object started it."""
        if self._watcher is None:
            return
        self._is_stopping.set()
        end_all(self.kit)
        self._watcher.join()
        end_all(self.kit)  # the watcher may have started the process once more
        for end in self._lifeline or ():
            os.close(end)
        self._lifeline = None
        (self.kit.path / _PID_FILE).unlink(missing_ok=True)
        remove_state(self.kit)

    def _check_port(self) -> None:
        if self.kit.role == "server":
            check_port(self.kit)

    def _spawn(self) -> None:
        """Start FLARE's process as its own scripts would; see sub_start.sh in FLARE's kits."""
        assert self._lifeline is not None
        kind = "server" if self.kit.role == "server" else "client"
        options = ["secure_train=true", "org=study", "config_folder=config"]
        # A sign of life every so many seconds: a server that was started anew knows a site from the next one on.
        options += [f"uid={self.kit.name}", "heart_beat_interval=4"] if kind == "client" else []
        command = [sys.executable, "-m", PROGRAM, "-m", str(self.kit.path), "-s", f"fed_{kind}.json", "--set", *options]
        # Few memory arenas: threads come and go with calls, and each arena keeps what it once held.
        environment = {"MALLOC_ARENA_MAX": "2", "GRPC_VERBOSITY": "NONE"} | dict(os.environ)
        # What FLARE says of errors goes to the server; this keeps lines of code and their values out of it.
        environment["NVFLARE_SECURE_LOGGING"] = "true"
        environment[_KIT_VARIABLE] = str(self.kit.path)
        # A worker that comes after another finds what that one compiled.
        environment.setdefault("JAX_COMPILATION_CACHE_DIR", str(self.kit.path / _COMPILED))
        environment.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        write_state(self.kit, State("starting"))
        with open(self.kit.path / OUTPUT_FILE, "ab") as output:
            self._process = subprocess.Popen(
                command,
                cwd=self.kit.path,
                env=environment,
                stdin=self._lifeline[0],
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _watch(self) -> None:
        try:
            self._keep_alive()
        except FederationError as error:
            self.trouble = str(error)
        except Exception as error:
            self.trouble = f"{self.kit.name} could not be looked after ({type(error).__name__}: {error})."

    def _keep_alive(self) -> None:
        while not self._is_stopping.is_set():
            assert self._process is not None
            code = self._process.wait()
            if self._is_stopping.is_set():
                return
            now = time.monotonic()
            self._deaths = [*(death for death in self._deaths if now - death < _SHORT_TIME), now]
            end_all(self.kit)
            if len(self._deaths) >= _MANY_DEATHS:
                self.trouble = (
                    f"{self.kit.name} ended {_MANY_DEATHS} times within {_SHORT_TIME:g} s (last with code {code}) and "
                    f"is not started again. It says: {_last_lines(self.kit.path)}"
                )
                return
            if self.kit.role == "server":
                clear_workplace(self.kit)  # a job in progress when the server died would stay in progress for ever
            self._check_port()
            self._spawn()


def running_pid(kit: Kit) -> int | None:
    """Return the process that looks after a kit's participant, if there is one."""
    try:
        number, started_at = (kit.path / _PID_FILE).read_text().split()
        pid = int(number)
    except (OSError, ValueError):
        return None
    # Numbers of processes are used again, so the time counts too.
    return pid if _started_at(pid) == started_at else None


def _started_at(pid: int) -> str | None:
    try:
        return f"{psutil.Process(pid).create_time():.2f}"
    except (psutil.Error, ValueError, OverflowError):
        return None


def stop_elsewhere(kit: Kit) -> bool:
    """Stop a participant that another process looks after; whether there was one."""
    pid = running_pid(kit)
    if pid is None:
        return bool(end_all(kit))
    os.kill(pid, signal.SIGTERM)
    try:
        psutil.Process(pid).wait(4 * _GRACE)
    except psutil.NoSuchProcess:
        pass
    except psutil.TimeoutExpired:
        raise FederationError(f"Process {pid} of {kit.path} does not stop; end it by hand.") from None
    return True


def find_processes(kit: Kit, *, only_workers: bool = False) -> list[int]:
    """Find FLARE's processes that were started in a kit, whoever their parent is now; or only those of jobs."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            command = process.cmdline()
            is_main = PROGRAM in command and str(kit.path) in command
            is_helper = any(part.startswith(_HELPERS) for part in command) and _kit_of(process) == str(kit.path)
            # A worker leads a session of its own; the process that it was copied from does not.
            is_worker = is_helper and os.getsid(process.pid) == process.pid
            if is_worker or (not only_workers and (is_main or is_helper)):
                found.append(process.pid)
    return found


def _kit_of(process: psutil.Process) -> str | None:
    return process.environ().get(_KIT_VARIABLE)


def end_all(kit: Kit, *, but: int | None = None) -> int:
    """End all processes of a kit by force: they hold nothing that is not elsewhere. Return how many there were."""
    processes = []
    for pid in find_processes(kit):
        if pid == but:
            continue
        with contextlib.suppress(psutil.NoSuchProcess):
            processes.append(process := psutil.Process(pid))
            process.kill()
    psutil.wait_procs(processes, timeout=_GRACE)
    return len(processes)


def _last_lines(kit: Path) -> str:
    lines = (kit / OUTPUT_FILE).read_text(errors="replace").strip().splitlines()
    return " / ".join(lines[-3:]) or "nothing"
