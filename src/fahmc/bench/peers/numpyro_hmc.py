"""Peer (c): NumPyro's HMC on the rows pooled in one place, fixed step size and number of steps.

One of its leapfrog steps touches the same rows as one leapfrog step of all clients. Chains are vectorised by the kernel
itself, as ``MCMC(chain_method="vectorized")`` has them; the loop around it is ours, so that no time goes to collecting.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array, lax
from numpyro.infer import HMC
from numpyro.infer.hmc_util import euclidean_kinetic_energy, velocity_verlet
from numpyro.infer.util import potential_energy

from fahmc.bench.cases import Case
from fahmc.bench.oracle import Probe


class NumPyroHMC:
    """Pooled logistic regression. One unit of work is one trajectory of all chains."""

    is_pooled = True

    def __init__(self, case: Case):
        sampler, rows = case.sampler, case.problem.pooled()
        self._rows = tuple(jnp.asarray(rows[name], jnp.float32) for name in "xy")
        self._kernel = HMC(
            _model,
            step_size=case.step_size,
            num_steps=sampler.num_leapfrog_steps,
            adapt_step_size=False,
            adapt_mass_matrix=False,
        )
        zeros = {"theta": jnp.zeros((case.num_chains, case.problem.dimension), jnp.float32)}
        # Keys of the old kind: NumPyro uses some twice, which a check on typed ones would refuse.
        keys = jax.random.split(jax.random.PRNGKey(0), case.num_chains)
        self._state: Any = self._kernel.init(keys, 0, zeros, self._rows, {})
        self._loop = jax.jit(self._run)
        self.work_per_unit = case.num_chains * sampler.num_leapfrog_steps

    def run(self, num_units: int) -> None:
        """Go on for some trajectories."""
        self._state = jax.block_until_ready(self._loop(self._state, np.int32(num_units)))

    def answer(self, probe: Probe) -> np.ndarray:
        """Take the probe's steps with NumPyro's integrator on NumPyro's potential."""
        # No parameter is constrained, so this is also the potential that the kernel moves in.
        potential_fn = partial(potential_energy, _model, self._rows, {})
        start, update = velocity_verlet(potential_fn, euclidean_kinetic_energy)

        def end(position: Array, momentum: Array) -> Array:
            state = start({"theta": position}, {"theta": momentum})
            mass = {("theta",): jnp.ones_like(position)}
            state = lax.fori_loop(0, probe.num_steps, lambda _, at: update(probe.step_size, mass, at), state)
            return state.z["theta"]

        position, momentum = (jnp.asarray(at, jnp.float32) for at in (probe.position, probe.momentum))
        return np.asarray(jax.jit(jax.vmap(end))(position, momentum))

    def _run(self, state: Any, num_units: Array) -> Any:
        return lax.fori_loop(0, num_units, lambda _, at: self._kernel.sample(at, self._rows, {}), state)


def _model(x: Array, y: Array) -> None:
    theta = numpyro.sample("theta", dist.Normal(jnp.zeros(x.shape[1], x.dtype), 1).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=x @ theta), obs=y)
