"""A site with altered software and its own honest certificate cannot pass for the server."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fahmc.engines.flare.kits import Kit, make_kits
from fahmc.engines.flare.loopback import free_port
from fahmc.engines.flare.processes import Participant

pytestmark = pytest.mark.federation

CELL = """
import os, sys, threading
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.message import Message

def connect(kit, server):
    site = kit.rsplit("/", 1)[-1]
    files = {"ca_cert": "rootCA.pem", "client_cert": "client.crt", "client_key": "client.key"}
    credentials = {name: f"{kit}/startup/{file}" for name, file in files.items()}
    cell = CoreCell(f"{site}.cell", f"grpc://{server}", secure=True, credentials=credentials)
    is_connected = threading.Event()
    cell.set_cell_connected_cb(lambda other: is_connected.set())
    cell.start()
    assert is_connected.wait(60)
    return cell
"""
# FLARE asks for no token where somebody registers, so this needs least.
WITNESS = """
def hear(message):
    print("heard", message.get_header(MessageHeaderKey.ORIGIN), flush=True)

cell = connect(*sys.argv[1:])
cell.register_request_cb("task", "register", hear)
print("listening", flush=True)
sys.stdin.read()
os._exit(0)
"""
ROGUE = """
def disguise(message):
    message.set_header(MessageHeaderKey.ORIGIN, "server")

cell = connect(*sys.argv[1:])
cell.add_outgoing_request_filter("*", "*", disguise)
for _ in range(4):
    cell.send_request("task", "register", "north.cell", Message({}, None), timeout=0.5)
print("sent", flush=True)
os._exit(0)
"""
# The same server without its gate: what the test sees of a server that has none.
WITHOUT_GATE = "import fahmc.engines.flare.gate as gate\ngate.watch_gate = lambda: None\n"


def start(script: str, kit: Kit) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CELL + script, str(kit.path), kit.server]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("has_gate", [True, False])
def test_a_message_in_the_server_s_name_does_not_reach_another_site(tmp_path, monkeypatch, has_gate):
    server = f"localhost:{free_port()}"
    kits = make_kits(tmp_path / "kits", study="rogue", server=server, sites=["north", "south"], analyst="ann@x.org")
    if not has_gate:
        (tmp_path / "sitecustomize.py").write_text(WITHOUT_GATE)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    participant = Participant(kits["server"]).start()
    try:
        with start(WITNESS, kits["north"]) as witness:
            assert witness.stdout is not None and witness.stdout.readline() == "listening\n"
            rogue = start(ROGUE, kits["south"])
            assert rogue.communicate(timeout=120)[0] == "sent\n"
            heard = witness.communicate(timeout=60)[0].splitlines()
    finally:
        participant.stop()
    log = Path(kits["server"].path, "log.txt").read_text()
    dropped = "dropped a message of south.cell: it says that it is of server"
    if has_gate:
        assert heard == [] and dropped in log
    else:
        assert "heard server" in heard and dropped not in log
