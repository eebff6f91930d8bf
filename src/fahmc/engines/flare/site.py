"""`Work` as methods that the server may call: the class that a job names for the sites.

No exception leaves a site: its traceback could hold rows. Whatever goes wrong goes out as one of the closed list of
refusals; the rest is for the site's own log.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.job_def import JobMetaKey
from nvflare.collab import collab

from fahmc.engines.flare.agreement import read_identity
from fahmc.engines.flare.ledger import Ledger
from fahmc.engines.flare.refusals import Refusal, Refused, write_refusal
from fahmc.engines.flare.rules import read_settled_rules, site_secret
from fahmc.engines.flare.work import Work

logger = logging.getLogger("fahmc")
# A call that is repeated because its answer was late finds the first one done.
_one_at_a_time = threading.Lock()


def _answered(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def answer(*args: Any, **kwargs: Any) -> dict[str, Any]:
        try:
            if collab.caller != "server":
                raise Refused(Refusal.NOT_THE_SERVER)
            with _one_at_a_time:
                return method(*args, **kwargs)
        # Not Exception alone: FLARE sends on whatever is raised.
        except BaseException as error:
            if isinstance(error, Refused):
                logger.warning("refused: %s %s", error, error.__cause__ or "")
            else:
                logger.exception("%s failed", method.__name__)
            return write_refusal(error, (*args, *kwargs.values()))

    return answer


def _timed(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def within_time(self: Site, *args: Any, **kwargs: Any) -> dict[str, Any]:
        with _ending_worker_after(self._site_work().rules.limits.seconds):
            return method(self, *args, **kwargs)

    return within_time


@contextlib.contextmanager
def _ending_worker_after(seconds: float) -> Iterator[None]:
    """End this process if the block takes longer: a compiled round cannot be stopped otherwise."""

    def end() -> None:
        logger.error("a call took more than %g s (maximum_minutes in the site's own file): the worker ends", seconds)
        os._exit(1)

    timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def published(method: Callable[..., Any]) -> Callable[..., Any]:
    """Let the server call a method of a site's worker, and hear no more of a fault than it should."""
    return collab.publish(_answered(_timed(method)))


def _submitter(fl_ctx: Any) -> tuple[str, str]:
    """Return who asked for this job, as the server has it from a certificate, and what the job is called."""
    told = fl_ctx.get_prop(FLContextKey.JOB_META) if fl_ctx is not None else None
    meta = told if isinstance(told, dict) else {}
    return tuple(str(meta.get(key) or "")[:200] for key in (JobMetaKey.SUBMITTER_NAME, JobMetaKey.JOB_ID))  # type: ignore


class Site:
    """A site's worker in one job."""

    def __init__(self):
        self._work: Work | None = None

    def _site_work(self) -> Work:
        if self._work is None:
            local = Path(collab.workspace.get_site_config_dir())
            who, job = _submitter(collab.fl_ctx)
            ledger, identity = Ledger(local.parent, who=who, job=job), read_identity(local.parent)
            self._work = Work(collab.site_name, read_settled_rules(local), site_secret(local), identity, ledger)
        return self._work

    @collab.final
    def end(self) -> None:
        """Give back what was reserved in the ledger: the job is over."""
        if self._work is not None:
            self._work.ledger.settle()

    @published
    def hello(self) -> dict[str, Any]:
        """See `Work.hello`."""
        return self._site_work().hello()

    @published
    def greet(self) -> dict[str, Any]:
        """See `Work.greet`."""
        return self._site_work().greet()

    @published
    def agree(self, hellos: str) -> dict[str, Any]:
        """See `Work.agree`."""
        return self._site_work().agree(hellos)

    @published
    def list_columns(self) -> dict[str, Any]:
        """See `Work.list_columns`."""
        return self._site_work().list_columns()

    @published
    def summarize(self, request: str) -> dict[str, Any]:
        """See `Work.summarize`."""
        return self._site_work().summarize(request)

    @published
    def add_up(self, request: str) -> dict[str, Any]:
        """See `Work.add_up`."""
        return self._site_work().add_up(request)

    @published
    def encode(self, request: str) -> dict[str, Any]:
        """See `Work.encode`."""
        return self._site_work().encode(request)

    @published
    def take_arrays(self) -> dict[str, Any]:
        """See `Work.take_arrays`."""
        return self._site_work().take_arrays()

    @published
    def prepare(self, order: str) -> dict[str, Any]:
        """See `Work.prepare`."""
        return self._site_work().prepare(order)

    @published
    def answer(self, question: str) -> dict[str, Any]:
        """See `Work.answer`."""
        return self._site_work().answer(question)

    @published
    def local_round(self, run: str, round_index: int, state: dict, is_wide: bool = False) -> dict[str, Any]:
        """See `Work.local_round`."""
        return self._site_work().local_round(run, round_index, state, is_wide)
