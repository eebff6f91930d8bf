"""From rounds to blocks, for engines whose clients reply one by one."""

import numpy as np

from fahmc import FAHMC
from fahmc.dynamics.sampler import Phase
from fahmc.engines.record import RoundResult, record


def rounds(first, last, *, bad=None):
    """Rounds of two chains and three clients, whose numbers are their indices; one may have a client that is lost."""
    for index in range(first, last):
        position = np.full((2, 1), float(index))
        is_finite = np.ones((2, 4), bool)
        if index == bad:
            is_finite[1, 2] = False
        squares = np.full((2, 3), 1.0 + index)
        yield RoundResult({"position": position}, {"n": position[:, 0]}, {"position": position}, squares, is_finite)


def test_draws_are_those_that_are_due():
    phase = Phase("sampling", FAHMC(0.1), num_rounds=12, num_warmup_rounds=4, thin=3)
    block = record(phase, {}, 2, rounds(2, 11))
    assert (block.first_round, block.num_rounds, block.divergence) == (2, 9, None)
    # After warm-up, rounds 4 to 11: every third is kept, and all of them count as drift.
    assert block.positions[:, :, 0].tolist() == [[6.0, 9.0]] * 2 and block.stats["n"].tolist() == [[6.0, 9.0]] * 2
    np.testing.assert_array_equal(block.drift_squares, np.full((2, 3), sum(1.0 + index for index in range(4, 11))))
    assert block.state["position"].tolist() == [[10.0], [10.0]]


def test_a_block_ends_before_the_round_that_diverged():
    phase = Phase("sampling", FAHMC(0.1), num_rounds=12, num_warmup_rounds=0)
    block = record(phase, {}, 5, rounds(5, 11, bad=8))
    assert block.divergence == (1, 8, 2) and block.num_rounds == 3
    assert block.positions[:, :, 0].tolist() == [[5.0, 6.0, 7.0]] * 2
    assert block.state["position"].tolist() == [[7.0], [7.0]]
