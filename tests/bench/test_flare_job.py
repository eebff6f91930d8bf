"""The job that times rounds between processes: what it can do more than a study's, which must not be able to."""

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fahmc.dynamics.fa_hmc import FALD
from fahmc.errors import FederationError

pytest.importorskip("nvflare", reason="nvflare is missing, so the job that times rounds is not checked")

from nvflare.collab.api.decorators import get_object_publish_interface

from fahmc.bench import flare_job
from fahmc.bench.flare_job import JOB, EchoSite, Time, TimedServer
from fahmc.engines.flare.arrays import arrays_to_text
from fahmc.engines.flare.kits import make_kits
from fahmc.engines.flare.messages import read_request, write_request
from fahmc.engines.flare.server import Server
from fahmc.engines.flare.site import Site

SITES = ["north", "south"]
TIME = Time(SITES, 3, arrays_to_text({"position": np.zeros(2)}), 1.0)


def test_only_the_benchmark_can_be_asked_for_times():
    assert read_request(write_request(TIME), TimedServer.REQUESTS) == TIME
    with pytest.raises(FederationError, match="cannot read the request"):
        read_request(write_request(TIME), Server.REQUESTS)
    assert set(get_object_publish_interface(EchoSite())) - set(get_object_publish_interface(Site())) == {
        "echo",
        "plain_round",
    }


def test_masked_rounds_plain_rounds_and_bare_calls_take_turns(monkeypatch):
    calls, server = [], TimedServer()

    def call_sites(sites, method, seconds, arguments):
        calls.append((method, len(arguments["content"])))
        return {site: arguments for site in sites}, {}

    def rounds(kind: str) -> Any:
        def advance(state, round_index):
            calls.append((kind, round_index, float(state["position"].sum())))
            return SimpleNamespace(state={"position": state["position"] + 1})

        broadcast = SimpleNamespace(num_bytes=16)
        return SimpleNamespace(broadcast=broadcast, order=None, is_masked=True, advance=advance)

    monkeypatch.setattr(flare_job, "call_sites", call_sites)
    monkeypatch.setattr(flare_job, "Rounds", lambda *settings: rounds("plain"))
    server.rounds, server._sampler = rounds("masked"), FALD(0.1)
    seconds = server.do("", TIME)["seconds"]
    sums = (0.0, 2.0, 4.0)
    turns = [(("echo", 16), ("plain", place, sum), ("masked", place, sum)) for place, sum in enumerate(sums)]
    assert calls == [call for turn in turns for call in turn]
    assert {kind: len(times) for kind, times in seconds.items()} == {"bare": 3, "plain": 3, "masked": 3}


def test_a_study_allows_the_classes_of_its_own_job_alone(tmp_path):
    study = {"study": "bench", "server": "localhost:8002", "sites": SITES, "analyst": "ann@example.org"}
    kits = make_kits(tmp_path / "kits", **study, job=JOB)
    assert {kit.job for kit in kits.values()} == {JOB}
    for name in ("server", *SITES):
        allowed = json.loads((kits[name].local / "resources.json").read_text())["class_allow_list"]
        assert allowed == list(JOB.classes)
    assert JOB == ("fahmc.bench.flare_job.TimedServer", "fahmc.bench.flare_job.EchoSite")
