"""LOO summed over sites is ArviZ's on the pooled rows, however rows are split; few rows of a high k are not counted."""

import warnings
from typing import Any

import numpy as np
import pytest

import fahmc
from fahmc._arviz import HAS_TREES
from fahmc._arviz import arviz as az
from fahmc.checks import Fit, PsisLoo
from fahmc.checks import loo as loo_file
from fahmc.checks.check import answer_here
from fahmc.checks.groups import common_edges, edges_told, gather, groups_of
from fahmc.errors import DataError, FahmcError, ModelError, SettingsError

SIZES = {"north": 40, "south": 25, "east": 35}
# ArviZ 1.x divides by n - 1 for a variance over rows, 0.x and we by n.
OF_N = np.sqrt(1 - 1 / sum(SIZES.values())) if HAS_TREES else 1.0
SMALL, LARGE = (fahmc.models.logistic_regression(prior_scale=scale) for scale in (1.0, 2.0))


def rows_of(num_features: int = 3) -> dict[str, Any]:
    rng = np.random.default_rng(4)
    x = rng.normal(size=(sum(SIZES.values()), 3))
    x[:2] *= 6  # two rows that a draw without them would not expect
    y = (rng.random(len(x)) < 1 / (1 + np.exp(-x @ np.array([1.5, -1.0, 0.2])))).astype(float)
    return {"x": x[:, :num_features], "y": y}


def split(rows: dict[str, Any], sizes) -> fahmc.Federation:
    ends = np.cumsum(list(sizes.values()))[:-1]
    parts = {name: np.split(values, ends) for name, values in rows.items()}
    return fahmc.Federation.from_clients(
        {name: {key: values[place] for key, values in parts.items()} for place, name in enumerate(sizes)}
    )


def made(positions, settings: Any = None, model: Any = None) -> fahmc.Draws:
    leaf = next(iter(positions.values()))
    stats = {"diverging": np.zeros(leaf.shape[:2], bool)}
    return fahmc.Draws(positions, stats, ("a",), None, settings or {}, {}, model=model)


def some_draws(federation: fahmc.Federation, model: fahmc.Model, scale: float, seed: int) -> fahmc.Draws:
    """Draws near the posterior, without sampling: LOO is a function of any draws."""
    rng, dim = np.random.default_rng(seed), federation.rows[0]["x"].shape[1]
    mean = np.array([1.4, -0.9, 0.1])[:dim]
    positions = {
        "coefficients": mean + scale * rng.normal(size=(4, 60, dim)).cumsum(axis=1) / 6,
        "intercept": 0.2 * rng.normal(size=(4, 60)),
    }
    settings = {"clients": dict(zip(federation.names, map(int, federation.sizes), strict=True))}
    return made(positions, settings, model)


@pytest.fixture(scope="module")
def study():
    federation, narrow = split(rows_of(), SIZES), split(rows_of(1), SIZES)
    return federation, narrow, some_draws(federation, LARGE, 0.35, 1), some_draws(narrow, SMALL, 0.2, 2)


def arviz_loo(draws, federation) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: Any = az.loo(draws.to_arviz(federation), pointwise=True)
    others = {"elpd_loo": "elpd", "p_loo": "p", "loo_i": "elpd_i"} if HAS_TREES else {}
    names = ("elpd_loo", "se", "p_loo", "good_k", "pareto_k", "warning", "loo_i")
    return {name: getattr(found, others.get(name, name)) * (OF_N if name == "se" else 1) for name in names}


