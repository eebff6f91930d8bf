"""One run without settings, held against the posterior of all rows."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from fahmc.bench.rounds.problems import Problem
from fahmc.bench.rounds.references import Reference
from fahmc.draws import Draws
from fahmc.errors import FahmcError
from fahmc.sample import sample

NUM_CHAINS = 8
ESS_LIMIT = 400.0
# In posterior standard deviations of the reference, and as a share of them.
MEAN_LIMIT, SD_LIMIT = 0.1, 0.1


@dataclass(frozen=True)
class Deviation:
    """How far draws are from a reference, the worst of all parameters."""

    mean: float
    """|mean − reference|, in the reference's standard deviations."""
    sd: float
    """|sd / reference − 1|"""

    @property
    def is_small(self) -> bool:
        """Whether both are within the limits; what is not a number is not."""
        return self.mean <= MEAN_LIMIT and self.sd <= SD_LIMIT


@dataclass(frozen=True)
class Measured:
    """What one run cost and came to; of a run that ended in an error, only what it said."""

    problem: str
    data_seed: int
    seed: int
    limit: int
    rounds: float = np.nan
    bytes_to_clients: float = np.nan
    bytes_to_server: float = np.nan
    seconds: float = np.nan
    ess: float = np.nan
    """The smallest of all parameters, of bulk and tail."""
    mean_error: float = np.nan
    sd_error: float = np.nan
    k_hat: float | None = None
    doubts: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    error: str | None = None

    @property
    def faults(self) -> tuple[str, ...]:
        """What is not as it must be."""
        if self.error is not None:
            return (self.error,)
        # Asked this way round, a number that is none is a fault.
        wanted = {
            f"{self.rounds:.0f} rounds, {self.limit} allowed": self.rounds <= self.limit,
            f"ESS {self.ess:.0f}, {ESS_LIMIT:.0f} wanted": self.ess >= ESS_LIMIT,
            f"a mean {self.mean_error:.2f} sd off": self.mean_error <= MEAN_LIMIT,
            f"an sd {100 * self.sd_error:.0f} % off": self.sd_error <= SD_LIMIT,
        }
        return tuple(words for words, is_kept in wanted.items() if not is_kept)


def deviation(draws: Float[np.ndarray, "chain draw dim"], reference: Reference) -> Deviation:
    """Compare means and standard deviations of every parameter."""
    draws = np.asarray(draws, np.float64)
    means, sds = draws.mean(axis=(0, 1)), draws.std(axis=(0, 1))
    return Deviation(
        float(np.max(np.abs(means - reference.mean) / reference.sd)), float(np.max(np.abs(sds / reference.sd - 1)))
    )


def least_ess(draws: Draws) -> float:
    """Return the smallest effective size of all parameters, of bulk and tail."""
    return float(np.min(draws.summary()[["ess_bulk", "ess_tail"]].to_numpy()))


def measure(problem: Problem, reference: Reference, seed: int, *, data_seed: int = 0) -> Measured:
    """Sample with a seed, and with nothing else said."""
    about: dict[str, Any] = dict(problem=problem.name, data_seed=data_seed, seed=seed, limit=problem.limit)
    began = time.perf_counter()
    try:
        draws = sample_without_settings(problem, seed)
    except FahmcError as error:
        return Measured(**about, error=str(error))
    seconds = time.perf_counter() - began
    return judge(draws, reference, **about, seconds=seconds)


def judge(draws: Draws, reference: Reference, **about: Any) -> Measured:
    """Put numbers on what came out."""
    off, account = deviation(draws.flat(), reference), draws.account
    return Measured(
        **about,
        rounds=draws.cost["rounds"],
        bytes_to_clients=draws.cost["bytes_to_clients"],
        bytes_to_server=draws.cost["bytes_to_server"],
        ess=least_ess(draws),
        mean_error=off.mean,
        sd_error=off.sd,
        k_hat=account.get("weights", {}).get("k_hat"),
        doubts=tuple(account.get("doubts", ())),
        choices=tuple(account.get("choices", ())),
    )


def sample_without_settings(problem: Problem, seed: int) -> Draws:
    """Sample as those do who have no settings to give."""
    return sample(problem.model, problem.federation, num_chains=NUM_CHAINS, seed=seed, dtype="float32", progress=False)
