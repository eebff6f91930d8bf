"""Peer (b): BlackJAX's HMC kernel at every client, vmapped over clients and chains, and averages, in a compiled loop.

The kernel draws its own momentum at every call. So where clients are averaged every T leapfrog steps, also inside a
trajectory, a call takes T steps and draws a momentum each time: the same gradients and averages, and some more momenta.
To the peer's advantage, clients draw with one key (ρ = 1), which vmap then does once for all of them, and no draws are
kept.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import blackjax  # pyright: ignore[reportMissingImports]
import jax
import jax.numpy as jnp
import numpy as np
from blackjax.mcmc import integrators, metrics  # pyright: ignore[reportMissingImports]
from jax import Array, lax

from fahmc.bench.cases import Case
from fahmc.bench.oracle import Probe


class _Client(NamedTuple):
    x: Array
    y: Array
    place: Array


class BlackJaxHMC:
    """Federated logistic regression. One unit of work is one call of the kernel for all clients and chains."""

    is_pooled = False

    def __init__(self, case: Case):
        sampler, num_chains = case.sampler, case.num_chains
        x, y = case.problem.stacked()
        self._clients = _Client(jnp.asarray(x), jnp.asarray(y), jnp.arange(len(x)))
        self._mass = jnp.ones(case.problem.dimension, jnp.float32)
        self._step_size, self._noise = case.step_size, case.noise_scale
        if sampler.sync_unit == "leapfrog":
            self._leapfrog_steps, self._average_every = sampler.num_local_steps, 1
        else:
            self._leapfrog_steps, self._average_every = sampler.num_leapfrog_steps, sampler.num_local_steps
        self._chain_keys = jax.random.split(jax.random.key(0), num_chains)
        self._loop = jax.jit(self._run)
        self._states = jax.jit(self._restart)(jnp.zeros((num_chains, case.problem.dimension), jnp.float32))
        self._units_done = 0
        self.work_per_unit = num_chains * self._leapfrog_steps

    def run(self, num_units: int) -> None:
        """Call the kernel some times."""
        units = np.int32(self._units_done), np.int32(self._units_done + num_units)
        self._states = jax.block_until_ready(self._loop(self._states, *units))
        self._units_done += num_units

    def answer(self, probe: Probe) -> np.ndarray:
        """Take the probe's steps with BlackJAX's integrator, as its kernel does with a momentum of its own."""
        noise = self._noise if probe.is_noisy else 0.0

        def end(chain_key: Array, start: tuple[Array, Array], client: _Client) -> Array:
            position, momentum = start
            logdensity_fn = partial(self._logdensity, chain_key, client, noise)
            step = integrators.velocity_verlet(logdensity_fn, metrics.default_metric(self._mass).kinetic_energy)
            state = integrators.IntegratorState(position, momentum, *jax.value_and_grad(logdensity_fn)(position))
            return lax.fori_loop(0, probe.num_steps, lambda _, at: step(at, probe.step_size), state).position

        start = tuple(jnp.asarray(at, jnp.float32) for at in (probe.position, probe.momentum))
        ends = jax.jit(_everywhere(end, is_common=True))(self._chain_keys, start, self._clients)
        return np.asarray(ends.mean(axis=1))

    def _run(self, states: Any, first: Array, end: Array) -> Any:
        def unit(index: Array, states: Any) -> Any:
            keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(self._chain_keys, index)
            states = _everywhere(self._call)(keys, states, self._clients)
            is_round_over = (index + 1) % self._average_every == 0
            return lax.cond(is_round_over, lambda: self._restart(states.position.mean(axis=1)), lambda: states)

        return lax.fori_loop(first, end, unit, states)

    def _restart(self, positions: Array) -> Any:
        """Let all clients start from the averages [chain, dim]."""

        def init(chain_key: Array, position: Array, client: _Client) -> Any:
            return self._kernel(chain_key, client).init(position)

        return _everywhere(init, is_common=True)(self._chain_keys, positions, self._clients)

    def _call(self, key: Array, state: Any, client: _Client) -> Any:
        key_kernel, key_noise = jax.random.split(key)
        return self._kernel(key_noise, client).step(key_kernel, state)[0]

    def _kernel(self, key: Array, client: _Client) -> Any:
        # BlackJAX keeps a step's gradient for the next one. With noise, Algorithm 1 has two a step, so two of the
        # kernel's steps do the work of one.
        num_steps = 2 * self._leapfrog_steps if self._noise else self._leapfrog_steps
        logdensity_fn = partial(self._logdensity, key, client, self._noise)
        return blackjax.hmc(logdensity_fn, self._step_size, self._mass, num_steps)

    def _logdensity(self, key: Array, client: _Client, noise: float, position: Array) -> Array:
        logits = client.x @ position
        loglikelihood = jnp.sum(client.y * logits - jax.nn.softplus(logits))
        num_clients = len(self._clients.place)  # n / n_c of equal clients
        logdensity = num_clients * loglikelihood - jnp.sum(position**2) / 2
        if noise:
            logdensity += _gradient_noise(jax.random.fold_in(key, client.place), position, noise)
        return logdensity


def _gradient_noise(key: Array, position: Array, scale: float) -> Array:
    """Return zero, with N(0, scale²) for its gradient.

    The kernel takes a function of the position alone, so that the noise of an evaluation has to come from the position:
    the bits of a coordinate, which no two evaluations share, make the key. That costs one hash next to the draws.
    """
    here = lax.stop_gradient(position)
    key = jax.random.fold_in(key, lax.bitcast_convert_type(here[0], jnp.uint32))
    return scale * jax.random.normal(key, here.shape, here.dtype) @ (position - here)


def _everywhere(function: Any, *, is_common: bool = False) -> Any:
    """Vmap a function of (chain's key, state, client); a common state has no client axis."""
    over_clients = jax.vmap(function, in_axes=(None, None if is_common else 0, 0))
    return jax.vmap(over_clients, in_axes=(0, 0, None))
