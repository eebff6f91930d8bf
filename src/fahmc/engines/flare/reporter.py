"""What a participant's process tells of itself: whether a site is connected, and whether the server listens.

FLARE knows it, but keeps it to itself: its cells are told of connections, its client of refusals, and neither says a
word. So they are listened to here. What is found is written into the kit (`state`), and each change into its log.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.drivers import grpc_driver
from nvflare.fuel.f3.endpoint import Endpoint, EndpointState
from nvflare.private.defs import CellChannelTopic
from nvflare.private.fed.authenticator import Authenticator
from nvflare.private.fed.server.client_manager import ClientManager
from nvflare.private.fed.server.fed_server import FederatedServer

from fahmc.engines.flare.doubles import refuse_doubles
from fahmc.engines.flare.kits import Kit
from fahmc.engines.flare.line import LineFault, find_fault
from fahmc.engines.flare.port import check_port, listens
from fahmc.engines.flare.state import State, Word, write_state
from fahmc.errors import FahmcError

# Seconds between two looks, between two words that all is as it was, and for one attempt to connect.
_LOOK, _REPEAT, _ATTEMPT = 1.0, 5.0, 5.0
# A site sends a sign of life every few seconds (see `processes`). With the last one this long ago it is surely alive;
# and after this long without one it is not there.
_ALIVE, _SILENCE = 10.0, 30.0
# Once the server can be reached, a site is let in within seconds.
_LET_IN_BY = 20.0
_LISTEN_BY = 60.0
# The server's clock, in its answers to signs of life.
_TIME = "fahmc_time"
_NOT_LET_IN = (
    "the server is there, but does not let this site in. A copy of this kit may be connected in its name: stop one of "
    "the two. Or the server is very busy."
)
# What FLARE says of a refusal, and what that means.
_REFUSALS = {
    "already registered": "another process is connected in its name: a copy of this kit runs elsewhere. Stop one.",
    "does not match": "the server is of another study. Check with whoever made the kits.",
    "disabled": "the server's operator has shut this site out. Ask there.",
    "timeout": _NOT_LET_IN,
}


class Reporter(ABC):
    """Writes a participant's state whenever it changes, from a thread of its own."""

    def __init__(self, kit: Kit):
        self.kit = kit
        self._clock: float | None = None
        self._changed = threading.Event()

    def start(self) -> None:
        """Listen to FLARE, and report from now on."""
        self.listen()
        threading.Thread(target=self._report, name="fahmc-reporter", daemon=True).start()

    @abstractmethod
    def listen(self) -> None:
        """Have FLARE's own parts tell what happens to them."""

    @abstractmethod
    def look(self) -> tuple[Word, str, tuple[str, ...]]:
        """Return what is to be said now: a word, its reason, and at the server who is connected."""

    def note(self) -> None:
        """Look again at once."""
        self._changed.set()

    def _report(self) -> None:
        said, since = None, 0.0
        written = 0.0
        while True:
            found, now = self.look(), time.time()
            if found != said:
                word, reason, sites = found
                words = [word, *([reason] if reason else []), *([f"connected: {', '.join(sites)}"] if sites else [])]
                print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} - {'; '.join(words)}", flush=True)
                said, since = found, now
            if since == now or now - written > _REPEAT:
                write_state(self.kit, State(*found, process=os.getpid(), since=since, at=now, clock=self._clock))
                written = now
            self._changed.wait(_LOOK)
            self._changed.clear()


