"""Runs that are killed, interrupted, damaged or resumed under other settings."""

import contextlib
import json
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fahmc
from fahmc import tree
from fahmc.density import subset
from fahmc.engines import InProcess
from fahmc.engines.run import Abandoned
from fahmc.errors import CheckpointError, SettingsError
from fahmc.runs.checkpoint import RunFolder

NUM_LIVES = 5


def sample_to(folder: str | Path, num_rounds: int, result: str | Path) -> None:
    generator = np.random.default_rng(0)
    clients = [{"x": generator.normal(size=(n, 2)), "y": (generator.random(n) < 0.5) * 1.0} for n in (30, 20)]
    draws = fahmc.sample(
        fahmc.models.logistic_regression(),
        fahmc.Federation.from_clients(clients),
        fahmc.DebiasedFAHMC(0.05, 6, 5, sync_unit="leapfrog", momentum_correlation=0.5, gradient=fahmc.Minibatch(10)),
        num_rounds=num_rounds, num_warmup_rounds=100, thin=2, num_chains=2, seed=1, dtype="float32", progress=False,
        block_rounds=25, checkpoint_dir=folder,
    )  # fmt: skip
    np.savez(result, draws=draws.flat(), num_draws=draws.num_draws, ended=draws.settings["ended"])


def live(folder: Path, num_rounds: int, result: Path, cache: Path) -> None:
    """Sample in a process of its own. What takes longest, to trace and compile the shuffle of rows, is cut short."""
    jax.config.update("jax_compilation_cache_dir", str(cache))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    subset._NUM_ROUNDS = 1
    sample_to(folder, num_rounds, result)


@pytest.fixture
def begin(tmp_path):
    """Begin a life: a process forked from one that has imported everything, and has not yet woken JAX."""
    lives = multiprocessing.get_context("forkserver")
    # Not this file: before Python 3.13 the server does not know the folder of tests, and says nothing.
    lives.set_forkserver_preload(["fahmc", "pytest"])

    def call(folder: Path, num_rounds: int, result: Path):
        process = lives.Process(target=live, args=(folder, num_rounds, result, tmp_path / "cache"))
        process.start()
        return process

    return call


def num_blocks(folder: Path) -> int:
    return len(list(folder.glob("block-*.npz")))


def test_killed_again_and_again_the_run_gives_the_same_bits(tmp_path, begin):
    generator = np.random.default_rng(2026)
    folder = tmp_path / "killed"
    for _ in range(NUM_LIVES):
        before = num_blocks(folder)
        process = begin(folder, 60_000, tmp_path / "never.npz")
        # Not before it has written a block in this life.
        while process.is_alive() and num_blocks(folder) <= before:
            process.join(0.01)
        process.join(generator.uniform(0, 0.15))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL, "the run must be long enough to be killed so often"
    blocks = num_blocks(folder)
    assert blocks >= NUM_LIVES, "every life must have got somewhere"

    # Finish a shorter run of the same chain: killed and undisturbed, of a length that both reach.
    reached = 25 * blocks
    results = {name: tmp_path / f"{name}.npz" for name in ("killed", "undisturbed")}
    processes = [begin(tmp_path / name, reached + 200, result) for name, result in results.items()]
    for process in processes:
        process.join()
        assert process.exitcode == 0
    killed, undisturbed = (np.load(result) for result in results.values())
    for run in (killed, undisturbed):
        assert run["ended"] == "complete" and run["num_draws"] == run["draws"].shape[1] == (reached + 200) // 2
    np.testing.assert_array_equal(killed["draws"], undisturbed["draws"])


def test_control_c_keeps_what_was_drawn(tmp_path):
    folder, result = tmp_path / "run", tmp_path / "draws.npz"
    script = f"import {__name__}; {__name__}.sample_to({str(folder)!r}, 10_000_000, {str(result)!r})"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, "-c", script], env=environment, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and num_blocks(folder) <= 6:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    run = np.load(result)
    assert run["ended"] == "interrupted" and "Interrupted" in errors
    draws = run["draws"]
    assert draws.shape == (2, run["num_draws"], 3) and np.isfinite(draws).all()
    stored = np.concatenate([np.load(file)["positions"] for file in sorted(folder.glob("block-*.npz"))], axis=1)
    np.testing.assert_array_equal(stored, draws)


@pytest.fixture
def model():
    return fahmc.Model(lambda position, batch: -((batch - position) ** 2) / 2, init=jnp.zeros(()))


@pytest.fixture
def federation():
    return fahmc.Federation.from_clients({"a": np.arange(4.0), "b": np.arange(6.0)})


@pytest.fixture
def run(model, federation, tmp_path):
    def call(num_rounds=40, **changes):
        options: dict = {
            "model": model, "federation": federation, "sampler": fahmc.FAHMC(0.1, 3),
            "num_chains": 2, "seed": 3, "progress": False, "block_rounds": 10, "checkpoint_dir": tmp_path / "run",
        }  # fmt: skip
        options |= {"num_rounds": num_rounds} | changes
        return fahmc.sample(**options)

    return call


