"""Why a site cannot speak to its server, found out by a handshake and told in a sentence."""

import socket
import threading

import pytest

from fahmc.engines.flare.kits import Kit
from fahmc.engines.flare.line import connect, find_fault, resolve
from kit_forge import Authority, copy_kit, listening


@pytest.fixture
def kits(made_kits, tmp_path):
    """A server's and a site's kit of one study, and what can be done to them."""
    authority = Authority()
    both = {name: copy_kit(made_kits[name], tmp_path / name) for name in ("server", "north")}
    for kit in both.values():
        authority.certify(kit)
    return authority, both["server"], both["north"]


def at(kit: Kit, port: int) -> Kit:
    return kit._replace(server=f"localhost:{port}")


def test_a_server_of_the_study_is_found_well(kits):
    _, server, north = kits
    with listening(server) as port:
        assert find_fault(at(north, port), 5.0) is None
        assert find_fault(at(server, port), 5.0, host="127.0.0.1") is None


def test_nobody_there(kits):
    _, server, north = kits
    with listening(server) as port:
        pass
    fault = find_fault(at(north, port), 5.0)
    assert fault is not None and fault.reason == "refused" and not fault.is_refusal
    assert fault.words == f"nobody listens at localhost:{port} (connection refused)"
    fault = find_fault(north._replace(server="no-such-host.invalid:8002"), 5.0)
    assert fault is not None and fault.reason == "name" and not fault.is_refusal
    assert fault.words.startswith("the server's name 'no-such-host.invalid' cannot be resolved (")


def test_somebody_who_says_nothing(kits):
    _, _, north = kits
    with listening(None, greeting=b"") as port:
        fault = find_fault(at(north, port), 0.2)
        assert fault is not None and fault.reason == "timeout"
        assert fault.words == f"localhost:{port} took the connection but said nothing within 0.2 s"


def test_somebody_who_hangs_up(kits):
    _, _, north = kits
    with socket.create_server(("127.0.0.1", 0)) as door:
        thread = threading.Thread(target=lambda: door.accept()[0].close())
        thread.start()
        fault = find_fault(at(north, port := door.getsockname()[1]), 5.0)
        thread.join()
    assert fault is not None and fault.reason == "network" and not fault.is_refusal
    assert f"localhost:{port} broke off the connection (" in fault.words


def test_another_program_on_the_port(kits):
    _, _, north = kits
    with listening(None, greeting=b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
        fault = find_fault(at(north, port), 5.0)
    assert fault is not None and fault.reason == "stranger" and fault.is_refusal
    assert f"what listens at localhost:{port} does not speak TLS (" in fault.words
    assert fault.advice == "Another program has the server's port."


@pytest.mark.parametrize(
    ("study", "words"),
    [
        ("other", "is of another authority, of study 'other'; this kit is of study 'study'"),
        ("study", "has a certificate of another authority, though of a study 'study' too"),
    ],
)
def test_the_server_of_another_study_or_of_kits_made_anew(kits, study, words):
    _, server, north = kits
    Authority(study).certify(server)
    with listening(server) as port:
        fault = find_fault(at(north, port), 5.0)
    assert fault is not None and fault.reason == "authority" and fault.is_refusal
    assert words in fault.words and f"localhost:{port}" in fault.words


@pytest.mark.parametrize(("begins", "ends", "words"), [(-9.0, -1.0, "has expired"), (1.0, 9.0, "is not valid yet")])
def test_a_server_s_certificate_out_of_its_time(kits, begins, ends, words):
    authority, server, north = kits
    authority.certify(server, begins, ends)
    with listening(server) as port:
        fault = find_fault(at(north, port), 5.0)
    assert fault is not None and fault.reason == "dates"
    assert fault.words == f"the certificate of the server at localhost:{port} {words}"


def test_a_server_of_another_name(kits):
    authority, server, north = kits
    authority.certify(server, owner="fl.example.org")
    with listening(server) as port:
        fault = find_fault(at(north, port), 5.0)
    assert fault is not None and fault.reason == "host" and "has a certificate for another host name" in fault.words


@pytest.mark.parametrize("how", ["expired", "stranger"])
def test_a_server_that_does_not_want_this_kit(kits, how, tmp_path):
    """By its own clock, or since it trusts others: the site trusts the server all the same."""
    authority, server, north = kits
    if how == "expired":
        authority.certify(north, -9.0, -1.0)
    else:
        ours = (north.startup / "rootCA.pem").read_bytes()
        Authority().certify(north)
        (north.startup / "rootCA.pem").write_bytes(ours)
    with listening(server) as port:
        fault = find_fault(at(north, port), 5.0)
    assert fault is not None and fault.reason == "unwelcome" and fault.is_refusal
    assert f"the server at localhost:{port} does not take this kit's certificate (" in fault.words


def test_parts_of_the_line(kits):
    _, server, north = kits
    assert {"127.0.0.1", "::1"} & set(resolve(north))
    with listening(server) as port:
        connect(at(north, port), 5.0).close()