class SiteReporter(Reporter):
    """Tells whether the site is connected, and if not, why."""

    def __init__(self, kit: Kit):
        super().__init__(kit)
        self._is_open = self._is_heard = False
        """Whether there is a connection, and whether the server has answered by it."""
        self._refusal = ""
        self._waits_since: float | None = None
        """Since when the server could be reached, but has not let the site in."""

    def listen(self) -> None:
        """Follow the connection to the server, the site's registration there and its signs of life."""
        _after(CoreCell, "state_change", lambda _, cell, endpoint: self._follow(endpoint))
        _after(CoreCell, "send_request", lambda reply, *others, **named: self._hear(reply, named.get("topic")))
        # What the next line would say every few seconds of a server that is away is said once, in words, by `look`.
        logging.getLogger(f"{CoreCell.__module__}.CoreCell").addFilter(_is_no_heartbeat)
        _after(Authenticator, "authenticate", lambda answer, *others: self._enter(answer[0]), self._shut_out)

    def _enter(self, token: object) -> None:
        self._is_heard, self._refusal = token is not None, ""
        self.note()

    def _shut_out(self, error: Exception) -> None:
        """Write at once: FLARE ends the process."""
        self._refusal = _refusal(str(error))
        write_state(self.kit, State("refused", self._refusal, (), os.getpid(), time.time(), time.time()))

    def _follow(self, endpoint: Endpoint) -> None:
        if endpoint.name == FQCN.ROOT_SERVER:
            self._is_open, self._is_heard = endpoint.state == EndpointState.READY, False
            self.note()

    def _hear(self, reply: Any, topic: object) -> None:
        if topic != CellChannelTopic.HEART_BEAT:
            return
        code = reply.get_header(MessageHeaderKey.RETURN_CODE)
        error = str(reply.get_header(MessageHeaderKey.ERROR) or "")
        self._is_heard = code == ReturnCode.OK
        if isinstance(told := reply.get_header(_TIME), float):
            self._clock = told - time.time()
        is_refused = code == ReturnCode.UNAUTHENTICATED or "already registered" in error
        self._refusal = _refusal(error) if is_refused else ""
        self.note()

    def look(self) -> tuple[Word, str, tuple[str, ...]]:
        """Trust FLARE when it is connected; when it is not, try the line to learn why."""
        if self._refusal:
            return "refused", self._refusal, ()
        if self._is_open and self._is_heard:
            self._waits_since = None
            return "connected", "", ()
        fault = _try_line(self.kit)
        if fault is not None:
            self._waits_since = None
            return ("refused" if fault.is_refusal else "unreached"), str(fault), ()
        self._waits_since = self._waits_since or time.monotonic()
        is_late = time.monotonic() - self._waits_since > _LET_IN_BY
        return ("refused", _NOT_LET_IN, ()) if is_late else ("starting", "", ())


class ServerReporter(Reporter):
    """Tells whether the server listens, with its own certificate, and which sites are connected."""

    def __init__(self, kit: Kit):
        super().__init__(kit)
        self._open: set[str] = set()
        self._heard: dict[str, float] = {}
        self._is_listening = False
        self._began = time.monotonic()

    def listen(self) -> None:
        """Follow the sites' connections and signs of life, and have the port for this process alone."""
        _after(CoreCell, "state_change", lambda _, cell, endpoint: self._follow(endpoint))
        _after(ClientManager, "heartbeat", lambda _, manager, token, name, *others: self._hear(name))
        _after(FederatedServer, "client_heartbeat", lambda reply, *others: reply.set_header(_TIME, time.time()))
        refuse_doubles(lambda name: name in self._open and self._silence(name) < _ALIVE)
        grpc_driver.GRPC_DEFAULT_OPTIONS.append(("grpc.so_reuseport", 0))

    def _follow(self, endpoint: Endpoint) -> None:
        if endpoint.name in self.kit.sites:
            is_open = endpoint.state == EndpointState.READY
            (self._open.add if is_open else self._open.discard)(endpoint.name)
            self._hear(endpoint.name)
            self.note()

    def _hear(self, site: str) -> None:
        self._heard[site] = time.monotonic()

    def _silence(self, site: str) -> float:
        return time.monotonic() - self._heard.get(site, 0.0)

    def look(self) -> tuple[Word, str, tuple[str, ...]]:
        """See whether the port is ours, and who is there; end the process if it never becomes ours."""
        if not self._is_listening:
            self._is_listening = listens(self.kit, os.getpid()) and _try_line(self.kit, "127.0.0.1") is None
            if not self._is_listening and time.monotonic() - self._began > _LISTEN_BY:
                self._give_up()
        sites = tuple(site for site in self.kit.sites if site in self._open and self._silence(site) < _SILENCE)
        return ("listening" if self._is_listening else "starting"), "", sites

    def _give_up(self) -> None:
        try:
            check_port(self.kit)
            print(f"the server does not listen at {self.kit.server}", flush=True)
        except FahmcError as error:  # somebody took it since the server was started
            print(error, flush=True)
        os._exit(1)


def _is_no_heartbeat(record: logging.LogRecord) -> bool:
    return f"TP={CellChannelTopic.HEART_BEAT}" not in record.getMessage()


def _after(
    owner: type, name: str, then: Callable[..., None], on_error: Callable[[Exception], None] | None = None
) -> None:
    """Have a method of FLARE's tell what it returned and was called with, or what it raised."""
    method = getattr(owner, name)

    @functools.wraps(method)
    def call_and_tell(*arguments: Any, **named: Any) -> Any:
        try:
            answer = method(*arguments, **named)
        except Exception as error:
            if on_error is not None:
                on_error(error)
            raise
        then(answer, *arguments, **named)
        return answer

    setattr(owner, name, call_and_tell)


def _try_line(kit: Kit, host: str | None = None) -> LineFault | None:
    try:
        return find_fault(kit, _ATTEMPT, host)
    except Exception as error:  # the kit's files were moved away, say: the report must go on
        return LineFault("network", f"the line cannot be tried ({error})", "Look at the kit.")


def _refusal(said: str) -> str:
    meaning = next((words for sign, words in _REFUSALS.items() if sign in said), None)
    return meaning or f"the server does not let this site in: {said}."
