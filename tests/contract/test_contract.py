"""What every sampler keeps on every engine, some in both precisions: ours, and those of examples/own.

A new sampler needs one line in `contract_cases`.
"""

import json
from functools import cache
from typing import Any

import jax
import numpy as np
import pytest

import contract_cases as cases
import fahmc
import process_pool
from contract_cases import CASES, FEDERATED, IN_PROCESS, PRECISIONS, SAMPLERS, Killed, Mortal, sample
from fahmc import registry
from fahmc.dynamics.evaluation import Evaluation
from fahmc.engines.record import RoundByRound
from fahmc.engines.run import Divergence, begin
from fahmc.errors import SettingsError
from laplace import Newton

pytestmark = pytest.mark.usefixtures("short_shuffles")
# Cases of one precision stay together, as they share compiled programs.
HOMES = {dtype: pytest.mark.xdist_group(f"contract {dtype}") for dtype in PRECISIONS}
every_case = pytest.mark.parametrize(
    ("name", "dtype"), [pytest.param(name, dtype, marks=HOMES[dtype]) for name, dtype in CASES]
)
# A course that asks before it knows its phases, and starts chains where it found the mode, has no plan to compare with.
every_planned_case = pytest.mark.parametrize(
    ("name", "dtype"),
    [pytest.param(name, dtype, marks=HOMES[dtype]) for name, dtype in CASES if name != "corrected"],
)
# Those that may stay where they are.
REJECTING = "mhmc", "split"
every_sampler = pytest.mark.parametrize("name", [pytest.param(name, marks=HOMES["float64"]) for name in SAMPLERS])


@cache
def undisturbed(name: str, dtype: str) -> fahmc.Draws:
    return sample(name, dtype, IN_PROCESS)


def assert_same(draws: fahmc.Draws, expected: fahmc.Draws, every: int = 1) -> None:
    kept = slice(every - 1, None, every)
    np.testing.assert_array_equal(draws.flat(), expected.flat()[:, kept])
    for stat, values in expected.stats.items():
        np.testing.assert_array_equal(draws.stats[stat], values[:, kept], stat)
    assert (draws.gradients is None) == (expected.gradients is None)
    if draws.gradients is not None and expected.gradients is not None:
        np.testing.assert_array_equal(draws.gradients, expected.gradients[:, kept])


@every_case
def test_draws_are_there(name, dtype):
    draws = undisturbed(name, dtype)
    assert draws.flat().dtype == dtype and draws.flat().shape == (cases.NUM_CHAINS, cases.NUM_ROUNDS, 3)
    assert np.isfinite(draws.flat()).all()
    assert len(np.unique(draws.flat()[..., 0])) == cases.NUM_CHAINS * cases.NUM_ROUNDS or name in REJECTING
    assert all(values.shape == draws.flat().shape[:2] for values in draws.stats.values())


def killed_and_resumed(name, dtype, engine, folder) -> fahmc.Draws:
    """Stop inside the set-up, or right after it, then inside the sampling."""
    options = {"checkpoint_dir": folder, "block_rounds": 2}
    for num_blocks in (1, 2):
        with pytest.raises(Killed):
            sample(name, dtype, Mortal(engine, num_blocks), **options)
    return sample(name, dtype, engine, **options)


@every_case
def test_resumed_runs_and_shorter_blocks_give_the_same_bits(name, dtype, tmp_path):
    draws = killed_and_resumed(name, dtype, IN_PROCESS, tmp_path)
    assert_same(draws, undisturbed(name, dtype))
    assert draws.cost["rounds"] == undisturbed(name, dtype).cost["rounds"]
    np.testing.assert_allclose(
        np.asarray(draws.client_drift, float), np.asarray(undisturbed(name, dtype).client_drift, float), rtol=1e-6
    )


@every_case
def test_thinning_leaves_the_other_draws_as_they_are(name, dtype):
    assert_same(sample(name, dtype, IN_PROCESS, thin=2, block_rounds=3), undisturbed(name, dtype), every=2)


@every_planned_case
def test_a_divergence_names_chain_round_and_client(name, dtype):
    run = cases.run_of(name, dtype)
    session = IN_PROCESS.start(run)
    with jax.enable_x64(dtype == "float64"):
        state = begin(run, run.phases[0])
        for phase, following in zip(run.phases, run.phases[1:], strict=False):
            state = begin(run, following, (phase, session.advance(phase, state, 0, phase.num_rounds).state))
        good = session.advance(run.phases[-1], state, 0, 2).state
        level = 0  # of the flat position: keys are sorted
        trapped = {field: np.array(values) for field, values in good.items()}
        trapped["position"][2, level] = 2 * cases.WALL
        block = session.advance(run.phases[-1], trapped, 2, 3)
    if name in REJECTING:  # rejects what is not finite, and lives on
        assert block.divergence is None and block.num_rounds == 3
        return
    assert block.divergence == Divergence(chain=2, round=2, client=0 if name == "hmc" else 1)
    assert block.num_rounds == 0
    for field, values in trapped.items():
        np.testing.assert_array_equal(block.state[field], values)


