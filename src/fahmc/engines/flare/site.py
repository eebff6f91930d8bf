"""`Work` as methods that the server may call: the class that a job names for the sites.

No exception leaves a site: its traceback could hold rows. What fahmc refuses on purpose goes out as its sentence;
anything else as the kind of fault alone, with the rest in the site's own log.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nvflare.collab import collab

from fahmc.engines.flare.rules import read_settled_rules, site_secret
from fahmc.engines.flare.work import Work
from fahmc.errors import FahmcError, FederationError

logger = logging.getLogger("fahmc")
# A call that is repeated because its answer was late finds the first one done.
_one_at_a_time = threading.Lock()


def _answered(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def answer(*args: Any, **kwargs: Any) -> dict[str, Any]:
        try:
            if collab.caller != "server":
                raise FederationError("only the server may call a site.")
            with _one_at_a_time:
                return method(*args, **kwargs)
        except FahmcError as error:
            logger.warning("refused: %s", error)
            return {"refused": str(error), "kind": type(error).__name__}
        except Exception as error:
            logger.exception("%s failed", method.__name__)
            return {
                "refused": f"{method.__name__} failed with {type(error).__name__}; the site's log says more.",
                "kind": "FederationError",
            }

    return answer


def published(method: Callable[..., Any]) -> Callable[..., Any]:
    """Let the server call a method of a site's worker, and hear no more of a fault than it should."""
    return collab.publish(_answered(method))


class Site:
    """A site's worker in one job."""

    def __init__(self):
        self._work: Work | None = None

    def _site_work(self) -> Work:
        if self._work is None:
            local = Path(collab.workspace.get_site_config_dir())
            self._work = Work(collab.site_name, read_settled_rules(local), site_secret(local))
        return self._work

    @published
    def list_columns(self, request: str) -> dict[str, Any]:
        """See `Work.list_columns`."""
        return self._site_work().list_columns(request)

    @published
    def summarize(self, request: str) -> dict[str, Any]:
        """See `Work.summarize`."""
        return self._site_work().summarize(request)

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
    def local_round(self, run: str, round_index: int, state: dict) -> dict[str, Any]:
        """See `Work.local_round`."""
        return self._site_work().local_round(run, round_index, state)
