"""The exact law of FA-HMC when every client's potential is quadratic.

Client c has f_c(q) = (q - m_c)' A_c (q - m_c) / 2. Leapfrog steps and averages are then affine in the broadcast state
and in independent normal noises, so one round is

    state'  =  matrix @ state + offset + N(0, covariance),

and the sampler's own law, its bias included, follows without a random number: after any number of rounds by iterating,
in stationarity from a fixed point and a discrete Lyapunov equation.

The state is what the server broadcasts, one block of size ``dim`` each, in this order: position; momentum, if averaging
happens between leapfrog steps; anchor and anchor gradient, if the gradients are debiased. The work grows like dim^3.
But where all A_c = a_c I the coordinates are independent: ask for the law of one of them, with dim = 1, and add up
their squared W_2 distances.

Reference: Liang, Zhang, Deng, Song and Lin (2024), arXiv:2407.06935, algorithms 1, 3, B.1 and B.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import solve_discrete_lyapunov

from fahmc.errors import SettingsError
from fahmc.theory.checks import require
from fahmc.theory.gaussian_setting import Dynamics, GaussianClients, GaussianLaw

Q, P, G = range(3)  # what a client carries along a round: position, momentum, gradient


class RoundLaw(NamedTuple):
    """One round as a random map: state' = matrix @ state + offset + N(0, covariance)."""

    matrix: NDArray[np.floating]
    offset: NDArray[np.floating]
    covariance: NDArray[np.floating]

    def push(self, law: GaussianLaw) -> GaussianLaw:
        """Return the law of the state after the round, given the law before it."""
        return GaussianLaw(
            self.matrix @ law.mean + self.offset, self.matrix @ law.covariance @ self.matrix.T + self.covariance
        )

    def then(self, later: RoundLaw) -> RoundLaw:
        """Return this round followed by a later one."""
        offset, covariance = later.push(GaussianLaw(self.offset, self.covariance))
        return RoundLaw(later.matrix @ self.matrix, offset, covariance)


def round_law(clients: GaussianClients, dynamics: Dynamics, round_index: int = 0) -> RoundLaw:
    """Return the law of one round, from broadcast state to broadcast state.

    Along the round, client c's position q, momentum p and gradient g obey

        refresh    p <- sqrt(rho) xi + sqrt((1 - rho) / w_c) xi_c            xi common to all clients
        evaluate   g <- A_c (q - m_c) [- A_c (anchor - m_c) + anchor_gradient] + sigma N(0, I)
        drift      q <- q + eta p - eta^2/2 g,   p <- p - eta/2 g
        kick       p <- p - eta/2 g

    in the order [refresh, at the start of a trajectory], evaluate, drift, evaluate, kick. ``reuse_gradient`` leaves out
    the first evaluation where g is that of the same position and the client was not just handed a new one; in
    trajectory units the first gradient of a trajectory is always fresh.
    """
    leapfrogs = dynamics.leapfrogs(round_index)
    paths = _Paths(clients, dynamics, num_refreshes=sum(leapfrog.starts_trajectory for leapfrog in leapfrogs))
    for index, (step_size, starts_trajectory) in enumerate(leapfrogs):
        if starts_trajectory:
            paths.refresh()
        starts_afresh = index == 0 or (starts_trajectory and dynamics.sync_unit == "trajectory")
        if starts_afresh or not dynamics.reuse_gradient:
            paths.evaluate()
        paths.drift(step_size)
        paths.evaluate()
        paths.kick(step_size)
    return _average(paths, clients, dynamics)


