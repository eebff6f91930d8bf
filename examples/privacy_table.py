"""What a budget buys: how much wider intervals get under differential privacy, and whether they still cover.

    python examples/privacy_table.py

For each number of rows and columns, ε and bounds: data sets are drawn with coefficients from the prior, every one is
answered in noise as sites would, and its posterior's 95 % intervals are held against the coefficients and against the
exact posterior's. The tables of docs/privacy.md come from here.
"""

from functools import partial

import numpy as np
from scipy.special import expit

from fahmc.adaptive.noise_aware import Answer
from fahmc.adaptive.private_answer import PrivateAnswer
from fahmc.adaptive.private_laplace import SHARES, learn
from fahmc.adaptive.prognosis import widening
from fahmc.adaptive.surrogate import Gaussian
from fahmc.privacy import Budget

DELTA, SCALE, INTERCEPT = 1e-6, 0.5, -1.0
# Rows, columns, ε, and the radius, if it is not that of the box.
SETTINGS = [
    *(
        (num_rows, columns, epsilon, None)
        for columns in (5, 20)
        for num_rows in (200_000, 20_000, 5000, 823)
        for epsilon in (3.0, 1.0)
    ),
    *((num_rows, 20, epsilon, 3.3) for num_rows, epsilon in ((20_000, 3.0), (20_000, 1.0), (5000, 3.0))),
]
# Rows that are drawn in all, for each setting.
ROWS, MOST_DATA_SETS = 400_000, 100


def joined(loss, precision, mean):
    """Return N(mean, precision⁻¹) times the exponential of a quadratic."""
    total = precision + loss.curvature
    right = precision @ mean + loss.curvature @ loss.center - loss.gradient
    return Gaussian.from_moments(np.linalg.solve(total, right), np.linalg.inv(total))


def private(generator, u, y, questions, posterior):
    """Answer in noise, and return the posterior that knows it."""
    learning = learn(questions, len(u), posterior)
    question, point = next(learning)
    while True:
        p = expit(u @ point)
        sds = question.deviations_at(point, 1)
        noise = generator.normal(size=(len(point), len(point)))
        score = u.T @ (p - y) + sds[0] * generator.normal(size=len(point))
        information = (u * (p * (1 - p))[:, None]).T @ u + sds[1] * (noise + noise.T) / 2
        try:
            question, point = learning.send(Answer(point, score, information, *sds))
        except StopIteration as end:
            return end.value[1].law


def measure(num_rows, columns, epsilon, radius):
    """Return the promised widening, the mean one, its error's share, and the coverage with noise known and ignored."""
    generator, budget = np.random.default_rng([num_rows, columns]), Budget(epsilon, DELTA)
    radius = radius or (columns + 1) ** 0.5
    questions = [
        PrivateAnswer([[-1.0, 1.0]] * columns, True, radius, budget.mu * a**0.5, budget.mu * b**0.5, budget.mu)
        for a, b in SHARES
    ]
    mean, sds = np.r_[np.zeros(columns), INTERCEPT], np.full(columns + 1, SCALE)
    posterior = partial(joined, precision=np.diag(sds**-2.0), mean=mean)
    wide, covers, covers_blindly = [], [], []
    num_data_sets = max(5, min(MOST_DATA_SETS, ROWS // num_rows))
    for _ in range(num_data_sets):
        truth = generator.normal(mean, sds)
        u = np.c_[generator.uniform(-1, 1, (num_rows, columns)), np.ones(num_rows)]
        y = (generator.random(num_rows) < expit(u @ truth)).astype(float)
        p = expit(u @ truth)
        exact = np.diag(np.linalg.inv((u * (p * (1 - p))[:, None]).T @ u + np.diag(sds**-2.0))) ** 0.5
        # As a site does: what is longer than the radius is shrunk to it.
        shrunk = u * np.minimum(1, radius / np.linalg.norm(u, axis=1))[:, None]
        law = private(generator, shrunk, y, questions, posterior)
        own = np.diag(law.covariance) ** 0.5
        wide.append(np.mean(own / exact))
        covers.append(np.mean(np.abs(law.mean - truth) < 1.96 * own))
        covers_blindly.append(np.mean(np.abs(law.mean - truth) < 1.96 * exact))
    error = np.std(covers) / num_data_sets**0.5
    return widening(questions[-1], num_rows, 1), np.mean(wide), np.mean(covers), error, np.mean(covers_blindly)


if __name__ == "__main__":
    print("| rows | columns | ε | radius | at best | wider by | covers | if noise were ignored |")
    print("|---|---|---|---|---|---|---|---|")
    for setting in SETTINGS:
        best, wide, covers, error, blindly = measure(*setting)
        refused = " (refused)" if best > 1.5 else ""
        promised, radius = f"{100 * (best - 1):.0f} %" if best < 100 else "∞", setting[3] or "box"
        shares = f"{100 * (wide - 1):.0f} % | {100 * covers:.1f} ± {100 * error:.1f} % | {100 * blindly:.0f} %"
        print(
            f"| {setting[0]:,} | {setting[1]} | {setting[2]:g} | {radius} | {promised}{refused} | {shares} |",
            flush=True,
        )
