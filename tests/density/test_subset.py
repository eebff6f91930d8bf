"""Subsets without replacement: exact properties, then uniformity at a stated rate, which too few rounds must fail."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from assertions import FALSE_ALARM
from fahmc.density import subset
from fahmc.density.subset import draw_subset
from fahmc.threefry import written_out


def draw(num_rows: int, size: int, repeats: int) -> np.ndarray:
    keys = jax.random.split(written_out(jax.random.key(1)), repeats)
    return np.asarray(jax.jit(jax.vmap(lambda key: draw_subset(key, jnp.int32(num_rows), size)))(keys))


@pytest.mark.parametrize(("num_rows", "size"), [(1, 1), (10, 10), (97, 96), (70_000, 5)])
def test_rows_are_different_and_there(num_rows, size):
    drawn = np.sort(draw(num_rows, size, 50), axis=1)
    assert (np.diff(drawn, axis=1) > 0).all()
    assert drawn.min() >= 0 and drawn.max() < num_rows


def pair_counts(num_rows: int, size: int) -> np.ndarray:
    """How often each ordered pair of different rows comes first and last."""
    drawn = draw(num_rows, size, 200_000)
    counts = np.bincount(drawn[:, 0] * num_rows + drawn[:, -1], minlength=num_rows**2).reshape(num_rows, num_rows)
    return counts[~np.eye(num_rows, dtype=bool)]


@pytest.mark.parametrize(("num_rows", "size"), [(5, 2), (16, 16), (50, 10)])
def test_pairs_are_equally_likely(num_rows, size):
    assert stats.chisquare(pair_counts(num_rows, size)).pvalue > FALSE_ALARM


def test_one_round_is_not_enough(monkeypatch):
    monkeypatch.setattr(subset, "_NUM_ROUNDS", 1)
    assert stats.chisquare(pair_counts(50, 10)).pvalue < FALSE_ALARM


def test_neighbours_meet_as_often_as_others():
    """Structure would show between rows that differ by the width of the square that places are written in, 78."""
    num_rows, size, repeats = 6000, 1000, 2000
    drawn = draw(num_rows, size, repeats)
    is_in = np.zeros((repeats, num_rows))
    is_in[np.arange(repeats)[:, None], drawn] = 1
    rate = size * (size - 1) / (num_rows * (num_rows - 1))
    for lag in (1, 2, 77, 78, 79):
        meetings = (is_in[:, lag:] * is_in[:, :-lag]).mean(axis=1)
        z = (meetings.mean() - rate) / (meetings.std() / repeats**0.5)
        assert abs(z) < stats.norm.isf(FALSE_ALARM / 10)
