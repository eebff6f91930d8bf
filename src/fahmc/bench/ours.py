"""fahmc as a contender: the run that `fahmc.sample` makes for the default engine, going on and on."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from fahmc import tree
from fahmc.bench.cases import Case
from fahmc.bench.oracle import Probe
from fahmc.data.federation import Federation
from fahmc.density.gradient import FullGradient
from fahmc.density.model import Model
from fahmc.draws import Draws
from fahmc.dynamics.fa_hmc import FAHMC
from fahmc.engines.in_process import InProcess
from fahmc.engines.run import Run, Session, begin
from fahmc.errors import DivergenceError
from fahmc.runs.plan import make_run
from fahmc.sample import sample
from fahmc.types import Message

# More than any benchmark runs: with fewer, the buffers for draws would be smaller than a long run's.
_MANY_ROUNDS = 10**9


class Ours:
    """fahmc in its steady state. One unit of work is one round."""

    is_pooled = False

    def __init__(self, case: Case):
        self._case, self._round = case, 0
        self._state: Message | None = None

    @cached_property
    def _run(self) -> Run:
        # Not in __init__: who is only asked for answers is not kept waiting for the whole run.
        case = self._case
        return make_run(
            case.problem.model,
            case.problem.federation,
            case.sampler,
            _MANY_ROUNDS,
            thin=case.thin,
            num_chains=case.num_chains,
            dtype=np.dtype("float32"),
        )

    @cached_property
    def _session(self) -> Session:
        return InProcess().start(self._run)

    @property
    def work_per_unit(self) -> float:
        """Chain-leapfrog steps of one round."""
        return self._case.num_chains * self._case.sampler.steps_per_round

    def run(self, num_units: int) -> None:
        """Go on for some rounds, in blocks no longer than the buffers for draws."""
        [phase] = self._run.phases
        self._state = begin(self._run, phase) if self._state is None else self._state
        end, longest = self._round + num_units, self._run.capacity(phase) * self._run.thin
        while self._round < end:
            block = self._session.advance(phase, self._state, self._round, min(end - self._round, longest))
            if block.divergence is not None:
                raise DivergenceError(f"A chain diverged in round {block.divergence.round}: its speed means nothing.")
            self._state, self._round = block.state, self._round + block.num_rounds

    def answer(self, probe: Probe) -> np.ndarray:
        """Sample one round. Its momentum is the one that the probe got from `first_momentum`."""
        sampler = self._case.sampler
        sampler = replace(
            sampler,
            step_size=probe.step_size,
            num_leapfrog_steps=probe.num_steps,
            num_local_steps=probe.num_steps if sampler.counts_leapfrogs else 1,
            gradient=sampler.gradient if probe.is_noisy else FullGradient(),
        )
        model, federation = self._case.problem.model, self._case.problem.federation
        _, unravel = ravel_pytree(model.initial_position(jax.random.key(0), federation.rows[0]))
        start = jax.vmap(unravel)(jnp.asarray(probe.position, jnp.float32))
        draws = _one_round(model, federation, sampler, len(probe.position), start)
        return tree.flatten_draws(draws.positions, batch_ndim=2)[:, 0]


@lru_cache
def first_momentum(num_chains: int, dimension: int) -> np.ndarray:
    """Return the first momenta [chain, dim] that all clients share, read off a free flight from the origin.

    fahmc takes no momentum from outside, but its first one depends on nothing but seed, chain and dimension.
    """
    nowhere = Federation.from_clients({"only": {"x": np.zeros((1, 1), np.float32)}})
    free = Model(lambda position, batch: 0 * jnp.sum(position) * batch["x"][:, 0], init=jnp.zeros(dimension))
    start = jnp.zeros((num_chains, dimension), jnp.float32)
    return np.asarray(_one_round(free, nowhere, FAHMC(1.0, num_leapfrog_steps=1), num_chains, start).positions)[:, 0]


def _one_round(model: Model, federation: Federation, sampler: FAHMC, num_chains: int, start: Any) -> Draws:
    return sample(
        model, federation, sampler, 1, num_chains=num_chains, init=start, dtype="float32", progress=False, seed=0
    )
