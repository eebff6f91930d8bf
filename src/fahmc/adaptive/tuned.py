"""FA-HMC that tunes itself: the paper's method, with η, K and a metric found in the run, and its bias in numbers.

In coordinates where the posterior has unit covariance, leapfrog steps of size η = 2 sin(φ/2) turn a chain by φ, so

    ρ = cos(K φ)                       is what a draw remembers of the last one,
    1 / (1 − η²/4)                     is by how much its variance is too large,
    b(η, K) X                          is how far clients that travel alone for K steps shift the mean:

X is what clients differ by, and b follows from two oscillators, one of a client's distance D from the average, driven
by its own gradient, one of the average, driven by D times the differences of the curvatures. b = 0 at K = 1.

1. The surrogate posterior's covariance is the metric, its draws are the starts (`metric`): a few rounds.
2. Sample with the longest trajectories. Gradients ride along, so the shift of every mean can be looked at while rounds
   go on (Stein's identity):  Cov · E[∇f],  0 under the posterior itself, with a Monte Carlo error of its own.
3. A shift that is certainly above what is allowed tells X. Of all (η, K) whose shift b(η, K) X is then small enough,
   the one with most effective draws a round begins anew, and is looked at in the same way.
4. Done when all parameters have the effective draws wanted and no mean is shifted by more than is allowed.

At K = 1 a chain in equilibrium has E[∇f] = 0 whatever its bias. What is left is due to variances that are too large by
a share ε, where the posterior is skewed: E[∇f] = Cov⁻¹ b + ε/2 f‴:Cov, and ∇f(μ) = −½ f‴:Cov at the posterior mean, so

    b = Cov · (E[∇f] + ε ∇f(μ)),

for which the metric comes with Cov ∇f(μ).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from scipy.special import ndtri

from fahmc import door
from fahmc.adaptive.inquiry import Inquiry, OutOfRounds
from fahmc.adaptive.metric import Metric, learn_metric
from fahmc.data.federation import Federation
from fahmc.density.gradient import FullGradient, Gradient
from fahmc.dynamics.fa_hmc import FAHMC
from fahmc.dynamics.sampler import Leader, Outcome, Phase, PhaseResult
from fahmc.engines.run import Run
from fahmc.errors import SettingsError
from fahmc.hints import Effective, Positive, Rounds, Share
from fahmc.registry import encode, register
from fahmc.report.convergence import ess, max_r_hat, mcse

# Effective draws of the surrogate posterior that a metric and starts need.
_METRIC_ESS = 100
# A quarter of a period, after which a draw knows nothing of the last one.
_QUARTER = np.pi / 2
_MOST_STEPS = 8
_FIRST_STEPS = 4
# Rounds between two looks, and how often chance may pass for a shift in one of them.
_LOOK = 16
_FALSE_ALARM = 0.01
# The share of the allowed shift that clients may use up; the rest is for Monte Carlo error.
_SHARE = 0.5
# With as few effective draws as are wanted, R-hat of many chains is above 1.01 by chance.
_R_HAT = 1.02
# Effective draws of a run that is proposed, and how many e-foldings of its start it forgets before them.
_ENOUGH, _FORGET = 500, 10
# The share of the allowed spread that steps may use up: the posterior is not quite Gaussian.
_MARGIN = 0.95
# Effective draws, in multiples of those wanted, after which a shift that is still too large is the sampler's.
_PLENTY = 2


class Steps(NamedTuple):
    """K leapfrog steps of η, in posterior standard deviations."""

    step_size: float
    num_steps: int

    @property
    def angle(self) -> float:
        """K φ."""
        return self.num_steps * 2 * float(np.arcsin(self.step_size / 2))

    @property
    def rate(self) -> float:
        """Effective draws a round and chain, of the mean or of the variance, whichever has fewer."""
        rho = np.cos(self.angle)
        return float(min((1 - rho) / (1 + rho), (1 - rho**2) / (1 + rho**2)))

    @property
    def spread(self) -> float:
        """ε, the share by which variances are too large."""
        return float(1 / (1 - self.step_size**2 / 4) - 1)

    @property
    def shift(self) -> float:
        """b(η, K)."""
        eta, distance, distance_rate, mean, mean_rate = self.step_size, 0.0, 0.0, 0.0, 0.0
        for k in range(self.num_steps):
            share = eta / 2 if k == 0 else eta  # the end of a step and the start of the next are one kick
            distance_rate -= share * (1 + distance)
            mean_rate -= share * (mean + distance)
            distance, mean = distance + eta * distance_rate, mean + eta * mean_rate
        return abs(mean) / (1 - np.cos(self.angle))


class Look(NamedTuple):
    """What draws and their gradients tell."""

    ess: float
    r_hat: float
    shift: np.ndarray
    """Cov · E[∇f] in standard deviations: how far each mean is off."""
    error: np.ndarray
    """Its Monte Carlo standard error."""
    spread: float
    """E[(θ − μ)′∇f] / d − 1, the share by which variances are too large on average."""
    spread_error: float

    @property
    def worst(self) -> int:
        """The parameter whose mean is shifted most."""
        return int(np.argmax(np.abs(self.shift)))

    def is_shifted(self, limit: float) -> bool:
        """Whether some mean certainly is off by more than a limit."""
        certain = -ndtri(_FALSE_ALARM / (2 * len(self.shift)))
        return bool((np.abs(self.shift) - certain * self.error > limit).any())

    def is_spread(self, limit: float) -> bool:
        """Whether standard deviations certainly are too large by more than a share."""
        return bool(self.spread + ndtri(_FALSE_ALARM) * self.spread_error > (1 + limit) ** 2 - 1)


def look(positions: np.ndarray, gradients: np.ndarray, covariance: np.ndarray | None, rate: float) -> Look:
    """Look at draws [chain, draw, dim]; their own covariance has to do where none is known.

    Few draws of chains that hardly move seem more certain than they are: ``rate`` says how many can be effective.
    """
    positions, gradients = (np.asarray(values, np.float64) for values in (positions, gradients))
    if covariance is None:
        covariance = np.atleast_2d(np.cov(positions.reshape(-1, positions.shape[-1]), rowvar=False))
    shifts = gradients @ covariance / np.sqrt(np.diag(covariance))
    centred = positions - positions.mean(axis=(0, 1))
    spreads = np.einsum("cnd,cnd->cn", centred, gradients) / positions.shape[-1] - 1
    most = positions.shape[0] * max(1.0, rate * positions.shape[1])
    sizes = [ess({"position": positions}, method=method)["position"].min() for method in ("bulk", "tail")]
    return Look(
        ess=float(min(sizes)),
        r_hat=max_r_hat({"position": positions}),
        shift=shifts.mean(axis=(0, 1)),
        error=np.maximum(mcse({"shift": shifts})["shift"], shifts.std(axis=(0, 1)) / most**0.5),
        spread=float(spreads.mean()),
        spread_error=float(np.maximum(mcse({"spread": spreads})["spread"], spreads.std() / most**0.5)),
    )


@register("sampler")
@dataclass(frozen=True)
class Tuned(Leader):
    """FA-HMC as in the paper, without a setting to give: it finds them, samples, and stops by itself.

    `Draws.account` tells what was chosen and why, the sampler that was found (``sampler``, as `fahmc.registry.decode`
    takes it), how long a run of it would be (``run``), and how far each mean is off by Stein's identity, Monte Carlo
    error included (``shift``, with an error of its own in ``shift_error``, in standard deviations).

    Parameters
    ----------
    method
        ``"FAHMC"``, or ``"FALD"`` for K = 1.
    target_ess
        Effective draws wanted of every parameter.
    max_rounds, budget_bytes
        What it may cost, after which it gives up, and says so; all rounds count.
    max_bias
        How far a mean may be off, in standard deviations, and by which share standard deviations may be too large.
    gradient
        With which trajectories are followed; what is not exact, such as `Minibatch`, gets a diagonal metric.
    """

    PARTS: ClassVar = ("_expansion", "_scatter", "_evaluation", "FAHMC")

    method: Literal["FAHMC", "FALD"] = "FAHMC"
    target_ess: Effective = 400
    max_rounds: Rounds = 1000
    max_bias: Share = 0.1
    gradient: Gradient = FullGradient()
    budget_bytes: Positive | None = None

    def __post_init__(self):
        door.check(self)

    @property
    def allowance(self) -> str:
        """What it may cost, in words."""
        bytes_too = "" if self.budget_bytes is None else f" or budget_bytes = {self.budget_bytes:,.0f}"
        return f"max_rounds = {self.max_rounds}{bytes_too}"

    def check(self, federation: Federation) -> None:
        """Refuse what the gradient refuses."""
        self.gradient.check(federation)

    def course(self, run: Run) -> Generator[Phase, PhaseResult, Outcome]:
        """Learn a metric, then sample with ever more careful settings until one holds."""
        inquiry = Inquiry(run, _METRIC_ESS, self.max_rounds, self.budget_bytes)
        try:
            metric = yield from learn_metric(inquiry, self.gradient)
        except OutOfRounds as reason:
            raise SettingsError(f"{reason}, and nothing was drawn yet. Allow more.") from None
        search, held = _Search(self, float(np.abs(metric.skewness).max())), None
        for steps in search:
            inquiry.choices = [metric.words, *search.notes]
            attempt = _Attempt(inquiry, search.sampler(steps, metric), metric)
            seen = yield from attempt.sample(steps, search)
            held = held if seen is None else (attempt, steps, seen)
        if held is None:
            raise SettingsError(f"{self.allowance} is used up, and nothing was drawn yet. Allow more.")
        attempt, steps, seen = held
        if not search.is_found:
            search.doubts.append(_unfinished(seen, self))
        return attempt.outcome(steps, seen, search)


@dataclass
class _Search:
    """Which settings come next."""

    wanted: Tuned
    skewness: float
    difference: float = 0.0
    """X, as far as it is known."""
    largest: float = 2.0
    """The largest step size that may still be tried, as to what it does by itself."""
    is_over: bool = False
    is_found: bool = False
    notes: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[Steps]:
        most = 1 if self.wanted.method == "FALD" else _MOST_STEPS
        bias = self.wanted.max_bias
        spread = min(_MARGIN * ((1 + bias) ** 2 - 1), _SHARE * bias / max(self.skewness, 1e-9))
        self.largest = 2 * (1 - 1 / (1 + spread)) ** 0.5
        first = Steps(2 * float(np.sin(_QUARTER / _FIRST_STEPS / 2)), _FIRST_STEPS)
        yield first if most > 1 else self._best(most)
        while not self.is_over:
            yield self._best(most)

    def _best(self, most: int) -> Steps:
        """Return the steps with most effective draws a round among those whose shift is small enough."""
        options = [
            Steps(step_size, num_steps)
            for num_steps in range(1, most + 1)
            for step_size in np.geomspace(0.02, min(self.largest, 2 * np.sin(_QUARTER / num_steps / 2)), 40).tolist()
        ]
        limit = _SHARE * self.wanted.max_bias
        return max((each for each in options if each.shift * self.difference <= limit), key=lambda each: each.rate)

    def sampler(self, steps: Steps, metric: Metric) -> FAHMC:
        """Return FA-HMC with these steps, in the posterior's metric."""
        return FAHMC(
            float(f"{steps.step_size:.3g}"),
            steps.num_steps,
            gradient=self.wanted.gradient,
            inverse_mass_matrix=metric.inverse_mass_matrix,
            with_gradients=True,
        )

    def judge(self, steps: Steps, seen: Look | None) -> bool:
        """Say whether to go on with these settings; if not, remember why."""
        limit, name = self.wanted.max_bias, f"K = {steps.num_steps} steps of {steps.step_size:.2g}"
        if seen is None:
            self.largest = steps.step_size / 2
            self.notes.append(f"{name} diverged.")
            return False
        worst = float(np.abs(seen.shift[seen.worst]))
        if self.has_enough(seen) and worst <= limit:
            self.is_over = self.is_found = True
            self.notes.append(
                f"{name} posterior standard deviations, T = 1: means are off by at most {worst:.2g} standard "
                f"deviations (Stein), standard deviations by about {100 * (max(1 + seen.spread, 0) ** 0.5 - 1):+.0f} %."
            )
            return False
        if seen.is_spread(limit) and not (steps.num_steps > 1 and seen.is_shifted(limit)):
            self.largest = min(self.largest, steps.step_size / 2**0.5)
            self.notes.append(f"{name} made standard deviations more than {100 * limit:.0f} % too large.")
            return False
        # At K = 1 clients do not travel alone, and more draws are the only remedy.
        is_hopeless = seen.is_shifted(limit) or seen.ess >= _PLENTY * self.wanted.target_ess
        if steps.num_steps > 1 and is_hopeless:
            self.notes.append(f"{name} shifted a mean by {worst:.2g} standard deviations (Stein).")
            self.difference = max(self.difference, worst / steps.shift)
            return False
        return True

    def has_enough(self, seen: Look) -> bool:
        """Whether there are as many effective draws as are wanted."""
        return seen.ess >= self.wanted.target_ess and not seen.r_hat >= _R_HAT  # one chain alone has none


