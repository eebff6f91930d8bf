"""The analyst's line to the server: a session of FLARE, and words for what can go wrong with it."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fahmc.engines.flare.job import COMMAND, write_job
from fahmc.engines.flare.kits import Kit, require_flare
from fahmc.engines.flare.messages import Request, write_request
from fahmc.engines.run import Abandoned
from fahmc.errors import FederationError, SettingsError
from fahmc.owner import this_process

# How long a command may wait at the server for an answer; then it is sent again. Ctrl-C is noticed in between.
LONG_POLL = 2.0
_COMMAND_TIMEOUT = 12.0
# A worker that is about to end answers no more: so little patience, and a second time for those who are only slow.
_WORKER_TIMEOUT = 3.0
_LOGIN_TIMEOUT = 10.0
# What FLARE's errors mean to an analyst.
_MEANINGS = {
    "NoConnection": "the server does not answer",
    "SessionClosed": "the server closed the session",
    "JobNotRunning": "the job has ended at the server",
    "JobNotFound": "the server has no such job any more",
    "NoReply": "the server's worker does not answer",
}


class Unreachable(Exception):
    """The server, or the job, does not answer: it may come back."""


class Silent(Unreachable):
    """There was no answer in time."""


class Missing(Unreachable):
    """Some sites are not there."""

    def __init__(self, sites: list[str]):
        super().__init__(f"Site {sites[0]!r} is not connected")
        self.sites = sites


class Connection:
    """A session with a federation's server, in the name of the analyst."""

    def __init__(self, kit: Kit):
        kit.require_analyst()
        require_flare()
        self._kit = kit
        self._session: Any = None
        self._owner = this_process()
        # FLARE's code runs here. Ctrl-C is raised in the main thread, where some of FLARE's code would swallow it.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fahmc-connection")

    def close(self) -> None:
        """Log out."""
        self._thread.submit(self._log_out).result()

    def connected_sites(self) -> list[str]:
        """Return the sites that answer: the server keeps the names of dead ones for a while, so it has to ask them."""
        known = [client.name for client in self._do("get_system_info").client_info]
        if not known:
            return []
        statuses = self._do("check_status", "client", known)["client_status"]
        return [entry["client_name"] for entry in statuses if entry["status"] != "no_reply"]

    def submit(self) -> str:
        """Start a job at the server and all sites of the study; return its identity."""
        with tempfile.TemporaryDirectory() as folder:
            job = write_job(Path(folder) / "job", self._kit.study, self._kit.sites, self._kit.job)
            return self._do("submit_job", str(job))

    def job_status(self, job: str) -> str:
        """Return FLARE's word for the state of a job."""
        return str(self._do("get_job_status", job))

    def running_jobs(self) -> list[dict[str, Any]]:
        """Return what FLARE knows of jobs that have not ended."""
        return [job for job in self._do("list_jobs") if not str(job.get("status", "")).startswith("FINISHED")]

    def abort(self, job: str) -> None:
        """End a job, whatever state it is in."""
        with contextlib.suppress(Unreachable, FederationError):
            self._do("abort_job", job)

    def command(
        self, job: str, request: Request, wait: float = LONG_POLL, identity: str = "", is_slow: bool = False
    ) -> dict[str, Any]:
        """Send one command to the job; its answer may be ``{"pending": True}``.

        A request with an identity that is repeated, because an answer was lost on the way, is not done twice.
        """
        values = write_request(request) | {"wait": wait, "id": identity, "owner": self._owner}
        seconds = _COMMAND_TIMEOUT if is_slow else wait + _WORKER_TIMEOUT
        return self._do("do_app_command", job, COMMAND, values, seconds=seconds)

    def _do(self, method: str, *arguments: Any, seconds: float = _COMMAND_TIMEOUT) -> Any:
        """Have FLARE's session do something, and log in before if that is not done."""
        return self._thread.submit(self._call, method, arguments, seconds).result()

    def _call(self, method: str, arguments: tuple[Any, ...], seconds: float) -> Any:
        with _errors_named(), _silent():
            if self._session is None:
                self._session = _new_session(self._kit)
            self._session.set_timeout(seconds)
            try:
                return getattr(self._session, method)(*arguments)
            except Exception as error:
                if _is_about_the_line(error):
                    self._log_out()
                raise

    def _log_out(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            with contextlib.suppress(Exception), _silent():
                session.close()


def _new_session(kit: Kit) -> Any:
    # gRPC's core prints every failed attempt to connect; it reads this when it is first imported.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    for name in ("nvflare", "Cell", "CoreCell", "ConnectorManager", "Session", "AdminAPI"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return new_secure_session(kit.name, str(kit.path), timeout=_LOGIN_TIMEOUT, auto_login_max_tries=1)


def _is_about_the_line(error: Exception) -> bool:
    from nvflare.fuel.flare_api import api_spec

    return isinstance(error, api_spec.NoConnection | api_spec.SessionClosed | ConnectionError | RuntimeError)


@contextlib.contextmanager
def _errors_named() -> Iterator[None]:
    """Tell apart what may pass, what the server's policy forbids, and faults."""
    try:
        yield
    except (FederationError, SettingsError, Unreachable, Abandoned):
        raise
    except Exception as error:
        kind, words = type(error).__name__, (str(error).strip() or type(error).__name__).splitlines()[0]
        if kind in ("AuthenticationError", "AuthorizationError"):
            raise FederationError(
                f"The server does not let this kit do that: {words}. Use the analyst's kit of this very study."
            ) from error
        meaning = _MEANINGS.get(kind, f"{kind}: {words}")
        raise (Silent if kind == "NoConnection" else Unreachable)(meaning) from error


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Keep FLARE's own remarks off standard output, which may be for a program."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield
