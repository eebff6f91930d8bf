"""The online marginal error against the exact one."""

import numpy as np
import pytest

from fahmc import report
from fahmc.errors import DataError
from fahmc.experiments.online_error import OnlineMarginalError

GENERATOR = np.random.default_rng(3)
REFERENCE = GENERATOR.normal(scale=[0.1, 1.0, 30.0], size=(5000, 3))


@pytest.mark.parametrize(
    ("shift", "scale", "num_samples"),
    [(0.0, 1.0, 400), (0.0, 1.0, 5000), (0.3, 1.0, 2000), (0.0, 1.5, 2000), (9.0, 1, 50)],
)
def test_equals_the_exact_error(shift, scale, num_samples):
    """Samples beyond the reference's range included; the cells cost less than half a per cent."""
    samples = np.random.default_rng(4).normal(size=(num_samples, 3)) * [0.1, 1.0, 30.0] * scale + shift
    error = OnlineMarginalError(REFERENCE)
    error.add(samples)
    assert error.value() == pytest.approx(report.marginal_error(samples, REFERENCE), rel=5e-3)


def test_does_not_depend_on_how_samples_come():
    samples = np.random.default_rng(5).normal(size=(300, 3))
    at_once, one_by_one = OnlineMarginalError(REFERENCE), OnlineMarginalError(REFERENCE)
    at_once.add(samples)
    for row in samples:
        one_by_one.add(row[None])
    assert one_by_one.num_samples == 300 and one_by_one.value() == pytest.approx(at_once.value(), rel=1e-12)
    at_once.reset()
    at_once.add(samples[:10])
    assert at_once.value() == pytest.approx(report.marginal_error(samples[:10], REFERENCE), rel=5e-3)


def test_a_coordinate_that_never_moved():
    error = OnlineMarginalError(np.zeros((10, 1)))
    error.add(np.full((4, 1), 3.0))
    assert error.value() == pytest.approx(3.0, abs=2e-3)


def test_refuses_what_it_cannot_measure():
    error = OnlineMarginalError(REFERENCE)
    with pytest.raises(DataError, match="no samples yet"):
        error.value()
    with pytest.raises(DataError, match=r"shape \(5, 2\)"):
        error.add(np.zeros((5, 2)))
    with pytest.raises(DataError, match="NaN"):
        error.add(np.full((1, 3), np.nan))
    with pytest.raises(DataError, match="reference"):
        OnlineMarginalError([1.0, 2.0])
