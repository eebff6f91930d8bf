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
from math import gcd

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import solve_discrete_lyapunov

from fahmc.density.gradient import FullGradient, GaussianNoise
from fahmc.dynamics.fa_hmc import FAHMC
from fahmc.dynamics.schedules import as_schedule
from fahmc.errors import SettingsError
from fahmc.theory.checks import require
from fahmc.theory.gaussian_setting import GaussianClients, GaussianLaw, RoundLaw

Q, P, G = range(3)  # what a client carries along a round: position, momentum, gradient


def round_law(clients: GaussianClients, sampler: FAHMC, round_index: int = 0) -> RoundLaw:
    """Return the law of one round, from broadcast state to broadcast state.

    Along the round, client c's position q, momentum p and gradient g obey

        refresh    p <- sqrt(rho) xi + sqrt((1 - rho) / w_c) xi_c            xi common to all clients
        evaluate   g <- A_c (q - m_c) [- A_c (anchor - m_c) + anchor_gradient] + sigma N(0, I)
        drift      q <- q + eta p - eta^2/2 g,   p <- p - eta/2 g
        kick       p <- p - eta/2 g

    in the order [refresh, at the start of a trajectory], evaluate, drift, evaluate, kick. ``reuse_gradient`` leaves out
    the first evaluation where g is that of the same position and the client was not just handed a new one; in
    trajectory units the first gradient of a trajectory is always fresh.

    Parameters
    ----------
    sampler
        `FAHMC` or `DebiasedFAHMC`, with the identity as mass matrix. sigma is the scale of its `GaussianNoise`, 0 for
        `FullGradient`.
    """
    leapfrogs = _leapfrogs(sampler, round_index)
    paths = _Paths(clients, sampler, num_refreshes=sum(starts_trajectory for _, starts_trajectory in leapfrogs))
    for index, (step_size, starts_trajectory) in enumerate(leapfrogs):
        if starts_trajectory:
            paths.refresh()
        starts_afresh = index == 0 or (starts_trajectory and sampler.sync_unit == "trajectory")
        if starts_afresh or not sampler.reuses_gradient:
            paths.evaluate()
        paths.drift(step_size)
        paths.evaluate()
        paths.kick(step_size)
    return _average(paths, clients)


