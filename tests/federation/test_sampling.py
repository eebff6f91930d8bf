"""A real federation draws what one process draws; sites refuse in sentences, and replies that are not sound do too."""

import functools
import importlib
import sys
from typing import Any

import numpy as np
import pytest

import fahmc
from clinics import COLUMNS, OWN_MODELS
from fahmc import FAHMC, FALD, DebiasedFAHMC
from fahmc.engines import Flare
from fahmc.engines.flare.work import Work
from fahmc.errors import DataError, DivergenceError, FederationError

pytestmark = [pytest.mark.federation, pytest.mark.xdist_group("one federation")]

# Sites and one process do the same arithmetic in another order.
assert_equal = functools.partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-12)
RUN: dict[str, Any] = {"num_rounds": 8, "num_warmup_rounds": 3, "thin": 2}
RUN |= {"num_chains": 2, "seed": 11, "dtype": "float64"}
SITES = fahmc.Sites(**COLUMNS)
MODEL = fahmc.models.logistic_regression(prior_scale=2.0)
SAMPLERS = {
    "FAHMC": FAHMC(0.05, num_leapfrog_steps=3, num_local_steps=2),
    "FALD": FALD(0.05, num_local_steps=3),
    "DebiasedFAHMC": DebiasedFAHMC(0.05, num_leapfrog_steps=3),
    "FAHMC, T in leapfrog steps": FAHMC(0.05, num_leapfrog_steps=3, num_local_steps=2, sync_unit="leapfrog"),
    "DebiasedFAHMC, T in leapfrog steps": DebiasedFAHMC(
        fahmc.schedules.Stages(0.05, 4), num_leapfrog_steps=3, num_local_steps=2, sync_unit="leapfrog"
    ),
    "minibatches": FAHMC(0.03, num_leapfrog_steps=2, gradient=fahmc.Minibatch(20)),
    "private momentum": FAHMC(0.03, num_leapfrog_steps=2, momentum_correlation=0.4),
}


@pytest.fixture(scope="module")
def engine(real):
    """One job at the sites for all tests of this file."""
    with Flare(real.kits["analyst"].path, round_timeout=30, patience=60) as engine:
        yield engine


@pytest.fixture(scope="module")
def own_models(tmp_path_factory):
    """Lay the sites' module where the analyst can import it as well."""
    folder = tmp_path_factory.mktemp("modules")
    (folder / "own_models.py").write_text(OWN_MODELS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setattr(Work, "local_round", Work.local_round)  # put back what the module breaks
        yield importlib.import_module("own_models")
    del sys.modules["own_models"]


@pytest.mark.parametrize("name", SAMPLERS)
def test_draws_are_those_of_one_process(engine, pooled_here, name):
    remote = fahmc.sample(MODEL, SITES, SAMPLERS[name], engine=engine, **RUN)
    # The sites of this federation draw their private parts from a test seed, 5, instead of secrets.
    here = fahmc.sample(MODEL, pooled_here, SAMPLERS[name], row_space=False, private_seed=5, **RUN)
    for parameter, draws in here.positions.items():
        assert_equal(remote.positions[parameter], draws)
    for stat, values in here.stats.items():
        assert_equal(remote.stats[stat], values)
    assert_equal(remote.client_drift, here.client_drift)
    assert remote.client_names == here.client_names
    assert remote.settings["clients"] == here.settings["clients"]
    assert remote.cost["bytes_to_server"] == here.cost["bytes_to_server"] > 0
    assert remote.coords["feature"] == ["age", "group[B]", "group[C]"]


def test_single_precision_and_weights(engine, pooled_here):
    weights = {"north": 0.2, "south": 0.3, "east": 0.5}
    settings: dict[str, Any] = RUN | {"dtype": "float32"}
    sites = fahmc.Sites(**COLUMNS, weights=weights)
    remote = fahmc.sample(MODEL, sites, SAMPLERS["FAHMC"], engine=engine, **settings)
    clients = dict(zip(pooled_here.names, pooled_here.rows, strict=True))
    here = fahmc.sample(
        MODEL,
        fahmc.Federation.from_clients(clients, weights=weights),
        SAMPLERS["FAHMC"],
        row_space=False,
        **settings,
    )
    np.testing.assert_allclose(remote.positions["coefficients"], here.positions["coefficients"], rtol=1e-4, atol=1e-5)


def test_a_model_of_the_sites_own(engine, pooled_here, own_models):
    model = fahmc.Model.named("own_models:steady")
    remote = fahmc.sample(model, SITES, SAMPLERS["FALD"], engine=engine, **RUN)
    here = fahmc.sample(own_models.steady, pooled_here, SAMPLERS["FALD"], row_space=False, **RUN)
    assert_equal(remote.positions["coefficients"], here.positions["coefficients"])


def test_sites_refuse_in_sentences(engine, own_models):
    def sample(model=MODEL, **columns):
        return fahmc.sample(model, fahmc.Sites(**COLUMNS | columns), SAMPLERS["FALD"], engine=engine, **RUN)

    with pytest.raises(FederationError, match=r"'south' refuses .* columns 'income' may not be used here"):
        sample(features=["age", "income"])
    with pytest.raises(DataError, match=r"no column 'agee' in north\.csv of client 'north', did you mean 'age'"):
        sample(features=["agee"])
    with pytest.raises(DataError, match=r"'north' refuses .*lacks values in 'age' \(1\)"):
        sample(missing="error")
    own_models.unlisted = own_models.steady
    unlisted = fahmc.Model.named("own_models:unlisted")
    with pytest.raises(
        FederationError, match=r"'north' refuses .*'own_models:unlisted' is not ready-made and not list"
    ):
        sample(unlisted)
    with pytest.raises(DataError, match=r"'north' refuses .*rows do not fit the model; its log"):
        sample(fahmc.models.poisson_regression(), outcome="age", outcome_positive=None, features=["group"])


def test_replies_that_are_not_sound_are_refused(real, own_models):
    refusals = {
        "nan": (DivergenceError, "Chain 1 diverged in round 3 at client 'south': its position is no longer finite"),
        "short": (FederationError, "Site 'south', in round 3, sent 56 bytes for position; 64 bytes were expected"),
        "stranger": (FederationError, "Site 'south' replied as 'west' for round 3"),
        "late": (FederationError, "Site 'south' replied as 'south' for round 2, but round 3 was asked for"),
    }
    # A job of its own: the site's worker stays broken.
    with Flare(real.kits["analyst"].path, round_timeout=30, patience=60) as engine:
        for attribute, (kind, words) in refusals.items():
            model = fahmc.Model.named(f"own_models:{attribute}")
            with pytest.raises(kind, match=words) as refusal:
                fahmc.sample(model, SITES, SAMPLERS["FALD"], 9, num_chains=2, dtype="float64", engine=engine)
            assert refusal.value.draws.num_draws == 3, "the rounds before are kept, and no others"
            assert np.isfinite(refusal.value.draws.positions["coefficients"]).all()
