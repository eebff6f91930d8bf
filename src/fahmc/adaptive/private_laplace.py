"""Differentially private draws: three noisy answers, then as many draws as wanted of a posterior that knows the noise.

    1. at θ = 0, which tells the share of ones and the rows' second moment (`noise_aware.at_constant_chance`);
    2. and 3. at the mean of the posterior as the answer before leaves it.

The budget's μ² is shared out among them; most of it goes to the last, as the others only have to come near. A chain
would pay for every effective draw instead (`fahmc.privacy.draws_allowed`).

What is known of a row beside the answers is public: that there is one, and the bounds.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from fahmc import door
from fahmc.adaptive.knowledge import Knowledge
from fahmc.adaptive.noise_aware import Answer, Aware, Moments, Posterior, at_constant_chance, noise_aware
from fahmc.adaptive.private_answer import Bounds, Noise, PrivateAnswer, check_family, check_rows, matrix_of
from fahmc.adaptive.prognosis import check_worth
from fahmc.adaptive.surrogate import Gaussian, Quadratic, gaussian_posterior
from fahmc.dynamics.sampler import Leader, Outcome, Phase, PhaseResult
from fahmc.engines.run import Run
from fahmc.errors import ModelError, SettingsError
from fahmc.hints import AboveOne, Count, Positive
from fahmc.privacy import Budget, Delta, composed
from fahmc.registry import register

SHARES = ((0.03, 0.04), (0.09, 0.07), (0.55, 0.22))
"""Of μ², for the score and the information of each answer: what made intervals narrow in simulation (docs/privacy.md).
The first two move the point; the information in the last sets the intervals' width, where rows are few."""
# Mean square of the predictor's uncertainty beyond which three terms of a Taylor series are not to be trusted.
_FAR = 1.0


@register("sampler")
@dataclass(frozen=True)
class PrivateLaplace(Leader):
    """Settings of a private run.

    Parameters
    ----------
    epsilon, delta
        What is spent of every row's privacy (`fahmc.privacy.Budget`).
    bounds
        Public bounds [low, high] of every column of x. Rows beyond are put on them. By default those of the tables
        (the setting ``bounds`` of `fahmc.Sites` and `fahmc.Federation.from_tables`).
    radius
        Public bound on the length of a row, in units in which bounds are −1 and 1 and the intercept is 1; longer ones
        are shrunk. By default √(columns + 1), which no row exceeds. Half of it halves the noise.
    noise
        ``"own"``: every site's answer is private by itself. ``"shared"``: only the sum of all sites' answers is, with
        √N times less noise: for sites that add in secret and do not conspire.
    max_widening
        Refuse, before anything is spent, if noise would make intervals wider than this many times, at best.
    num_draws
        Draws of every chain.
    """

    epsilon: Positive
    delta: Delta
    bounds: Sequence[Bounds] | None = None
    radius: Positive | None = None
    noise: Noise = "own"
    max_widening: AboveOne = 1.5
    num_draws: Count = 1000
    PARTS: ClassVar[tuple[str, ...]] = ("_private_answer",)

    def __post_init__(self):
        door.check(self)
        _ = self.budget
        for place, pair in enumerate(self.bounds or ()):
            if len(pair) != 2 or not pair[0] < pair[1]:
                raise SettingsError(
                    f"bounds of column {place} are {list(pair)}; [low, high] is needed, the smaller first."
                )
        if self.bounds is not None:
            object.__setattr__(self, "bounds", [list(pair) for pair in self.bounds])

    @property
    def budget(self) -> Budget:
        """ε and δ."""
        return Budget(self.epsilon, self.delta)

    def course(self, run: Run) -> Generator[Phase, PhaseResult, Outcome]:
        """Ask three times, then draw."""
        questions = self.questions(run)
        coordinates = Coordinates(run, questions[0])
        num_clients, num_rows = run.federation.num_clients, run.federation.num_rows
        check_worth(questions[-1], self.budget, num_rows, num_clients, self.max_widening)
        learning = learn(questions, num_rows, coordinates.posterior)
        step, (question, point) = 0, next(learning)
        while True:
            result = yield question.ask(f"answer {step}", run.dtype, point=point)
            try:
                question, point = learning.send(answer_of(question, result.state, num_clients))
            except StopIteration as end:
                return self._outcome(run, coordinates, *end.value)
            step += 1

    def questions(self, run: Run) -> list[PrivateAnswer]:
        """Return what will be asked, with what it costs."""
        model, federation = run.model, run.federation
        check_family(model)
        bounds = federation.about.get("bounds") if self.bounds is None else self.bounds
        if self.bounds is not None and federation.about.get("standardization") and "bounds" not in federation.about:
            raise SettingsError(
                "The tables were written in units of means and standard deviations of their rows, which tell of them. "
                "Give bounds where tables are read: fahmc.Federation.from_tables(..., bounds=...)."
            )
        if bounds is None:
            raise SettingsError(
                "A private run needs public bounds: scales that are taken from the rows would tell of them. Give "
                "[low, high] for every column of x (bounds of PrivateLaplace), or for every feature of the tables."
            )
        check_rows(federation, len(bounds))
        if not np.allclose(federation.weights, federation.sizes / federation.num_rows, rtol=0, atol=1e-9):
            raise SettingsError("A private run sums over all rows alike: leave out the federation's weights.")
        if run.dtype != np.float64:
            raise SettingsError('A private run sums without rounding, which takes dtype = "float64".')
        mu, has_intercept = self.budget.mu, "intercept" in run.target.template
        parts = [(mu * score**0.5, mu * information**0.5) for score, information in SHARES]
        return [
            PrivateAnswer(
                bounds=[[float(low), float(high)] for low, high in bounds],
                has_intercept=has_intercept,
                radius=self.radius or (len(bounds) + has_intercept) ** 0.5,
                mu_score=score,
                mu_information=information,
                mu_left=composed(part for later in parts[place:] for part in later),
                noise=self.noise,
            )
            for place, (score, information) in enumerate(parts)
        ]

    def _outcome(self, run: Run, coordinates: Coordinates, last: Answer, aware: Aware, moments: Moments) -> Outcome:
        law = coordinates.law(aware.loss)
        assert law is not None
        normal = np.random.default_rng([run.seed, 6]).normal(size=(run.num_chains, self.num_draws, run.dimension))
        # As wide as they would be if the answer had no noise.
        exact = coordinates.law(Quadratic(last.point, last.score, last.positive))
        widening = None if exact is None else np.sqrt(np.diag(law.covariance) / np.diag(exact.covariance))
        step = aware.law.mean - last.point
        uncertainty = float(np.sum((np.outer(step, step) + aware.law.covariance) * moments.second))
        account = {
            "choices": list(self._choices(run, widening)),
            "doubts": [_too_far(uncertainty)] if uncertainty > _FAR else [],
            "privacy": {
                "epsilon": self.epsilon,
                "delta": self.delta,
                "mu": self.budget.mu,
                "noise": self.noise,
                "widening": None if widening is None else widening.tolist(),
                "information_sd": last.information_sd,
                "smallest_information": float(np.linalg.eigvalsh(last.information)[0]),
            },
        }
        positions = law.mean + normal @ law.factor.T
        # ArviZ's name for the log density, here up to a constant.
        return Outcome(positions, {"lp": -0.5 * (normal**2).sum(axis=-1)}, account)

    def _choices(self, run: Run, widening: np.ndarray | None) -> Generator[str, None, None]:
        whose = "of every site" if self.noise == "own" else "in the sum over sites alone, not of each"
        yield (
            f"Differentially private {whose}, with {self.budget}: for any one row that is replaced by another, spent "
            f"on {len(SHARES)} noisy answers. How many complete rows there are, and the bounds, count as public."
        )
        how = "The posterior is a normal approximation (Laplace) that allows for the noise in the answers"
        if widening is None:
            yield f"{how}; without the prior it would not be known how wide it is."
        else:
            low, high = widening.min(), widening.max()
            yield f"{how}, which makes its intervals about {low:.2f} to {high:.2f} times as wide."


