"""One round in NumPy and double precision, from the equations alone: what every contender must agree with.

Potentials are f_c(θ) = (n / n_c) Σ −log p(y | x, θ) + |θ|² / 2. Positions are flat, in the order of fahmc's models.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from fahmc.bench.problems import Problem

Layers = list[tuple[np.ndarray, np.ndarray]]
"""Weights [in, out] and biases [out] of each layer."""


class Probe(NamedTuple):
    """The question where the clients' average ends, some leapfrog steps from a start that all share."""

    position: np.ndarray
    """[chain, dim]"""
    momentum: np.ndarray
    """[chain, dim], the same at all clients."""
    step_size: float
    num_steps: int
    is_noisy: bool = False
    """Whether gradients get the case's Gaussian noise; otherwise they are exact."""


def averaged_end(problem: Problem, probe: Probe) -> np.ndarray:
    """Answer a probe: positions [chain, dim]."""
    mean = np.zeros(probe.position.shape)
    for rows in problem.clients.values():
        scale = problem.num_rows / len(rows["y"])
        for chain in range(len(mean)):
            mean[chain] += (
                _leapfrog_end(lambda q, r=rows, s=scale: s * _gradient(problem, q, r) + q, probe, chain) / scale
            )
    return mean


def _leapfrog_end(gradient: Callable[[np.ndarray], np.ndarray], probe: Probe, chain: int) -> np.ndarray:
    eta = probe.step_size
    position, momentum = probe.position[chain].astype(np.float64), probe.momentum[chain].astype(np.float64)
    for _ in range(probe.num_steps):
        momentum = momentum - eta / 2 * gradient(position)
        position = position + eta * momentum
        momentum = momentum - eta / 2 * gradient(position)
    return position


def _gradient(problem: Problem, position: np.ndarray, rows: dict[str, np.ndarray]) -> np.ndarray:
    """Return the gradient of Σ −log p(y | x, θ) over some rows."""
    x, y = rows["x"].astype(np.float64), rows["y"]
    if problem.kind == "logistic":
        return x.T @ (1 / (1 + np.exp(-x @ position)) - y)
    if problem.kind == "softmax":
        [(num_inputs, num_classes)] = pairwise(problem.widths)
        weights, biases = np.split(position, [num_inputs * num_classes])
        [(weights, biases)] = _backward([(weights.reshape(num_inputs, num_classes), biases)], x, y)
        return np.concatenate([weights.ravel(), biases])
    layers, start = [], 0
    for width_in, width_out in pairwise(problem.widths):
        end = start + width_out * (1 + width_in)
        biases, weights = np.split(position[start:end], [width_out])
        layers.append((weights.reshape(width_in, width_out), biases))
        start = end
    return np.concatenate([part for w, b in _backward(layers, x, y) for part in (b, w.ravel())])


def _backward(layers: Layers, x: np.ndarray, y: np.ndarray) -> Layers:
    """Differentiate the cross entropy of a ReLU network by hand."""
    units = [x]
    for weights, biases in layers[:-1]:
        units.append(np.maximum(units[-1] @ weights + biases, 0))
    logits = units[-1] @ layers[-1][0] + layers[-1][1]
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    residual = odds / odds.sum(axis=1, keepdims=True) - np.eye(logits.shape[1])[y]
    gradients: Layers = []
    for (weights, _), inputs in zip(reversed(layers), reversed(units), strict=True):
        gradients.insert(0, (inputs.T @ residual, residual.sum(axis=0)))
        residual = (residual @ weights.T) * (inputs > 0)
    return gradients
