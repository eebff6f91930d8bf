"""A job that is kept alive: waits for the sites, submits, notices that it is lost, and submits anew.

What the sites were told in a lost job is forgotten with it; `Session.number` tells those who told it. Whoever needs the
job asks through `Session.insist`, which tries again until patience ends.
"""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from fahmc import owner
from fahmc.engines.flare.connection import Connection, Missing, Silent, Unreachable
from fahmc.engines.flare.credentials import check_credentials
from fahmc.engines.flare.kits import Kit
from fahmc.engines.flare.lookout import Lookout, in_short
from fahmc.engines.flare.messages import Close, Request, Status, Stop
from fahmc.engines.flare.watch import Awaited
from fahmc.engines.run import Abandoned, TellSites
from fahmc.errors import FederationError, error_class

logger = logging.getLogger("fahmc")
_Answer = TypeVar("_Answer")

# Between two looks at a federation that is not ready.
_POLL = 0.5
# Sites that were started a moment ago need some seconds to connect, which is nothing to warn of.
_START_QUIETLY = 15.0
# Starting the workers of a job takes some seconds; one that does not speak after this has failed.
_START_TIMEOUT = 120.0
# So many jobs in a row that get nothing done, though all sites are connected: waiting will not help.
_MANY_JOBS = 5
# A reply that takes no longer is nothing to tell of.
_WORTH_TELLING = 1.0
# An analyst's process that speaks to its job asks every two seconds; one silent for this long is gone.
_BUSY = 10.0