class _Attempt:
    """Rounds of one sampler, and its draws so far."""

    def __init__(self, inquiry: Inquiry, sampler: FAHMC, metric: Metric):
        self._inquiry, self.sampler, self._metric = inquiry, sampler, metric
        self._results: list[PhaseResult] = []

    def sample(self, steps: Steps, search: _Search) -> Generator[Phase, PhaseResult, Look | None]:
        """Sample until the settings are dropped, or their draws are good, or no round is left."""
        inquiry, number, seen = self._inquiry, len(search.notes), None
        # They start from the posterior, nearly: what has to be forgotten is little.
        warmup = min(_LOOK, int(np.ceil(2 / steps.rate)))
        state = {"position": self._metric.starts.astype(inquiry.run.dtype)}
        while True:
            left = inquiry.max_rounds - inquiry.rounds_asked
            if left < (warmup + 4 if not self._results else 1):
                search.is_over = True
                return seen
            phase = Phase(
                f"attempt {number}, part {len(self._results)}",
                self.sampler,
                min(left, _LOOK if self._results else warmup + _LOOK),
                0 if self._results else warmup,
                state=None if self._results else state,
                may_diverge=True,
            )
            try:
                result = yield from inquiry.ask(phase)
            except OutOfRounds:
                search.is_over = True
                return seen
            if not result.has_diverged:
                self._results.append(result)
                seen = look(self.positions, self.gradients, self._metric.covariance, steps.rate)
                seen = seen._replace(shift=seen.shift + steps.spread * self._metric.skewness)
            if not search.judge(steps, None if result.has_diverged else seen):
                return seen

    @property
    def positions(self) -> np.ndarray:
        """All draws so far."""
        return np.concatenate([result.positions for result in self._results], axis=1)

    @property
    def gradients(self) -> np.ndarray:
        """∇f at each of them."""
        return np.concatenate([np.asarray(result.gradients) for result in self._results], axis=1)

    def outcome(self, steps: Steps, seen: Look, search: _Search) -> Outcome:
        """Hand over the draws of the settings that held."""
        inquiry = self._inquiry
        remarks, doubts = inquiry.scouts.findings() if inquiry.scouts is not None else ([], [])
        account: dict[str, Any] = {
            "choices": [self._metric.words, *search.notes, *remarks],
            "doubts": [*doubts, *search.doubts],
            "sampler": encode(self.sampler),
            "run": {
                # From as far away as the model's own starts may be, and to enough draws at the pace that was seen.
                "num_warmup_rounds": int(np.ceil(_FORGET / (1 - np.cos(steps.angle)))),
                "num_rounds": int(np.ceil(_ENOUGH * self.positions.shape[1] / max(seen.ess, 1.0))),
                "num_chains": inquiry.run.num_chains,
            },
            "shift": seen.shift.tolist(),
            "shift_error": seen.error.tolist(),
            "spread": seen.spread,
        }
        stats = {
            name: np.concatenate([result.stats[name] for result in self._results], axis=1)
            for name in self._results[0].stats
        }
        return Outcome(self.positions, stats, account, self.gradients)


def _unfinished(seen: Look, wanted: Tuned) -> str:
    """Say that the rounds were too few."""
    worst = float(np.abs(seen.shift[seen.worst]))
    return (
        f"{wanted.allowance} was used up with {seen.ess:.0f} effective draws, of {wanted.target_ess} "
        f"wanted, and a mean off by {worst:.2g} standard deviations (Stein), of {wanted.max_bias:g} allowed."
    )