def _leapfrogs(sampler: FAHMC, round_index: int) -> list[tuple[float, bool]]:
    """Return the leapfrog steps of a round: their step sizes, and whether a trajectory starts, as every K-th does."""
    k, t, schedule = sampler.num_leapfrog_steps, sampler.num_local_steps, as_schedule(sampler.step_size)
    length = t if sampler.sync_unit == "leapfrog" else t * k
    steps = range(round_index * length, (round_index + 1) * length)
    return [(float(schedule(step // k)), step % k == 0) for step in steps]


def _period(sampler: FAHMC) -> int:
    """Return after how many rounds a round begins at the same place of its trajectory: 1, or K / gcd(K, T)."""
    k = sampler.num_leapfrog_steps
    return k // gcd(k, sampler.num_local_steps) if sampler.sync_unit == "leapfrog" else 1


def _state_parts(sampler: FAHMC) -> tuple[str, ...]:
    """Return the names of the blocks that the server broadcasts, in their order."""
    momentum = ("momentum",) if sampler.sync_unit == "leapfrog" else ()
    anchor = ("anchor", "anchor_gradient") if sampler.correction == "anchor" else ()
    return ("position", *momentum, *anchor)


def _gradient_noise(sampler: FAHMC) -> float:
    """Return sigma, and refuse samplers whose rounds are not those of `round_law`."""
    if sampler.inverse_mass_matrix is not None:
        raise SettingsError(
            "inverse_mass_matrix is given; the exact law needs the identity. With full gradients, Sigma^-1 = F F' is "
            "the identity for clients with means F^-1 m_c and precisions F' A_c F: give these, and leave it out."
        )
    if sampler.correction == "curvature":
        raise SettingsError(
            "correction is 'curvature': Gaussian clients then all follow the posterior's own potential. Ask for the "
            "law of one client with the posterior's mean and precision, without correction."
        )
    if sampler.jitter:
        raise SettingsError(
            f"jitter is {sampler.jitter:g}; with step sizes drawn at random the law is not normal. Ask for jitter=0."
        )
    gradient = sampler.gradient
    if isinstance(gradient, FullGradient):
        return 0.0
    if isinstance(gradient, GaussianNoise) and isinstance(gradient.of, FullGradient):
        return gradient.scale
    raise SettingsError(
        f"gradient is {gradient}; a minibatch has no normal noise, so no exact law. Use FullGradient() or "
        "GaussianNoise(scale)."
    )


class _Paths:
    """(q, p, g) of every client, as functions of what the round started from and of the noises met so far.

    ``response`` [client, 3, dim, column] is the affine part of q, p and g. Its columns are the broadcast state, the
    constant 1, and the shared momentum of each trajectory, kept apart because it couples the clients. Private noises
    are independent between clients: ``private`` [client, 3, 3, dim, dim] holds only their covariances.
    """

    def __init__(self, clients: GaussianClients, sampler: FAHMC, num_refreshes: int):
        self._clients, self._identity = clients, np.eye(clients.dim)
        self._rho, self._noise = sampler.momentum_correlation, _gradient_noise(sampler) ** 2 * self._identity
        num_clients, dim = clients.means.shape
        self.state = state = {name: slice(i * dim, (i + 1) * dim) for i, name in enumerate(_state_parts(sampler))}
        self.constant = dim * len(state)
        self._next_shared = self.constant + 1
        self.response = np.zeros((num_clients, 3, dim, self.constant + 1 + num_refreshes * dim))
        self.private = np.zeros((num_clients, 3, 3, dim, dim))
        self.response[:, Q, :, state["position"]] = self._identity
        if "momentum" in state:
            self.response[:, P, :, state["momentum"]] = self._identity

        # The gradient is A_c q plus what stays the same during the round.
        self._constant_gradient = np.zeros_like(self.response[:, G])
        if "anchor" in state:
            self._constant_gradient[:, :, state["anchor"]] = -clients.precisions
            self._constant_gradient[:, :, state["anchor_gradient"]] = self._identity
        else:
            self._constant_gradient[:, :, self.constant] = -np.einsum("cij,cj->ci", clients.precisions, clients.means)

    def refresh(self) -> None:
        """P <- sqrt(rho) xi + sqrt((1 - rho) / w_c) xi_c."""
        self._mix([[1, 0, 0], [0, 0, 0], [0, 0, 1]])
        rho, shared = self._rho, self._next_shared
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
        self.private[:, G, G] = self.private[:, G, Q] @ precisions + self._noise

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


def _average(paths: _Paths, clients: GaussianClients) -> RoundLaw:
    """Average what the clients return, and move the anchor to where the round began."""
    dim, size = clients.dim, paths.constant
    num_kept = 2 if "momentum" in paths.state else 1  # q and p, or q
    kept = num_kept * dim
    response = np.einsum("c,caij->aij", clients.weights, paths.response[:, :num_kept]).reshape(kept, -1)
    private = np.einsum("c,cabij->aibj", clients.weights**2, paths.private[:, :num_kept, :num_kept])
    shared = response[:, size + 1 :]

    matrix, offset, covariance = np.zeros((size, size)), np.zeros(size), np.zeros((size, size))
    matrix[:kept], offset[:kept] = response[:, :size], response[:, size]
    covariance[:kept, :kept] = shared @ shared.T + private.reshape(kept, kept)
    if "anchor" in paths.state:
        matrix[kept:, :dim], offset[kept:] = _anchoring(clients)
    return RoundLaw(matrix, offset, covariance)


def _anchoring(clients: GaussianClients) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
    """Return (matrix, offset) of the map from a position to itself and its gradient, an anchor's two blocks."""
    precision, pull = clients.mean_gradient()
    return np.concatenate([np.eye(clients.dim), precision]), np.concatenate([np.zeros(clients.dim), -pull])


def laws_by_round(
    clients: GaussianClients, sampler: FAHMC, start_mean: ArrayLike = 0.0, start_covariance: ArrayLike = 0.0
) -> Iterator[GaussianLaw]:
    """Yield the law of the broadcast position at the start, after one round, after two, and so on without end.

    Parameters
    ----------
    start_mean, start_covariance
        Law of the first position, [dim] and [dim, dim], or numbers that broadcast to these; a fixed point by default.
        A de-biased sampler's ``first_anchor`` says whether the start, also a random one, is the first anchor.
    """
    dim, parts = clients.dim, _state_parts(sampler)
    size = dim * len(parts)
    # The first broadcast is affine in the first position. The momentum is 0: the first round begins by drawing one.
    first = RoundLaw(np.eye(size, dim), np.zeros(size), np.zeros((size, size)))
    if sampler.correction == "anchor" and not sampler.starts_at_origin:
        first.matrix[-2 * dim :], first.offset[-2 * dim :] = _anchoring(clients)
    start = GaussianLaw(np.broadcast_to(start_mean, dim), np.broadcast_to(start_covariance, (dim, dim)))
    state = first.push(start)
    known: dict[tuple, RoundLaw] = {}
    for round_index in count():
        yield GaussianLaw(state.mean[:dim].copy(), state.covariance[:dim, :dim].copy())
        # Rounds with the same leapfrog steps have the same law. A schedule that never repeats must not fill the memory.
        leapfrogs = tuple(_leapfrogs(sampler, round_index))
        if leapfrogs not in known:
            if len(known) >= _period(sampler):
                known.clear()
            known[leapfrogs] = round_law(clients, sampler, round_index)
        state = known[leapfrogs].push(state)


def law_after(
    clients: GaussianClients,
    sampler: FAHMC,
    num_rounds: int,
    start_mean: ArrayLike = 0.0,
    start_covariance: ArrayLike = 0.0,
) -> GaussianLaw:
    """Return the law of the broadcast position after some rounds; the start is as in `laws_by_round`."""
    require(num_rounds >= 0, "num_rounds", num_rounds, "at least 0")
    return next(islice(laws_by_round(clients, sampler, start_mean, start_covariance), num_rounds, None))


def stationary_law(clients: GaussianClients, sampler: FAHMC, phase: int = 0) -> GaussianLaw:
    """Return the law of the broadcast position in stationarity, at the start of a round.

    In leapfrog units, where K does not divide T, rounds differ with a period of K / gcd(K, T), and so does the law:
    ``phase`` says at the start of which of these rounds.
    """
    if callable(sampler.step_size):
        raise SettingsError(
            "step_size is a schedule; a stationary law needs one step size for all rounds. "
            "Give a number, or ask law_after for the law after some rounds."
        )
    rounds = (round_law(clients, sampler, phase + i) for i in range(_period(sampler)))
    cycle = next(rounds)
    for later in rounds:
        cycle = cycle.then(later)
    radius = np.abs(np.linalg.eigvals(cycle.matrix)).max()
    # At a resonance the radius is 1 up to rounding, and nothing forgets where it started.
    if not radius < 1 - 1e-13:
        raise SettingsError(
            f"the rounds' spectral radius is {radius:.6g} at step_size {sampler.step_size}; a stationary law needs it "
            "below 1. Take a smaller step size, or another number of leapfrog steps if it is 1."
        )
    mean = np.linalg.solve(np.eye(len(cycle.offset)) - cycle.matrix, cycle.offset)
    covariance = solve_discrete_lyapunov(cycle.matrix, cycle.covariance)
    dim = clients.dim
    return GaussianLaw(mean[:dim], (covariance[:dim, :dim] + covariance[:dim, :dim].T) / 2)
