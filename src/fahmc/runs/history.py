"""The blocks so far, in memory and, where the run is durable, on disk; in the end, draws."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fahmc import tree
from fahmc.draws import Draws
from fahmc.dynamics.sampler import Phase
from fahmc.engines.run import Block, Run, begin
from fahmc.errors import CheckpointError
from fahmc.runs.checkpoint import RunFolder
from fahmc.types import Message, Position


class History:
    """What a run has done: which phase it is in, the state there, and the draws of all blocks.

    Parameters
    ----------
    settings
        What the user chose, as JSON values.
    folder
        Where a durable run is kept.
    """

    def __init__(self, run: Run, settings: Mapping[str, Any], folder: RunFolder | None):
        self._run, self._settings, self.folder = run, settings, folder
        self._positions: list[np.ndarray] = []
        self._stats: list[dict[str, np.ndarray]] = []
        self._drift_squares: Any = None
        self._rounds = [0] * len(run.phases)
        self.phase_index, self.seconds = 0, 0.0
        self.state: Message = begin(run, run.phases[0])
        for saved in folder.load() if folder is not None else []:
            self._add(saved)
        if (done := self._rounds[-1]) > run.phases[-1].num_rounds:
            assert folder is not None
            raise CheckpointError(
                f"{folder.path} holds {done - run.num_warmup_rounds} rounds, more than num_rounds = {run.num_rounds}. "
                "Ask for at least as many, or use a new folder."
            )

    @property
    def phase(self) -> Phase:
        """The phase that the run is in."""
        return self._run.phases[self.phase_index]

    @property
    def rounds_done(self) -> int:
        """Rounds of this phase that are done."""
        return self._rounds[self.phase_index]

    @property
    def is_complete(self) -> bool:
        """Whether all rounds of the last phase are done."""
        return self._rounds[-1] >= self._run.phases[-1].num_rounds

    @property
    def num_draws(self) -> int:
        """Draws kept so far in each chain."""
        return sum(block.shape[1] for block in self._positions)

    def append(self, block: Block, seconds: float) -> None:
        """Keep a block; a durable run has it on disk before anything else happens."""
        saved = {
            "phase": np.int64(self.phase_index),
            "first_round": np.int64(block.first_round),
            "rounds": np.int64(block.num_rounds),
            "seconds": np.float64(seconds),
            "positions": block.positions,
            "stats": block.stats,
            "drift_squares": block.drift_squares,
            "state": block.state,
        }
        if self.folder is not None and block.num_rounds:
            self.folder.append(saved)
        self._add(saved)

    def _add(self, saved: dict[str, Any]) -> None:
        self._rounds[int(saved["phase"])] += int(saved["rounds"])
        self.seconds += float(saved["seconds"])
        if saved["positions"].shape[1]:
            self._positions.append(saved["positions"])
            self._stats.append(saved.get("stats", {}))
        if (squares := saved.get("drift_squares")) is not None and self.phase_index == len(self._rounds) - 1:
            self._drift_squares = np.asarray(squares, np.float64) + (
                0.0 if self._drift_squares is None else self._drift_squares
            )
        self.state = saved["state"]
        if self.rounds_done >= self.phase.num_rounds and self.phase_index + 1 < len(self._rounds):
            ended = self.phase, self.state
            self.phase_index += 1
            self.state = begin(self._run, self.phase, ended)

    def positions(self) -> Position:
        """Return all draws so far as the user's pytree of [chain, draw, ...]."""
        return tree.unflatten_draws(np.concatenate(self._positions, axis=1), self._run.target.template)

    def draws(self, ended: str) -> Draws:
        """Put the blocks together."""
        run = self._run
        drift = None
        if self._drift_squares is not None:
            drift = np.sqrt(self._drift_squares / max(1, self._rounds[-1] - run.num_warmup_rounds))
        lengths = {"num_rounds": run.num_rounds, "num_warmup_rounds": run.num_warmup_rounds, "thin": run.thin}
        return Draws(
            positions=self.positions(),
            stats={name: np.concatenate([block[name] for block in self._stats], axis=1) for name in self._stats[0]},
            client_names=run.federation.names,
            client_drift=drift,
            settings={**self._settings, **lengths, "ended": ended},
            cost=self._cost(),
            dims=run.model.dims,
            coords=run.model.coords,
            model=run.model,
        )

    def _cost(self) -> dict[str, float]:
        """Add up what all phases took."""
        run, cost = self._run, {"rounds": sum(self._rounds), "seconds": self.seconds, "row_gradients": 0.0}
        for phase, rounds in zip(run.phases, self._rounds, strict=True):
            chains = run.num_chains if run.exchange(phase).has_chains else 1
            row_gradients = phase.sampler.row_gradients(run.federation.sizes)
            spent = {"row_gradients": np.nan if row_gradients is None else row_gradients * chains}
            spent |= run.message_bytes(phase)
            cost |= {name: cost.get(name, 0.0) + float(amount * rounds) for name, amount in spent.items()}
        # Half of a sum would mislead: it is told only where all phases know.
        return {name: amount for name, amount in cost.items() if not np.isnan(amount)}
