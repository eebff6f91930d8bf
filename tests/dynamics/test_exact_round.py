"""The implemented round on Gaussian clients is the theory's affine map: matrix, offset and covariance, to rounding.

No statistics: the noise is handed in as an array, and the map is read off the code that runs.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fahmc
from fahmc import keys, theory
from fahmc.dynamics import debiased, fa_hmc
from fahmc.dynamics.mass import Mass
from fahmc.engines.in_process import _InProcessRun
from fahmc.runs.pacing import Pacing
from fahmc.runs.plan import make_plan, make_task

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
CASES = [(name, noise, reuse) for name in SETTINGS for noise, reuse in [(0.0, False), (NOISE, False), (NOISE, True)]]


def implemented_round(study, sampler, monkeypatch):
    """Return ``(state, standard normals) -> state`` of one chain, running fahmc's own code on handed-in noise."""
    plan = make_plan(
        study.model, study.federation, sampler,
        seed=0, private_seed=None, num_chains=1, init=None, dtype=np.dtype(np.float64),
    )  # fmt: skip
    num_clients, dim = study.means.shape
    num_trajectories, num_steps = 12, sampler.num_leapfrog_steps
    shapes = {
        "shared": (num_trajectories, dim),
        "private": (num_trajectories, num_clients, dim),
        "gradient": (num_trajectories, num_steps, 2, num_clients, dim),
    }
    total = sum(int(np.prod(shape)) for shape in shapes.values())
    identities = jnp.asarray(np.stack([keys.client_identity(name) for name in study.federation.names]))
    tables: dict[str, jax.Array] = {}

    def place(identity):
        return jnp.argmax((identities == identity).all(axis=1))

    def momentum(chain_keys, trajectory, like, client, rho):
        shared = tables["shared"][trajectory]
        private = tables["private"][trajectory, place(client.identity)]
        return jnp.sqrt(rho) * shared + jnp.sqrt((1 - rho) / client.weight) * private

    def gradient_fn(key, position, client):
        (trajectory, identity), k, half = key
        return (
            plan.potentials.gradient(position, client)
            + getattr(sampler.gradient, "scale", 0.0) * tables["gradient"][trajectory, k, half, place(identity)]
        )

    monkeypatch.setattr(fa_hmc, "draw_momentum", momentum)
    monkeypatch.setattr(keys, "gradient", lambda chain_keys, trajectory, identity: (trajectory, identity))
    monkeypatch.setattr(keys, "gradient_at", lambda key, k, half: (key, k, half))
    if isinstance(sampler, fahmc.DebiasedFAHMC):
        kernel = debiased.build_kernel(sampler, gradient_fn, Mass(), plan.potentials)
    else:
        kernel = fa_hmc.build_kernel(sampler, gradient_fn, Mass(), dim)
    task = make_task(plan, Pacing(0, 1, 1, None, None))._replace(kernel=kernel, row_space=None)
    engine = _InProcessRun(task, threads=1)
    template = jax.tree.map(lambda leaf: leaf[0], plan.start)

    def one_round(round_index, state, normals):
        ends = np.cumsum([int(np.prod(shape)) for shape in shapes.values()])[:-1]
        parts = jnp.split(normals, ends)
        tables.update({name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)})
        leaves, structure = jax.tree.flatten(template)
        chains = structure.unflatten([part[None] for part in jnp.split(state, len(leaves))])
        after, *_ = engine._one_round(engine._rows, plan.chain_keys, chains, round_index, jnp.bool(True))
        return jnp.concatenate([leaf[0] for leaf in jax.tree.leaves(after)])

    return one_round, sum(leaf.size for leaf in jax.tree.leaves(template)), total


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
