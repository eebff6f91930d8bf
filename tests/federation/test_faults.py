"""Whatever is killed or hangs, the run goes on, and its draws are bit for bit those of an undisturbed one."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import psutil
import pytest

import fahmc
from clinics import COLUMNS
from fahmc.engines import Flare
from fahmc.engines.flare.processes import find_processes
from fahmc.errors import FederationError
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
    psutil.wait_procs([psutil.Process(pid) for pid in stopped if psutil.pid_exists(pid)], timeout=30)
    assert not any(psutil.pid_exists(pid) for pid in stopped), "the worker that hung is left behind"


def test_a_site_that_does_not_come_back_is_named_and_the_draws_are_kept(real, undisturbed, tmp_path):
    def leave():
        real.participants["north"].stop()

    engine = Saboteur(Flare(real.kits["analyst"].path, round_timeout=4, patience=4), {20: leave})
    with pytest.raises(
        FederationError, match=r"Given up after .*: .*'north'.* Not connected: north\..* kept in"
    ) as end:
        fahmc.sample(MODEL, SITES, SAMPLER, engine=engine, checkpoint_dir=tmp_path, **RUN)
    kept = end.value.draws.num_draws
    assert 10 <= kept < 40
    np.testing.assert_array_equal(
        end.value.draws.positions["coefficients"], undisturbed.positions["coefficients"][:, :kept]
    )
    real.start("north")  # late, but in time for those who wait
    engine = Flare(real.kits["analyst"].path, patience=120)
    draws = fahmc.sample(MODEL, SITES, SAMPLER, engine=engine, checkpoint_dir=tmp_path, **RUN)
    assert_same_bits(draws, undisturbed)