class _Paths:
    """(q, p, g) of every client, as functions of what the round started from and of the noises met so far.

    ``response`` [client, 3, dim, column] is the affine part of q, p and g. Its columns are the broadcast state, the
    constant 1, and the shared momentum of each trajectory, kept apart because it couples the clients. Private noises
    are independent between clients: ``private`` [client, 3, 3, dim, dim] holds only their covariances.
    """

    def __init__(self, clients: GaussianClients, dynamics: Dynamics, num_refreshes: int):
        self._clients, self._dynamics, self._identity = clients, dynamics, np.eye(clients.dim)
        num_clients, dim = clients.means.shape
        state = {name: slice(i * dim, (i + 1) * dim) for i, name in enumerate(dynamics.state_parts)}
        self.constant = dim * len(state)
        self._next_shared = self.constant + 1
        self.response = np.zeros((num_clients, 3, dim, self.constant + 1 + num_refreshes * dim))
        self.private = np.zeros((num_clients, 3, 3, dim, dim))
        self.response[:, Q, :, state["position"]] = self._identity
        if "momentum" in state:
            self.response[:, P, :, state["momentum"]] = self._identity

        # The gradient is A_c q plus what stays the same during the round.
        self._constant_gradient = np.zeros_like(self.response[:, G])
        if dynamics.debiased:
            self._constant_gradient[:, :, state["anchor"]] = -clients.precisions
            self._constant_gradient[:, :, state["anchor_gradient"]] = self._identity
        else:
            self._constant_gradient[:, :, self.constant] = -np.einsum("cij,cj->ci", clients.precisions, clients.means)

    def refresh(self) -> None:
        """P <- sqrt(rho) xi + sqrt((1 - rho) / w_c) xi_c."""
        self._mix([[1, 0, 0], [0, 0, 0], [0, 0, 1]])
        rho, shared = self._dynamics.momentum_correlation, self._next_shared
        self.response[:, P, :, shared : shared + self._clients.dim] = np.sqrt(rho) * self._identity
        self.private[:, P, P] = ((1 - rho) / self._clients.weights)[:, None, None] * self._identity
        self._next_shared += self._clients.dim

    def evaluate(self) -> None:
        """G <- A_c (q - m_c) [- A_c (anchor - m_c) + anchor_gradient] + sigma N(0, I)."""
        precisions = self._clients.precisions
        self.response[:, G] = precisions @ self.response[:, Q] + self._constant_gradient
        for other in (Q, P):
            self.private[:, G, other] = precisions @ self.private[:, Q, other]
            self.private[:, other, G] = self.private[:, G, other].swapaxes(1, 2)
        noise = self._dynamics.gradient_noise**2 * self._identity
        self.private[:, G, G] = self.private[:, G, Q] @ precisions + noise

    def drift(self, step_size: float) -> None:
        """Q <- q + eta p - eta^2/2 g, p <- p - eta/2 g."""
        self._mix([[1, step_size, -(step_size**2) / 2], [0, 1, -step_size / 2], [0, 0, 1]])

    def kick(self, step_size: float) -> None:
        """P <- p - eta/2 g."""
        self._mix([[1, 0, 0], [0, 1, -step_size / 2], [0, 0, 1]])

    def _mix(self, coefficients: list[list[float]]) -> None:
        """Replace q, p and g by combinations of them."""
        matrix, num_clients = np.array(coefficients), len(self.response)
        self.response = (matrix @ self.response.reshape(num_clients, 3, -1)).reshape(self.response.shape)
        both_sides = np.kron(matrix, matrix)
        self.private = (both_sides @ self.private.reshape(num_clients, 9, -1)).reshape(self.private.shape)


def _average(paths: _Paths, clients: GaussianClients, dynamics: Dynamics) -> RoundLaw:
    """Average what the clients return, and move the anchor to where the round began."""
    dim, size = clients.dim, paths.constant
    num_kept = 2 if dynamics.sync_unit == "leapfrog" else 1  # q and p, or q
    kept = num_kept * dim
    response = np.einsum("c,caij->aij", clients.weights, paths.response[:, :num_kept]).reshape(kept, -1)
    private = np.einsum("c,cabij->aibj", clients.weights**2, paths.private[:, :num_kept, :num_kept])
    shared = response[:, size + 1 :]

    matrix, offset, covariance = np.zeros((size, size)), np.zeros(size), np.zeros((size, size))
    matrix[:kept], offset[:kept] = response[:, :size], response[:, size]
    covariance[:kept, :kept] = shared @ shared.T + private.reshape(kept, kept)
    if dynamics.debiased:
        precision, pull = clients.mean_gradient()
        matrix[kept : kept + dim, :dim] = np.eye(dim)
        matrix[kept + dim :, :dim], offset[kept + dim :] = precision, -pull
    return RoundLaw(matrix, offset, covariance)