class ControlC:
    """Runs rounds in this process. Before a block Ctrl-C is pressed, and perhaps there is nobody to run it."""

    path = "plain"

    def __init__(self, first_round: int, *, is_alone: bool = False):
        self._first_round, self._is_alone = first_round, is_alone

    def start(self, run):
        self._run, self._session = run, InProcess().start(run)
        return self

    def advance(self, phase, state, first_round, num_rounds):
        if first_round == self._first_round:
            signal.raise_signal(signal.SIGINT)
            if self._is_alone:
                assert self._run.is_stopping()
                raise Abandoned
        assert first_round <= self._first_round, "a block was begun after Ctrl-C"
        return self._session.advance(phase, state, first_round, num_rounds)


@pytest.mark.parametrize(
    ("engine", "num_draws"),
    [(ControlC(10), 20), (ControlC(10, is_alone=True), 10), (ControlC(30), 40)],
    ids=["the block is finished", "nobody is waited for", "the last block"],
)
def test_control_c_ends_the_run_after_the_block(run, engine, num_draws, caplog):
    expected = run(checkpoint_dir=None)
    with caplog.at_level(logging.WARNING, "fahmc"):
        draws = run(engine=engine)
    assert draws.settings["ended"] == "interrupted" and f"{num_draws} of 40 draws" in caplog.text
    np.testing.assert_array_equal(draws.flat(), expected.flat()[:, :num_draws])
    again = run()
    assert again.settings["ended"] == "complete"
    np.testing.assert_array_equal(again.flat(), expected.flat())


def test_finished_run_is_read_back_and_can_be_extended(run, tmp_path):
    first = run()
    times = {file: file.stat().st_mtime_ns for file in (tmp_path / "run").glob("block-*")}
    again = run()
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "run").glob("block-*")} == times
    np.testing.assert_array_equal(again.flat(), first.flat())
    longer = run(70)
    np.testing.assert_array_equal(longer.flat()[:, :40], first.flat())
    np.testing.assert_array_equal(longer.flat(), run(70, checkpoint_dir=None).flat())
    np.testing.assert_allclose(longer.client_drift, run(70, checkpoint_dir=None).client_drift)
    with pytest.raises(CheckpointError, match="holds 70 rounds, more than num_rounds = 40"):
        run()


def test_rows_are_digested_for_a_durable_run_alone(run, federation, monkeypatch):
    digested, digest = [], tree.digest
    monkeypatch.setattr(tree, "digest", lambda value: digested.append(id(value)) or digest(value))
    run(1, checkpoint_dir=None)
    assert not digested
    run(1)
    assert {id(rows) for rows in federation.rows} <= set(digested)


