"""Three hospitals with intercepts of their own: BFI's one exchange of Gaussians next to the posterior itself.

Bayesian federated inference (Jonker, Pazira and Coolen 2024, Statistics in Medicine 43(12)) sends from every hospital
the mode θ_c and the curvature A_c of its own posterior, once. With effects b_c of hospitals beside common effects a,
the combination maximises the sum of the hospitals' quadratics, counting the prior once:

    Σ_c −½ (θ − θ_c)ᵀ A_c (θ − θ_c)  +  (N − 1) ½ aᵀ Λ a,      θ = (b_c, a)

Its table is in the R package BFI; put it as ``trauma/trauma.csv`` into a folder named by ``FAHMC_DATA``. Run it as
``python examples/trauma_centre_effects.py``.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

import fahmc
from fahmc.bench.rounds.hospitals import trauma

PRECISION = 0.01
FEATURES = ["sex", "age", "ISS", "GCS"]


def mode_of(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mode and curvature of a logistic regression with a N(0, 1 / PRECISION) prior, by Newton's method."""
    theta, prior = np.zeros(x.shape[1]), PRECISION * np.eye(x.shape[1])
    for _ in range(50):
        chance = 1 / (1 + np.exp(-x @ theta))
        theta += np.linalg.solve(_curvature(x, theta) + prior, x.T @ (y - chance) - prior @ theta)
    return theta, _curvature(x, theta) + prior


def _curvature(x: np.ndarray, theta: np.ndarray) -> np.ndarray:
    chance = 1 / (1 + np.exp(-x @ theta))
    return x.T * (chance * (1 - chance)) @ x


def bfi(tables: list[tuple[np.ndarray, np.ndarray]], has_own_intercepts: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return BFI's means and standard deviations: of one intercept or of one for each hospital, then of the rest."""
    num_sites, num_columns = len(tables), tables[0][0].shape[1]
    num_own = num_sites if has_own_intercepts else 1
    size = num_own + num_columns - 1
    precision, pull = np.zeros((size, size)), np.zeros(size)
    for place, (x, y) in enumerate(tables):
        theta, curvature = mode_of(x, y)
        into = np.r_[place if has_own_intercepts else 0, num_own:size]
        precision[np.ix_(into, into)] += curvature
        pull[into] += curvature @ theta
    shared = np.arange(num_own if has_own_intercepts else 0, size)
    precision[shared, shared] -= (num_sites - 1) * PRECISION
    return np.linalg.solve(precision, pull), np.sqrt(np.diag(np.linalg.inv(precision)))


def main() -> None:
    """Print both analyses with intercepts of the hospitals' own, and the one that pools them in part."""
    clients = trauma()
    tables = [(np.column_stack([np.ones(len(rows["y"])), rows["x"]]), rows["y"]) for rows in clients.values()]
    names = [*clients, *FEATURES]
    means, sds = bfi(tables, has_own_intercepts=True)

    own = {  # a column of ones at home for each hospital
        name: {"x": np.column_stack([np.tile(np.eye(3)[place], (len(rows["y"]), 1)), rows["x"]]), "y": rows["y"]}
        for place, (name, rows) in enumerate(clients.items())
    }
    model = fahmc.models.logistic_regression(PRECISION**-0.5, intercept=False, feature_names=names)
    exact = fahmc.sample(model, fahmc.Federation.from_clients(own), num_chains=8, progress=False)
    pooled = fahmc.sample(
        fahmc.models.logistic_regression(PRECISION**-0.5, site_effects="intercept", feature_names=FEATURES),
        fahmc.Federation.from_clients(clients),
        num_chains=8,
        progress=False,
    )
    position, drawn = pooled.named(), exact.named()["coefficients"].reshape(-1, len(names))
    intercepts = position["intercept"][..., None] + position["site_effect"]
    in_part = np.concatenate([intercepts, position["coefficients"]], axis=-1).reshape(-1, len(names))
    table = pd.DataFrame(
        {
            "BFI": means, "sd": sds,
            "posterior": drawn.mean(axis=0), "sd ": drawn.std(axis=0),
            "pooled in part": in_part.mean(axis=0), "sd  ": in_part.std(axis=0),
        },
        index=names,
    )  # fmt: skip
    print(table.round(2).to_string())
    worst = (abs(means - drawn.mean(axis=0)) / drawn.std(axis=0)).max()
    print(f"BFI's worst mean is {worst:.2f} posterior standard deviations off, after 1 round.")
    for what, draws in {"posterior": exact, "pooled in part": pooled}.items():
        verdict = fahmc.report.judge(draws, fahmc.report.parameter_table(draws))
        print(f"{what}: {draws.cost['rounds']:.0f} rounds, verdict {verdict.status}")


if __name__ == "__main__":
    main()
