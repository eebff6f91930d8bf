"""Whatever is killed or hangs, the run goes on, and its draws are bit for bit those of an undisturbed one."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import psutil
import pytest

import fahmc
from clinics import COLUMNS
from fahmc.cli.federation import show_status
from fahmc.engines import Flare
from fahmc.engines.flare.ledger import Ledger
from fahmc.engines.flare.processes import find_processes
from fahmc.engines.flare.statement import items
from fahmc.errors import FederationError
from fahmc.runs.journal import read_journal
from saboteur import Saboteur, assert_same_bits, kill

pytestmark = [pytest.mark.federation, pytest.mark.xdist_group("one federation")]

SITES, MODEL = fahmc.Sites(**COLUMNS), fahmc.models.logistic_regression()
# A private momentum of the site's own must survive a restart too.
SAMPLER = fahmc.FAHMC(0.05, num_leapfrog_steps=2, momentum_correlation=0.5)
RUN: dict[str, Any] = {"num_rounds": 40, "num_warmup_rounds": 10, "num_chains": 2, "dtype": "float64"}
RUN |= {"block_rounds": 5}


@pytest.fixture(scope="module")
def undisturbed(real):
    return fahmc.sample(MODEL, SITES, SAMPLER, engine=Flare(real.kits["analyst"].path), **RUN)


def test_what_is_killed_or_hangs_changes_no_bit(real, undisturbed):
    kits, stopped = real.kits, []

    def hang():
        stopped.extend(find_processes(kits["east"], only_workers=True))
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)

    harm = {
        5: lambda: kill(*find_processes(kits["north"], only_workers=True)),
        15: hang,
        25: lambda: kill(*find_processes(kits["server"])),
        35: lambda: kill(*find_processes(kits["south"])),
    }
    engine = Saboteur(Flare(kits["analyst"].path, round_timeout=4, patience=120), harm)
    draws = fahmc.sample(MODEL, SITES, SAMPLER, engine=engine, **RUN)
    assert_same_bits(draws, undisturbed)
    assert stopped
    for name in kits["analyst"].sites:
        told = [item for item in items(Ledger(kits[name].path)) if item.what == "run" and item.sampler == "FAHMC"]
        assert [(item.who, item.rounds) for item in told] == [(kits["analyst"].name, 50)], "the same rounds count once"
    psutil.wait_procs([psutil.Process(pid) for pid in stopped if psutil.pid_exists(pid)], timeout=30)
    assert not any(psutil.pid_exists(pid) for pid in stopped), "the worker that hung is left behind"


def test_a_site_that_is_silent_is_told_within_seconds_and_may_come_back(real, undisturbed, caplog):
    silent, told, output = [], {}, mock.Mock()

    def look_and_wake():
        try:
            fahmc.sample(MODEL, SITES, SAMPLER, engine=Flare(real.kits["analyst"].path), **RUN)
        except FederationError as refusal:
            told["refusal"] = str(refusal)
        show_status(real.kits["analyst"].path, 0.0, output)
        for process in silent:
            process.resume()

    def fall_silent():
        silent[:] = [psutil.Process(pid) for pid in find_processes(real.kits["east"], only_workers=True)]
        for process in silent:
            process.suspend()
        threading.Timer(5.0, look_and_wake).start()

    engine = Saboteur(Flare(real.kits["analyst"].path, patience=120), {20: fall_silent})
    draws = fahmc.sample(MODEL, SITES, SAMPLER, engine=engine, **RUN)
    assert_same_bits(draws, undisturbed)
    said = [record.getMessage() for record in caplog.records]
    assert re.fullmatch(r"Waiting for east, lost [4-7] s ago\.", next(words for words in said if "Waiting" in words))
    assert re.search(r"A run is in round \d+; waiting for east, lost \d+ s ago", str(output.show.call_args))
    assert told["refusal"].startswith("Another run with this kit is in progress")


def test_a_site_that_does_not_come_back_is_named_and_the_draws_are_kept(real, undisturbed, tmp_path):
    def leave():
        real.participants["north"].stop()

    engine = Saboteur(Flare(real.kits["analyst"].path, round_timeout=4, patience=4), {20: leave})
    with pytest.raises(
        FederationError, match=r"Given up after .*: .*'north'.* Not connected: north\..* kept in"
    ) as end:
        fahmc.sample(MODEL, SITES, SAMPLER, engine=engine, checkpoint_dir=tmp_path, **RUN)
    told = read_journal(tmp_path)
    assert told and told["ended"] == "failed" and told["reason"] == str(end.value)
    assert {site: how == "connected" for site, how in told["sites"].items()} == {
        site: site != "north" for site in real.kits["analyst"].sites
    }
    kept = end.value.draws.num_draws
    assert 10 <= kept < 40
    np.testing.assert_array_equal(
        end.value.draws.positions["coefficients"], undisturbed.positions["coefficients"][:, :kept]
    )
    real.start("north")  # late, but in time for those who wait
    engine = Flare(real.kits["analyst"].path, patience=120)
    draws = fahmc.sample(MODEL, SITES, SAMPLER, engine=engine, checkpoint_dir=tmp_path, **RUN)
    assert_same_bits(draws, undisturbed)
    told = read_journal(tmp_path)
    assert told and told["ended"] == "complete" and set(told["sites"].values()) == {"connected"}


ANALYST = """
import os, signal, sys
from pathlib import Path
import fahmc
from fahmc.engines import Flare
from fahmc.engines.flare.kits import Kit
from fahmc.engines.flare.processes import find_processes
from saboteur import Saboteur
from test_faults import MODEL, RUN, SAMPLER, SITES

def die_while_the_server_is_at_work():
    for pid in find_processes(Kit.load(Path(sys.argv[1]).parent / "north"), only_workers=True):
        os.kill(pid, signal.SIGSTOP)
    os.kill(os.getpid(), signal.SIGKILL)

engine = Saboteur(Flare(sys.argv[1]), {20: die_while_the_server_is_at_work})
fahmc.sample(MODEL, SITES, SAMPLER, engine=engine, checkpoint_dir=sys.argv[2], **RUN)
"""


def test_who_takes_over_from_an_analyst_who_was_killed_need_not_wait(real, undisturbed, tmp_path, caplog):
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    command = [sys.executable, "-c", ANALYST, str(real.kits["analyst"].path), str(tmp_path)]
    end = subprocess.run(command, env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)}, check=False)
    assert end.returncode == -signal.SIGKILL
    engine = Flare(real.kits["analyst"].path, patience=120)
    draws = fahmc.sample(MODEL, SITES, SAMPLER, engine=engine, checkpoint_dir=tmp_path, **RUN)
    assert_same_bits(draws, undisturbed)
    assert "Another" not in caplog.text
