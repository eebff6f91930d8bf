"""A job that cannot be had is waited for as long as the user and patience will have it."""

import itertools

import pytest

from fahmc.engines.flare import connection
from fahmc.engines.flare.kits import make_kits
from fahmc.engines.flare.loopback import free_port
from fahmc.engines.flare.session import Session
from fahmc.engines.run import Abandoned
from fahmc.errors import FederationError


@pytest.fixture(autouse=True)
def _quick_answers(monkeypatch):
    monkeypatch.setattr(connection, "_LOGIN_TIMEOUT", 1.0)


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    """Return the analyst's kit of a federation that nobody has started."""
    folder = tmp_path_factory.mktemp("study") / "kits"
    server = f"localhost:{free_port()}"
    return make_kits(folder, study="trial", server=server, sites=["north"], analyst="ann@example.org")["analyst"]


def test_ctrl_c_ends_the_wait(kit):
    looks = itertools.count(1)
    session = Session(kit, patience=600)
    with pytest.raises(Abandoned):
        session.insist(lambda: pytest.fail("there is no job"), is_stopping=lambda: next(looks) == 2)
    assert next(looks) == 3, "it was asked after each attempt"
    session.close()


def test_patience_ends_with_a_sentence(kit):
    session, heard = Session(kit, patience=0.1), []
    session.tell_sites = lambda sites, reason: heard.append((sites, reason))
    with pytest.raises(FederationError, match=rf"Given up after .*{kit.server} cannot be reached: is it running there"):
        session.insist(lambda: pytest.fail("there is no job"))
    assert heard[-1][0] == {"north": "not known"} and "server" in heard[-1][1], "who watches is told the same"
    session.close()
