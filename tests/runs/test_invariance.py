"""What must not matter does not matter: order, padding, chain batching, block length, thinning."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fahmc
from fahmc.data import buckets
from fahmc.runs.history import History

pytestmark = pytest.mark.usefixtures("short_shuffles")

MODEL = fahmc.models.logistic_regression(prior_scale=1.0)
SAMPLER = fahmc.FAHMC(0.05, 3, 2, momentum_correlation=0.5, gradient=fahmc.GaussianNoise(0.5, of=fahmc.Minibatch(12)))


def run(federation, sampler=SAMPLER, num_rounds=12, **options):
    options = {"num_chains": 3, "seed": 4, "dtype": "float64", "progress": False} | options
    return fahmc.sample(MODEL, federation, sampler, num_rounds, **options)


@pytest.fixture(scope="module")
def expected(logistic_study, short_shuffles):
    return run(logistic_study)


def test_client_order_does_not_matter(logistic_study, expected):
    clients = dict(zip(logistic_study.names, logistic_study.rows, strict=True))
    shuffled = fahmc.Federation.from_clients({name: clients[name] for name in ["east", "north", "south"]})
    found = run(shuffled)
    np.testing.assert_allclose(found.flat(), expected.flat(), rtol=1e-9)
    drift = dict(zip(found.client_names, found.client_drift.T, strict=True))
    for name, values in zip(expected.client_names, expected.client_drift.T, strict=True):
        np.testing.assert_allclose(drift[name], values, rtol=1e-9)


@pytest.mark.parametrize("allowed", [0, 10**9])
def test_padding_does_not_matter(logistic_study, expected, monkeypatch, allowed):
    """Every client in a bucket of its own, without padding; and all in one, padded to the largest."""
    monkeypatch.setattr(buckets, "_PADDING_ROWS", allowed)
    monkeypatch.setattr(buckets, "_PADDING_SHARE", 0.0)
    sizes = logistic_study.sizes
    assert len(buckets.bucket_clients(logistic_study, np.dtype(np.float64))) == (1 if allowed else len(sizes))
    found = run(logistic_study)
    np.testing.assert_allclose(found.flat(), expected.flat(), rtol=1e-9)
    np.testing.assert_allclose(found.client_drift, expected.client_drift, rtol=1e-9)


def test_number_of_chains_does_not_matter(logistic_study, expected):
    np.testing.assert_allclose(run(logistic_study, num_chains=2).flat(), expected.flat()[:2], rtol=1e-9)


def test_block_length_does_not_matter_to_the_last_bit(logistic_study, expected):
    found = run(logistic_study, block_rounds=5)
    np.testing.assert_array_equal(found.flat(), expected.flat())
    np.testing.assert_array_equal(found.stats["client_drift"], expected.stats["client_drift"])


def test_thinning_and_warmup_only_leave_out(logistic_study, expected):
    found = run(logistic_study, num_rounds=7, num_warmup_rounds=5, thin=2, block_rounds=4)
    np.testing.assert_array_equal(found.flat(), expected.flat()[:, 6::2][:, :3])


def test_seeds_matter(logistic_study, expected):
    assert not np.allclose(run(logistic_study, seed=5).flat(), expected.flat())
    private = run(logistic_study, private_seed=99)
    assert not np.allclose(private.flat(), expected.flat())
    # With common momentum and exact gradients nothing is private.
    plain = fahmc.FAHMC(0.05, 3, 2)
    np.testing.assert_array_equal(run(logistic_study, plain, private_seed=99).flat(), run(logistic_study, plain).flat())


def test_float32_follows_float64(logistic_study, monkeypatch):
    """On the same random numbers: JAX's normals of double precision are others, so both take those of single."""
    normal = jax.random.normal
    monkeypatch.setattr(
        jax.random, "normal", lambda key, shape, dtype=float: normal(key, shape, np.float32).astype(dtype)
    )
    sampler = fahmc.FAHMC(0.05, 3, 2, momentum_correlation=0.5)
    single, double = (run(logistic_study, sampler, dtype=dtype, init=start()) for dtype in ("float32", "float64"))
    assert single.flat().dtype == np.float32 and double.flat().dtype == np.float64
    # Rounding makes 1e-7 of it; rows in half precision would make 1e-4.
    np.testing.assert_allclose(single.flat(), double.flat(), rtol=0, atol=1e-6)


def start():
    return {"coefficients": jnp.zeros(3), "intercept": jnp.zeros(())}


def test_start_may_be_one_position_or_one_a_chain(logistic_study):
    one = jax.tree.map(lambda leaf: leaf + 0.3, start())
    each = jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), one)
    np.testing.assert_array_equal(run(logistic_study, init=one).flat(), run(logistic_study, init=each).flat())


def test_one_large_client_costs_its_own_rows_only():
    """1000 clients, one of them with 1000 times the rows of the others: padding to the largest would be 1000-fold."""
    rows = [{"x": np.ones((size, 2)), "y": np.ones(size)} for size in [1000] + [1] * 999]
    stacked = buckets.bucket_clients(fahmc.Federation.from_clients(rows), np.dtype(np.float32))
    padded = sum(bucket.clients.row_weights.size for bucket in stacked)
    assert padded <= 1999 * (1 + buckets._PADDING_SHARE) + len(stacked) * buckets._PADDING_ROWS
    assert len(stacked) <= 3


def test_blocks_keep_no_more_memory_than_their_draws(logistic_study, monkeypatch):
    """A block that kept a view of its buffers would hold all of them for a handful of draws."""
    blocks = []
    append = History.append
    monkeypatch.setattr(
        History, "append", lambda self, block, seconds: (blocks.append(block), append(self, block, seconds))
    )
    draws = run(logistic_study, fahmc.FAHMC(0.05, 2), num_rounds=400, block_rounds=3)
    arrays = [array for block in blocks for array in (block.positions, *block.stats.values())]
    assert len(blocks) == 134 and draws.num_draws == 400
    for array in arrays:
        owner = array if array.base is None else array.base
        assert owner.nbytes == array.nbytes