def test_loo_is_that_of_arviz_on_pooled_rows(study):
    federation, _, draws, _ = study
    ours, theirs = draws.loo(federation), arviz_loo(draws, federation)
    for name, value in (("elpd_loo", ours.elpd_loo), ("se", ours.se), ("p_loo", ours.p_loo), ("good_k", ours.good_k)):
        np.testing.assert_allclose(value, theirs[name], rtol=1e-10, err_msg=name)
    k = theirs["pareto_k"].values
    assert list(ours.k_counts.values()) == [
        (k <= ours.good_k).sum(),
        ((k > ours.good_k) & (k <= 1)).sum(),
        (k > 1).sum(),
    ]
    assert ours.warning == bool(theirs["warning"]) is True, "the case shows nothing"
    np.testing.assert_allclose(sum(site.elpd_loo for site in ours.sites.values()), ours.elpd_loo, rtol=1e-12)
    ends = np.cumsum([0, *SIZES.values()])
    for (name, site), first, end in zip(ours.sites.items(), ends[:-1], ends[1:], strict=True):
        part = theirs["loo_i"].values[first:end]
        np.testing.assert_allclose([site.elpd_loo, site.se], [part.sum(), len(part) ** 0.5 * part.std()], err_msg=name)
    assert "elpd_loo" in str(ours) and "south" in str(ours)


def test_loo_does_not_depend_on_the_split(study):
    _, _, draws, _ = study
    first = draws.loo(split(rows_of(), {"one": 100}))
    second = draws.loo(split(rows_of(), {"a": 1, "b": 50, "c": 49}))
    np.testing.assert_allclose([first.elpd_loo, first.se, first.p_loo], [second.elpd_loo, second.se, second.p_loo])
    assert first.k_counts == second.k_counts


def test_chunks_of_rows_change_nothing(study, monkeypatch):
    federation, _, draws, _ = study
    whole = draws.loo(federation)
    monkeypatch.setattr("fahmc.checks.pointwise._MOST_NUMBERS", 240 * 7)
    np.testing.assert_allclose(draws.loo(federation).elpd_loo, whole.elpd_loo, rtol=1e-12)


def test_raw_weights_would_be_noticed(study, monkeypatch):
    federation, _, draws, _ = study
    theirs = arviz_loo(draws, federation)

    def unsmoothed(log_weights, efficiency):
        return log_weights - np.log(np.exp(log_weights).sum(axis=1, keepdims=True)), np.zeros(len(log_weights))

    monkeypatch.setattr("fahmc._arviz.psislw", unsmoothed)
    assert abs(draws.loo(federation).elpd_loo - theirs["elpd_loo"]) > 1e-3


def test_comparison_is_that_of_arviz(study):
    federation, narrow, large, small = study
    ours = fahmc.compare_models({"small": small, "large": large}, {"small": narrow, "large": federation})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rounding: Any = {"round_to": "none"} if HAS_TREES else {}
        theirs: Any = az.compare({"small": small.to_arviz(narrow), "large": large.to_arviz(federation)}, **rounding)
    assert list(ours.models) == list(theirs.index)
    theirs = theirs.rename(columns={"elpd": "elpd_loo", "p": "p_loo"})
    columns = ("rank", "elpd_loo", "p_loo", "elpd_diff", "se", "dse", "warning")
    for column in columns[: 6 if HAS_TREES else 7]:  # 1.x has another diagnosis in the place of the last
        expected = theirs[column].to_numpy(float) * (OF_N if column == "se" else 1)
        expected = abs(expected) if column == "elpd_diff" else expected  # 1.x tells it below 0
        np.testing.assert_allclose(ours.table[column].to_numpy(float), expected, rtol=1e-9, atol=1e-12, err_msg=column)
    unpaired = np.linalg.norm([model.se for model in ours.models.values()])
    assert 0 < ours.table["dse"].iloc[1] < 0.9 * unpaired, "the case shows no pairs"


def test_models_of_other_rows_are_not_compared(study):
    federation, narrow, large, small = study
    other = rows_of(1)
    other["y"] = other["y"][::-1].copy()
    runs = {"small": small, "large": large}
    with pytest.raises(DataError, match="not fitted to the same rows at north"):
        fahmc.compare_models(runs, {"small": split(other, SIZES), "large": federation})
    with pytest.raises(DataError, match="different clients"):
        fahmc.compare_models(runs, {"small": split(rows_of(1), {"one": 100}), "large": federation})
    with pytest.raises(SettingsError, match="give two runs or more"):
        fahmc.compare_models({"small": small}, narrow)


