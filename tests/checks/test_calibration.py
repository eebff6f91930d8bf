"""Calibration and ROC summed over sites are those of all rows in one place, up to what groups of rows tell."""

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score

import fahmc
from fahmc.checks import BinnedChances, Fit
from fahmc.checks.check import answer_here
from fahmc.checks.groups import groups_of, limits_of
from fahmc.errors import DataError, ModelError
from fahmc.report.predictive import brier_score, negative_log_likelihood

SIZES = {"north": 120, "south": 60, "east": 90}
MODEL = fahmc.models.logistic_regression()


@pytest.fixture(scope="module")
def study():
    rng = np.random.default_rng(6)
    x = rng.normal(size=(sum(SIZES.values()), 2))
    y = (rng.random(len(x)) < 1 / (1 + np.exp(1 - 1.5 * x[:, 0]))).astype(float)
    ends = np.cumsum([0, *SIZES.values()])
    clients = {
        name: {"x": x[first:end], "y": y[first:end]}
        for name, first, end in zip(SIZES, ends[:-1], ends[1:], strict=True)
    }
    positions = {
        "coefficients": np.array([1.4, 0.2]) + 0.2 * rng.normal(size=(2, 30, 2)),
        "intercept": -0.8 + 0.2 * rng.normal(size=(2, 30)),
    }
    draws = fahmc.Draws(positions, {}, (), None, {}, {}, model=MODEL)
    return fahmc.Federation.from_clients(clients), draws, draws.predict({"x": x, "y": y}), y


def test_scores_are_those_of_all_rows(study):
    federation, draws, chances, y = study
    found = draws.calibration(federation)
    assert found.num_rows == len(y) and found.num_ones == y.sum()
    np.testing.assert_allclose(found.brier, brier_score_loss(y, chances), rtol=1e-10)
    np.testing.assert_allclose(2 * found.brier, brier_score(chances, y), rtol=1e-10)
    np.testing.assert_allclose(-found.log_score, log_loss(y, chances), rtol=1e-10)
    np.testing.assert_allclose(-found.log_score, negative_log_likelihood(chances, y), rtol=1e-10)
    for place, (name, rows) in enumerate(zip(federation.names, federation.rows, strict=True)):
        own = draws.predict(rows)
        expected = [len(own), rows["y"].sum(), own.mean(), brier_score_loss(rows["y"], own)]
        site = found.sites[name]
        np.testing.assert_allclose([site.num_rows, site.num_ones, site.mean_chance, site.brier], expected)
        assert site.auc == pytest.approx(roc_auc_score(rows["y"], own), rel=1e-12), place


def test_groups_and_roc_are_those_of_all_rows(study):
    federation, draws, chances, y = study
    found = draws.calibration(federation)
    assert 7 <= len(found.groups) <= 10 and min(group.num_rows for group in found.groups) >= 0.1 * len(y)
    edges = [found.groups[0].start, *(group.end for group in found.groups)]
    assert edges[0] == 0 and edges[-1] == 1
    member = np.searchsorted(edges[1:-1], chances)
    for place, group in enumerate(found.groups):
        own = member == place
        assert (group.num_rows, group.num_ones) == (own.sum(), y[own].sum())
        assert group.mean_chance == pytest.approx(chances[own].mean(), rel=1e-10)
    gaps = [abs((y - chances)[member == place].sum()) for place in range(len(found.groups))]
    ece = sum(gaps) / len(y)
    assert found.ece == pytest.approx(ece, rel=1e-10)
    points = np.stack([found.false_positives, found.true_positives], axis=1)
    every = [[(chances[y == kind] > cut).mean() for kind in (0, 1)] for cut in np.arange(1025) / 1024]
    distances = np.abs(points[:, None] - np.array(every)).max(axis=2)
    assert len(points) > 20 and distances.min(axis=1).max() < 1e-12
    # No step is a row's own.
    assert (np.diff(points, axis=0) @ [(y == 0).sum(), (y == 1).sum()] > 9.99).all()


