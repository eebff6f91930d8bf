"""The implemented round on Gaussian clients is the theory's affine map: matrix, offset and covariance, to rounding.

No statistics: the noise is handed in as an array, and the map is read off the code that runs.
"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fahmc
from fahmc import keys, theory
from fahmc.dynamics import fa_hmc
from fahmc.engines.in_process.loop import ClientByClient
from fahmc.runs.plan import make_run

NOISE = 0.7
SETTINGS = {
    "langevin": fahmc.FALD(0.3, momentum_correlation=0.4),
    "trajectories": fahmc.FAHMC(0.3, num_leapfrog_steps=3, num_local_steps=2, momentum_correlation=0.4),
    "own momentum": fahmc.FAHMC(0.2, num_leapfrog_steps=2, num_local_steps=3, momentum_correlation=0.0),
    "leapfrog, T < K": fahmc.FAHMC(0.3, 5, 2, momentum_correlation=0.4, sync_unit="leapfrog"),
    "leapfrog, T > K": fahmc.FAHMC(0.3, 3, 5, momentum_correlation=0.4, sync_unit="leapfrog"),
    "debiased": fahmc.DebiasedFAHMC(0.3, 3, 2, momentum_correlation=0.4),
    "debiased leapfrog": fahmc.DebiasedFAHMC(0.3, 3, 4, momentum_correlation=0.4, sync_unit="leapfrog"),
    "stages": fahmc.FAHMC(fahmc.schedules.Stages(0.3, first_stage=3), num_leapfrog_steps=2, num_local_steps=2),
}
EXACT, FRESH, REUSED = (0.0, False), (NOISE, False), (NOISE, True)
CASES = [(name, *noise) for name in SETTINGS for noise in (FRESH, REUSED)]
# Exact gradients take the way of reused ones.
CASES += [(name, *EXACT) for name in ("trajectories", "debiased leapfrog")]
TABLES: dict[str, jax.Array] = {}
"""The standard normals of a round, by what they are for."""


@fahmc.register("gradient")
@dataclass(frozen=True)
class NoiseFromTable(fahmc.Gradient):
    """As `GaussianNoise`, but the key is a place in the table of gradient noise."""

    scale: float

    def build(self, target):
        return lambda key, position, client: target.gradient(position, client) + self.scale * TABLES["gradient"][key]


def implemented_round(study, sampler, monkeypatch):
    """Return ``(round, state, standard normals) -> state`` of one chain, running fahmc's own code on handed-in noise.

    Also how many numbers the state and the noise have.
    """
    if noise := getattr(sampler.gradient, "scale", 0.0):
        sampler = replace(sampler, gradient=NoiseFromTable(noise))
    run = make_run(study.model, study.federation, sampler, dtype=np.dtype(np.float64))
    (num_clients, dim), num_trajectories = study.means.shape, 12
    shapes = {
        "shared": (num_trajectories, dim),
        "private": (num_trajectories, num_clients, dim),
        "gradient": (num_trajectories, sampler.num_leapfrog_steps, 2, num_clients, dim),
    }
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes.values()])
    identities = jnp.asarray(np.stack([keys.client_identity(name) for name in study.federation.names]))

    def place(identity):
        return jnp.argmax((identities == identity[None]).all(axis=1))

    def momentum(chain_keys, trajectory, like, client, rho):
        private = TABLES["private"][trajectory, place(client.identity)]
        return rho**0.5 * TABLES["shared"][trajectory] + jnp.sqrt((1 - rho) / client.weight) * private

    monkeypatch.setattr(fa_hmc, "draw_momentum", momentum)
    monkeypatch.setattr(keys, "gradient", lambda chain_keys, trajectory, identity: (trajectory, place(identity)))
    monkeypatch.setattr(keys, "gradient_at", lambda key, k, half: (key[0], k, half, key[1]))
    phase = run.phases[-1]
    way = ClientByClient(run, phase)
    rows = way.prepare([bucket.clients for bucket in run.buckets])

    def one_round(round_index, state, normals):
        parts = zip(shapes.items(), jnp.split(normals, ends[:-1]), strict=True)
        TABLES.update({name: part.reshape(shape) for (name, shape), part in parts})
        chains = dict(zip(way.exchange.state, state.reshape(-1, 1, dim), strict=True))
        after = way.advance(rows, run.numbers(phase), run.chain_keys(phase), round_index, chains).state
        return jnp.concatenate([after[name][0] for name in way.exchange.state])

    return one_round, len(way.exchange.state) * dim, ends[-1]


@pytest.mark.parametrize(("name", "noise", "reuse"), CASES)
def test_round_is_the_theorys_affine_map(unlike_gaussians, monkeypatch, name, noise, reuse):
    gradient = fahmc.GaussianNoise(noise) if noise else fahmc.FullGradient()
    sampler = replace(SETTINGS[name], gradient=gradient, reuse_gradient=reuse)
    one_round, state_size, noise_size = implemented_round(unlike_gaussians, sampler, monkeypatch)
    # An affine map is known from its values at the origin and at the unit vectors.
    inputs = jnp.concatenate([jnp.zeros((1, state_size + noise_size)), jnp.eye(state_size + noise_size)])
    run = jax.jit(jax.vmap(lambda index, x: one_round(index, x[:state_size], x[state_size:]), in_axes=(None, 0)))
    for round_index in (0, 1, 2):
        expected = theory.round_law(unlike_gaussians.clients, sampler, round_index)
        outputs = np.asarray(run(jnp.int32(round_index), inputs))
        offset, columns = outputs[0], (outputs[1:] - outputs[0]).T
        matrix, response = columns[:, :state_size], columns[:, state_size:]
        np.testing.assert_allclose(matrix, expected.matrix, atol=1e-12)
        np.testing.assert_allclose(offset, expected.offset, atol=1e-12)
        np.testing.assert_allclose(response @ response.T, expected.covariance, atol=1e-12)
