"""A server starts only on a port that is free, also from one who would share it."""

import os
import socket

import pytest

from fahmc.engines.flare.kits import Kit
from fahmc.engines.flare.loopback import free_port
from fahmc.engines.flare.port import check_port, listens
from fahmc.engines.flare.processes import Participant, find_processes
from fahmc.errors import FederationError
from kit_forge import copy_kit


@pytest.fixture
def server(made_kits, tmp_path):
    return copy_kit(made_kits["server"], tmp_path / "server", f"localhost:{free_port()}")


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
@pytest.mark.parametrize("host", ["localhost", "fl.example.org"])
def test_a_port_in_use_is_refused_with_the_name_of_its_user(server: Kit, address, host):
    port = server.address[1]
    kit = server._replace(server=f"{host}:{port}")
    check_port(kit)
    with socket.socket() as other:
        # As gRPC listens by default: two such servers could share the port, each with a part of the connections.
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind((address, port))
        other.listen()
        words = rf"Port {port} of {host}:{port} is in use by \S+ \(process {os.getpid()}\)\. Stop that first"
        with pytest.raises(FederationError, match=words):
            check_port(kit)
        assert listens(kit, os.getpid())
        if host == "localhost":
            with pytest.raises(FederationError, match=words):
                Participant(kit).start()
            assert find_processes(kit) == []
    check_port(kit)
    assert not listens(kit, os.getpid())
    assert [file.name for file in kit.path.glob("fahmc.pid")] == []
