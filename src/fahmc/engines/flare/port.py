"""The server's port: whether it is free, and who has it.

gRPC lets two processes listen on one port, and each of them then gets a part of the connections. So it is asked before.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket

import psutil

from fahmc.engines.flare.kits import Kit
from fahmc.errors import FederationError

PROGRAM = "fahmc.engines.flare.program"
"""What a participant's process runs."""


def check_port(kit: Kit) -> None:
    """Refuse to start a server on a port that is not free."""
    port = kit.address[1]
    with socket.socket() as attempt:
        # As gRPC does: a port whose last connections are fading is free.
        attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            attempt.bind((_own_address(kit), port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise FederationError(
                    f"The server cannot listen on port {port}: {error.strerror}. Ports below 1024 need an "
                    "administrator's rights; take another, and make kits for it."
                ) from error
            raise FederationError(
                f"Port {port} of {kit.server} is in use{_by_whom(port)}. Stop that first, or make kits for another."
            ) from error


def listens(kit: Kit, process: int) -> bool:
    """Whether a process listens on the server's port."""
    try:
        return any(port == kit.address[1] for port, _ in _listeners(psutil.Process(process)))
    except psutil.Error:
        return False


def _own_address(kit: Kit) -> str:
    """Return where FLARE will listen: everywhere, unless the server's name is that of the loopback."""
    host = kit.address[0].rstrip(".").lower()
    try:
        return "127.0.0.1" if host == "localhost" or ipaddress.ip_address(host).is_loopback else ""
    except ValueError:
        return ""


def _by_whom(port: int) -> str:
    """Name the process that listens on a port, as far as this account may see it."""
    for process in psutil.process_iter():
        try:
            if any(taken == port for taken, _ in _listeners(process)):
                command = process.cmdline()
                # A participant of ours is best known by its kit.
                kit = command[command.index("-m", 3) + 1] if command[1:3] == ["-m", PROGRAM] else None
                what = f"the kit {kit}" if kit else process.name()
                return f" by {what} (process {process.pid})"
        except (psutil.Error, ValueError, IndexError):
            continue
    return ", by a process that this account may not see" if os.geteuid() else ""


def _listeners(process: psutil.Process) -> list[tuple[int, str]]:
    # Named otherwise before psutil 6.
    connections = getattr(process, "net_connections", None) or process.connections
    return [(one.laddr.port, one.laddr.ip) for one in connections("tcp") if one.status == psutil.CONN_LISTEN]
