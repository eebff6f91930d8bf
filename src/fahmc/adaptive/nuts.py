"""Draws from a surrogate posterior that is not Gaussian: NUTS (BlackJAX) at the server, all chains at once.

Compiled once a run: the quadratic that stands for the likelihood is an argument.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fahmc.adaptive.knowledge import Knowledge, in_double
from fahmc.adaptive.surrogate import Quadratic

_TARGET_ACCEPTANCE = 0.95
_NUM_WARMUP = 500
# A dense metric pays up to here; beyond it a diagonal one has to do.
_DENSE = 100


class ServerDraws(NamedTuple):
    """What NUTS came to."""

    positions: np.ndarray
    """[chain, draw, dim]"""
    num_divergences: int


class Nuts:
    """Draws from exp(−prior(θ) − quadratic(φ(θ)))."""

    def __init__(self, knowledge: Knowledge, num_chains: int, num_draws: int):
        self._knowledge, self._num_chains, self._num_draws = knowledge, num_chains, num_draws

    def potential(self, position: Any, center: Any, gradient: Any, curvature: Any) -> Any:
        """Return prior(θ) + g′s + ½ s′Hs,  s = φ(θ) − c."""
        step = self._knowledge.view(position) - center
        return self._knowledge.prior(position) + gradient @ step + 0.5 * step @ (curvature @ step)

    @cached_property
    def _program(self) -> Callable:
        from blackjax import nuts, window_adaptation

        def run(seeds: Any, starts: Any, thin: Any, center: Any, gradient: Any, curvature: Any) -> Any:
            dimension = starts.shape[1]

            def logdensity(position: Any) -> Any:
                return -self.potential(position, center, gradient, curvature)

            def one_chain(seed: Any, start: Any) -> Any:
                key_warmup, key_draws = jax.random.split(jax.random.key(seed.astype(jnp.uint32)))
                warmup = window_adaptation(
                    nuts,
                    logdensity,
                    is_mass_matrix_diagonal=dimension > _DENSE,
                    target_acceptance_rate=_TARGET_ACCEPTANCE,
                    adaptation_info_fn=lambda *info: None,
                )
                (state, parameters), _ = warmup.run(key_warmup, start, num_steps=_NUM_WARMUP)  # type: ignore
                kernel = nuts(logdensity, **parameters).step  # type: ignore

                def draw(state: Any, key: Any) -> Any:
                    def step(_, carried):
                        state, diverged, key = carried
                        key, key_step = jax.random.split(key)
                        state, info = kernel(key_step, state)
                        return state, diverged + info.is_divergent, key  # type: ignore

                    state, diverged, _ = jax.lax.fori_loop(0, thin.astype(jnp.int32), step, (state, jnp.int32(0), key))
                    return state, (state.position, diverged)

                _, (positions, diverged) = jax.lax.scan(draw, state, jax.random.split(key_draws, self._num_draws))
                return positions, diverged.sum()

            return jax.vmap(one_chain)(seeds, starts)

        return jax.jit(run)

    def draw(self, loss: Quadratic, starts: np.ndarray, thin: int, seed: int) -> ServerDraws:
        """Draw from the surrogate posterior, chains from ``starts``, [chain, dim], and keep every ``thin``-th draw."""
        seeds = np.random.default_rng([seed, 1]).integers(2**31, size=self._num_chains)
        # BlackJAX relies on what JAX allows by default, whatever its user has forbidden.
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"), jax.debug_key_reuse(False):
            positions, diverged = in_double(self._program, seeds, starts, thin, *loss)
        return ServerDraws(positions, int(diverged.sum()))
