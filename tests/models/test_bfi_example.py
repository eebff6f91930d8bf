"""The example on the trauma table: its BFI is the published one."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from fahmc.bench.rounds.hospitals import trauma
from fahmc.errors import DataError

EXAMPLE = Path(__file__).parents[2] / "examples" / "trauma_centre_effects.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("trauma_centre_effects", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def some_rows(seed, size=80):
    rng = np.random.default_rng(seed)
    x = np.column_stack([np.ones(size), rng.normal(size=(size, 2))])
    return x, (rng.random(size) < 1 / (1 + np.exp(-x @ [-0.5, 1.0, -1.0]))).astype(float)


@pytest.mark.parametrize("has_own_intercepts", [False, True])
def test_one_site_is_its_own_mode(example, has_own_intercepts):
    x, y = some_rows(0)
    theta, curvature = example.mode_of(x, y)
    np.testing.assert_allclose(x.T @ (y - 1 / (1 + np.exp(-x @ theta))), example.PRECISION * theta, atol=1e-10)
    mean, sd = example.bfi([(x, y)], has_own_intercepts)
    np.testing.assert_allclose(mean, theta)
    np.testing.assert_allclose(sd, np.sqrt(np.diag(np.linalg.inv(curvature))))


def test_own_intercepts_maximise_the_sum_of_quadratics(example):
    tables = [some_rows(seed) for seed in range(3)]
    mean, _ = example.bfi(tables, has_own_intercepts=True)
    modes = [example.mode_of(x, y) for x, y in tables]
    own, common = mean[:3], mean[3:]
    slopes = [curvature @ (np.r_[own[c], common] - theta) for c, (theta, curvature) in enumerate(modes)]
    np.testing.assert_allclose([slope[0] for slope in slopes], 0, atol=1e-9)
    np.testing.assert_allclose(sum(slope[1:] for slope in slopes), 2 * example.PRECISION * common, atol=1e-9)


def test_the_published_number_is_found(example):
    try:
        clients = trauma()
    except DataError:
        pytest.skip("the trauma table lies neither in $FAHMC_DATA nor in the cache")
    tables = [(rows["x"], rows["y"]) for rows in clients.values()]
    n = sum(len(y) for _, y in tables)
    # R's scale() divides by the sd of n - 1 rows, and leaves sex as it is.
    sex = np.concatenate([x[:, 0] for x, _ in tables])
    low, step = sex.min(), np.ptp(sex)
    shrink = np.sqrt((n - 1) / n)
    as_in_r = [(np.column_stack([np.ones(len(y)), (x[:, 0] - low) / step, x[:, 1:] * shrink]), y) for x, y in tables]
    mean, _ = example.bfi(as_in_r, has_own_intercepts=False)
    assert mean[4] == pytest.approx(-1.7375, abs=5e-5)
    pooled, curvature = example.mode_of(*(np.concatenate(parts) for parts in zip(*as_in_r, strict=True)))
    assert pooled[4] == pytest.approx(-1.9981, abs=5e-5)
    assert np.sqrt(np.linalg.inv(curvature)[4, 4]) == pytest.approx(0.2379, abs=5e-5)
