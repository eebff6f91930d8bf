"""The benchmark's own arithmetic, its check that contenders agree, and its files. Nothing here depends on speed."""

import functools
import itertools
import json
import operator
from typing import Any

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

from fahmc.bench import peers, problems
from fahmc.bench.agreement import AgreementError, check
from fahmc.bench.cases import BLACKJAX, FAHMC_ITSELF, NUMPYRO, TORCH, Case, at_least, at_most
from fahmc.bench.ours import Ours
from fahmc.bench.peers import products
from fahmc.bench.results import Finding, Results
from fahmc.bench.timing import Spread, best, calibrate, race, ratio
from fahmc.bench.workloads import FULL, QUICK, all_workloads
from fahmc.cli.app import app
from fahmc.density.gradient import GaussianNoise, Minibatch
from fahmc.dynamics.fa_hmc import FAHMC

LOGISTIC = Case(problems.figure_one(num_clients=3, client_rows=10, dim=20), FAHMC(0.01, 10, 5), num_chains=2)
NOISY = Case(LOGISTIC.problem, FAHMC(0.01, 10, 5, gradient=GaussianNoise(10.0), sync_unit="leapfrog"), num_chains=40)
PACKAGES = {TORCH: "torch", BLACKJAX: "blackjax", NUMPYRO: "numpyro"}


@pytest.fixture(autouse=True)
def _single_precision():
    """As in the benchmark itself."""
    with jax.enable_x64(False):
        yield


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Fake:
    """Does two steps a unit, and takes known seconds for it."""

    work_per_unit = 2.0

    def __init__(self, name, seconds, clock, turns):
        self.name, self.seconds, self.clock, self.turns = name, seconds, clock, turns

    def run(self, num_units: int) -> None:
        self.turns.append((self.name, num_units))
        self.clock.now += num_units * self.seconds


def test_contenders_take_turns_for_the_same_time():
    clock, turns = Clock(), []
    contenders = {name: Fake(name, seconds, clock, turns) for name, seconds in [("a", 0.5), ("b", 0.125), ("c", 0.25)]}
    rates = race(contenders, repeats=4, seconds=4.0, clock=clock)
    assert "".join(name for name, _ in turns[-12:]) == "abcbcacababc"
    assert dict(turns[-12:]) == {"a": 8, "b": 32, "c": 16}
    assert rates == {"a": [4.0] * 4, "b": [16.0] * 4, "c": [8.0] * 4}


def test_slow_contenders_run_at_least_one_unit():
    clock = Clock()
    assert calibrate(Fake("slow", 100.0, clock, []).run, 1.0, clock) == 1


def test_ratios_are_taken_within_a_repeat():
    rates = {"ours": [10.0, 40.0, 30.0], "theirs": [5.0, 10.0, 10.0], "others": [2.0, 20.0, 1.0]}
    assert ratio(rates["ours"], rates["theirs"]) == Spread(3.0, 2.0, 4.0)
    assert ratio(rates["ours"], best(rates, ["theirs", "others"])) == Spread(2.0, 2.0, 3.0)


@pytest.mark.parametrize(
    "case",
    [
        LOGISTIC,
        NOISY,
        Case(
            problems.fashion("softmax", num_clients=2, client_rows=30),
            FAHMC(1e-4, 10, 5, gradient=Minibatch(20), sync_unit="leapfrog"),
            num_chains=1,
        ),
        Case(problems.fashion("mlp", num_clients=2, client_rows=30, hidden=(8, 6)), FAHMC(1e-5, 10), num_chains=1),
        Case(problems.many_clients(7, is_zipf=True, num_rows=60, dim=5), FAHMC(0.01, 10), num_chains=1),
    ],
    ids=["logistic", "noisy", "softmax", "network", "unequal clients"],
)
def test_fahmc_agrees_with_numpy(case):
    assert check("fahmc", Ours, case) < 1e-3


@pytest.mark.parametrize(
    ("contender", "case"),
    [(TORCH, LOGISTIC), (TORCH, NOISY), (BLACKJAX, LOGISTIC), (BLACKJAX, NOISY), (NUMPYRO, LOGISTIC)],
    ids=["PyTorch", "PyTorch, noisy", "BlackJAX", "BlackJAX, noisy", "NumPyro"],
)
def test_peers_agree_with_numpy(contender, case):
    package = PACKAGES[contender]
    pytest.importorskip(package, reason=f"{package} is missing, so {contender} is not checked")
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):  # theirs to choose
        assert check(contender, lambda case: peers.build(contender, case), case) < 1e-3


class FirstClientAlone(Ours):
    def __init__(self, case):
        [(name, rows), *_] = case.problem.clients.items()
        super().__init__(Case(problems.Problem("logistic", case.problem.model, {name: rows}, (20, 1)), case.sampler, 2))


class HalfTheNoise(Ours):
    def __init__(self, case):
        sampler = FAHMC(0.01, 10, 5, gradient=GaussianNoise(5.0), sync_unit="leapfrog")
        super().__init__(Case(case.problem, sampler, case.num_chains))


@pytest.mark.parametrize(("wrong", "case"), [(FirstClientAlone, LOGISTIC), (HalfTheNoise, NOISY)])
def test_contenders_that_do_other_work_are_refused(wrong, case):
    with pytest.raises(AgreementError, match=r"^The cheat (does not compute|adds noise).*would mean nothing"):
        check("The cheat", wrong, case)


