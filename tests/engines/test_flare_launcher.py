"""A worker is a copy of a process that has imported what it needs; FLARE learns how it ended."""

import importlib.util
import json
import multiprocessing
import signal
import sys
from typing import Any

import pytest

from fahmc.engines.flare import launcher
from fahmc.engines.flare.kits import make_kits


@pytest.mark.parametrize(("code", "meaning"), [(0, 0), (9, 9), (1, 1), (77, 1)])
def test_how_a_worker_ends_is_known_to_all_who_ask(code, meaning):
    process = multiprocessing.get_context("forkserver").Process(target=sys.exit, args=(code,))
    process.start()
    watched: Any = launcher._Watched(process)
    handle = launcher.ProcessHandle(process_adapter=watched)
    handle.wait()
    handle.wait()
    assert handle.poll() == handle.poll() == meaning


def test_a_worker_that_is_not_over_can_be_ended():
    process = multiprocessing.get_context("forkserver").Process(target=signal.pause)
    process.start()
    watched = launcher._Watched(process)
    assert watched.poll() is None
    watched.terminate()
    watched.wait()
    assert watched.poll() == -signal.SIGKILL


def test_kits_name_the_launcher_and_it_finds_its_program(tmp_path):
    kits = make_kits(
        tmp_path / "kits", study="trial", server="localhost:8002", sites=["north"], analyst="ann@example.org"
    )
    for name, role in (("server", "server"), ("north", "site")):
        resources = json.loads((kits[name].local / "resources.json").read_text())
        (path,) = [part["path"] for part in resources["components"] if part["id"] == "process_launcher"]
        module, _, attribute = path.rpartition(".")
        found = getattr(importlib.import_module(module), attribute)()
        assert found.module in launcher._IMPORTS[role]
        assert all(importlib.util.find_spec(imported) for imported in launcher._IMPORTS[role])
