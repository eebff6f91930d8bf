"""What a run costs, counted and not timed: traces, compilations, memory of the program."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fahmc
from fahmc.engines.in_process import engine
from fahmc.runs.plan import make_run
from fahmc.sample import sample

pytestmark = pytest.mark.usefixtures("short_shuffles")

STEPS = {"step_size": 0.01, "num_leapfrog_steps": 5, "num_local_steps": 3}
FEW = fahmc.Minibatch(2)
# With the row-gradients that one client of 6 rows spends in a round.
SAMPLERS = {
    "trajectory": (fahmc.FAHMC(**STEPS), 6 * 3 * 5),
    "leapfrog": (fahmc.FAHMC(**STEPS, sync_unit="leapfrog"), 6 * (3 + 1)),
    "noise": (fahmc.FAHMC(**STEPS, gradient=fahmc.GaussianNoise(1.0), sync_unit="leapfrog"), 6 * 2 * 3),
    "minibatch": (fahmc.FAHMC(**STEPS, gradient=FEW), 2 * 3 * (2 * 5 - 1)),
    "reused": (fahmc.FAHMC(**STEPS, gradient=FEW, reuse_gradient=True), 2 * 3 * 5),
    "Langevin": (fahmc.FALD(0.01, num_local_steps=3, gradient=FEW), 2 * 3),
    "debiased": (fahmc.DebiasedFAHMC(**STEPS, gradient=FEW), 2 * 3 * (2 * 5 - 1) + 2 * 6),
    "accepted": (fahmc.HMC(0.01, num_leapfrog_steps=5, metropolis=True), 6 * 5),
}


def federation(num_clients=4, num_rows=6, dimension=30) -> fahmc.Federation:
    rng = np.random.default_rng(0)
    return fahmc.Federation.from_clients(
        [{"x": rng.normal(size=(num_rows, dimension)), "y": rng.integers(0, 2, num_rows)} for _ in range(num_clients)]
    )


@pytest.fixture
def programs(monkeypatch) -> list:
    """The compiled programs that engines made."""
    made, run_groups = [], engine.InProcessSession._run_groups

    def remember(self, *arguments):
        loops = run_groups(self, *arguments)
        made.extend(program for program in self._programs.values() if not any(program is old for old in made))
        return loops

    monkeypatch.setattr(engine.InProcessSession, "_run_groups", remember)
    return made


def counting_model(traced: list, rows_seen: list) -> fahmc.Model:
    """A flat Gaussian model that counts how often its likelihood is traced, and the rows that are differentiated."""

    @jax.custom_vjp
    def counted(terms, count):
        return terms

    def backward(count, cotangent):
        # Tied to the cotangent, which differs between clients, so that vmap calls back once for each of them.
        jax.debug.callback(lambda c: rows_seen.append(int(c)), count + 0 * cotangent[0])
        return cotangent, None

    counted.defvjp(lambda terms, count: (terms, count), backward)

    def loglikelihood_fn(position, batch):
        traced.append(1)
        terms = -((batch["x"] @ position - batch["y"].astype(position.dtype)) ** 2)
        return counted(terms, float(terms.shape[0]))

    return fahmc.Model(loglikelihood_fn, init=jnp.zeros(30))


@pytest.mark.parametrize("name", SAMPLERS)
def test_gradients_are_evaluated_as_often_as_the_algorithm_says_and_billed(name, after_each_block):
    """Counted from inside the running program; blocks after a phase's first trace and compile nothing."""
    (sampler, per_client), rows_seen, traced = SAMPLERS[name], [], []
    rows_by_then = after_each_block(lambda: sum(rows_seen))
    draws = sample(
        counting_model(traced, rows_seen), federation(num_clients=3), sampler, 8, block_rounds=4, num_chains=1,
        progress=False,
    )  # fmt: skip
    *_, before, after = rows_by_then
    assert after - before == 4 * 3 * per_client
    assert draws.cost["row_gradients"] == after, "with what came before the first round"
    assert len(traced) <= 16, "the likelihood was traced far more often than a run's few uses of it need"


def test_blocks_trace_and_compile_nothing_new(compilations, after_each_block):
    traced = []
    done_by_then = after_each_block(lambda: (len(traced), len(compilations)))
    sample(counting_model(traced, []), federation(), SAMPLERS["debiased"][0], 20, block_rounds=2, progress=False)
    # The first of ten compiles the program.
    assert len(set(done_by_then[-9:])) == 1, done_by_then


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
            fahmc.models.logistic_regression(), federation(), SAMPLERS["trajectory"][0], num_rounds, thin=num_rounds,
            progress=False, row_space=False,
        )  # fmt: skip
    short, long = (program.memory_analysis() for program in programs)
    assert long.temp_size_in_bytes == short.temp_size_in_bytes
    assert long.output_size_in_bytes == short.output_size_in_bytes


def test_equal_clients_share_one_bucket_without_padding():
    rows, model = federation(num_clients=100), fahmc.models.logistic_regression()
    (bucket,) = make_run(model, rows, SAMPLERS["trajectory"][0], dtype=np.dtype(np.float32)).buckets
    assert bucket.clients.row_weights.shape == (100, 6)


def test_chains_of_all_threads_end_before_the_first_divergence():
    """Chain 3 alone leaves the finite numbers, in a thread of its own; the others keep no later draw."""
    model = fahmc.Model(lambda position, batch: 0 * batch["x"][:, 0] - jnp.exp(position[0] ** 2), init=jnp.zeros(1))
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
            threaded = engine.InProcess(threads=threads)
            sample(late, rows, fahmc.FAHMC(1.0), 500, seed=4, engine=threaded, progress=False)
        found[threads] = str(caught.value), caught.value.draws.positions
    assert found[1][0] == found[4][0]
    np.testing.assert_allclose(found[1][1], found[4][1], rtol=1e-12)
