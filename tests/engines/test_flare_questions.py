"""Questions about draws reach sites as in a real federation, without its network; rules and limits are the site's."""

import dataclasses
import json
from typing import Any

import jax
import numpy as np
import pytest
from test_flare_work import ASKED, Nearby, caller, workers

import fahmc
from clinics import COLUMNS, write_tables
from fahmc.checks import PsisLoo
from fahmc.checks.ask import Asked
from fahmc.data.columns import Columns
from fahmc.data.study import build_study
from fahmc.data.tables import read_clients
from fahmc.engines.flare.arrays import arrays_to_text, text_to_arrays
from fahmc.engines.flare.questions import Question
from fahmc.engines.flare.refusals import Refusal, Refused
from fahmc.engines.flare.survey import survey
from fahmc.errors import DataError, FederationError

MODEL = fahmc.models.logistic_regression(prior_scale=2.0)
SITES = fahmc.Sites(**COLUMNS)
NARROW = fahmc.Sites(**{**COLUMNS, "features": ["age"]})


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    return write_tables(tmp_path_factory.mktemp("tables"))


def draws_of(dim: int, settings: Any = None) -> fahmc.Draws:
    rng = np.random.default_rng(dim)
    positions = {"coefficients": 0.3 * rng.normal(size=(2, 30, dim)), "intercept": 0.2 * rng.normal(size=(2, 30))}
    return fahmc.Draws(positions, {}, (), None, settings or {}, {}, model=MODEL)


def federation_of(tables, sites: fahmc.Sites) -> fahmc.Federation:
    assert isinstance(sites.columns, Columns)
    return fahmc.Federation.from_clients(build_study(read_clients(tables), sites.columns).clients)


def assert_same_loo(found, expected):
    numbers = [
        [loo.elpd_loo, loo.se, loo.p_loo, *(site.elpd_loo for site in loo.sites.values())] for loo in (found, expected)
    ]
    np.testing.assert_allclose(*numbers, rtol=1e-10)
    assert list(found.sites) == list(expected.sites) and found.num_rows == expected.num_rows


def test_sites_answer_as_one_process_does(tables, tmp_path):
    large, small = draws_of(3), draws_of(1)
    here, narrow = federation_of(tables, SITES), federation_of(tables, NARROW)
    with Nearby(tmp_path, workers(tables), []) as engine:
        assert_same_loo(large.loo(SITES, engine=engine), large.loo(here))
        runs, rows = {"large": large, "small": small}, {"large": SITES, "small": NARROW}
        found = fahmc.compare_models(runs, rows, engine=engine)
        expected = fahmc.compare_models(runs, {"large": here, "small": narrow})
        assert_same_loo(found.models["small"], expected.models["small"])
        np.testing.assert_allclose(list(found.errors.values()), list(expected.errors.values()), rtol=1e-9)
        with pytest.raises(DataError, match="made from rows by site"):
            draws_of(3, {"clients": {"north": 1, "south": 1, "east": 1}}).loo(SITES, engine=engine)
        about = {"sites": {"feature_names": ["age"]}}
        with pytest.raises(DataError, match="in another way than when the draws were made"):
            draws_of(3, about).loo(SITES, engine=engine)
        with pytest.raises(DataError, match=r"'north' refuses to answer a question about draws: .* does not fit"):
            small.loo(SITES, engine=engine)


def sampled() -> fahmc.Model:
    def sample(key, position, batch):
        return jax.random.bernoulli(key, MODEL.predict(position, batch)).astype(position["intercept"].dtype)

    return dataclasses.replace(MODEL, sample_fn=sample, outcome="y")


