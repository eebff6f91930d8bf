"""What is asked of sites, and what is known of their rows here, which is everything but the rows."""

from typing import Any

import numpy as np
import pytest

import fahmc
from fahmc.data.columns import Columns
from fahmc.data.sites import RemoteFederation, Sites, made_up_client
from fahmc.engines import Flare, InProcess
from fahmc.errors import DataError, ModelError, SettingsError


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"features": ["age"]}, "features without an outcome; name the outcome column as well"),
        ({"features": []}, "features without an outcome"),
        ({"categorical": ["group"]}, "features without an outcome"),
        ({"outcome_positive": "yes"}, "features without an outcome"),
        ({"outcome": "ill", "features": "age"}, "a list of non-empty texts.* Put a single one into a list"),
        ({"outcome": "ill", "categorical": "group"}, "a list of non-empty texts.* Put a single one into a list"),
        ({"outcome": "ill", "missing": "impute"}, "missing is 'impute'; it must be 'error' or 'drop'"),
    ],
)
def test_questions_that_make_no_sense_are_refused(asked, words):
    with pytest.raises(DataError, match=words):
        Sites(**asked)


def test_questions_say_which_columns_to_take():
    assert Sites().columns is None
    assert Sites(outcome="ill").columns == Columns("ill")
    asked = Sites("ill", ["age", "group"], "yes", ["group"], "drop", standardize=False, weights={"north": 1.0})
    assert asked.columns == Columns("ill", ("age", "group"), "yes", ("group",), "drop", False)


EXAMPLE = {"x": np.zeros((1, 2)), "y": np.zeros(1, np.int32)}
REPORTS: dict[str, Any] = {
    "sizes": {"north": 30, "south": 10},
    "example": EXAMPLE,
    "marks": {"south": "s", "north": "n"},
    "weights": None,
    "about": {"feature_names": ["age", "bmi"]},
}


def test_a_remote_federation_has_sizes_but_no_rows():
    federation = RemoteFederation.from_reports(**REPORTS)
    assert (federation.names, federation.num_clients, federation.num_rows) == (("north", "south"), 2, 40)
    np.testing.assert_array_equal(federation.sizes, [30, 10])
    np.testing.assert_array_equal(federation.weights, [0.75, 0.25])
    assert federation.marks == ("n", "s"), "in the order of the names"
    assert federation.rows == (EXAMPLE, EXAMPLE)
    with pytest.raises(DataError, match=r"rows lie with the sites, so they cannot be pooled; use FAHMC, .*, not HMC"):
        federation.pooled()


def test_weights_of_a_remote_federation_are_checked_and_put_in_order():
    def weighted(**weights: Any) -> RemoteFederation:
        reports: dict[str, Any] = REPORTS | {"weights": weights}
        return RemoteFederation.from_reports(**reports)

    federation = weighted(south=0.9, north=0.1)
    np.testing.assert_allclose(federation.weights, [0.1, 0.9], rtol=1e-15)
    for weights, words in [
        ({"north": 1.0}, "Weights and clients do not match: south"),
        ({"north": 0.5, "south": 0.4}, r"The weights sum to 0\.9; they must sum to 1"),
        ({"north": 1.5, "south": -0.5}, r"Client 'south' has weight -0\.5"),
    ]:
        with pytest.raises(DataError, match=words):
            weighted(**weights)


def test_shapes_are_tried_on_a_made_up_client():
    federation = RemoteFederation.from_reports(**REPORTS)
    alone = made_up_client(federation)
    assert type(alone) is fahmc.Federation and alone.names == ("north",) and alone.num_rows == 1
    np.testing.assert_array_equal(alone.weights, [1.0])
    here = fahmc.Federation.from_clients({"north": EXAMPLE})
    assert made_up_client(here) is here


MODEL, SAMPLER = fahmc.models.logistic_regression(), fahmc.FAHMC(0.1)
HERE, THERE = fahmc.Federation.from_clients({"north": EXAMPLE}), Sites(outcome="ill")
# There is no such kit: whoever looked for it, or for a server, would say so.
FLARE = Flare("no/such/kit")


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"federation": THERE}, SettingsError, r"an engine that reaches them: engine=fahmc\.engines\.Flare\(kit="),
        ({"federation": THERE, "engine": InProcess()}, SettingsError, "needs an engine that reaches them"),
        ({"federation": HERE, "engine": FLARE}, SettingsError,
         r"^Flare runs rounds where the rows are, so its federation is not a Federation but fahmc\.Sites\(outcome"),
        ({"federation": {"north": EXAMPLE}, "engine": FLARE}, DataError, r"fahmc\.Federation.* or fahmc\.Sites\("),
        ({"federation": THERE, "engine": FLARE, "private_seed": 1}, SettingsError,
         "private_seed is set, but every site draws its private part from a secret of its own"),
        ({"federation": THERE, "engine": FLARE, "sampler": fahmc.HMC(0.1)}, SettingsError, "HMC runs on one machine"),
        ({"federation": THERE, "engine": FLARE, "sampler": fahmc.FAHMC(lambda t: 0.1)}, SettingsError,
         "step_size is <function .* cannot be sent to sites"),
        ({"federation": THERE, "engine": FLARE, "model": fahmc.Model(lambda position, batch: position * batch["y"])},
         ModelError, "made of Python functions, which are not sent to sites"),
    ],
)  # fmt: skip
def test_runs_that_no_site_could_take_are_refused_before_any_is_asked(arguments, error, words):
    options: dict[str, Any] = {"model": MODEL, "sampler": SAMPLER, "num_rounds": 3, "progress": False}
    with pytest.raises(error, match=words):
        fahmc.sample(**options | arguments)
