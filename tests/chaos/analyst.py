"""The analyst of a disturbed federation, a process that may be killed: ``analyst.py STUDY KIT CHECKPOINT RESULT``.

Says after every block how many rounds have come. Started again, it goes on from its checkpoint.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import fahmc
from clinics import COLUMNS
from fahmc.engines import Flare
from fahmc.engines.run import Block

# Searches, windows and blocks of several kinds of phase; and one long phase with private momentum of the sites' own.
STUDIES: dict[str, tuple[Any, dict[str, Any]]] = {
    "fa-hmc": (
        fahmc.FAHMC(0.05, num_leapfrog_steps=2, momentum_correlation=0.5),
        {"num_rounds": 550, "num_warmup_rounds": 50, "num_chains": 2, "block_rounds": 5},
    ),
    "split": (fahmc.Auto(target_ess=400, method="split"), {"num_chains": 4, "block_rounds": 5}),
}


class Speaking:
    """Reaches the sites as `Flare` does, and says how far it has come."""

    path = "plain"

    def __init__(self, engine: Flare):
        self._engine = engine
        self.open, self.release = engine.open, engine.release

    def start(self, run: Any) -> Speaking:
        """Take a run."""
        self._session = self._engine.start(run)
        return self

    def advance(self, phase: Any, state: Any, first_round: int, num_rounds: int) -> Block:
        """Return the next rounds."""
        block = self._session.advance(phase, state, first_round, num_rounds)
        print(f"{num_rounds} rounds from {first_round} of {phase.name!r}", flush=True)
        return block


def main(study: str, kit: str, checkpoint: str, result: str) -> None:
    """Sample, and write the draws down bit by bit."""
    sampler, settings = STUDIES[study]
    engine: Any = Speaking(Flare(kit, patience=180))
    model, sites = fahmc.models.logistic_regression(), fahmc.Sites(**COLUMNS)
    draws = fahmc.sample(
        model, sites, sampler, engine=engine, checkpoint_dir=checkpoint, dtype="float64", progress=False, **settings
    )
    values = {f"position {name}": value for name, value in draws.positions.items()}
    values |= {f"statistic {name}": value for name, value in draws.stats.items()}
    with open(result, "wb") as file:
        np.savez(file, allow_pickle=False, **values)


if __name__ == "__main__":
    main(*sys.argv[1:])