@pytest.mark.parametrize("name", ["W1", "W3", "W5"])
def test_products_are_those_of_the_gradients(name):
    """Gradients of half the squared outputs of layers without activations, and as many as a step takes."""
    workload = next(workload for workload in all_workloads(QUICK) if workload.name == name)
    case = workload.races[0].entrants[0].case()
    x, weights, turns = products._operands(case)
    expected = jax.grad(lambda layers: np.sum(functools.reduce(operator.matmul, layers, x) ** 2) / 2)(weights)
    for is_transposed in (False, True):
        for found, layer in zip(products._gradients(x, weights, is_transposed), expected, strict=True):
            np.testing.assert_allclose(found, layer, rtol=1e-3, atol=1e-4 * np.abs(layer).max())
    size = getattr(case.sampler.gradient, "size", None)
    rows = 2 * size * len(case.problem.clients) if size else case.problem.num_rows
    layers = [a * b for a, b in itertools.pairwise(case.problem.widths)]
    cost: Any = jax.jit(products._gradients).lower(x, weights).cost_analysis()
    assert turns * cost["flops"] == 2 * rows * case.num_chains * (3 * sum(layers) - layers[0])
    for contender in (products.NumPyProducts(case), products.XlaProducts(case)):
        contender.run(2)


def test_ours_goes_on_where_it_stopped():
    halting, straight = Ours(LOGISTIC), Ours(LOGISTIC)
    for num_rounds in (2, 3):
        halting.run(num_rounds)
    straight.run(5)
    jax.tree.map(np.testing.assert_array_equal, halting._state, straight._state)
    assert halting.work_per_unit == 2 * 5 * 10


def test_workloads_are_those_of_the_documents():
    names = ["W1", "W1t", "W2", "W3", "W4", "W5", "W6", "W7"]
    assert [workload.name for workload in all_workloads(FULL)] == names
    assert [workload.name for workload in all_workloads(QUICK)] == names


def test_zipf_sizes_share_out_all_rows():
    sizes = problems.zipf_sizes(20_000, 10_000)
    assert sizes.sum() == 20_000
    assert sizes.min() == 1
    assert (np.diff(sizes) <= 0).all()


def test_images_stand_in_where_the_files_are_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("FAHMC_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    problem = problems.fashion("softmax", num_clients=2, client_rows=3)
    assert problem.clients["client_0"]["x"].shape == (3, 784)
    assert "was not found" in problem.note


def fabricated() -> Results:
    """Return results with one aim met, one missed and one number without."""
    results = Results({"workloads": ["W1", "W4"], "repeats": 3, "seconds": 1.0}, notes=["Random images stand in."])
    title = "Figure 1"
    results.add_rates("W1", "8 chains", {"fahmc": [50_000.0] * 3, "BlackJAX": [5_000.0] * 3})
    results.findings += [
        Finding("W1", title, "8 chains", "fahmc / BlackJAX", Spread(10, 9, 12), "x", at_least(8), (50_000.0, 5_000.0)),
        Finding("W1", title, "8 chains", "fahmc / NumPyro", Spread(2, 1, 3), "x", None, (50_000.0, 25_000.0)),
        Finding("W4", "Small", "first draw", "from the call", Spread(3.5, 3.4, 3.6), "s", at_most(3)),
    ]
    return results


def test_results_are_written(tmp_path):
    files = fabricated().write(tmp_path)
    assert [file.name for file in files] == ["results.json", "table.md", "ratios.png"]
    values = json.loads(files[0].read_text())
    assert [finding["is_met"] for finding in values["findings"]] == [True, None, False]
    assert values["findings"][0]["spread"] == {"median": 10, "low": 9, "high": 12}
    assert values["rates"][0]["steps_a_second"]["BlackJAX"] == [5_000.0] * 3
    assert {"cpu", "cores", "python", "packages", "date"} <= set(values["machine"])
    table = files[1].read_text()
    expected = "| 8 chains | fahmc / BlackJAX | 50,000 | 5,000 | 10 x (9 to 12) | at least 8 x | met |"
    assert expected in table
    assert "1 of 2 aims are met; missed: 1 of 1 in W4." in table
    assert "Random images stand in." in table
    assert files[2].read_bytes().startswith(b"\x89PNG")


def bench(*arguments):
    return CliRunner().invoke(app, ["bench", *arguments])


def test_the_command_measures(tmp_path):
    pytest.importorskip("blackjax", reason="blackjax is missing, so nothing is measured")
    done = bench("W4", "--quick", "--repeats", "1", "--json", "--out", str(tmp_path))
    assert done.exit_code == 0
    values = json.loads(done.stdout)
    assert [finding["words"] for finding in values["findings"]] == [
        "fahmc / BlackJAX",
        "from the call to the first draw",
    ]
    assert {entry["contender"] for entry in values["agreement"]} == {FAHMC_ITSELF, BLACKJAX}
    assert (tmp_path / "table.md").exists()


def test_the_command_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(peers, "find_spec", lambda package: None if package == "blackjax" else package)
    done = bench("W4", "--out", str(tmp_path))
    assert done.exit_code == 2
    assert 'blackjax is not installed, so there is nothing to compare with; run: pip install "fahmc[bench]"' in (
        done.stderr
    )


def test_unknown_workloads_are_refused(tmp_path):
    done = bench("W9", "--out", str(tmp_path))
    assert done.exit_code == 2
    assert "There is no workload 'W9'; choose from W1, W1t" in done.stderr
