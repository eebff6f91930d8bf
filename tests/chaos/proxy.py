"""A line between a participant and the server that can be cut, stalled and restored: TCP on loopback, nothing else."""

from __future__ import annotations

import contextlib
import socket
import threading


class Proxy:
    """Passes connections on to a port of this machine."""

    def __init__(self, port: int):
        self._target = port
        self._listener = socket.create_server(("localhost", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: set[socket.socket] = set()
        self._is_cut = False
        self._flows = threading.Event()
        self._flows.set()
        threading.Thread(target=self._accept, daemon=True).start()

    def reset(self) -> None:
        """Close all connections; new ones are let through."""
        for end in list(self._sockets):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        """Close all connections, and every new one."""
        self._is_cut = True
        self.reset()

    def stall(self) -> None:
        """Let nothing through, without a word to either end."""
        self._flows.clear()

    def restore(self) -> None:
        """Be an honest line again."""
        self._is_cut = False
        self._flows.set()

    def close(self) -> None:
        """Be no line any more."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.restore()
        self.reset()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        self._flows.wait()
        try:
            if self._is_cut:
                raise ConnectionError
            far = socket.create_connection(("localhost", self._target))
        except OSError:
            near.close()
            return
        ways = [threading.Thread(target=self._pump, args=way, daemon=True) for way in ((near, far), (far, near))]
        self._sockets |= {near, far}
        for way in ways:
            way.start()
        for way in ways:
            way.join()
        self._sockets -= {near, far}
        near.close()
        far.close()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._flows.wait()
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
