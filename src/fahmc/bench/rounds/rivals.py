"""What else one would do, by the same yardstick: rounds until every parameter has an ESS of 400 and is near enough.

A rival that takes settings is tried with several, and the best is told; finding them is not counted against it.

=======================  ===========================================================================================
FA-HMC, FA-LD            by hand: the first tenth of the rounds is dropped
distributed HMC          with accept/reject, one round a gradient: all clients are asked at every leapfrog step
distributed NUTS         the same, NumPyro's, which tunes itself; chains need not wait for each other, so its rounds are
                         the steps of the chain that takes most, warm-up included
split HMC                with the moments of `Auto`'s draws and from the last of them; its rounds count
Newton and Laplace       the mode, and the curvature there for a covariance: draws cost nothing, but are off as they are
=======================  ===========================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import numpy as np

from fahmc.bench import peers
from fahmc.bench.cases import NUMPYRO
from fahmc.bench.rounds.measure import ESS_LIMIT, NUM_CHAINS, Deviation, deviation, sample_without_settings
from fahmc.bench.rounds.problems import Problem
from fahmc.bench.rounds.references import Reference, newton, pooled_potential
from fahmc.draws import Draws
from fahmc.dynamics.fa_hmc import FAHMC, FALD
from fahmc.dynamics.hmc import HMC
from fahmc.dynamics.sampler import Sampler
from fahmc.dynamics.split_hmc import SplitHMC
from fahmc.errors import DivergenceError
from fahmc.report.convergence import ess
from fahmc.sample import sample
from fahmc.types import Position

MOST_ROUNDS = 20_000
# By hand, the first of all rounds are dropped; how many prefixes are tried on the way to the last round.
_DROPPED, _NUM_PREFIXES = 0.1, 40
_FLOAT = 4


class Bytes(NamedTuple):
    """Of one round, to and from all clients."""

    to_clients: float
    to_server: float


class Trail(NamedTuple):
    """What a rival draws on its way."""

    settings: str
    draws: np.ndarray
    """[chain, draw, dim]"""
    rounds: np.ndarray
    """[draw]: how many rounds have passed when all chains have it."""
    bytes_a_round: Bytes
    dropped: float = 0.0
    """The share of the draws so far that is not used."""
    bytes_before: Bytes = Bytes(0.0, 0.0)
    """Of rounds that were of another kind."""
    rounds_before: int = 0


class Rival(NamedTuple):
    """A way to a posterior."""

    name: str
    trails: Callable[[Problem, Reference], Iterator[Trail]]
    """One for each setting."""


@dataclass(frozen=True)
class Contest:
    """What a rival came to, with the best of its settings."""

    problem: str
    rival: str
    settings: str
    rounds: float
    """Not a number if it never came within the limits."""
    tried: float
    """Rounds after which it was given up, or that it took."""
    bytes_to_clients: float
    bytes_to_server: float
    """Of ``tried`` rounds."""
    ess: float
    mean_error: float
    sd_error: float

    @property
    def is_good(self) -> bool:
        """Whether it came within the limits."""
        return np.isfinite(self.rounds)

    @property
    def words(self) -> str:
        """The rounds."""
        if self.is_good:
            return f"{self.rounds:,.0f} rounds"
        return (
            f"never in {self.tried:,.0f} rounds (means {self.mean_error:.2f} sd, sds {100 * self.sd_error:.0f} % off)"
        )


def contest(rival: Rival, problem: Problem, reference: Reference) -> Contest:
    """Try all settings, and keep the one that took the fewest rounds, or else was the least off."""
    tried = [follow(trail, reference, problem.name, rival.name) for trail in rival.trails(problem, reference)]
    return min(tried, key=lambda one: (not one.is_good, one.rounds if one.is_good else one.mean_error))


def follow(trail: Trail, reference: Reference, problem: str = "", rival: str = "") -> Contest:
    """Find the first prefix of a trail that is good enough."""
    num_draws = trail.draws.shape[1]
    ends = np.unique(np.geomspace(min(4, num_draws), num_draws, _NUM_PREFIXES).astype(int))
    off, effective, is_good, end = Deviation(np.inf, np.inf), 0.0, False, 0
    for end in ends:
        draws = trail.draws[:, int(trail.dropped * end) : end]
        off = deviation(draws, reference)
        if (off.is_small or end == num_draws) and draws.shape[1] >= 4:
            effective = min(float(np.min(ess({"x": draws}, method=method)["x"])) for method in ("bulk", "tail"))
            is_good = off.is_small and effective >= ESS_LIMIT
            if is_good:
                break
    rounds = float(trail.rounds[end - 1]) if num_draws else 0.0
    down, up = (rounds * each + before for each, before in zip(trail.bytes_a_round, trail.bytes_before, strict=True))
    taken = rounds + trail.rounds_before
    return Contest(
        problem, rival, trail.settings, taken if is_good else np.nan, taken, down, up, effective, off.mean, off.sd
    )


def by_hand(*samplers: Sampler) -> Callable[[Problem, Reference], Iterator[Trail]]:
    """Run a sampler of ours with settings that somebody found."""

    def trails(problem: Problem, reference: Reference) -> Iterator[Trail]:
        for sampler in samplers:
            num_steps = getattr(sampler, "num_leapfrog_steps", 1) if sampler.pools_rows else 1
            num_rounds = MOST_ROUNDS // num_steps
            thin = 1 if sampler.pools_rows else 4
            try:
                draws = _sample(problem, sampler, num_rounds, thin).flat()
            except DivergenceError:
                draws = np.full((NUM_CHAINS, 1, len(reference.mean)), np.nan)
            rounds = num_steps * thin * np.arange(1, draws.shape[1] + 1)
            up = 1 if sampler.pools_rows else 0  # to accept or reject takes the potential
            yield Trail(_words(sampler), draws, rounds, _bytes(problem, reference, up), dropped=_DROPPED)

    return trails


def nuts(problem: Problem, reference: Reference) -> Iterator[Trail]:
    """Ask all clients for every gradient of NumPyro's NUTS, with warm-ups of several lengths."""
    peers.require([NUMPYRO])
    from fahmc.bench.peers.numpyro_nuts import sample_nuts

    for num_warmup in (100, 300, 1000):
        with jax.enable_x64(True):
            potential_fn, starts = pooled_potential(problem, NUM_CHAINS)
            run = sample_nuts(
                potential_fn, starts, num_warmup=num_warmup, num_draws=600, target_accept=0.8, seed=0, max_depth=8
            )
        # Of every draw, when the slowest chain has it.
        rounds = np.max(np.cumsum(run.num_steps, axis=1), axis=0)[num_warmup:]
        yield Trail(f"{num_warmup} draws of warm-up", run.draws, rounds, _bytes(problem, reference, 1))