@every_planned_case
def test_bytes_are_those_of_the_declared_fields(name, dtype):
    run, draws, clients = cases.run_of(name, dtype), undisturbed(name, dtype), 0 if name in cases.POOLED else 2
    down = up = 0
    for phase in run.phases:
        exchange = phase.sampler.exchange(3)
        sizes = [
            sum(
                np.prod(field.shape, dtype=int)
                * (cases.NUM_CHAINS if field.per_chain else 1)
                * np.dtype(dtype if field.dtype == "float" else field.dtype).itemsize
                for field in fields.values()
                if field.is_sent
            )
            for fields in (exchange.state, exchange.reply)
        ]
        down, up = down + clients * phase.num_rounds * sizes[0], up + clients * phase.num_rounds * sizes[1]
    assert (draws.cost["bytes_to_clients"], draws.cost["bytes_to_server"]) == (down, up)


@every_sampler
def test_draws_can_be_summed_up_saved_and_loaded(name, tmp_path):
    draws = undisturbed(name, "float64")
    draws.save(tmp_path / "draws.nc")
    loaded = fahmc.Draws.load(tmp_path / "draws.nc")
    assert_same(loaded, draws)
    assert loaded.settings == draws.settings and loaded.cost == draws.cost
    assert np.isfinite(loaded.summary()["mean"]).all()


@pytest.mark.parametrize("name", ["underdamped", "gathered"])
def test_draws_can_be_reported(name, tmp_path):
    page = fahmc.report.write_report(undisturbed(name, "float64"), tmp_path)
    assert f":{type(SAMPLERS[name]).__name__}" in page.read_text()


@every_sampler
def test_settings_go_as_json_and_come_back(name):
    table = json.loads(json.dumps(registry.encode(SAMPLERS[name])))
    own = registry.references(table)
    assert bool(own) == (name in ("underdamped", "newton", "gathered"))
    assert registry.decode("sampler", table, own=own) == SAMPLERS[name]
    if own:
        with pytest.raises(SettingsError, match="not listed here"):
            registry.decode("sampler", table)


@every_sampler
def test_an_unregistered_subclass_is_refused(name):
    sampler = SAMPLERS[name]
    stranger: Any = object.__new__(type("Stranger", (type(sampler),), {}))
    stranger.__dict__.update(sampler.__dict__)
    with pytest.raises(SettingsError, match="registered by the decorator"):
        fahmc.sample(cases.model(), cases.federation(), stranger, 1)


@pytest.mark.parametrize("sampler", [Evaluation(), Newton()])
def test_what_only_sets_up_is_refused(sampler):
    with pytest.raises(SettingsError, match="draws nothing by itself"):
        fahmc.sample(cases.model(), cases.federation(), sampler, 1)


class Weighed(RoundByRound):
    """Adds up the bytes of all messages."""

    bytes_to_clients = bytes_to_server = 0

    def __init__(self, run, make_ready):
        super().__init__(run, lambda phase: self._weighed(make_ready(phase)))

    def _weighed(self, ask):
        def weighed(round_index, broadcast):
            replies = ask(round_index, broadcast)
            Weighed.bytes_to_clients += len(replies) * sum(np.asarray(part).nbytes for part in broadcast.values())
            Weighed.bytes_to_server += sum(np.asarray(part).nbytes for reply in replies for part in reply.values())
            return replies

        return weighed


@pytest.fixture(scope="module")
def pool():
    with process_pool.ProcessPool(num_processes=1) as engine:
        yield engine


@HOMES["float64"]
@pytest.mark.parametrize("name", FEDERATED)
def test_clients_in_other_processes_give_the_same_draws(name, pool, monkeypatch):
    monkeypatch.setattr(process_pool, "RoundByRound", Weighed)
    Weighed.bytes_to_clients = Weighed.bytes_to_server = 0
    tolerance = 1e-10
    here, there = undisturbed(name, "float64"), sample(name, "float64", pool)
    np.testing.assert_allclose(there.flat(), here.flat(), rtol=tolerance, atol=tolerance)
    for stat, values in here.stats.items():
        np.testing.assert_allclose(there.stats[stat], values, rtol=tolerance, atol=tolerance, err_msg=stat)
    assert (there.gradients is None) == (here.gradients is None)
    if here.gradients is not None and there.gradients is not None:
        np.testing.assert_allclose(there.gradients, here.gradients, rtol=tolerance, atol=tolerance)
    for way in ("bytes_to_clients", "bytes_to_server"):
        assert getattr(Weighed, way) == here.cost[way] == there.cost[way]


@HOMES["float64"]
def test_a_run_with_clients_in_other_processes_resumes_to_the_bit(pool, tmp_path):
    assert_same(killed_and_resumed("newton", "float64", pool, tmp_path), sample("newton", "float64", pool))


@HOMES["float64"]
def test_one_machine_samplers_do_not_go_to_other_processes(pool):
    with pytest.raises(SettingsError, match="runs on one machine"):
        sample("hmc", "float64", pool)
