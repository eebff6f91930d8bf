"""What a run costs, counted and not timed: traces, compilations, memory of the program."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fahmc
from fahmc.engines import in_process
from fahmc.runs.plan import make_plan
from fahmc.sample import sample

pytestmark = pytest.mark.usefixtures("short_shuffles")

FLOAT32 = np.dtype(np.float32)
SAMPLERS = {
    "trajectory": fahmc.FAHMC(0.01, num_leapfrog_steps=5, num_local_steps=3),
    "leapfrog": fahmc.FAHMC(0.01, num_leapfrog_steps=5, num_local_steps=3, sync_unit="leapfrog"),
    "minibatch": fahmc.FAHMC(0.01, num_leapfrog_steps=5, num_local_steps=3, gradient=fahmc.Minibatch(2)),
    "noise": fahmc.FAHMC(
        0.01, num_leapfrog_steps=5, num_local_steps=3, gradient=fahmc.GaussianNoise(1.0), sync_unit="leapfrog"
    ),
}


def federation(num_clients=4, num_rows=6, dimension=30) -> fahmc.Federation:
    rng = np.random.default_rng(0)
    return fahmc.Federation.from_clients(
        [{"x": rng.normal(size=(num_rows, dimension)), "y": rng.integers(0, 2, num_rows)} for _ in range(num_clients)]
    )


@pytest.fixture
def programs(monkeypatch) -> list:
    """The compiled programs that engines made."""
    made, run_groups = [], in_process._InProcessRun._run_groups

    def remember(self, *arguments):
        loops = run_groups(self, *arguments)
        if not any(self._program is program for program in made):
            made.append(self._program)
        return loops

    monkeypatch.setattr(in_process._InProcessRun, "_run_groups", remember)
    return made


@pytest.fixture
def compilations():
    """How many programs XLA has compiled since."""
    events = []

    def listen(event: str, duration_secs: float, **kwargs) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            events.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield events
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.mark.parametrize("name", SAMPLERS)
def test_blocks_trace_and_compile_nothing_new(name, compilations):
    def count(num_blocks: int) -> tuple[int, int]:
        traced = []

        def loglikelihood_fn(position, batch):
            traced.append(1)
            return -((batch["x"] @ position - batch["y"]) ** 2)

        compilations.clear()
        model = fahmc.Model(loglikelihood_fn, init=jnp.zeros(30))
        sample(model, federation(), SAMPLERS[name], 2 * num_blocks, block_rounds=2, progress=False)
        return len(traced), len(compilations)

    count(2)  # what JAX compiles once a process
    two, ten = count(2), count(10)
    assert two == ten
    assert two[0] <= 16, "the likelihood was traced far more often than a run's few uses of it need"


def test_row_space_holds_no_coefficients_of_single_clients(programs):
    """Its largest temporary is the rows' products with each other, not [client, chain, coefficient]."""
    clients, chains, dimension = 40, 8, 2000
    rows = federation(clients, 2, dimension)
    model = fahmc.models.logistic_regression(1.0, intercept=False)
    sampler = fahmc.FAHMC(0.01, num_leapfrog_steps=10)
    used = {}
    for choice in (True, False):
        sample(model, rows, sampler, 1, num_chains=chains, dtype="float32", row_space=choice, progress=False)
        used[choice] = programs.pop().memory_analysis().temp_size_in_bytes
    of_all_clients = 4 * clients * chains // 2 * dimension  # half of the chains in each of two threads, at least
    assert used[True] < of_all_clients / 4 < used[False]


def test_program_does_not_grow_with_the_run(programs):
    for num_rounds in (10, 10_000):
        sample(
            fahmc.models.logistic_regression(), federation(), SAMPLERS["trajectory"], num_rounds, thin=num_rounds,
            progress=False, row_space=False,
        )  # fmt: skip
    short, long = (program.memory_analysis() for program in programs)
    assert long.temp_size_in_bytes == short.temp_size_in_bytes
    assert long.output_size_in_bytes == short.output_size_in_bytes


def test_equal_clients_share_one_bucket_without_padding():
    plan = make_plan(
        fahmc.models.logistic_regression(), federation(num_clients=100), SAMPLERS["trajectory"],
        seed=0, private_seed=None, num_chains=1, init=None, dtype=FLOAT32, row_space=True,
    )  # fmt: skip
    assert plan.start.force.shape == (600, 1, 1)


def test_chains_of_all_threads_end_before_the_first_divergence():
    """Chain 3 alone leaves the finite numbers, in a thread of its own; the others keep no later draw."""
    model = fahmc.Model(lambda position, batch: batch["x"][:, 0] * 0 - jnp.exp(position[0] ** 2), init=jnp.zeros(1))
    rows = fahmc.Federation.from_clients([{"x": np.ones((1, 1))}])
    init = np.array([[0.0], [0.1], [0.2], [12.0]])
    with pytest.raises(fahmc.errors.DivergenceError, match="Chain 3 diverged in round 0"):
        sample(model, rows, fahmc.FAHMC(0.01), 50, init=init, progress=False)

    def falls_off_a_cliff(position, batch):
        return -batch["x"][:, 0] * position[0] ** 2 * jnp.where(position[0] > 15.0, jnp.nan, 1 / 200)

    late = fahmc.Model(falls_off_a_cliff, init=jnp.zeros(1))
    found = {}
    for threads in (1, 4):
        with pytest.raises(fahmc.errors.DivergenceError) as caught:
            engine = in_process.InProcess(threads=threads)
            sample(late, rows, fahmc.FAHMC(1.0), 500, seed=4, engine=engine, progress=False)
        found[threads] = str(caught.value), caught.value.draws.positions
    assert found[1][0] == found[4][0]
    np.testing.assert_allclose(found[1][1], found[4][1], rtol=1e-12)
