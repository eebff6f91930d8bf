"""The simulated logistic regression of figures 1a to 1d, and its MHMC reference.

Rows x = z/|z| with z ~ N(0, I_d), true coefficients ~ N(0, I), prior N(0, I), after Mangoubi and Vishnoi (2018), whose
K η = π/3 the paper borrows.
"""

from __future__ import annotations

import io
import json
import time
import zipfile
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from fahmc import models
from fahmc.data import partition
from fahmc.data.federation import Federation
from fahmc.density.model import Model
from fahmc.durable import write_atomically
from fahmc.dynamics.hmc import HMC
from fahmc.errors import FahmcError
from fahmc.experiments.chains import run_chains
from fahmc.experiments.logistic_rows import logistic_rows
from fahmc.experiments.work import Work
from fahmc.report.convergence import max_r_hat
from fahmc.report.distances import marginal_error_floor

MAX_R_HAT = 1.01
_SEEDS = (101, 102)
_MAX_DOUBLINGS = 4


@dataclass(frozen=True)
class LogisticStudy:
    """Rows at equal clients. The paper: d = 1000 (or 10), 1000 rows, 20 clients."""

    dim: int
    num_rows: int = 1000
    num_clients: int = 20
    data_seed: int = 0

    @cached_property
    def federation(self) -> Federation:
        """The clients and their rows."""
        rows = logistic_rows(self.num_rows, self.dim, self.data_seed)
        return Federation.from_clients(partition.equal(rows, self.num_clients, seed=self.data_seed))

    @cached_property
    def model(self) -> Model:
        """Logistic regression without intercept, prior N(0, I)."""
        return models.logistic_regression(prior_scale=1.0, intercept=False)


@dataclass(frozen=True)
class Reference:
    """Two independent runs of Metropolis-adjusted HMC on all rows: one to compare with, one for the floor."""

    draws: Float[np.ndarray, "row dim"]
    independent: Float[np.ndarray, "row dim"]
    settings: dict[str, Any]
    """What its draws depend on, as JSON values."""
    facts: dict[str, Any]
    """The settings, its largest split R-hat, its acceptance rate and the seconds it took."""

    def floor(self, num_samples: int) -> float:
        """Return the ME that ``num_samples`` exact draws would show against this reference."""
        return marginal_error_floor(self.draws, self.independent, num_samples=min(num_samples, len(self.independent)))


def mhmc_reference(study: LogisticStudy, num_draws: int, work: Work, *, num_chains: int = 8) -> Reference:
    """Return the reference from its file, or make it: long enough that every coordinate's split R-hat is below 1.01."""
    step_size, num_leapfrog_steps = _good_trajectory(study)
    facts = {
        "sampler": "MHMC on all rows",
        **asdict(study),
        "step_size": step_size,
        "num_leapfrog_steps": num_leapfrog_steps,
        "num_chains": num_chains,
        "draws_wanted": num_draws,
        "seeds": list(_SEEDS),
    }
    path = work.folder / "references" / f"mhmc-d{study.dim}-n{study.num_rows}-{num_draws}.npz"
    if (kept := _read(path, facts)) is not None:
        work.spent(kept.facts.get("seconds", 0.0))
        return kept
    began = time.perf_counter()
    sampler = HMC(step_size, num_leapfrog_steps, metropolis=True)
    runs, r_hats, rates = [], [], []
    for seed in _SEEDS:
        length = -(-num_draws // num_chains)
        for _ in range(_MAX_DOUBLINGS):
            draws = run_chains(
                study.model, study.federation, sampler, length, None,
                num_warmup_rounds=max(100, length // 10), num_chains=num_chains, seed=seed,
            )  # fmt: skip
            if draws is not None and (r_hat := max_r_hat(draws, method="split")) < MAX_R_HAT:
                break
            length *= 2
        else:
            raise FahmcError(
                f"The MHMC reference for d = {study.dim} diverged or has a split R-hat of {MAX_R_HAT} or more even "
                f"with {length // 2} draws in each of {num_chains} chains, so there is nothing to compare with."
            )
        runs.append(draws.flat().reshape(-1, study.dim))
        r_hats.append(r_hat)
        rates.append(float(draws.stats["acceptance_rate"].mean()))
    made = facts | {
        "max_split_r_hat": max(r_hats),
        "acceptance_rate": min(rates),
        "draws": min(map(len, runs)),
        "seconds": time.perf_counter() - began,
    }
    work.spent(made["seconds"])
    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    np.savez(content, draws=runs[0], independent=runs[1], facts=np.array(json.dumps(made)))
    write_atomically(path, content.getvalue())
    return Reference(runs[0], runs[1], facts, made)


def _good_trajectory(study: LogisticStudy) -> tuple[float, int]:
    """Return η and K of a quarter of a period in the posterior's typical direction, in 8 steps.

    The rows' part of the precision is Σ x xᵀ p (1 − p), about n/(5 d) in every direction, the prior's is 1; energy
    errors grow like d^¼ η, so that d = 1000 still accepts most.
    """
    scale = (1 + study.num_rows / (5 * study.dim)) ** -0.5
    step_size = scale * np.pi / 2 / 8
    return float(f"{step_size:.2g}"), 8


def _read(path: Path, facts: dict[str, Any]) -> Reference | None:
    """Return the reference on file if it was made with these settings."""
    if not path.exists():
        return None
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            made = json.loads(str(file["facts"]))
            if all(made.get(name) == value for name, value in facts.items()):
                return Reference(file["draws"], file["independent"], facts, made)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None  # damaged: it is made again
    return None