def test_auc_lies_within_its_bounds_and_is_exact_in_one_place(study):
    federation, draws, chances, y = study
    pooled = fahmc.Federation.from_clients({"one": federation.pooled().rows[0]})
    auc = roc_auc_score(y, chances)
    whole = draws.calibration(pooled)
    np.testing.assert_allclose([whole.auc, *whole.auc_bounds], auc, rtol=1e-12)
    lower, upper = draws.calibration(federation).auc_bounds
    assert lower - 1e-12 < auc < upper + 1e-12 and 0 < upper - lower < 0.003
    check = BinnedChances()
    answers = {name: answer_here(check, [fit], 10) for name, fit in fits(study).items()}
    coarse = check.conclude(answers)
    assert coarse.auc_bounds[0] < lower and upper < coarse.auc_bounds[1] and coarse.auc_bounds[0] < auc
    assert "AUC lies between its bounds" in str(coarse)
    sure = possible = sum(answer["concordant"] for answer in answers.values())
    for one, zero in itertools.permutations(answers.values(), 2):
        for (start, end), ones in groups_told(one, 1):
            for (other_start, other_end), zeros in groups_told(zero, 0):
                sure += ones * zeros * (start >= other_end)
                possible += ones * zeros * (end > other_start)
    pairs = y.sum() * (1 - y).sum()
    np.testing.assert_allclose(coarse.auc_bounds, [sure / pairs, possible / pairs], rtol=1e-12)


def groups_told(answer, kind: int) -> list[tuple[tuple[float, float], float]]:
    """Return limits and counts of a site's groups."""
    limits = limits_of(list(np.arange(1025) / 1024), answer["edges"] > 0)
    return list(zip(limits, groups_of([answer["counts"][kind]], answer["edges"] > 0), strict=True))


def fits(study, model: Any = MODEL) -> dict[str, Fit]:
    federation, draws, *_ = study
    flat = {name: values.reshape(-1, *values.shape[2:]) for name, values in draws.positions.items()}
    return {name: Fit(model, flat, rows, name) for name, rows in zip(federation.names, federation.rows, strict=True)}


def test_few_ones_are_not_told(study):
    check, fit = BinnedChances(), fits(study)["south"]
    num_ones = int(fit.outcome.sum())
    told, silent = (answer_here(check, [fit], minimum) for minimum in (num_ones, num_ones + 1))
    assert told["is_told"] and silent.pop("num_rows") == 60
    assert not any(array.any() for array in silent.values())
    answers = {name: answer_here(check, [own], 10) for name, own in fits(study).items()}
    for answer in answers.values():
        counts = answer["counts"]
        # Each group has as many ones and as many zeros, or no rows.
        assert ((counts == 0).all(axis=0) | (counts >= 10).all(axis=0)).all()
    whole = check.conclude(answers)
    assert all(group.num_ones >= 10 and group.num_rows - group.num_ones >= 10 for group in whole.groups)
    partly = check.conclude(answers | {"south": silent | {"num_rows": np.array(60)}})
    assert partly.silent == ["south"] and partly.num_rows == 210 and "Left out" in str(partly)
    with pytest.raises(DataError, match="None of the sites"):
        check.conclude({"south": silent | {"num_rows": np.array(60)}})


def test_two_classes_are_chances_too_and_others_are_refused(study):
    federation, draws, *_ = study
    expected = draws.calibration(federation)

    def two(position, batch):
        import jax.numpy as jnp

        ones = MODEL.predict(position, batch)
        return jnp.stack([1 - ones, ones], axis=1)

    found = draws.calibration(federation, model=dataclasses.replace(MODEL, predict_fn=two))
    assert (found.brier, found.auc) == pytest.approx((expected.brier, expected.auc))
    with pytest.raises(ModelError, match="not all between 0 and 1"):
        draws.calibration(federation, model=dataclasses.replace(MODEL, predict_fn=lambda p, b: 2 + b["y"]))
    with pytest.raises(ModelError, match="has no predict_fn"):
        draws.calibration(federation, model=dataclasses.replace(MODEL, predict_fn=None))
    counts = fahmc.Federation.from_clients([{"x": federation.rows[0]["x"], "y": 2 + federation.rows[0]["y"]}])
    with pytest.raises(DataError, match="not all 0 or 1"):
        draws.calibration(counts)