def test_refusals_are_sentences(study):
    federation, narrow, draws, _ = study
    with pytest.raises(DataError, match="made from 100 rows, but the federation has 40"):
        draws.loo(fahmc.Federation.from_clients({"north": federation.rows[0]}))
    with pytest.raises(ModelError, match="loglikelihood_fn failed"):
        draws.loo(narrow)
    with pytest.raises(SettingsError, match="an engine has to reach them"):
        draws.loo(fahmc.Sites(outcome="y"))
    weighted = fahmc.Federation.from_clients(
        dict(zip(federation.names, federation.rows, strict=True)), weights=[0.5, 0.25, 0.25]
    )
    with pytest.raises(ModelError, match="every row counts once"):
        draws.loo(weighted)
    with pytest.raises(ModelError, match="come from a file"):
        made(draws.positions).loo(federation)
    with pytest.raises(DataError, match="needs 20 or more"):
        made({"a": np.zeros((1, 5))}, model=draws.model).loo(federation)


def test_draws_are_thinned_evenly(study):
    federation, _, draws, _ = study
    thinned = draws.loo(federation, max_draws=100)
    assert thinned.num_draws == 80
    kept = {name: values[:, ::3] for name, values in draws.positions.items()}
    theirs = arviz_loo(made(kept, model=draws.model), federation)
    np.testing.assert_allclose(thinned.elpd_loo, theirs["elpd_loo"], rtol=1e-10)


def test_few_rows_of_a_high_k_are_not_counted(study):
    federation, _, draws, _ = study
    flat = {name: values.reshape(-1, *values.shape[2:]) for name, values in draws.positions.items()}
    check = PsisLoo([0.5])
    fits = [[Fit(LARGE, flat, rows, name)] for name, rows in zip(federation.names, federation.rows, strict=True)]
    open_answers, answers = ({fit[0].site: answer_here(check, fit, m) for fit in fits} for m in (1, 10))
    is_high = {name: answer["k_counts"][0, 1:].sum() for name, answer in open_answers.items()}
    assert 0 < is_high["north"] < 10, "the case shows nothing"
    np.testing.assert_array_equal(answers["north"]["k_counts"][0], [40, 0, 0])
    np.testing.assert_array_equal(answers["north"]["k_edges"][0], [0, 0])
    (told,), (untold,) = (check.conclude(found) for found in (open_answers, answers))
    by_site = {name: check.conclude({name: answer})[0] for name, answer in answers.items()}
    hidden = loo_file.Loo.of(untold, 240, by_site)
    assert hidden.warning and "north" in hidden.silent and sum(hidden.k_counts.values()) == 100
    assert "Not told how many" in str(hidden)
    assert untold.elpd == told.elpd and untold.se == told.se
    with pytest.raises(FahmcError, match="fewer rows than it tells"):
        answer_here(check, fits[0], 41)


def test_groups_hold_enough_rows_of_every_class_and_add_up():
    rng = np.random.default_rng(0)
    for _ in range(200):
        cells = rng.poisson(rng.uniform(0, 8), size=(2, 16)).astype(float) * (rng.random((1, 16)) < 0.7)
        edges = edges_told(cells, 10)
        if edges is None:
            assert (cells.sum(axis=1) < 10).any()
            continue
        groups = groups_of([gather(cells, edges)], edges)
        assert ((groups.sum(axis=0) == 0) | (groups >= 10).all(axis=0)).all()
        np.testing.assert_array_equal(groups.sum(axis=1), cells.sum(axis=1))
    several = [edges_told(rng.poisson(20, size=(2, 16)).astype(float), 30) for _ in range(3)]
    assert all(edges is not None for edges in several)
    shared = common_edges([edges for edges in several if edges is not None])
    assert 1 < shared.sum() < 15, "halves are tried first, so that sites have edges in common"