class Session:
    """A job of the analyst's at the server and all sites, and a new one when it is lost."""

    def __init__(self, kit: Kit, patience: float):
        self.kit, self._patience = kit, patience
        kit.require_analyst()
        check_credentials(kit)  # with others, the server would seem to be away
        self._connection = Connection(self.kit)
        self._job: str | None = None
        self._own_jobs: set[str] = set()
        self._lost_since: float | None = None
        self._has_warned = False
        self._vain_jobs = 0
        self._lookout = Lookout()
        self._is_stopping: Callable[[], bool] = lambda: False
        self.tell_sites: TellSites = lambda sites, reason: None
        """Is told how every site is, and why nothing goes on if that is so."""
        self.number = 0
        """How many jobs there were: what the sites were told before the latest one is forgotten."""

    def insist(self, action: Callable[[], _Answer], is_stopping: Callable[[], bool] = lambda: False) -> _Answer:
        """Do something that needs the job, as often as it takes, until patience ends or the user wants no more."""
        self._is_stopping = is_stopping
        while True:
            # Asked for, not raised: an exception out of nowhere may end in some library that ignores it.
            if is_stopping() and (self._lost_since is not None or self._job is None):
                raise Abandoned
            try:
                self._ensure_job()
                answer = action()
                self._lost_since, self._vain_jobs = None, 0
                self._lookout.rest()
                return answer
            except Unreachable as error:
                self._be_patient(error)

    def ask(self, request: Request, seconds: float) -> dict[str, Any]:
        """Have the job do something; what a site refuses is raised, what may pass becomes `Unreachable`."""
        identity, deadline = uuid.uuid4().hex, time.monotonic() + seconds
        while (answer := self.command(request, identity=identity)).get("pending"):
            if self._is_stopping():
                raise Abandoned
            if time.monotonic() > deadline:
                raise Unreachable(f"the server did not answer within {seconds:g} s")
        raise_end(answer.get("end"))
        return answer

    def command(self, request: Request, **options: Any) -> dict[str, Any]:
        """Send one command, a second time if there is no answer though the job goes on; tell who is waited for."""
        assert self._job is not None
        try:
            answer = self._connection.command(self._job, request, **options)
        except Silent:
            self.check_job()
            answer = self._connection.command(self._job, request, is_slow=True, **options)
        awaited = [Awaited(*one) for one in answer.get("awaited", ())]
        self._lookout.see(awaited)
        self._tell({one.site: in_short(one) for one in awaited if one.asked_for >= _WORTH_TELLING})
        return answer

    def check_job(self) -> None:
        """Notice a job that has ended."""
        assert self._job is not None
        status = self._connection.job_status(self._job)
        if status.startswith("FINISHED") or status in ("None", "UNKNOWN"):
            raise Unreachable("the job ended at the server: a site's or the server's worker stopped")

    def stop_run(self) -> None:
        """Have the server do no more rounds of a run that was left early."""
        if self._job is not None:
            with contextlib.suppress(Unreachable, FederationError):
                self.command(Stop(), wait=0.0)

    def close(self) -> None:
        """End the job and log out."""
        if self._job is not None:
            try:
                self.command(Close(), wait=0.0)
            except (Unreachable, FederationError):
                self._connection.abort(self._job)
        self._connection.close()
        self._job = None

    def _be_patient(self, error: Unreachable) -> None:
        """Give the job up and say so; a new one is made when everybody is back."""
        now, reason = time.monotonic(), str(error).rstrip(".")
        if self._lookout.awaited and not any(site in reason for site in self._lookout.awaited):
            reason += f", while it waited for {', '.join(self._lookout.awaited)}"
        missing = dict.fromkeys(error.sites, "not connected") if isinstance(error, Missing) else {}
        self._tell(missing or dict.fromkeys(self.kit.sites, "not known"), reason)
        if self._lost_since is None:
            self._lost_since, self._has_warned = now, False
        if not self._has_warned and (self.number or now - self._lost_since > _START_QUIETLY):
            self._has_warned = True
            logger.warning("%s. Waiting for all sites, at most %g s, to go on.", reason, self._patience)
        elif self._has_warned and isinstance(error, Missing):
            self._lookout.miss(error.sites)
        if self._job is not None:
            self._connection.abort(self._job)
            self._job = None
            self._vain_jobs += 1
        if now - self._lost_since > self._patience or self._vain_jobs >= _MANY_JOBS:
            waited = f"{now - self._lost_since:.0f} s and {self._vain_jobs} jobs"
            raise FederationError(f"Given up after {waited}: {reason}. {self._missing_words()}")
        time.sleep(_POLL)

    def _tell(self, others: Mapping[str, str], reason: str = "") -> None:
        """Tell how the sites are: connected, but for these."""
        self.tell_sites({site: others.get(site, "connected") for site in self.kit.sites}, reason)

    def _missing_words(self) -> str:
        try:
            missing = [site for site in self.kit.sites if site not in self._connection.connected_sites()]
        except (Unreachable, FederationError):
            return f"The server {self.kit.server} cannot be reached: is it running there?"
        if missing:
            return f"Not connected: {', '.join(missing)}. Have them run `fahmc federation start` again."
        return "All sites are connected now."

    def _check_sites(self) -> None:
        connected = self._connection.connected_sites()
        missing = [site for site in self.kit.sites if site not in connected]
        if missing:
            raise Missing(missing)

    def _end_other_jobs(self) -> None:
        """End what is left of our own jobs, or of an analyst's process that was killed; another's work is not ours."""
        for entry in self._connection.running_jobs():
            job = str(entry["job_id"])
            if job not in self._own_jobs:
                self._await_end_of_use(job)
            self._connection.abort(job)

    def _await_end_of_use(self, job: str) -> None:
        """Return when nobody works with a job any more; refuse if somebody does."""
        silent_for = None
        while True:
            try:
                status = self._connection.command(job, Status(), wait=0.0)
            except Unreachable:  # it has not started, or ends just now
                return
            is_over = not status["is_working"] or status["silent_for"] >= _BUSY
            if is_over or owner.is_gone(status["owner"]):
                return
            is_heard = silent_for is not None and status["silent_for"] < silent_for
            if is_heard or owner.is_here(status["owner"]):
                raise FederationError(
                    "Another run with this kit is in progress; sites work for one at a time. Wait for it, or end it."
                )
            if silent_for is None:
                logger.warning("Another machine has used this kit just now. Waiting to see whether it still does.")
            silent_for = status["silent_for"]
            if self._is_stopping():
                raise Abandoned
            time.sleep(_POLL)

    def _ensure_job(self) -> None:
        """Have a job whose workers are up at the server and at all sites."""
        if self._job is not None:
            return
        self._end_other_jobs()
        self._check_sites()
        self._job = self._connection.submit()
        self._own_jobs.add(self._job)
        self._tell({})
        self.number += 1
        deadline = time.monotonic() + _START_TIMEOUT
        while True:
            try:
                self.command(Status(), wait=0.0)
                return
            except Unreachable as error:
                if self._is_stopping():
                    raise Abandoned from error
                self.check_job()
                self._check_sites()
                if time.monotonic() > deadline:
                    raise Unreachable(f"the job did not start within {_START_TIMEOUT:g} s ({error})") from error
            time.sleep(_POLL)


def raise_end(end: dict[str, Any] | None) -> None:
    """Raise what the server says went wrong."""
    if end is None or end["kind"] in ("complete", "divergence"):
        return
    if end["kind"] in ("lost", "stopped"):
        raise Unreachable(end.get("message", "the server stopped the run"))
    raise error_class(end["kind"])(end["message"])
