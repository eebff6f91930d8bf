"""A real federation draws what one process draws; sites refuse in sentences, and replies that are not sound do too."""

import functools
import importlib
import sys
from typing import Any

import numpy as np
import pytest

import fahmc
from clinics import COLUMNS, OWN_MODELS
from fahmc import FAHMC, DebiasedFAHMC
from fahmc.engines import Flare
from fahmc.engines.flare.work import Work
from fahmc.errors import DataError, DivergenceError, FederationError
from own_samplers import ServerLangevin, Unlisted

pytestmark = [pytest.mark.federation, pytest.mark.xdist_group("one federation")]

# Sites and one process do the same arithmetic in another order.
CLOSE: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-12}
assert_equal = functools.partial(np.testing.assert_allclose, **CLOSE)
RUN: dict[str, Any] = {"num_rounds": 8, "num_warmup_rounds": 3, "thin": 2}
RUN |= {"num_chains": 2, "seed": 11, "dtype": "float64"}
SITES = fahmc.Sites(**COLUMNS)
MODEL = fahmc.models.logistic_regression(prior_scale=2.0)
# What a network could change; tests/engines/test_flare_work.py has more without one.
SAMPLERS = {
    "a phase before the first round": DebiasedFAHMC(
        fahmc.schedules.Stages(0.05, 4), num_leapfrog_steps=3, num_local_steps=2, sync_unit="leapfrog"
    ),
}
SCORES = ("brier", "log_score", "auc")
PRIVATE = FAHMC(0.05, num_leapfrog_steps=1, num_local_steps=2, momentum_correlation=0.4)


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
        for name in ("local_round", "hello"):  # put back what the module breaks
            patch.setattr(Work, name, getattr(Work, name))
        yield importlib.import_module("own_models")
    del sys.modules["own_models"]


@pytest.mark.parametrize("name", SAMPLERS)
def test_draws_are_those_of_one_process(engine, pooled_here, name):
    remote = fahmc.sample(MODEL, SITES, SAMPLERS[name], engine=engine, **RUN)
    here = fahmc.sample(MODEL, pooled_here, SAMPLERS[name], row_space=False, **RUN)
    assert remote.stats.keys() == here.stats.keys()
    for found, expected in ((remote.positions, here.positions), (remote.stats, here.stats)):
        for part, values in expected.items():
            # How far clients stray is the small difference of two sums.
            close = {"rtol": 1e-6, "atol": 1e-6} if part == "client_drift" else CLOSE
            np.testing.assert_allclose(found[part], values, rtol=close["rtol"], atol=close["atol"])
    assert remote.client_names == here.client_names
    assert remote.settings["clients"] == here.settings["clients"]
    assert remote.cost["bytes_to_server"] > here.cost["bytes_to_server"] > 0, "words are larger than numbers"
    assert all(phase["is_masked"] for phase in remote.account["messages"]) and remote.client_drift is None
    assert remote.coords["feature"] == ["age", "group[B]", "group[C]"]


def test_private_momentum_in_single_precision_and_weights(engine, pooled_here):
    weights = {"north": 0.2, "south": 0.3, "east": 0.5}
    settings: dict[str, Any] = RUN | {"dtype": "float32"}
    remote = fahmc.sample(MODEL, fahmc.Sites(**COLUMNS, weights=weights), PRIVATE, engine=engine, **settings)
    clients = dict(zip(pooled_here.names, pooled_here.rows, strict=True))
    federation = fahmc.Federation.from_clients(clients, weights=weights)
    # The sites of this federation draw their private parts from a test seed, 5, instead of secrets.
    here = fahmc.sample(MODEL, federation, PRIVATE, row_space=False, private_seed=5, **settings)
    np.testing.assert_allclose(remote.positions["coefficients"], here.positions["coefficients"], rtol=1e-4, atol=1e-5)


def test_sites_refuse_in_sentences(engine, own_models):
    def sample(model=MODEL, sampler: fahmc.Sampler = PRIVATE, **columns):
        return fahmc.sample(model, fahmc.Sites(**COLUMNS | columns), sampler, engine=engine, **RUN)

    with pytest.raises(DataError, match=r"no column 'income' in what others may use of client 'south'"):
        sample(features=["age", "income"])
    with pytest.raises(DataError, match=r"no column 'agee' in what others may use of .* 'north', did you mean 'age'"):
        sample(features=["agee"])
    with pytest.raises(DataError, match=r"^Site 'north' refuses .*: this site lacks values in 'age'\. [^\d]*$"):
        sample(missing="error")
    own_models.unlisted = own_models.steady
    unlisted = fahmc.Model.named("own_models:unlisted")
    with pytest.raises(
        FederationError, match=r"'north' refuses .*'own_models:unlisted' is not ready-made and not list"
    ):
        sample(unlisted)
    with pytest.raises(FederationError, match=r"'north' refuses .*'own_samplers:Unlisted' is not part of fahmc"):
        sample(sampler=Unlisted(0.001))
    with pytest.raises(FederationError, match=r"'north' refuses .*each site tell numbers of its own, which no secure"):
        sample(sampler=ServerLangevin(0.001))
    with pytest.raises(DataError, match=r"'north' refuses .*rows do not fit the model or the sampler; its log"):
        sample(fahmc.models.poisson_regression(), outcome="age", outcome_positive=None, features=["group"])


def test_a_model_of_the_sites_own_and_replies_that_are_not_sound(real, pooled_here, own_models):
    refusals = {
        "nan": (DivergenceError, "Chain 1 diverged in round 3 at client 'south': its position is no longer finite"),
        "late": (FederationError, "Site 'south' replied as 'south' for round 2, but round 3 was asked for"),
    }
    settings: dict[str, Any] = {"num_chains": 2, "dtype": "float64"}
    here = fahmc.sample(own_models.steady, pooled_here, PRIVATE, 3, row_space=False, private_seed=5, **settings)
    # A job of its own: the site's worker stays broken.
    with Flare(real.kits["analyst"].path, round_timeout=30, patience=60) as engine:
        for attribute, (kind, words) in refusals.items():
            model = fahmc.Model.named(f"own_models:{attribute}")
            with pytest.raises(kind, match=words) as refusal:
                fahmc.sample(model, SITES, PRIVATE, 9, engine=engine, **settings)
            # The rounds before are kept, and no others.
            assert_equal(refusal.value.draws.positions["coefficients"], here.positions["coefficients"])
        with pytest.raises(FederationError, match=r"^Site 'south' runs fahmc .*, jax 0\.1\.9 and .*, the server fahmc"):
            fahmc.sample(MODEL, SITES, PRIVATE, 9, engine=engine, **settings)


def test_cross_validation_and_calibration_are_those_of_one_process(engine, pooled_here):
    draws = fahmc.sample(MODEL, SITES, FAHMC(0.1, 3), engine=engine, **{**RUN, "num_rounds": 24, "thin": 1})
    found, expected = draws.loo(SITES, engine=engine), draws.loo(pooled_here)
    assert_equal([found.elpd_loo, found.se, found.p_loo], [expected.elpd_loo, expected.se, expected.p_loo])
    assert {name: site.num_rows for name, site in found.sites.items()} == draws.settings["clients"]
    chances, whole = draws.calibration(SITES, engine=engine), draws.calibration(pooled_here)
    assert chances.sites  # others may have fewer ones than their minimum
    for name, site in chances.sites.items():
        assert_equal([site.brier, site.log_score, site.auc], [getattr(whole.sites[name], kind) for kind in SCORES])
