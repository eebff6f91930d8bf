"""A run that decides on the way, at real sites: one warm job for all phases, no bit changed by what is killed."""

from typing import Any

import numpy as np
import pytest

import fahmc
from clinics import COLUMNS
from fahmc.engines import Flare
from fahmc.engines.flare.processes import find_processes
from saboteur import Saboteur, assert_same_bits, kill

pytestmark = [pytest.mark.federation, pytest.mark.xdist_group("one federation")]

SITES, MODEL = fahmc.Sites(**COLUMNS), fahmc.models.logistic_regression()
RUN: dict[str, Any] = {"num_chains": 4, "dtype": "float64", "progress": False}
# Searches, windows and blocks: phases of several kinds, of one round and of many.
SPLIT = fahmc.Auto(target_ess=40, method="split")


@pytest.fixture(scope="module")
def undisturbed(real, pooled_here):
    with Flare(real.kits["analyst"].path, round_timeout=30, patience=60) as engine:
        surrogate = fahmc.sample(MODEL, SITES, fahmc.Auto(target_ess=100), engine=engine, **RUN)
        split = fahmc.sample(MODEL, SITES, SPLIT, engine=engine, **RUN)
        assert engine._session is not None and engine._session.number == 1, "the phases shared no job"
    return {"surrogate": surrogate, "split": split}


def test_draws_are_those_of_one_process(undisturbed, pooled_here):
    for remote, sampler in ((undisturbed["surrogate"], fahmc.Auto(target_ess=100)), (undisturbed["split"], SPLIT)):
        here = fahmc.sample(MODEL, pooled_here, sampler, **RUN)
        np.testing.assert_allclose(remote.flat(), here.flat(), rtol=1e-8, atol=1e-10)
        costs = ("rounds", "bytes_to_clients")
        assert [remote.cost[name] for name in costs] == [here.cost[name] for name in costs]
        assert all(phase["is_masked"] for phase in remote.account["messages"])
        assert remote.account["choices"] == here.account["choices"] and not remote.account["doubts"]


def test_what_is_killed_in_any_phase_changes_no_bit(real, undisturbed):
    kits = real.kits
    harm = {
        "search 1": lambda: kill(*find_processes(kits["north"], only_workers=True)),
        "split: window 2": lambda: kill(*find_processes(kits["server"])),
    }
    engine = Saboteur(Flare(kits["analyst"].path, round_timeout=4, patience=120), harm)
    assert_same_bits(fahmc.sample(MODEL, SITES, SPLIT, engine=engine, **RUN), undisturbed["split"])
    assert not engine._harm
