"""A server for one page, for whoever knows its address on this machine.

It listens on the loopback alone. The address holds a token that nobody can guess; without it there is an empty answer.
Pages of other sites can have a browser ask here, but not read what comes back, as nothing allows them to. If a name of
theirs leads here (DNS rebinding), the request has that name in it, and is refused.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
import socketserver
import time
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any

from fahmc.live.watcher import Watcher

_LOOPBACK = "127.0.0.1"
_JSON, _HTML = "application/json", "text/html; charset=utf-8"


class LiveServer(ThreadingHTTPServer):
    """Serves what a watcher sees.

    Parameters
    ----------
    port
        0 for any that is free.
    """

    daemon_threads = True

    def __init__(self, watcher: Watcher, port: int = 0):
        self.watcher, self.token = watcher, secrets.token_urlsafe(32)
        self.page = files("fahmc.live").joinpath("page.html").read_bytes()
        self.asked_at = time.monotonic()
        """When somebody last looked, or could begin to."""
        self.end_told_at: float | None = None
        """When somebody was first told that the run is over."""
        super().__init__((_LOOPBACK, port), _Handler)

    def server_bind(self) -> None:
        """Bind without asking for the machine's name, which may take seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = _LOOPBACK, self.server_address[1]

    @property
    def address(self) -> str:
        """Where the page is."""
        return f"http://{_LOOPBACK}:{self.server_port}/{self.token}/"

    @property
    def hosts(self) -> tuple[str, ...]:
        """What a browser on this machine calls it."""
        return f"{_LOOPBACK}:{self.server_port}", f"localhost:{self.server_port}"

    @cached_property
    def policy(self) -> str:
        """Have the browser run what the page itself holds, and fetch from nowhere else."""
        page = self.page.decode()
        kinds = {"script-src": "script", "style-src": "style"}
        rules = [f"{rule} '{_checksum(page, tag)}'" for rule, tag in kinds.items()]
        others = "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        return "; ".join(["default-src 'none'", *rules, others])

    def answer(self, name: str) -> tuple[str, bytes] | None:
        """Return what is to be had under a name, and its type."""
        watcher = self.watcher
        if name == "state":
            is_over = watcher.is_over  # before the state is taken: it may end in between
            self.asked_at = time.monotonic()
            if is_over and self.end_told_at is None:
                self.end_told_at = self.asked_at
            return _JSON, watcher.state
        return {"": (_HTML, self.page), "draws": (_JSON, watcher.draws)}.get(name)


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer  # type: ignore
    server_version, sys_version = "fahmc", ""
    timeout = 10.0

    def do_GET(self) -> None:
        _, _, rest = self.path.partition("/")
        token, _, name = rest.partition("/")
        is_known = hmac.compare_digest(token.encode(), self.server.token.encode())
        if not is_known or self.headers.get_all("Host", []) not in [[host] for host in self.server.hosts]:
            return self._reply(403)
        found = self.server.answer(name)
        return self._reply(404) if found is None else self._reply(200, *found)

    def _reply(self, code: int, kind: str = "", content: bytes = b"") -> None:
        self.send_response(code)
        headers = {
            "Content-Length": str(len(content)),
            "Cache-Control": "no-store",
            "Content-Security-Policy": self.server.policy,
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Referrer-Policy": "no-referrer",  # the address is the secret
            "X-Content-Type-Options": "nosniff",
        }
        for name, value in headers.items() | ({("Content-Type", kind)} if kind else set()):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def send_error(self, code: int, *words: Any, **more: Any) -> None:
        """Answer what is no proper request like all others: without a word."""
        self._reply(code)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing: the address is in it."""


def _checksum(page: str, tag: str) -> str:
    found = re.search(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
    assert found is not None
    return "sha256-" + base64.b64encode(hashlib.sha256(found[1].encode()).digest()).decode()