def split_hmc(problem: Problem, reference: Reference) -> Iterator[Trail]:
    """Run split HMC around the moments of draws of `Auto`, from the last of them."""
    first = sample_without_settings(problem, seed=0)
    starts = jax.tree.map(lambda leaf: leaf[:, -1], first.positions)
    flat = np.asarray(first.flat(), np.float64).reshape(-1, len(reference.mean))
    before = Bytes(first.cost["bytes_to_clients"], first.cost["bytes_to_server"])
    for num_steps in (2, 4, 8):
        sampler = SplitHMC(num_steps, center=flat.mean(axis=0), inverse_mass_matrix=np.cov(flat, rowvar=False))
        draws = _sample(problem, sampler, MOST_ROUNDS // 8 * num_steps, num_steps, starts).flat()
        rounds = 1 + num_steps * np.arange(1, draws.shape[1] + 1)
        yield Trail(
            f"{num_steps} steps",
            draws,
            rounds,
            _bytes(problem, reference, 1),
            bytes_before=before,
            rounds_before=int(first.cost["rounds"]),
        )


def laplace(problem: Problem, reference: Reference) -> Iterator[Trail]:
    """Find the mode by Newton's method, and draw from the Gaussian that the curvature there belongs to."""
    with jax.enable_x64(True):
        potential_fn, starts = pooled_potential(problem, 1)
        mode, curvature, num_rounds = newton(potential_fn, np.asarray(starts[0]))
    # As if from endlessly many draws: their mean is the mode, and their sds those of the Gaussian.
    size = len(mode)
    factor = np.linalg.cholesky(np.linalg.inv(curvature))
    half = np.random.default_rng(0).normal(size=(NUM_CHAINS // 2, 4000, size))
    draws = mode + np.concatenate([half, -half]) @ factor.T
    each = Bytes(
        *(problem.federation.num_clients * _FLOAT * count for count in (size, 1 + size + size * (size + 1) / 2))
    )
    yield Trail("", draws, np.full(draws.shape[1], num_rounds), each)


def _sample(problem: Problem, sampler: Sampler, num_rounds: int, thin: int, init: Position | None = None) -> Draws:
    return sample(
        problem.model,
        problem.federation,
        sampler,
        num_rounds,
        num_chains=NUM_CHAINS,
        init=init,
        thin=thin,
        dtype="float32",
        progress=False,
    )


def _bytes(problem: Problem, reference: Reference, more: int) -> Bytes:
    """Count a vector for every chain and client both ways, and so many numbers more back."""
    each, size = NUM_CHAINS * problem.federation.num_clients * _FLOAT, len(reference.mean)
    return Bytes(each * size, each * (size + more))


def _words(sampler: Sampler) -> str:
    settings = {"η": "step_size", "K": "num_leapfrog_steps", "T": "num_local_steps"}
    values = {symbol: getattr(sampler, name, 1) for symbol, name in settings.items()}
    return ", ".join(f"{symbol} = {value:g}" for symbol, value in values.items() if symbol != "T" or value > 1)


def _rivals(fa_hmc: tuple[FAHMC, ...], fa_ld: tuple[FAHMC, ...], hmc: tuple[HMC, ...]) -> tuple[Rival, ...]:
    return (
        Rival("FA-HMC", by_hand(*fa_hmc)),
        Rival("FA-LD", by_hand(*fa_ld)),
        Rival("distributed HMC", by_hand(*hmc)),
        Rival("distributed NUTS", nuts),
        Rival("split HMC", split_hmc),
        Rival("Newton and Laplace", laplace),
    )


_MHMC = partial(HMC, metropolis=True)
RIVALS: dict[str, tuple[Rival, ...]] = {
    # The first of each is that of the demo or of the documents.
    "opt": _rivals(
        (FAHMC(0.03, 4), FAHMC(0.05, 4), FAHMC(0.05, 8)),
        (FALD(0.03), FALD(0.1), FALD(0.05, num_local_steps=4)),
        (_MHMC(0.075, 5), _MHMC(0.1, 12)),
    ),
    "heart": _rivals(
        (FAHMC(0.015, 5), FAHMC(0.03, 8), FAHMC(0.02, 3), FAHMC(0.03, 2)),
        (FALD(0.03), FALD(0.06), FALD(0.03, num_local_steps=4)),
        (_MHMC(0.05, 5), _MHMC(0.08, 8)),
    ),
    "student_t": _rivals(
        (FAHMC(0.02, 5), FAHMC(0.01, 5), FAHMC(0.01, 3), FAHMC(0.02, 2)),
        (FALD(0.02), FALD(0.04), FALD(0.01, num_local_steps=4)),
        (_MHMC(0.03, 5), _MHMC(0.04, 10)),
    ),
    "logistic_50": _rivals(
        (FAHMC(0.1, 5), FAHMC(0.05, 5), FAHMC(0.2, 5), FAHMC(0.1, 2)),
        (FALD(0.1), FALD(0.3), FALD(0.1, num_local_steps=4)),
        (_MHMC(0.2, 5), _MHMC(0.3, 5)),
    ),
    "hierarchical_noncentred": _rivals(
        (FAHMC(0.03, 5), FAHMC(0.05, 8), FAHMC(0.1, 5), FAHMC(0.05, 2)),
        (FALD(0.05), FALD(0.1), FALD(0.05, num_local_steps=4)),
        (_MHMC(0.1, 5), _MHMC(0.1, 12)),
    ),
}