def test_damaged_block_is_refused_and_drawn_again(run, tmp_path, caplog):
    expected = run().flat()
    blocks = sorted((tmp_path / "run").glob("block-*.npz"))
    content = bytearray(blocks[2].read_bytes())
    content[len(content) // 2] ^= 1
    blocks[2].write_bytes(content)
    blocks[3].write_bytes(b"")
    with caplog.at_level(logging.WARNING, "fahmc"):
        np.testing.assert_array_equal(run().flat(), expected)
    assert "2 block file(s) from block-000002" in caplog.text
    assert len(list((tmp_path / "run").glob("block-*.npz"))) == 4


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"seed": 4}, "seed = 3, but now it is 4"),
        ({"sampler": fahmc.FAHMC(0.2, 3)}, "sampler.step_size = 0.1, but now it is 0.2"),
        ({"sampler": fahmc.FAHMC(lambda t: 1 / (10 + t), 3)}, "sampler.step_size"),
        ({"sampler": fahmc.DebiasedFAHMC(0.1, 3)}, "sampler.name = FAHMC"),
        ({"thin": 2}, "thin = 1, but now it is 2"),
        ({"num_warmup_rounds": 1}, "num_warmup_rounds = 0"),
        ({"num_chains": 3}, "num_chains = 2"),
        ({"dtype": "float32"}, "dtype = float64"),
        ({"init": np.ones(())}, "init"),
        ({"private_seed": 1}, "private_seed"),
        ({"federation": fahmc.Federation.from_clients({"a": np.arange(4.0), "b": np.arange(6.0) + 1})}, r"data.b.rows"),
        ({"federation": fahmc.Federation.from_clients({"a": np.arange(4.0), "c": np.arange(6.0)})}, r"clients.b"),
        ({"federation": fahmc.Federation.from_clients([np.arange(4.0), np.arange(6.0)])}, r"clients.a"),
        (
            {"model": fahmc.Model(lambda p, batch: -((batch - p) ** 2), init=jnp.zeros(()))},
            "model.potential at the start",
        ),
        ({"model": fahmc.Model(lambda p, b: -((b - p) ** 2) / 2, init=jnp.zeros(()), temperature=2.0)}, "temperature"),
        # A prior that is 0 at the start, and a likelihood that is the same there.
        (
            {"model": fahmc.Model(lambda p, b: -((b - p) ** 2) / 2, lambda p: -(p**2), init=jnp.zeros(()))},
            r"model\.p.* beside",
        ),
        ({"model": fahmc.Model(lambda p, b: -((b + p) ** 2) / 2, init=jnp.zeros(()))}, "model.potential beside it"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_resuming_with_other_settings_or_data_is_refused(run, change, field):
    run()
    with pytest.raises(CheckpointError, match=field):
        run(**change)


def test_folder_that_is_no_run_is_refused(run, tmp_path):
    run()
    (tmp_path / "run" / "run.json").unlink()
    with pytest.raises(CheckpointError, match=r"no run\.json"):
        run()
    (tmp_path / "run" / "run.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read"):
        run()
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", "a\0b"):
        with pytest.raises(SettingsError, match=r"cannot be a folder of results: (it is there|embedded)"):
            run(checkpoint_dir=path)


def test_a_folder_of_somebody_else_is_no_place_for_a_run(run, tmp_path):
    """Such as the folder one happens to be in: its run.json and its .lock were taken for fahmc's own."""
    for name, text in {"run.json": '{"versions": {}}', ".lock": "mine", "data.csv": "1,2"}.items():
        (tmp_path / name).write_text(text)
    before = {file.name: file.read_text() for file in tmp_path.iterdir()}
    with pytest.raises(CheckpointError, match="holds files that are not fahmc's"):
        run(checkpoint_dir=tmp_path)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == before


def test_other_versions_are_mentioned(run, tmp_path, caplog):
    expected = run().flat()
    settings = tmp_path / "run" / "run.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"versions": {"jax": "0.1"}}))
    with caplog.at_level(logging.WARNING, "fahmc"):
        np.testing.assert_array_equal(run().flat(), expected)
    assert "other versions of fahmc or JAX" in caplog.text


def test_files_hold_no_pickle(run, tmp_path):
    run()
    assert json.loads((tmp_path / "run" / "run.json").read_text())["seed"] == 3
    for file in (tmp_path / "run").glob("block-*.npz"):
        with np.load(file, allow_pickle=False) as arrays:
            assert {"positions", "rounds", "state/position"} <= set(arrays.files)


def test_divergence_names_its_place_and_keeps_the_draws_before_it(model, tmp_path):
    """A step beyond the stability limit 2/√L: the chain doubles until it overflows."""
    federation = fahmc.Federation.from_clients({"calm": np.zeros(1), "steep": np.full(300, 1.0)}, weights=[0.5, 0.5])
    options = {"num_chains": 2, "dtype": "float32", "progress": False, "checkpoint_dir": tmp_path / "run"}
    sampler = fahmc.FAHMC(0.15, 3)
    with pytest.raises(
        fahmc.errors.DivergenceError, match=r"Chain \d diverged in round \d+ at client '(calm|steep)'"
    ) as caught:
        fahmc.sample(model, federation, sampler, 2000, **options)
    draws = caught.value.draws
    assert draws.num_draws > 0 and np.isfinite(draws.flat()).all()
    assert draws.settings["ended"] == "diverged" and "step_size" in str(caught.value)
    # Nothing bad is on disk, and the same call says the same again.
    with pytest.raises(fahmc.errors.DivergenceError, match="diverged") as again:
        fahmc.sample(model, federation, sampler, 2000, **options)
    np.testing.assert_array_equal(again.value.draws.flat(), draws.flat())
    assert str(again.value) == str(caught.value)


def test_stopping_rule_stops_early_and_at_the_same_draw(run):
    rule = fahmc.RHatBelow(1.2, every=20)
    stopped = run(4000, stop_when=rule, checkpoint_dir=None)
    assert stopped.settings["ended"] == "stop_when"
    assert stopped.num_draws < 4000 and stopped.num_draws % 20 == 0
    for block_rounds in (7, None):
        other = run(4000, stop_when=rule, checkpoint_dir=None, block_rounds=block_rounds)
        np.testing.assert_array_equal(other.flat(), stopped.flat())
    with pytest.raises(fahmc.errors.SettingsError, match="num_chains of at least 2"):
        run(stop_when=rule, num_chains=1)


def test_schedule_that_is_nan_where_nobody_looks_can_be_resumed(run):
    sampler = fahmc.FAHMC(lambda t: 0.1 * jnp.sqrt(1 - t / 1000), 3)
    np.testing.assert_array_equal(run(sampler=sampler).flat(), run(sampler=sampler).flat())


def test_a_folder_belongs_to_one_process_at_a_time(run, tmp_path):
    holder = RunFolder(tmp_path / "held")
    with pytest.raises(CheckpointError, match="Another process is sampling into"):
        run(checkpoint_dir=tmp_path / "held")
    holder.close()


def test_block_of_another_cut_is_not_taken(run, tmp_path):
    """Two runs of the same chain cut differently: a block must begin where the one before it ended."""
    expected = run().flat()
    run(checkpoint_dir=tmp_path / "other", block_rounds=7)
    for index in (1, 2):
        for file in (tmp_path / "run").glob(f"block-{index:06d}-*"):
            file.unlink()
        (stranger,) = (tmp_path / "other").glob(f"block-{index:06d}-*")
        stranger.rename(tmp_path / "run" / stranger.name)
    np.testing.assert_array_equal(run().flat(), expected)