def test_sites_check_the_fit_as_one_process_does(tables, tmp_path):
    model = fahmc.Model.named("test_flare_questions:sampled")
    draws, here = dataclasses.replace(draws_of(3), model=model), federation_of(tables, SITES)
    work = workers(tables, own_models=["test_flare_questions:sampled"], minimum_rows=15)
    with Nearby(tmp_path, work, []) as engine:
        found, expected = draws.predictive_check(SITES, engine=engine), draws.predictive_check(here)
        for name in ("mean", "sd", "zeros"):
            ours, theirs = found.statistics[name], expected.statistics[name]
            assert ours.observed == pytest.approx(theirs.observed, rel=1e-12)
            # The sites draw from secrets of their own.
            assert ours.predicted == pytest.approx(theirs.predicted, abs=0.05) and ours != theirs
        # Groups of ranks, and of chances, hold no fewer rows than the sites' minimum; scores are exact.
        assert bool((found.binned["observed"] >= 15).all()) and len(found.bins) < len(expected.bins)
        chances, whole = draws.calibration(SITES, engine=engine), draws.calibration(here)
        assert (chances.brier, chances.log_score) == pytest.approx((whole.brier, whole.log_score), rel=1e-10)
        assert chances.auc_bounds[0] <= whole.auc_bounds[0] and whole.auc_bounds[1] <= chances.auc_bounds[1]
        assert min(min(group.num_ones, group.num_rows - group.num_ones) for group in chances.groups) >= 15


def test_models_of_other_outcomes_are_not_compared(tables, tmp_path):
    other = fahmc.Sites(**{**COLUMNS, "outcome_positive": "no"})
    with Nearby(tmp_path, workers(tables), []) as engine, pytest.raises(DataError, match="not fitted to the same rows"):
        fahmc.compare_models({"a": draws_of(3), "b": draws_of(3)}, {"a": SITES, "b": other}, engine=engine)


def asked_site(tables, **rules: Any):
    """Return a site that has told its rows, and a question for it."""
    work = workers(tables, **rules)
    marks = survey(caller(work), list(work), ASKED, None, 1.0)["marks"]
    positions = {name: values.reshape(-1, *values.shape[2:]) for name, values in draws_of(3).positions.items()}
    asked = [Asked(MODEL, positions, SITES, {})]
    return work["north"], Question.of(PsisLoo([1.0]), list(work), asked, [marks])


def test_rules_decide(tables):
    def refusal(question: Question | str, **rules: Any) -> Refusal:
        work, _ = asked_site(tables, **rules)
        with pytest.raises(Refused) as refused:
            work.answer(question if isinstance(question, str) else question.text)
        return refused.value.refusal

    _, question = asked_site(tables)
    values = json.loads(question.text)

    def changed(**fit: Any) -> str:
        return json.dumps(values | {"fits": [values["fits"][0] | fit]})

    assert refusal(question, checks=False) == Refusal.CHECKS
    assert refusal(question, models=["poisson_regression"]) == Refusal.MODEL
    assert refusal(json.dumps(values | {"check": {"object": "os:system"}})) == Refusal.OWN_CHECK
    assert refusal(json.dumps(values | {"check": {"name": "Nothing"}})) == Refusal.SETTINGS
    assert refusal(changed(model={"object": "os:system"})) == Refusal.OWN_MODEL
    effects = {"name": "logistic_regression", "site_effects": "intercept"}
    assert refusal(changed(model=effects)) == Refusal.SITE_EFFECTS
    assert refusal("{") == refusal(json.dumps(values | {"fits": []})) == Refusal.REQUEST
    assert refusal(changed(marks={"north": "another"})) == Refusal.UNFIT_DRAWS
    assert refusal(changed(template="coefficients")) == Refusal.UNFIT_DRAWS
    nan = arrays_to_text({"coefficients": np.full((60, 3), np.nan), "intercept": np.zeros(60)})
    assert refusal(changed(draws=nan)) == Refusal.UNFIT_DRAWS
    assert refusal(question, maximum_minutes=1e-9) == Refusal.TOO_LONG


def test_an_answer_has_no_place_for_rows(tables):
    work, question = asked_site(tables, minimum_rows=30)
    answer = text_to_arrays(work.answer(question.text)["answer"])
    assert {name: array.shape for name, array in answer.items()} == PsisLoo([1.0]).shapes([60])
    assert max(array.size for array in answer.values()) == 3
    counts = answer["k_counts"]
    assert ((counts == 0) | (counts >= 30)).all()


def test_an_answer_of_other_shapes_is_refused(tables, tmp_path):
    work = workers(tables)
    lying: Any = work["south"]
    lying.answer = lambda question: {"answer": arrays_to_text({"rows": np.zeros(90)})}
    with Nearby(tmp_path, work, []) as engine, pytest.raises(FederationError, match="'south' answered PsisLoo with"):
        draws_of(3).loo(SITES, engine=engine)
