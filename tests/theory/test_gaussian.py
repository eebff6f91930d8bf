"""The exact law against the algorithm itself, fed one unit vector of noise at a time, and against closed forms."""

from dataclasses import replace
from itertools import islice, product
from typing import Literal

import numpy as np
import pytest

from fahmc import FAHMC, FALD, DebiasedFAHMC, FullGradient, GaussianNoise, Minibatch
from fahmc.dynamics.schedules import Stages
from fahmc.errors import SettingsError
from fahmc.theory import (
    GaussianClients,
    GaussianLaw,
    law_after,
    laws_by_round,
    round_law,
    stationary_law,
    w2_to_posterior,
)


def unlike_clients(dim=2, num_clients=3, weights=(0.5, 0.2, 0.3), seed=3):
    rng = np.random.default_rng(seed)
    roots = rng.normal(size=(num_clients, dim, dim))
    precisions = roots @ roots.swapaxes(1, 2) / dim + 0.5 * np.eye(dim)
    return GaussianClients(rng.normal(size=(num_clients, dim)), precisions, weights)


# ---- the algorithm, literally, driven by noises handed to it


class NoiseSource:
    """Hands out a long vector in pieces, as a random generator would; counts when there is none."""

    def __init__(self, values=None):
        self.values, self.used = values, 0

    def normal(self, dim):
        piece = np.zeros(dim) if self.values is None else self.values[self.used : self.used + dim]
        self.used += dim
        return piece


