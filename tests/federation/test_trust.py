"""Who is let in: certificates of another authority, sites that play the analyst, jobs that carry code."""

import json
import shutil
import socket
import ssl
import time

import pytest

from fahmc.engines.flare import job as jobs
from fahmc.engines.flare.connection import Connection, Unreachable
from fahmc.engines.flare.kits import Kit, make_kits
from fahmc.engines.flare.messages import Status
from fahmc.errors import FederationError

pytestmark = [pytest.mark.federation, pytest.mark.xdist_group("one federation")]


@pytest.fixture(scope="module")
def connection(real):
    connection = Connection(real.kits["analyst"])
    wait_for_sites(connection, real.kits["analyst"])
    yield connection
    connection.close()


def wait_for_sites(connection: Connection, kit: Kit) -> None:
    for _ in range(120):
        try:
            if set(connection.connected_sites()) == set(kit.sites):
                return
        except Unreachable:
            pass
        time.sleep(0.5)
    raise AssertionError("the sites do not connect")


def handshake(kit: Kit, authority: Kit) -> bytes:
    """Connect with a kit's certificate as gRPC does, and return the first bytes that the server says."""
    files = {name: str(kit.path / "startup" / f"client.{name}") for name in ("crt", "key")}
    context = ssl.create_default_context(cafile=str(authority.path / "startup" / "rootCA.pem"))
    context.load_cert_chain(files["crt"], files["key"])
    context.set_alpn_protocols(["h2"])
    host, _, port = authority.server.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as plain:
        with context.wrap_socket(plain, server_hostname=host) as secure:
            return secure.recv(64)


def test_a_certificate_of_another_authority_is_refused(real, connection, tmp_path):
    own = real.kits["north"]
    strangers = make_kits(
        tmp_path / "kits", study="loopback", server=own.server, sites=own.sites, analyst=real.kits["analyst"].name
    )
    assert handshake(own, authority=own), "a site of the study is answered"
    with pytest.raises((ssl.SSLError, ConnectionError)):
        # A stranger with the same name, who has got hold of the authority's public certificate.
        assert handshake(strangers["north"], authority=own) == b""
        raise ConnectionResetError("closed without a word")
    with pytest.raises((Unreachable, FederationError)):
        Connection(strangers["analyst"]).connected_sites()
    assert set(connection.connected_sites()) == set(own.sites)


def test_a_site_cannot_play_the_analyst(real, connection, tmp_path):
    kit = real.kits["analyst"]
    forged = tmp_path / "analyst"
    shutil.copytree(kit.path, forged)
    for name in ("client.crt", "client.key"):
        shutil.copy(real.kits["south"].path / "startup" / name, forged / "startup" / name)
    with pytest.raises((Unreachable, FederationError)):
        Connection(Kit.load(forged)).submit()


@pytest.mark.parametrize("trick", ["code", "class"])
def test_a_job_can_bring_neither_code_nor_other_classes(real, connection, tmp_path, trick):
    folder = jobs.write_job(tmp_path / "job", "loopback", real.kits["analyst"].sites)
    config = folder / "app" / "config" / "config_fed_server.json"
    if trick == "code":
        (folder / "app" / "custom").mkdir()
        (folder / "app" / "custom" / "spy.py").write_text("print('hello')\n")
    else:
        content = json.loads(config.read_text())
        content["components"].append({"id": "other", "path": "nvflare.app_common.np.np_trainer.NPTrainer", "args": {}})
        config.write_text(json.dumps(content))
    try:
        job = connection._do("submit_job", str(folder))
    except (Unreachable, FederationError):
        return  # refused at the door
    status = "SUBMITTED"
    for _ in range(120):
        status = connection.job_status(job)
        if status.startswith("FINISHED"):
            break
        with pytest.raises(Unreachable):
            connection.command(job, Status(), wait=0.0)
        time.sleep(0.5)
    assert status.startswith("FINISHED") and "COMPLETED" not in status
