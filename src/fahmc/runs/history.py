"""The blocks so far, in memory and, where the run is durable, on disk; in the end, draws."""

from __future__ import annotations

from typing import Any

import numpy as np

from fahmc import tree
from fahmc.draws import Draws
from fahmc.engines.block import Block
from fahmc.errors import CheckpointError
from fahmc.runs.checkpoint import RunFolder
from fahmc.runs.pacing import Pacing
from fahmc.runs.plan import Plan, message_bytes
from fahmc.types import Position


class History:
    """The blocks so far, in memory and, where the run is durable, on disk."""

    def __init__(self, plan: Plan, pacing: Pacing, checkpoint_dir):
        self._plan, self._pacing = plan, pacing
        self._positions: list[np.ndarray] = []
        self._stats: list[dict[str, np.ndarray]] = []
        self._drift_squares: Any = 0.0
        self.state, self.rounds_done, self.seconds = plan.start, 0, 0.0
        self.folder = None
        if checkpoint_dir is not None:
            fingerprint = {
                **plan.fingerprint,
                "num_warmup_rounds": pacing.num_warmup_rounds,
                "thin": pacing.thin,
            }
            self.folder = RunFolder(checkpoint_dir, fingerprint)
            try:
                self._resume(checkpoint_dir)
            except BaseException:
                self.close()
                raise

    def _resume(self, checkpoint_dir: Any) -> None:
        """Take up what is on disk."""
        for saved in self.folder.load() if self.folder is not None else []:
            self._add(saved)
        if self.rounds_done > self._pacing.total:
            sampled = self.rounds_done - self._pacing.num_warmup_rounds
            raise CheckpointError(
                f"{checkpoint_dir} holds {sampled} rounds, more than num_rounds = {self._pacing.num_rounds}. "
                "Ask for at least as many, or use a new folder."
            )

    def close(self) -> None:
        """Let go of the folder."""
        if self.folder is not None:
            self.folder.close()

    @property
    def num_draws(self) -> int:
        """Draws kept so far in each chain."""
        return sum(block.shape[1] for block in self._positions)

    def append(self, block: Block, seconds: float) -> None:
        """Keep a block; a durable run has it on disk before anything else happens."""
        saved = {
            "first_round": np.int64(block.first_round),
            "rounds": np.int64(block.num_rounds),
            "seconds": np.float64(seconds),
            "positions": block.positions,
            "stats": block.stats,
            "drift_squares": block.drift_squares,
            "state": {name: value for name, value in block.state._asdict().items() if value is not None},
        }
        if self.folder is not None and block.num_rounds:
            self.folder.append(saved)
        self._add(saved)

    def _add(self, saved: dict[str, Any]) -> None:
        self.rounds_done += int(saved["rounds"])
        self.seconds += float(saved["seconds"])
        if saved["positions"].shape[1]:
            self._positions.append(saved["positions"])
            self._stats.append(saved["stats"])
        self._drift_squares = self._drift_squares + np.asarray(saved["drift_squares"], np.float64)
        self.state = self._plan.start._replace(**saved["state"])

    def positions(self) -> Position:
        """Return all draws so far as the user's pytree of [chain, draw, ...]."""
        return tree.unflatten_draws(np.concatenate(self._positions, axis=1), self._plan.potentials.template)

    def draws(self, ended: str) -> Draws:
        """Put the blocks together."""
        plan, pacing = self._plan, self._pacing
        stats = {name: np.concatenate([block[name] for block in self._stats], axis=1) for name in self._stats[0]}
        stats["n_steps"] = np.full(stats["step_size"].shape, plan.kernel.leapfrog_steps)
        sampled = max(1, self.rounds_done - pacing.num_warmup_rounds)
        settings = {
            **plan.settings,
            "num_rounds": pacing.num_rounds,
            "num_warmup_rounds": pacing.num_warmup_rounds,
            "thin": pacing.thin,
            "ended": ended,
        }
        cost = {
            "rounds": self.rounds_done,
            "seconds": self.seconds,
            "row_gradients": float(plan.rows_per_round * plan.num_chains * self.rounds_done),
            **{name: float(size * self.rounds_done) for name, size in message_bytes(plan).items()},
        }
        return Draws(
            positions=self.positions(),
            stats=stats,
            client_names=plan.federation.names,
            client_drift=np.sqrt(
                np.broadcast_to(self._drift_squares, (plan.num_chains, plan.federation.num_clients)) / sampled
            ),
            settings=settings,
            cost=cost,
            dims=plan.model.dims,
            coords=plan.model.coords,
            model=plan.model,
        )
