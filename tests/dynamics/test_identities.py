"""Exact identities of the samplers, in double precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fahmc
from fahmc import keys
from fahmc.data.buckets import single_client
from fahmc.density.subset import draw_subset
from fahmc.dynamics import leapfrog
from fahmc.dynamics.mass import Mass, mass_factor
from fahmc.dynamics.momentum import draw_momentum
from fahmc.runs.plan import make_run

pytestmark = pytest.mark.usefixtures("short_shuffles")

MODEL = fahmc.models.logistic_regression(prior_scale=1.0)


def run(federation, sampler, num_rounds=20, **options):
    options = {"num_chains": 2, "seed": 5, "dtype": "float64", "progress": False} | options
    return fahmc.sample(MODEL, federation, sampler, num_rounds, **options)


def assert_same_draws(a, b, tolerance=1e-10):
    np.testing.assert_allclose(a.flat(), b.flat(), rtol=tolerance, atol=tolerance)


@pytest.fixture
def chain_keys():
    return jax.tree.map(lambda leaf: leaf[0], keys.chain_keys(seed=3, num_chains=1))


@pytest.fixture
def client(logistic_study):
    return jax.tree.map(jnp.asarray, single_client(logistic_study, 0, np.dtype(np.float64)))


@pytest.fixture(scope="module")
def target(logistic_study):
    return make_run(MODEL, logistic_study, fahmc.FALD(0.1), dtype=np.dtype(np.float64)).target


def test_one_leapfrog_step_is_langevin(logistic_study, target):
    """K = 1 on one client: q − h ∇f(q) + √(2h) ξ with h = η²/2, on the same ξ."""
    eta, pooled = 0.07, logistic_study.pooled()
    draws = run(
        pooled, fahmc.FALD(eta), num_rounds=30, num_chains=1, init=jax.tree.map(jnp.zeros_like, init_of(pooled))
    )
    rows = jax.tree.map(jnp.asarray, single_client(pooled, 0, np.dtype(np.float64)))
    chain_keys = jax.tree.map(lambda leaf: leaf[0], keys.chain_keys(5, 1))
    h, position = eta**2 / 2, jnp.zeros(4)

    @jax.jit
    def langevin_step(t, position):
        xi = jax.random.normal(keys.shared_momentum(chain_keys, t), (4,))
        return position - h * target.gradient(position, rows) + jnp.sqrt(2 * h) * xi

    for t in range(30):
        position = langevin_step(jnp.int32(t), position)
        np.testing.assert_allclose(draws.flat()[0, t], position, rtol=1e-12, atol=1e-13)


def init_of(federation):
    return MODEL.initial_position(jax.random.key(0), federation.rows[0])


@pytest.fixture
def integrate(target, client):
    """Any number of leapfrog steps, by one compiled program."""

    def gradient_fn(k, half, position):
        return target.gradient(position, client)

    @jax.jit
    def call(position, momentum, step_size, num_steps, mass=Mass()):  # noqa: B008
        def step(k, point):
            return leapfrog.leapfrog_step(gradient_fn, point, k, step_size, mass=mass, reuse_gradient=True)

        point = leapfrog.start(gradient_fn, position, momentum, 0, reuse_gradient=True)
        return lax.fori_loop(0, num_steps, step, point)

    return call


MASSES = {
    "identity": None,
    "diagonal": np.array([0.5, 1.0, 2.0, 0.1]),
    "dense": np.array([[2.0, 0.3, 0, 0], [0.3, 1.0, 0, 0], [0, 0, 1.0, -0.2], [0, 0, -0.2, 0.5]]),
}


@pytest.mark.parametrize("kind", MASSES)
def test_leapfrog_is_reversible_and_of_second_order(target, client, integrate, kind):
    mass = Mass(mass_factor(MASSES[kind], jnp.zeros(4), np.dtype(np.float64)))
    position, momentum = jnp.array([0.3, -0.2, 0.5, 0.1]), jnp.array([1.0, -0.5, 0.2, 0.8])
    there = integrate(position, momentum, 0.05, 20, mass)
    back = integrate(there.position, -there.momentum, 0.05, 20, mass)
    np.testing.assert_allclose(back.position, position, atol=1e-12)
    np.testing.assert_allclose(-back.momentum, momentum, atol=1e-12)

    def energy(position, momentum):
        return target.value(position, client) + momentum @ momentum / 2

    start = energy(position, momentum)
    steps = 0.02 * 2.0 ** -np.arange(4)
    errors = []
    for step in steps:
        end = integrate(position, momentum, step, round(0.4 / step), mass)
        errors.append(abs(float(energy(end.position, end.momentum) - start)))
    slopes = np.diff(np.log(errors)) / np.diff(np.log(steps))
    np.testing.assert_allclose(slopes, 2, atol=0.05)


def test_leapfrog_preserves_volume(integrate):
    def step(start):
        end = integrate(start[:4], start[4:], 0.1, 3)
        return jnp.concatenate([end.position, end.momentum])

    jacobian = jax.jacfwd(step)(jnp.array([0.3, -0.2, 0.5, 0.1, 1.0, -0.5, 0.2, 0.8]))
    np.testing.assert_allclose(jnp.linalg.det(jacobian), 1, rtol=1e-12)


def test_averaged_momentum_is_standard_normal_for_every_correlation(chain_keys, client):
    """Algebra on the coefficients of ξ and ξ_c: they are read off the code at ρ = 1 and ρ = 0, then combined."""
    weights, like, t = np.array([0.5, 0.2, 0.3]), jnp.zeros(4), jnp.int32(9)
    for rho in (0.0, 0.3, 0.85, 1.0):
        variance = 0.0
        for index, weight in enumerate(weights):
            member = client._replace(weight=jnp.asarray(weight), identity=jnp.array([index, 7], jnp.uint32))
            xi = jax.random.normal(keys.shared_momentum(chain_keys, t), (4,))
            own = jax.random.normal(keys.private_momentum(chain_keys, t, member.identity), (4,))
            momentum = draw_momentum(chain_keys, t, like, member, rho)
            basis = jnp.stack([xi, own], axis=1)
            (shared, private), residual, *_ = jnp.linalg.lstsq(basis, momentum)
            assert float(residual.sum()) < 1e-24, "the momentum is made of ξ and ξ_c alone"
            np.testing.assert_allclose(shared, np.sqrt(rho), atol=1e-12)
            variance += weight**2 * private**2
        # Σ_c w_c p_c = √ρ ξ + Σ_c w_c b_c ξ_c has variance ρ + Σ_c w_c² b_c².
        np.testing.assert_allclose(rho + variance, 1, rtol=1e-12)


def test_splitting_a_client_in_halves_with_the_same_rows_changes_nothing(logistic_study):
    half, other = logistic_study.rows[0], logistic_study.rows[1]
    whole = jax.tree.map(lambda leaf: np.concatenate([leaf, leaf]), half)
    sampler = fahmc.FAHMC(0.05, num_leapfrog_steps=5, num_local_steps=3, sync_unit="leapfrog")
    assert_same_draws(
        run(fahmc.Federation.from_clients({"whole": whole, "other": other}), sampler),
        run(fahmc.Federation.from_clients({"first": half, "second": half, "other": other}), sampler),
    )


def test_leapfrog_units_with_whole_trajectories_are_trajectory_units(logistic_study):
    settings = {"num_leapfrog_steps": 4, "momentum_correlation": 0.4}
    assert_same_draws(
        run(logistic_study, fahmc.FAHMC(0.05, num_local_steps=3, **settings)),
        run(logistic_study, fahmc.FAHMC(0.05, num_local_steps=12, sync_unit="leapfrog", **settings)),
    )


def test_hmc_is_fa_hmc_with_one_client(logistic_study):
    pooled = logistic_study.pooled()
    assert_same_draws(run(logistic_study, fahmc.HMC(0.05, 6)), run(pooled, fahmc.FAHMC(0.05, 6, num_local_steps=1)))


def test_stage_schedule_has_exact_boundaries():
    schedule = fahmc.schedules.Stages(0.4, first_stage=5)
    ends = [5 * (2**s - 1) for s in range(1, 12)]
    for stage, end in enumerate(ends):
        for t in (end - 1, jnp.int32(end - 1)):
            assert float(schedule(t)) == pytest.approx(0.4 / np.sqrt(2) ** stage, rel=1e-12)
        for t in (end, jnp.int32(end)):
            assert float(schedule(t)) == pytest.approx(0.4 / np.sqrt(2) ** (stage + 1), rel=1e-12)


def written_out_draws(federation, sampler, num_rounds: int, seed: int) -> np.ndarray:
    """Algorithms 3 and B.2 on MODEL, one chain from 0 and one client after the other, in NumPy on the same keys."""
    chain_keys = jax.tree.map(lambda leaf: leaf[0], keys.chain_keys(seed, 1))
    factor = np.linalg.cholesky(sampler.inverse_mass_matrix)
    num_steps, rho, noisy = sampler.num_leapfrog_steps, sampler.momentum_correlation, sampler.gradient
    identities = [keys.client_identity(name) for name in federation.names]
    tables = [(np.column_stack([rows["x"], np.ones(len(rows["y"]))]), rows["y"]) for rows in federation.rows]

    def gradient(position, x, y):
        chance = 1 / (1 + np.exp(-x @ position))
        return federation.num_rows / len(y) * (chance - y) @ x + position / np.array([1.0, 1.0, 1.0, 10.0]) ** 2

    @jax.jit
    def draw_normals(t, identity):
        own = jax.random.normal(keys.private_momentum(chain_keys, t, identity), (4,))
        return jax.random.normal(keys.shared_momentum(chain_keys, t), (4,)), own

    @jax.jit
    def draw_rows_and_noise(t, k, half, identity, size):
        key_rows, key_noise = jax.random.split(keys.gradient_at(keys.gradient(chain_keys, t, identity), k, half))
        return draw_subset(key_rows, size, noisy.of.size), noisy.scale * jax.random.normal(key_noise, (4,))

    def local_end(steps, q, p, client: int, correction):
        identity, (x, y), weight = identities[client], tables[client], federation.weights[client]

        def estimate(half):
            chosen, noise = draw_rows_and_noise(t, k, half, identity, np.int32(len(y)))
            return gradient(q, x[chosen], y[chosen]) + noise + correction

        for t, k in zip(*np.divmod(steps, np.int32(num_steps)), strict=True):
            eta = sampler.step_size(int(t))
            if k == 0:
                shared, own = draw_normals(t, identity)
                p = rho**0.5 * shared + ((1 - rho) / weight) ** 0.5 * own
            first = estimate(half=0)
            q = q + eta * factor @ (p - eta / 2 * factor.T @ first)
            p = p - eta / 2 * factor.T @ (first + estimate(half=1))
        return q, p

    found, correction = [], np.zeros((3, 4))
    position = momentum = anchor = np.zeros(4)
    anchor_gradient = federation.weights @ [gradient(anchor, *table) for table in tables]
    local_steps = sampler.num_local_steps * (1 if sampler.sync_unit == "leapfrog" else num_steps)
    for steps in np.arange(num_rounds * local_steps, dtype=np.int32).reshape(num_rounds, -1):
        if isinstance(sampler, fahmc.DebiasedFAHMC):
            correction = [anchor_gradient - gradient(anchor, *table) for table in tables]
        ends = [local_end(steps, position, momentum, client, correction[client]) for client in range(3)]
        anchor, anchor_gradient = position, federation.weights @ [gradient(position, *table) for table in tables]
        position, momentum = np.einsum("c,cvd->vd", federation.weights, ends)
        found.append(position)
    return np.stack(found)


@pytest.mark.parametrize(
    ("sampler_class", "sync_unit"), [(fahmc.FAHMC, "leapfrog"), (fahmc.DebiasedFAHMC, "trajectory")]
)
def test_everything_at_once(logistic_study, sampler_class, sync_unit):
    """Own momentum, noise on minibatches, a mass matrix, a schedule, and averages inside of trajectories."""
    sampler = sampler_class(
        fahmc.schedules.Stages(0.1, first_stage=2),
        num_leapfrog_steps=2,
        num_local_steps=3,
        momentum_correlation=0.5,
        gradient=fahmc.GaussianNoise(1.0, of=fahmc.Minibatch(10)),
        sync_unit=sync_unit,
        inverse_mass_matrix=np.diag([1.0, 2.0, 0.5, 1.5]) + 0.2,
    )
    init = {"coefficients": np.zeros(3), "intercept": np.zeros(())}
    draws = run(logistic_study, sampler, num_rounds=4, num_chains=1, init=init)
    np.testing.assert_allclose(draws.flat()[0], written_out_draws(logistic_study, sampler, 4, seed=5), rtol=1e-10)
    first_trajectories = {"trajectory": (0, 3, 6, 9), "leapfrog": (0, 1, 3, 4)}[sync_unit]
    np.testing.assert_allclose(draws.stats["step_size"][0], [sampler.step_size(t) for t in first_trajectories])
