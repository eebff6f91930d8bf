"""A generalised linear model as row space sees it: the likelihood as a function of predictors, the prior as a flow."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from fahmc.density.model import Linear
from fahmc.density.target import Target
from fahmc.engines.in_process.row_space.layout import times
from fahmc.types import Client, Vector


class LinearTarget:
    """The potentials f_c of a model with a `Linear` part."""

    def __init__(self, target: Target, linear: Linear):
        self.linear = linear
        self._temperature, self._unravel = target.model.temperature, target.unravel
        self.precision = 0.0 if linear.prior_scale is None else 1 / (linear.prior_scale**2 * self._temperature)
        """λ, of the coefficients' prior"""
        self._outputs = target.template[linear.parameter].shape[1:]
        self.num_outputs = int(np.prod(self._outputs))
        others = {name: leaf for name, leaf in target.template.items() if name != linear.parameter}
        self._unravel_rest = ravel_pytree(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), others))[1]

    def potential(self, position: Vector, client: Client) -> Float[Array, ""]:
        """f_c as the linear part tells it, to be compared with what the model says."""
        coefficients, rest = self.split(position)
        predictor = client.rows[self.linear.covariates].astype(coefficients.dtype) @ coefficients
        return self._loss(predictor.T, rest, client) + self.precision / 2 * jnp.sum(coefficients**2)

    def split(self, vector: Vector) -> tuple[Float[Array, "dim output"], Vector]:
        """Separate the coefficients, an output a column, from the other parameters."""
        position = dict(self._unravel(vector))
        coefficients = position.pop(self.linear.parameter)
        return coefficients.reshape(len(coefficients), -1), ravel_pytree(position)[0].astype(vector.dtype)

    def join(self, coefficients: Float[Array, "dim output"], rest: Vector) -> Vector:
        """Put a position together again."""
        parameter = coefficients.reshape(-1, *self._outputs)
        return ravel_pytree({**self._unravel_rest(rest), self.linear.parameter: parameter})[0]

    def forces(self, client: Client, factors: Any, predictor: Array, rest: Array) -> tuple[Array, Array]:
        """∇ of the clients' likelihoods in the basis' coordinates, and of their potentials in the other parameters."""
        gradient = jax.grad(self._loss, argnums=(0, 1))
        for_all = jax.vmap(jax.vmap(gradient, in_axes=(1, 0, None), out_axes=(1, 0)))
        factor, transposed = factors or (None, None)
        predictor = times(predictor, transposed)
        by_output = predictor.reshape(len(rest), self.num_outputs, -1, predictor.shape[2])
        force, rest_force = for_all(by_output, rest, client)
        return times(force.reshape(predictor.shape), factor), rest_force

    def _loss(self, predictor: Float[Array, "output row"], rest: Vector, client: Client) -> Float[Array, ""]:
        """f_c without the coefficients' prior."""
        values = predictor.T.reshape(-1, *self._outputs)
        others = self._unravel_rest(rest)
        fit = jnp.sum(client.row_weights * self.linear.loglikelihood_fn(values, others, client.rows))
        return -(client.scale * fit + self.linear.logprior_fn(others)) / self._temperature


def prior_flows(eta: float, precision: float, longest: int) -> tuple[np.ndarray, np.ndarray]:
    """A^k, and the covariance V_k that gradient noise N(0, 1) on a coordinate gives to k steps, for k ≤ longest."""
    diagonal = 1 - eta**2 * precision / 2
    step = np.array([[diagonal, eta], [-eta * precision * (1 - eta**2 * precision / 4), diagonal]])
    # of ξ_k, which moves θ_{k+1} and so the prior's force there, and of ξ_{k+1/2}
    whole, half = np.array([-(eta**2) / 2, -eta / 2 * (1 - eta**2 * precision / 2)]), np.array([0, -eta / 2])
    noise = np.outer(whole, whole) + np.outer(half, half)
    flows, covs = [np.eye(2)], [np.zeros((2, 2))]
    for _ in range(longest):
        flows.append(step @ flows[-1])
        covs.append(step @ covs[-1] @ step.T + noise)
    return np.array(flows), np.array(covs)
