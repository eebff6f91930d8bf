"""What the rates of FA-HMC depend on, checked once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isclose

from fahmc.dynamics.fa_hmc import FAHMC
from fahmc.theory.checks import require, require_positive


@dataclass(frozen=True)
class Regime:
    """What the rates depend on: the target, the federation and the sampler, without its step size."""

    dimension: int
    """d."""
    weights: Sequence[float]
    """w_c, one for each client, sum 1; their number is N."""
    smoothness: float
    """L: every grad f_c is L-Lipschitz."""
    strong_convexity: float | None = None
    """mu: every f_c is mu-strongly convex. Only Theorem 4.4 and Proposition 4.5 ask for it."""
    num_leapfrog_steps: int = 1
    """K."""
    num_local_steps: int = 1
    """T, in trajectories."""
    momentum_correlation: float = 1.0
    """rho."""
    relative_gradient_noise: float = 0.0
    """sigma_g, where the covariance of a stochastic gradient has trace at most sigma_g^2 L d: noise N(0, sigma^2) on
    each coordinate has sigma_g = sigma / sqrt(L)."""

    def __post_init__(self):
        # A regime is not a sampler: its step size is yet to be found. What it has of one is checked by one.
        FAHMC(1.0, self.num_leapfrog_steps, self.num_local_steps, self.momentum_correlation)
        require(self.dimension >= 1, "dimension", self.dimension, "at least 1")
        require_positive("smoothness", self.smoothness)
        mu = self.strong_convexity
        require(mu is None or 0 < mu <= self.smoothness, "strong_convexity", mu, f"in (0, L = {self.smoothness}]")
        noise = self.relative_gradient_noise
        require(0 <= noise < inf, "relative_gradient_noise", noise, "finite and at least 0")
        object.__setattr__(self, "weights", tuple(float(w) for w in self.weights))
        fits = len(self.weights) > 0 and min(self.weights) >= 0 and isclose(sum(self.weights), 1.0)
        require(fits, "weights", self.weights, "at least 0 with sum 1; divide them by their sum")

    @property
    def num_clients(self) -> int:
        """N."""
        return len(self.weights)

    @property
    def averaged_noise(self) -> float:
        """Return sum_c w_c^2 sigma_g^2, what averaging leaves of the gradient noise."""
        return sum(w**2 for w in self.weights) * self.relative_gradient_noise**2

    @property
    def momentum_disagreement(self) -> float:
        """Return (1 - rho) N, how far the clients' momenta are from a common one."""
        return (1 - self.momentum_correlation) * self.num_clients

    def error_rate(self, gamma: float) -> float:
        """Return Delta~ = d (T^2 (gamma + (1 - rho) N) + sum_c w_c^2 sigma_g^2 / K), with gamma = (K eta)^2."""
        drift = self.num_local_steps**2 * (gamma + self.momentum_disagreement)
        return self.dimension * (drift + self.averaged_noise / self.num_leapfrog_steps)
