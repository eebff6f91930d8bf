"""Peer (d), the machine's ceiling: the matrix products of a case's gradients and nothing else.

No minibatch is gathered, no noise drawn, nothing exponentiated: operands of the right shapes lie in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fahmc.bench.cases import Case
from fahmc.bench.timing import calibrate
from fahmc.density.gradient import Minibatch

# The loop's result is added to its start with a weight that leaves it unchanged in single precision; without, a
# compiler would see that all turns are alike and take one.
_NOTHING = np.float32(1e-30)
# How long each way is tried before the faster is chosen.
_TRIAL_SECONDS = 0.2


class NumPyProducts:
    """Forward and backward products by NumPy's BLAS. One unit of work is one leapfrog step."""

    def __init__(self, case: Case):
        x, weights, self._turns = _operands(case)
        self._operands = x, weights
        self.work_per_unit = case.num_chains

    def run(self, num_units: int) -> None:
        """Multiply."""
        for _ in range(self._turns * num_units):
            _gradients(*self._operands)


class XlaProducts:
    """The same in one compiled loop."""

    def __init__(self, case: Case):
        x, weights, turns = _operands(case)
        ways = [_loop(_gradients, x, weights, turns)]
        if x.ndim == 2:
            # With chains for rows, XLA is faster where they are few.
            ways.append(_loop(lambda x, rows: [(rows[0] @ x.T) @ x], x, [weights[0].T], turns))
        else:
            # With few outputs, XLA is faster at the transposed product.
            ways.append(_loop(partial(_gradients, is_transposed=True), x, weights, turns))
        self.run = max(ways, key=lambda run: calibrate(run, _TRIAL_SECONDS))
        self.work_per_unit = case.num_chains


def _operands(case: Case) -> tuple[np.ndarray, list[np.ndarray], int]:
    """Return inputs, the weights of every layer, and how many gradients a leapfrog step has."""
    problem, gradient = case.problem, case.sampler.gradient
    if isinstance(gradient, Minibatch):
        # Every client and chain has weights of its own, and minibatches of its own, two a step.
        x = np.stack([rows["x"][: gradient.size] for rows in problem.clients.values()])
        x = np.tile(x, (case.num_chains, 1, 1)).astype(np.float32)
        return x, _weights([(len(x), *widths) for widths in pairwise(problem.widths)]), 2
    # Exact gradients of all clients are one product with all rows, and its transpose; chains stand side by side.
    return problem.pooled()["x"].astype(np.float32), _weights([(problem.dimension, case.num_chains)]), 1


def _weights(shapes: list[tuple[int, ...]]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.normal(scale=0.01, size=shape).astype(np.float32) for shape in shapes]


def _gradients(x: Any, weights: list[Any], is_transposed: bool = False) -> list[Any]:
    """Multiply forwards through the layers and backwards to every layer's weights, as NumPy or JAX arrays."""
    units = [x]
    for layer in weights:
        units.append(units[-1] @ layer)
    back, gradients = units.pop(), []
    for layer, inputs in zip(reversed(weights), reversed(units), strict=True):
        if is_transposed:
            gradients.insert(0, (back.swapaxes(-1, -2) @ inputs).swapaxes(-1, -2))
        else:
            gradients.insert(0, inputs.swapaxes(-1, -2) @ back)
        if inputs is not x:
            back = back @ layer.swapaxes(-1, -2)
    return gradients


def _loop(gradients: Callable, x: np.ndarray, weights: list[np.ndarray], turns: int) -> Callable[[int], None]:
    @jax.jit
    def loop(x: Array, weights: list[Array], num_turns: Array) -> list[Array]:
        def turn(_: Array, weights: list[Array]) -> list[Array]:
            return [w + _NOTHING * g for w, g in zip(weights, gradients(x, weights), strict=True)]

        return lax.fori_loop(0, num_turns, turn, weights)

    operands = jnp.asarray(x), [jnp.asarray(layer) for layer in weights]

    def run(num_units: int) -> None:
        jax.block_until_ready(loop(*operands, np.int32(turns * num_units)))

    return run
