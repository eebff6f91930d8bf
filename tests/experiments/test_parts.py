"""What figures are made of: jobs, references, claims."""

import json
import math
from contextlib import closing

import numpy as np
import pytest

from fahmc.errors import CheckpointError, SettingsError
from fahmc.experiments import figure_1_local_steps as local_steps
from fahmc.experiments import figure_2, figures_3_to_7
from fahmc.experiments.catalogue import choose
from fahmc.experiments.chains import run_chains, section_5
from fahmc.experiments.image_runs import Budget, Runner
from fahmc.experiments.image_sets import stand_in
from fahmc.experiments.outcome import Run
from fahmc.experiments.simulated import LogisticStudy, _read, mhmc_reference
from fahmc.experiments.work import Work
from fahmc.report.distances import marginal_error


def test_a_job_is_done_once(tmp_path):
    calls = []

    def compute(checkpoints):
        checkpoints.mkdir()
        calls.append(checkpoints)
        return {"value": float("nan"), "list": (1, 2)}

    with closing(Work(tmp_path)) as work:
        first = work.once({"a": 1}, compute)
    with closing(Work(tmp_path)) as work:
        assert work.once({"a": 1}, compute)["list"] == first["list"] == [1, 2]
        assert len(calls) == 1 and not calls[0].exists()
        assert work.seconds > 0 and [job["a"] for job in work.jobs] == [1]
        assert len(work.machines) == 1 and work.machines[0]["cores"] >= 1
        work.once({"a": 2}, compute)
    assert len(calls) == 2 and calls[0] != calls[1]


def test_a_damaged_line_is_done_again(tmp_path):
    """A kill in the middle of writing, or a bad byte, costs that job and no other."""

    def do(values, compute_fn):
        with closing(Work(tmp_path)) as work:
            return [work.once({"job": v}, lambda _, v=v: compute_fn(v))["value"] for v in values]

    do((1, 2, 3), lambda value: {"value": value})
    path = tmp_path / "results.jsonl"
    first, second, third = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([first, b'{"job": "\xff"}', b"[1]", b'{"job": {}}', second[:9], third[:-9]]))
    done = []
    do((1, 2, 3), lambda value: done.append(value) or {"value": value})
    assert done == [2, 3]
    assert do((1, 2, 3), lambda value: pytest.fail("not kept")) == [1, 2, 3]


def test_one_process_at_a_time(tmp_path):
    with closing(Work(tmp_path)), pytest.raises(CheckpointError, match="Another process"):
        Work(tmp_path)
    Work(tmp_path).close()


def test_progress_counts_jobs(tmp_path):
    seen = []
    with closing(Work(tmp_path, lambda *state: seen.append(state))) as work:
        work.expect(1)
        work.once({"a": 1}, lambda _: {}, "first")
        work.once({"a": 1}, lambda _: {}, "first again")
        work.once({"a": 2}, lambda _: {}, "not announced")
    assert seen[0] == (0, 1, "") and seen[-1] == (2, 2, "not announced")


def test_reference_is_long_enough_and_kept(tmp_path):
    study = LogisticStudy(4, num_rows=60, num_clients=3)

    def make():
        with closing(Work(tmp_path)) as work:
            return mhmc_reference(study, 4000, work)

    reference = make()
    assert reference.facts["max_split_r_hat"] < 1.01 and reference.facts["acceptance_rate"] > 0.6
    assert reference.draws.shape == reference.independent.shape == (4000, 4)
    assert not np.array_equal(reference.draws, reference.independent)
    # The floor falls with the number of samples, and is what the independent run shows.
    assert reference.floor(4000) == marginal_error(reference.independent, reference.draws)
    assert reference.floor(50) > 2 * reference.floor(4000)

    (path,) = (tmp_path / "references").iterdir()
    written, content = path.stat().st_mtime_ns, path.read_bytes()
    assert np.array_equal(make().draws, reference.draws) and path.stat().st_mtime_ns == written
    for damaged in (b"not a reference", b"", content[: len(content) // 2]):
        path.write_bytes(damaged)
        assert _read(path, reference.settings) is None
    assert np.array_equal(make().draws, reference.draws)


def test_crossings():
    assert local_steps.first_round_below([10, 20, 40], [0.4, 0.2, 0.1], 0.2) == pytest.approx(20)
    # Log-linear: ME falls like 1/rounds here, so 0.15 is reached at 4/0.15.
    assert local_steps.first_round_below([10, 20, 40], [0.4, 0.2, 0.1], 0.15) == pytest.approx(4 / 0.15)
    assert local_steps.first_round_below([10, 20], [0.4, 0.2], 0.1) == math.inf
    looks = local_steps.looking_times(1000)
    assert looks[0] == 4 and looks[-1] == 1000 and np.all(np.diff(looks) > 0)
    rounds = np.arange(1, 50)
    assert figure_2.fitted_crossing(rounds, np.exp(-0.1 * rounds)) == pytest.approx((-10 * math.log(0.1), -0.1))


def test_exact_rounds_end_below_the_target():
    """Iterating the law of both coordinates together gives the same rounds as one coordinate twice."""
    from fahmc import theory

    clients = theory.GaussianClients(
        np.array(figure_2.MEANS)[:, None] * np.ones(2),
        np.eye(2) / np.array(figure_2.VARIANCES)[:, None, None],
        np.array([0.5, 0.5]),
    )
    assert np.allclose(clients.posterior().mean, 16.2) and np.allclose(clients.posterior().covariance, 1.6 * np.eye(2))
    sampler = section_5(figure_2.step_size(2), 5, 10)
    rounds = math.ceil(figure_2.exact_rounds(2))
    before, after = (
        theory.w2_to_posterior(clients, theory.law_after(clients, sampler, number)) ** 2
        for number in (rounds - 1, rounds)
    )
    assert after < figure_2.TARGET <= before


def test_diverged_chains_are_told_apart():
    study = LogisticStudy(5, num_rows=40, num_clients=2)
    assert run_chains(study.model, study.federation, section_5(50.0, 5, 10), 20, None, num_chains=2) is None


def test_unknown_figures_get_a_sentence():
    with pytest.raises(SettingsError, match="no figure '8'; the figures are 1a, 1b"):
        choose(["8"])
    assert [figure.name for figure in choose(["2", "1a"])] == ["1a", "2"] and len(choose(["all"])) == 10


def test_what_is_said_of_image_runs(tmp_path):
    """Layers, prior and batches as they are run: a batch that is all rows is none."""
    images = stand_in("fashion-mnist", 200, 20)

    def notes(target, **budget):
        with closing(Work(tmp_path)) as work:
            runner = Runner(target, images, Budget(4, 1, 1, **budget), Run("smoke", work, lambda name: None))
            return " ".join(runner.notes)

    assert "hidden layers of 8 and 4 units, prior N(0, 0.1²)" in notes(figures_3_to_7.NETWORK, hidden=(8, 4))
    assert "hidden layers of 512 and 512 units" in notes(figures_3_to_7.NETWORK)
    words = notes(figures_3_to_7.FASHION, batch_size=5)
    assert "hidden" not in words and "batches of 5 of 20 rows, two a leapfrog step" in words and "Simulated" in words
    assert "all 20 rows in every gradient" in notes(figures_3_to_7.FASHION, batch_size=20)


def test_results_are_json(tmp_path):
    with closing(Work(tmp_path)) as work:
        work.once({"η": 0.1}, lambda _: {"me": [0.5]})
    (line,) = (tmp_path / "results.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(line)["job"] == {"format": 1, "η": 0.1}
