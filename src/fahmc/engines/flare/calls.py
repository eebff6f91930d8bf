"""How the server's worker calls sites, through FLARE: all at once, watched while they are at work."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nvflare.apis.fl_constant import ReservedTopic, ReturnCode
from nvflare.apis.shareable import Shareable
from nvflare.collab import collab

from fahmc.engines.flare.watch import GONE_AFTER, Watch

# Between two looks at whether waiting is of use.
_LOOK_EVERY = 0.25
_SIGN_WITHIN = 2.0


def call_sites(sites: Sequence[str], method: str, seconds: float, arguments: Mapping[str, Any], /):
    """Call all sites and wait for them, unless one is gone; only the thread of `Server.serve` can."""
    inbox: queue.SimpleQueue[tuple[str, Any] | None] = queue.SimpleQueue()
    replies: dict[str, Any] = {}
    with watch.asking(sites):
        results = getattr(collab.get_clients(list(sites))(blocking=False, timeout=seconds), method)(**arguments)
        threading.Thread(target=_collect, args=(results, inbox), daemon=True).start()
        while not (wrong := _find_fault(sites, replies)):
            try:
                arrived = inbox.get(timeout=_LOOK_EVERY)
            except queue.Empty:
                continue
            if arrived is None:
                return replies, {site: _first_line(error) for site, error in results.failures.items()}
            site, replies[site] = arrived
            watch.answered(site)
    return replies, wrong


def _collect(results: Iterable[tuple[str, Any]], inbox: queue.SimpleQueue) -> None:
    for result in results:
        inbox.put(result)
    inbox.put(None)


def _find_fault(sites: Sequence[str], replies: Mapping[str, Any]) -> dict[str, str]:
    """Say of whom nothing more is to be expected."""
    if collab.is_aborted:  # FLARE ends the whole job when one worker ends
        return {site: "its worker has ended" for site in sites if site not in replies}
    silent = [awaited for awaited in watch.awaited() if awaited.silent_for > GONE_AFTER]
    return {awaited.site: f"no sign of life for {awaited.silent_for:.0f} s" for awaited in silent}


def _sign_of_life(sites: list[str]) -> list[str]:
    """Ask workers for what FLARE's part of them answers at once."""
    with _engine.new_context() as context:
        signs = _engine.send_aux_request(
            sites, ReservedTopic.SYNC_RUNNER, Shareable(), _SIGN_WITHIN, context, optional=True
        )
    return [site for site, sign in (signs or {}).items() if sign.get_return_code() == ReturnCode.OK]


def _first_line(error: Any) -> str:
    return str(error).strip().split("\n")[0].rstrip(".")


# A worker is a process of one job.
watch = Watch(_sign_of_life)
_engine: Any = None


def start_watching() -> None:
    """Watch the sites of this worker's job from now on."""
    global _engine
    _engine = collab.fl_ctx.get_engine()
    watch.keep_looking()
