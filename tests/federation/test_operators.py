"""Server and sites say how they fare: who is connected, who is refused and why, what was lost and came back."""

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable

import pytest
from typer.testing import CliRunner

from fahmc.cli.app import app
from fahmc.engines.flare.kits import Kit, make_kits
from fahmc.engines.flare.processes import Participant
from fahmc.engines.flare.rules import Rules
from fahmc.engines.flare.state import State, read_state

pytestmark = [pytest.mark.federation, pytest.mark.xdist_group("one federation")]


def await_state(kit: Kit, is_there: Callable[[State], bool]) -> State:
    for _ in range(300):
        state = read_state(kit)
        if state is not None and is_there(state):
            return state
        time.sleep(0.2)
    raise AssertionError(f"{kit.name} says {read_state(kit)}")


@pytest.fixture(scope="module")
def complete(real):
    """The federation, once all sites are connected."""
    for site in real.kits["server"].sites:
        await_state(real.kits[site], lambda state: state.word == "connected")
    await_state(real.kits["server"], lambda state: state.sites == real.kits["server"].sites)
    return real.kits


def run(*arguments):
    return CliRunner().invoke(app, ["federation", *map(str, arguments)])


def test_status_of_a_site_and_of_the_server(complete):
    """The supervisor runs in this very process, which is what status looks for."""
    done = run("status", complete["north"].path)
    assert f"and is connected to the server {complete['north'].server}" in done.stdout.replace("\n", "")
    told = json.loads(run("status", complete["server"].path, "--json").stdout)
    assert told["state"] == "listening" and told["process"] == os.getpid()
    assert told["sites"] == dict.fromkeys(complete["server"].sites, True)


def test_strangers_are_refused_and_told_why(complete, tables, tmp_path):
    """Another server on the port, another study's site, and a copy of a site's kit beside the site itself."""
    own = complete["north"]
    others = make_kits(tmp_path / "kits", study="other", server=own.server, sites=own.sites, analyst="eve@example.org")
    done = run("start", others["server"].path)
    assert done.exit_code == 6
    assert f"is in use by the kit {complete['server'].path} (process " in done.stderr

    mine = ("fahmc-state.json*", "fahmc.pid", "*-*-*-*-*")
    double = Kit.load(shutil.copytree(own.path, tmp_path / "copy", ignore=shutil.ignore_patterns(*mine)))
    log, rules = complete["server"].path / "log.txt", Rules(file=str(tables["north"]), columns="all")
    before = log.stat().st_size if log.exists() else 0
    strangers = [Participant(kit, rules) for kit in (others["south"], double)]
    try:
        for stranger in strangers:
            stranger.start()
        refused = await_state(others["south"], lambda state: state.word == "refused")
        assert "is of another authority, of study 'loopback'; this kit is of study 'other'" in refused.reason
        for _ in range(300):
            if log.exists() and b"a second process connects in the name of north" in log.read_bytes()[before:]:
                break
            time.sleep(0.2)
        else:
            raise AssertionError("the copy was not noticed")
        state = read_state(double)
        assert state is not None and state.word == "starting"
    finally:
        for stranger in strangers:
            stranger.stop()
    assert read_state(double) is None
    state = await_state(own, lambda state: state.word == "connected")
    assert state.process == read_state(own).process  # type: ignore[union-attr]
    await_state(complete["server"], lambda state: state.sites == own.sites)


def test_a_lost_server_and_a_lost_site_are_told_and_found_again(complete):
    server, north = complete["server"], complete["north"]
    first = await_state(north, lambda state: state.word == "connected")
    os.kill(first.process, signal.SIGKILL)
    await_state(server, lambda state: "north" not in state.sites)
    await_state(server, lambda state: state.sites == server.sites)
    again = await_state(north, lambda state: state.word == "connected")
    assert again.process != first.process

    process = await_state(server, lambda state: state.word == "listening").process
    os.kill(process, signal.SIGKILL)
    lost = await_state(north, lambda state: state.word == "unreached")
    # Which of the two depends on whether the port was already closed when the site looked.
    assert re.search(rf"nobody listens at {server.server} |{server.server} broke off the connection", lost.reason)
    assert await_state(north, lambda state: state.word == "connected").process == again.process
    state = await_state(server, lambda state: state.sites == server.sites)
    assert state.word == "listening" and state.process != process
    told = (north.path / "output.txt").read_text().splitlines()
    assert f" - unreached; {lost.reason}" in "\n".join(told[-6:])
