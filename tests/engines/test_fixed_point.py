"""Integers stand for numbers: their sums are exact, and what does not fit is said."""

import numpy as np
import pytest

from fahmc.engines.fixed_point import MOST_SUMMANDS, Mismatch, Unfit, from_words, num_words, to_words
from fahmc.errors import FahmcError

SHAPES = {"move": (2, 3), "loss": (4,), "number": ()}


def values(rng: np.random.Generator, size: float) -> dict[str, np.ndarray]:
    return {name: rng.normal(size=shape) * (1.0 if name == "move" else size) for name, shape in SHAPES.items()}


@pytest.mark.parametrize("size", [1e-9, 1.0, 1e12, 1e20])
def test_a_sum_is_that_of_the_numbers_in_whatever_order(size):
    rng = np.random.default_rng(3)
    summands = [values(rng, size) for _ in range(7)]
    words = [to_words(each, len(summands), {"move"}) for each in summands]
    forward, backward = np.zeros_like(words[0]), np.zeros_like(words[0])
    for one, other in zip(words, reversed(words), strict=True):
        forward, backward = forward + one, backward + other
    np.testing.assert_array_equal(forward, backward)
    assert len(forward) == num_words(SHAPES, {"move"}) == 6 + 2 * 5 + 1
    total = from_words(forward, len(summands), SHAPES, {"move"})
    for name in SHAPES:
        error = 7 * 2.0 ** (-45 if name == "move" else -41)
        expected = sum(each[name] for each in summands)
        np.testing.assert_allclose(total[name], expected, rtol=1e-14, atol=error + 1e-15 * size)


def test_extremes_of_the_range_add_up_without_overflow():
    for number in (2**19 / MOST_SUMMANDS, -(2**19) / MOST_SUMMANDS):
        edge = {"move": np.full((2, 3), np.nextafter(number, 0)), "loss": np.full(4, np.nextafter(number * 2**60, 0))}
        words = to_words(edge, MOST_SUMMANDS, {"move"})
        total = from_words(words * np.uint64(MOST_SUMMANDS), MOST_SUMMANDS, {"move": (2, 3), "loss": (4,)}, {"move"})
        for name, value in edge.items():
            np.testing.assert_allclose(total[name], MOST_SUMMANDS * value, rtol=1e-12)
    with pytest.raises(FahmcError, match=r"256 clients are more than a secure sum takes, 255"):
        to_words({}, MOST_SUMMANDS + 1)


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, 2**19 / 3, -(2**19) / 3])
def test_what_does_not_fit_is_named(number):
    move, loss = np.zeros((2, 3)), np.zeros(4)
    move[1, 2] = number
    loss[3] = number * 2**60
    with pytest.raises(Unfit) as unfit:
        to_words({"move": move, "loss": loss, "number": np.zeros(())}, 3, {"move"})
    assert set(unfit.value.where) == {"move", "loss"}
    np.testing.assert_array_equal(np.argwhere(unfit.value.where["move"]), [[1, 2]])
    np.testing.assert_array_equal(np.argwhere(unfit.value.where["loss"]), [[3]])


def test_any_changed_word_and_any_missing_summand_is_noticed():
    rng = np.random.default_rng(4)
    words = [to_words(values(rng, 5.0), 3, {"move"}) for _ in range(3)]
    total = words[0] + words[1] + words[2]
    from_words(total, 3, SHAPES, {"move"})
    for place in range(len(total)):
        for change in (1, 2**40, 2**63):
            changed = total.copy()
            changed[place : place + 1] += np.uint64(change)
            with pytest.raises(Mismatch):
                from_words(changed, 3, SHAPES, {"move"})
    with pytest.raises(Mismatch):
        from_words(words[0] + words[1], 3, SHAPES, {"move"})