class Coordinates(NamedTuple("Coordinates", [("knowledge", Knowledge), ("jacobian", np.ndarray)])):
    """Between the coefficients of x, θ, and those of u, Jθ: u′(Jθ) = x′β + α."""

    def __new__(cls, run: Run, question: PrivateAnswer) -> Coordinates:
        """Work out J; refuse a prior that is not normal in θ."""
        knowledge = Knowledge(run.target, run.start[0])
        if not knowledge.is_identity or knowledge.affine is None:
            raise ModelError(
                "A private run joins a normal or a flat prior to the noisy answers; this prior is neither. Use "
                "prior_scale, or prior = normal."
            )
        middle, half = question.scales
        jacobian = np.diag(half)
        if question.has_intercept:
            jacobian = np.block([[jacobian, np.zeros((len(half), 1))], [middle[None], np.ones((1, 1))]])
        return super().__new__(cls, knowledge, jacobian)

    def law(self, loss: Quadratic) -> Gaussian | None:
        """Return the posterior of θ with −log likelihood this quadratic in Jθ."""
        J = self.jacobian
        center = np.linalg.solve(J, loss.center)
        return gaussian_posterior(self.knowledge, Quadratic(center, J.T @ loss.gradient, J.T @ loss.curvature @ J))

    def posterior(self, loss: Quadratic) -> Gaussian | None:
        """Return the posterior of Jθ."""
        law, J = self.law(loss), self.jacobian
        return None if law is None else Gaussian.from_moments(J @ law.mean, J @ law.covariance @ J.T)


def learn(
    questions: Sequence[PrivateAnswer], num_rows: int, posterior: Posterior
) -> Generator[tuple[PrivateAnswer, np.ndarray], Answer, tuple[Answer, Aware, Moments]]:
    """Give out questions and where to ask them, are sent answers; return the last one and what it came to."""
    point, moments, aware, answer = np.zeros(questions[0].size), None, None, None
    for question in questions:
        answer = yield question, point
        if moments is None:
            moments = Moments.of(answer, num_rows, question.has_intercept)
            if question.has_intercept:
                answer = at_constant_chance(answer, num_rows)
        aware = noise_aware(answer, moments, posterior)
        if aware is None:
            raise ModelError(
                "The noisy answers leave some combination of the parameters free, and a flat prior does too. Give "
                "coefficients and intercept a prior with a scale."
            )
        point = aware.law.mean
    assert answer is not None and aware is not None and moments is not None
    return answer, aware, moments


def answer_of(question: PrivateAnswer, state: dict[str, Any], num_clients: int) -> Answer:
    """Read the sum of all sites' replies."""
    information = matrix_of(np.asarray(state["information"], np.float64), question.size)
    point, score = (np.asarray(state[name], np.float64) for name in ("point", "score"))
    return Answer(point, score, information, *question.deviations_at(point, num_clients))


def _too_far(uncertainty: float) -> str:
    return (
        f"After the noise, predictors are known to {uncertainty**0.5:.1f} alone, too little for a normal approximation "
        "to hold. Spend more, or ask for fewer features."
    )