def laws_by_round(
    clients: GaussianClients,
    dynamics: Dynamics,
    start_mean: ArrayLike = 0.0,
    start_covariance: ArrayLike = 0.0,
) -> Iterator[GaussianLaw]:
    """Yield the law of the broadcast position at the start, after one round, after two, and so on without end.

    Parameters
    ----------
    start_mean, start_covariance
        Law of the first position, [dim] and [dim, dim], or numbers that broadcast to these; a fixed point by default.
        The first anchor and its gradient are 0.
    """
    dim = clients.dim
    size = dim * len(dynamics.state_parts)
    state = GaussianLaw(np.zeros(size), np.zeros((size, size)))
    state.mean[:dim], state.covariance[:dim, :dim] = start_mean, start_covariance
    known: dict[tuple, RoundLaw] = {}
    for round_index in count():
        yield GaussianLaw(state.mean[:dim].copy(), state.covariance[:dim, :dim].copy())
        # Rounds with the same leapfrog steps have the same law. A schedule that never repeats must not fill the memory.
        leapfrogs = tuple(dynamics.leapfrogs(round_index))
        if leapfrogs not in known:
            if len(known) >= dynamics.period:
                known.clear()
            known[leapfrogs] = round_law(clients, dynamics, round_index)
        state = known[leapfrogs].push(state)


def law_after(
    clients: GaussianClients,
    dynamics: Dynamics,
    num_rounds: int,
    start_mean: ArrayLike = 0.0,
    start_covariance: ArrayLike = 0.0,
) -> GaussianLaw:
    """Return the law of the broadcast position after some rounds; the start is as in `laws_by_round`."""
    require(num_rounds >= 0, "num_rounds", num_rounds, "at least 0")
    return next(islice(laws_by_round(clients, dynamics, start_mean, start_covariance), num_rounds, None))


def stationary_law(clients: GaussianClients, dynamics: Dynamics, phase: int = 0) -> GaussianLaw:
    """Return the law of the broadcast position in stationarity, at the start of a round.

    In leapfrog units, where K does not divide T, rounds differ with a period of K / gcd(K, T), and so does the law:
    ``phase`` says at the start of which of these rounds.
    """
    if callable(dynamics.step_size):
        raise SettingsError(
            "step_size is a schedule; a stationary law needs one step size for all rounds. "
            "Give a number, or ask law_after for the law after some rounds."
        )
    rounds = (round_law(clients, dynamics, phase + i) for i in range(dynamics.period))
    cycle = next(rounds)
    for later in rounds:
        cycle = cycle.then(later)
    radius = np.abs(np.linalg.eigvals(cycle.matrix)).max()
    # At a resonance the radius is 1 up to rounding, and nothing forgets where it started.
    if not radius < 1 - 1e-13:
        raise SettingsError(
            f"the rounds' spectral radius is {radius:.6g} at step_size {dynamics.step_size}; a stationary law needs it "
            "below 1. Take a smaller step size, or another number of leapfrog steps if it is 1."
        )
    mean = np.linalg.solve(np.eye(len(cycle.offset)) - cycle.matrix, cycle.offset)
    covariance = solve_discrete_lyapunov(cycle.matrix, cycle.covariance)
    dim = clients.dim
    return GaussianLaw(mean[:dim], (covariance[:dim, :dim] + covariance[:dim, :dim].T) / 2)