def simulate_round(clients, sampler, round_index, state, noise):
    """One round of Algorithm 3 or B.2, or of its variant that averages between leapfrog steps."""
    n, d = clients.means.shape
    parts = iter(state.reshape(-1, d))
    broadcast = next(parts)
    q = [broadcast.copy() for _ in range(n)]
    p = [np.full(d, np.nan)] * n
    if sampler.sync_unit == "leapfrog":
        start_momentum = next(parts)
        p = [start_momentum.copy() for _ in range(n)]
    anchor, anchor_gradient = (next(parts), next(parts)) if isinstance(sampler, DebiasedFAHMC) else (None, None)

    def full_gradient(c, x):
        return clients.precisions[c] @ (x - clients.means[c])

    def gradient(c, x):
        g = full_gradient(c, x) + getattr(sampler.gradient, "scale", 0.0) * noise.normal(d)
        return g if anchor is None else g - full_gradient(c, anchor) + anchor_gradient

    def momenta():
        shared = noise.normal(d)
        rho = sampler.momentum_correlation
        return [np.sqrt(rho) * shared + np.sqrt((1 - rho) / w) * noise.normal(d) for w in clients.weights]

    def eta(t):
        return sampler.step_size(t) if callable(sampler.step_size) else sampler.step_size

    def leapfrog(c, step, carried):
        first = gradient(c, q[c]) if carried is None else carried
        q[c] = q[c] + step * p[c] - step**2 / 2 * first
        last = gradient(c, q[c])
        p[c] = p[c] - step / 2 * first - step / 2 * last
        return last if sampler.reuse_gradient else None

    k, t_local = sampler.num_leapfrog_steps, sampler.num_local_steps
    if sampler.sync_unit == "trajectory":
        for i in range(t_local):
            p = momenta()
            for c in range(n):
                carried = None
                for _ in range(k):
                    carried = leapfrog(c, eta(round_index * t_local + i), carried)
    else:
        carried = [None] * n
        for s in range(round_index * t_local, (round_index + 1) * t_local):
            if s % k == 0:
                p = momenta()
            for c in range(n):
                carried[c] = leapfrog(c, eta(s // k), carried[c])

    def average(x):
        return sum(w * x_c for w, x_c in zip(clients.weights, x, strict=True))

    out = [average(q)]
    if sampler.sync_unit == "leapfrog":
        out.append(average(p))
    if anchor is not None:
        out += [broadcast, average([full_gradient(c, broadcast) for c in range(n)])]
    return np.concatenate(out)


def law_by_unit_vectors(clients, sampler, round_index):
    size = clients.dim * (1 + (sampler.sync_unit == "leapfrog") + 2 * isinstance(sampler, DebiasedFAHMC))
    counter = NoiseSource()
    offset = simulate_round(clients, sampler, round_index, np.zeros(size), counter)
    quiet = np.zeros(counter.used)

    def run(state, noises):
        return simulate_round(clients, sampler, round_index, state, NoiseSource(noises)) - offset

    matrix = np.array([run(e, quiet) for e in np.eye(size)]).T
    response = np.array([run(np.zeros(size), e) for e in np.eye(counter.used)]).T
    return matrix, offset, response @ response.T


SHRINKING = Stages(step_size=0.5, first_stage=2)
UNITS: list[tuple[Literal["trajectory", "leapfrog"], int, int]] = [  # sync unit, K, T
    ("trajectory", 1, 1),
    ("trajectory", 3, 2),
    ("leapfrog", 3, 2),
    ("leapfrog", 2, 4),
    ("leapfrog", 2, 3),
]
SETTINGS = [
    kind(step, k, t, momentum_correlation=rho, gradient=gradient, reuse_gradient=reuse, sync_unit=unit)
    for kind, (unit, k, t), rho, (gradient, reuse), step in product(
        [FAHMC, DebiasedFAHMC],
        UNITS,
        [0.0, 0.4, 1.0],
        [(FullGradient(), False), (GaussianNoise(0.7), False), (GaussianNoise(0.7), True)],
        [0.35, SHRINKING],
    )
]


@pytest.mark.parametrize("round_index", [0, 1, 5])
def test_round_law_is_that_of_the_algorithm(round_index):
    clients = unlike_clients()
    for sampler in SETTINGS:
        law = round_law(clients, sampler, round_index)
        for got, expected in zip(law, law_by_unit_vectors(clients, sampler, round_index), strict=True):
            np.testing.assert_allclose(got, expected, rtol=0, atol=1e-12, err_msg=str(sampler))


def test_the_settings_compared_are_not_all_alike():
    """Negative control: every switch changes the law, so the comparison above can see it."""
    clients = unlike_clients()
    base = FAHMC(0.35, 3, 2, momentum_correlation=0.4, gradient=GaussianNoise(0.7), sync_unit="leapfrog")
    for change in (
        {"momentum_correlation": 0.5},
        {"gradient": GaussianNoise(0.6)},
        {"reuse_gradient": True},
        {"step_size": SHRINKING},
        {"num_leapfrog_steps": 1},
    ):
        other = round_law(clients, replace(base, **change))
        assert any(np.abs(a - b).max() > 1e-3 for a, b in zip(round_law(clients, base), other, strict=True)), change
    other_weights = GaussianClients(clients.means, clients.precisions)
    assert np.abs(round_law(clients, base).offset - round_law(other_weights, base).offset).max() > 1e-3


# ---- closed forms


@pytest.mark.parametrize(
    ("step_size", "num_leapfrog_steps"), [(0.1, 1), (0.1, 7), (0.3, 3), (0.5, 4), (0.7, 2), (0.9, 5)]
)
def test_one_client_has_the_covariance_of_its_shadow_hamiltonian(step_size, num_leapfrog_steps):
    """Leapfrog conserves a quadratic form of its own: covariance A^-1 (I - eta^2 A / 4)^-1, whatever K."""
    clients = unlike_clients(dim=3, num_clients=1, weights=[1.0])
    law = stationary_law(clients, FAHMC(step_size, num_leapfrog_steps))
    precision = clients.precisions[0]
    expected = np.linalg.inv(precision) @ np.linalg.inv(np.eye(3) - step_size**2 * precision / 4)
    np.testing.assert_allclose(law.covariance, expected, rtol=1e-9)
    np.testing.assert_allclose(law.mean, clients.means[0], rtol=1e-9)


def test_langevin_round_is_known():
    """K = T = 1: q' = q - eta^2/2 (A q - r) + eta N(0, I), whatever rho; gradient noise enters with eta^2/2."""
    clients, eta, sigma = unlike_clients(), 0.4, 1.5
    precision, pull = clients.mean_gradient()
    law = round_law(clients, FALD(eta, momentum_correlation=0.3, gradient=GaussianNoise(sigma)))
    np.testing.assert_allclose(law.matrix, np.eye(2) - eta**2 / 2 * precision, atol=1e-14)
    np.testing.assert_allclose(law.offset, eta**2 / 2 * pull, atol=1e-14)
    variance = eta**2 + eta**4 / 4 * sigma**2 * np.sum(clients.weights**2)
    np.testing.assert_allclose(law.covariance, variance * np.eye(2), atol=1e-14)


def test_averaging_after_each_langevin_step_has_no_error_of_the_mean():
    clients = unlike_clients()
    law = stationary_law(clients, FALD(0.4, momentum_correlation=0.0))
    np.testing.assert_allclose(law.mean, clients.posterior().mean, atol=1e-12)
    biased = stationary_law(clients, FALD(0.4, num_local_steps=2, momentum_correlation=0.0))
    assert np.abs(biased.mean - clients.posterior().mean).max() > 1e-3


def errors(clients, sampler):
    law, target = stationary_law(clients, sampler), clients.posterior()
    return np.array([np.abs(law.mean - target.mean).max(), np.abs(law.covariance - target.covariance).max()])


def test_error_has_slope_two_in_step_size():
    clients, sampler = unlike_clients(), FAHMC(0.04, num_leapfrog_steps=3, num_local_steps=2)
    ratio = errors(clients, sampler) / errors(clients, replace(sampler, step_size=0.02))
    np.testing.assert_allclose(np.log2(ratio), 2, atol=0.02)


def test_error_has_a_floor_at_fixed_trajectory_length():
    """Clients that differ drift apart over K eta = 1.2, however finely that length is cut."""
    clients = unlike_clients()
    coarse, fine, finer = (errors(clients, FAHMC(1.2 / k, k, 1)) for k in (80, 160, 320))
    assert np.all(finer > 0.01)
    np.testing.assert_allclose(fine, finer, rtol=0.01)
    # What does depend on the step size falls like its square, down to the floor.
    np.testing.assert_allclose((coarse - fine) / (fine - finer), 4, rtol=0.01)


def test_one_client_has_no_floor():
    clients = unlike_clients(num_clients=1, weights=[1.0])
    assert errors(clients, FAHMC(1.2 / 160, 160, 1)).max() < 1e-4


@pytest.mark.parametrize("kind", [FAHMC, DebiasedFAHMC])
def test_whole_trajectories_counted_in_leapfrog_steps(kind):
    """Averaging every 3 K leapfrog steps is averaging every 3 trajectories: the momentum is about to be refreshed."""
    clients = unlike_clients()
    trajectory = kind(0.3, 4, 3, momentum_correlation=0.4, gradient=GaussianNoise(0.5))
    leapfrog = replace(trajectory, sync_unit="leapfrog", num_local_steps=12)
    for get in (stationary_law, lambda c, sampler: law_after(c, sampler, 5, start_mean=2.0)):
        for a, b in zip(get(clients, trajectory), get(clients, leapfrog), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-11)


@pytest.mark.parametrize("sync_unit", ["trajectory", "leapfrog"])
def test_debiasing_removes_the_error_of_the_mean(sync_unit):
    clients = unlike_clients()
    sampler = FAHMC(0.2, 3, 2, momentum_correlation=0.4, gradient=GaussianNoise(0.5), sync_unit=sync_unit)
    assert errors(clients, sampler)[0] > 1e-3
    assert errors(clients, DebiasedFAHMC(**vars(sampler)))[0] < 1e-11


def test_identical_clients_are_one_client():
    one = unlike_clients(num_clients=1, weights=[1.0])
    several = GaussianClients(np.repeat(one.means, 3, 0), np.repeat(one.precisions, 3, 0), [0.2, 0.3, 0.5])
    for a, b in zip(round_law(one, FAHMC(0.3, 4, 2)), round_law(several, FAHMC(0.3, 4, 2)), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-13)


def test_isotropic_coordinates_are_independent():
    means, scales = np.array([[20.0, 20.0], [1.0, 1.0]]), np.array([1.0, 0.25])
    sampler = FAHMC(0.2, 5, 10, sync_unit="leapfrog")
    two = stationary_law(GaussianClients(means, scales[:, None, None] * np.eye(2)), sampler)
    one = stationary_law(GaussianClients(means[:, :1], scales[:, None, None]), sampler)
    np.testing.assert_allclose(two.mean, np.repeat(one.mean, 2))
    np.testing.assert_allclose(two.covariance, one.covariance * np.eye(2), atol=1e-12)


# ---- several rounds


@pytest.mark.parametrize("sync_unit", ["trajectory", "leapfrog"])
@pytest.mark.parametrize("first_anchor", [None, "start", "origin"])
def test_law_after_composes_rounds(sync_unit, first_anchor):
    """Also a random start is its own first anchor, if gradients are corrected at all."""
    clients = unlike_clients()
    sampler = FAHMC(Stages(0.4, 3), 3, 2, 0.4, gradient=GaussianNoise(0.3), sync_unit=sync_unit)
    if first_anchor is not None:
        sampler = DebiasedFAHMC(**vars(sampler), first_anchor=first_anchor)

    def first_broadcast(position):
        momentum = [np.zeros(2)] * (sync_unit == "leapfrog")
        gradient = np.einsum("c,cij,cj", clients.weights, clients.precisions, position - clients.means)
        anchor = {None: [], "start": [position, gradient], "origin": [np.zeros(2)] * 2}[first_anchor]
        return np.concatenate([position, *momentum, *anchor])

    start_mean, start_covariance = np.array([1.0, -2.0]), np.array([[0.5, 0.3], [0.3, 2.0]])
    matrix = np.array([first_broadcast(e) - first_broadcast(np.zeros(2)) for e in np.eye(2)]).T
    mean, covariance = first_broadcast(start_mean), matrix @ start_covariance @ matrix.T
    for index in range(7):
        matrix, offset, noise = law_by_unit_vectors(clients, sampler, index)
        mean, covariance = matrix @ mean + offset, matrix @ covariance @ matrix.T + noise
    law = law_after(clients, sampler, 7, start_mean, start_covariance)
    np.testing.assert_allclose(law.mean, mean[:2], atol=1e-12)
    np.testing.assert_allclose(law.covariance, covariance[:2, :2], atol=1e-12)


def test_chain_reaches_the_stationary_law_of_its_phase():
    clients = unlike_clients()
    sampler = FAHMC(0.3, 3, 2, gradient=GaussianNoise(0.3), sync_unit="leapfrog")
    stationary = [stationary_law(clients, sampler, phase) for phase in range(3)]
    assert np.abs(stationary[0].covariance - stationary[1].covariance).max() > 1e-4
    late = islice(laws_by_round(clients, sampler, start_mean=5.0), 300, 303)
    for got, expected in zip(late, stationary, strict=True):
        np.testing.assert_allclose(got.mean, expected.mean, atol=1e-10)
        np.testing.assert_allclose(got.covariance, expected.covariance, atol=1e-10)


def test_the_start_is_the_law_after_no_round():
    law = law_after(unlike_clients(), FALD(0.1), 0, start_mean=[1.0, 2.0])
    np.testing.assert_array_equal(law.mean, [1.0, 2.0])
    np.testing.assert_array_equal(law.covariance, np.zeros((2, 2)))


# ---- target and distance


def test_posterior_of_two_isotropic_clients():
    """Half the clients N(20, 1), half N(1, 4): the product of the square roots of their densities is N(16.2, 1.6)."""
    posterior = GaussianClients([[20.0], [1.0]], [[[1.0]], [[0.25]]]).posterior()
    np.testing.assert_allclose(posterior.mean, [16.2])
    np.testing.assert_allclose(posterior.covariance, [[1.6]])


def test_distance_to_the_posterior():
    clients = GaussianClients([[20.0], [1.0]], [[[1.0]], [[0.25]]])
    law = GaussianLaw(np.array([16.2 + 3.0]), np.array([[(np.sqrt(1.6) + 4.0) ** 2]]))
    assert w2_to_posterior(clients, law) == pytest.approx(5.0)  # sqrt(3^2 + 4^2)
    unlike = unlike_clients()
    assert w2_to_posterior(unlike, unlike.posterior()) < 1e-7


# ---- refusals


def test_unstable_and_resonant_settings_are_refused():
    clients = GaussianClients([[0.0]], [[[1.0]]])
    with pytest.raises(SettingsError, match="spectral radius"):
        stationary_law(clients, FALD(2.1))
    with pytest.raises(SettingsError, match="another number of leapfrog steps"):
        stationary_law(clients, FAHMC(1.0, 9))
    with pytest.raises(SettingsError, match="schedule"):
        stationary_law(clients, FALD(lambda t: 0.1))


@pytest.mark.parametrize(
    ("sampler", "match"),
    [
        (FAHMC(0.1, gradient=Minibatch(2)), "minibatch has no normal noise"),
        (FAHMC(0.1, gradient=GaussianNoise(1.0, of=Minibatch(2))), "minibatch has no normal noise"),
        (DebiasedFAHMC(0.1, inverse_mass_matrix=[1.0, 2.0]), "inverse_mass_matrix"),
    ],
)
def test_samplers_without_an_exact_law_are_refused(sampler, match):
    with pytest.raises(SettingsError, match=match):
        round_law(unlike_clients(), sampler)


def test_clients_refuse():
    eye = np.eye(2)[None]
    with pytest.raises(SettingsError, match="means"):
        GaussianClients([0.0, 1.0], eye)
    with pytest.raises(SettingsError, match="shape of precisions"):
        GaussianClients([[0.0, 1.0]], np.eye(2))
    with pytest.raises(SettingsError, match="symmetric"):
        GaussianClients([[0.0, 1.0]], [[[1.0, 0.5], [0.0, 1.0]]])
    with pytest.raises(SettingsError, match="weights"):
        GaussianClients([[0.0, 1.0]], eye, [0.5])
    with pytest.raises(SettingsError, match="eigenvalue"):
        GaussianClients([[0.0, 1.0]], -eye).posterior()
