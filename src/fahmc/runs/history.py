"""The blocks so far, in memory and, where the run is durable, on disk; in the end, draws.

The sampler's course decides which phase comes next, from what the phases before came to. A durable run that is taken up
again is led through the blocks on disk once more: the same results, the same decisions.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

import numpy as np

from fahmc import tree
from fahmc.density.supports import present
from fahmc.draws import Draws
from fahmc.dynamics.sampler import Outcome, Phase, PhaseResult
from fahmc.engines.run import Block, Run, begin
from fahmc.errors import CheckpointError, SettingsError
from fahmc.runs.checkpoint import RunFolder
from fahmc.types import Message, Position

_SCALARS = {
    name: ((), np.dtype(kind))
    for name, kind in {"phase": "i8", "first_round": "i8", "rounds": "i8", "has_diverged": "?", "seconds": "f8"}.items()
}


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
        self._course = run.sampler.course(run)
        self.phases: list[Phase] = []
        """Those begun so far."""
        self.rounds: list[int] = []
        """Those done in each of them."""
        self._kept: list[list[dict[str, Any]]] = []
        """The blocks of each phase that hold draws."""
        self._drift_squares: Any = None
        self._outcome: Outcome | None = None
        self.is_complete, self.seconds = False, 0.0
        self.state: Message = {}
        self._go_on(None)
        blocks = folder.load() if folder is not None else []
        self._require(blocks, lambda saved: {name: _outline(saved.get(name)) for name in _SCALARS} == _SCALARS)
        for saved in blocks:
            self._check_room(blocks)
            self._require([saved], self._is_next)
            self._add(saved)
        self._check_room(blocks)

    def _require(self, blocks: list[dict[str, Any]], is_sound: Callable[[dict[str, Any]], bool]) -> None:
        if self.folder is not None and not all(map(is_sound, blocks)):
            raise CheckpointError(
                f"A block in {self.folder.path} has the checksum of this run, but not what belongs there: another "
                "version of fahmc wrote it, or somebody changed it. Use a new folder."
            )

    @property
    def phase(self) -> Phase:
        """The phase that the run is in."""
        return self.phases[-1]

    @property
    def rounds_done(self) -> int:
        """Rounds of this phase that are done."""
        return self.rounds[-1]

    @property
    def course(self) -> Mapping[str, Any]:
        """What the sampler's course has decided and knows so far."""
        return self.phase.course if self._outcome is None else self._outcome.account

    @property
    def num_draws(self) -> int:
        """Draws kept so far in each chain."""
        if self._outcome is not None and self._outcome.positions is not None:
            return self._outcome.positions.shape[1]
        return sum(block["positions"].shape[1] for block in self._blocks)

    @property
    def _blocks(self) -> list[dict[str, Any]]:
        return [block for blocks in self._kept for block in blocks]

    def append(self, block: Block, seconds: float) -> None:
        """Keep a block; a durable run has it on disk before anything else happens."""
        is_end = block.divergence is not None and self.phase.may_diverge
        saved = {
            "phase": np.int64(len(self.phases) - 1),
            "first_round": np.int64(block.first_round),
            "rounds": np.int64(block.num_rounds),
            "has_diverged": np.bool_(is_end),
            "seconds": np.float64(seconds),
            "positions": block.positions,
            "gradients": block.gradients,
            "stats": block.stats,
            "drift_squares": block.drift_squares,
            "state": block.state,
        }
        if self.folder is not None and (block.num_rounds or is_end):
            self.folder.append(saved)
        self._add(saved)

    def _add(self, saved: dict[str, Any]) -> None:
        self.rounds[-1] += int(saved["rounds"])
        self.seconds += float(saved["seconds"])
        if saved["positions"].shape[1]:
            self._kept[-1].append({"stats": {}} | saved)
        if (squares := saved.get("drift_squares")) is not None and self.phase.num_warmup_rounds is not None:
            self._drift_squares = np.asarray(squares, np.float64) + (
                0.0 if self._drift_squares is None else self._drift_squares
            )
        self.state = saved["state"]
        has_diverged = bool(saved.get("has_diverged", False))
        if has_diverged or self.rounds_done >= self.phase.num_rounds:
            self._go_on(self._result(has_diverged))

    def _is_next(self, saved: dict[str, Any]) -> bool:
        """Whether a block on disk can be the next one of this run: its place and the shapes of all that it holds."""
        run, phase, blocks = self._run, self.phase, self._kept[-1]
        first_round, rounds = int(saved["first_round"]), int(saved["rounds"])
        place = len(self.phases) - 1, self.rounds_done
        if self.is_complete or (int(saved["phase"]), first_round) != place or rounds < 0:
            return False
        if saved["has_diverged"] and not phase.may_diverge:
            return False
        kept = phase.draws_after(first_round + rounds) - phase.draws_after(first_round)
        positions, gradients = saved.get("positions"), saved.get("gradients")
        if _outline(saved.get("state")) != _outline(self.state) or _outline(positions)[0][1:2] != (kept,):
            return False
        squares = None if phase.num_warmup_rounds is None else saved.get("drift_squares")
        if squares is not None and np.shape(squares) != (run.num_chains, run.federation.num_clients):
            return False
        if not kept:
            return True
        stats = saved.get("stats", {})
        return (
            _outline(positions) == ((run.num_chains, kept, run.dimension), run.dtype)
            and (gradients is None or _outline(gradients) == _outline(positions))
            and isinstance(stats, dict)
            and all(np.shape(values) == (run.num_chains, kept) for values in stats.values())
            and all(np.asarray(values).dtype.kind in "biuf" for values in stats.values())
            and all(stats.keys() == block["stats"].keys() for block in blocks[:1])
        )

    def _check_room(self, blocks: list[dict[str, Any]]) -> None:
        """Refuse a folder that holds more than was asked for now."""
        held = sum(int(saved["rounds"]) for saved in blocks if int(saved["phase"]) == len(self.phases) - 1)
        if self.folder is not None and held > self.phase.num_rounds:
            raise CheckpointError(
                f"{self.folder.path} holds {held - self._run.num_warmup_rounds} rounds, more than num_rounds = "
                f"{self._run.num_rounds}. Ask for at least as many, or use a new folder."
            )

    def _go_on(self, result: PhaseResult | None) -> None:
        """Have the course decide on the next phase that has rounds."""
        began = time.perf_counter()
        try:
            phase = next(self._course) if result is None else self._course.send(result)
        except StopIteration as end:
            self.is_complete, self._outcome = True, end.value
            return
        finally:
            self.seconds += time.perf_counter() - began
        if phase.name in [other.name for other in self.phases]:
            raise SettingsError(
                f"two phases are called {phase.name!r}; each needs a name of its own, as its randomness has it too."
            )
        ended = (self.phases[-1], self.state) if self.phases else None
        self.phases.append(phase)
        self.rounds.append(0)
        self._kept.append([])
        self.state = begin(self._run, phase, ended)
        if not phase.num_rounds:
            self._go_on(self._result())

    def _result(self, has_diverged: bool = False) -> PhaseResult:
        """Return what the phase came to."""
        positions, gradients, stats = _joined(self._kept[-1], self._run)
        return PhaseResult(self.state, positions, stats, self.rounds_done, has_diverged, gradients)

    def positions(self) -> Position:
        """Return all draws so far as a pytree of [chain, draw, ...]: the free numbers, as ranks see them alike."""
        own = None if self._outcome is None else self._outcome.positions
        flat = _joined(self._blocks, self._run)[0] if own is None else own
        return tree.unflatten_draws(flat, self._run.target.template)

    def draws(self, ended: str) -> Draws:
        """Put the blocks together."""
        run, outcome = self._run, self._outcome or Outcome(None, {}, {})
        positions, gradients, stats = _joined(self._blocks, run)
        if outcome.positions is not None:
            positions, gradients, stats = outcome.positions, outcome.gradients, outcome.stats
        drift = None
        if self._drift_squares is not None:
            sampled = sum(
                rounds - phase.num_warmup_rounds
                for phase, rounds in zip(self.phases, self.rounds, strict=True)
                if phase.num_warmup_rounds is not None
            )
            drift = np.sqrt(self._drift_squares / max(1, sampled))
        num_rounds = sum(self.rounds) if run.num_rounds is None else run.num_rounds
        lengths = {"num_rounds": num_rounds, "num_warmup_rounds": run.num_warmup_rounds, "thin": run.thin}
        model, free = run.model, tree.unflatten_draws(positions, run.target.template)
        presented = present(model, run.target.template, positions)
        return Draws(
            positions=presented,
            sampled=free if model.supports or model.derived_fn is not None else None,
            derived=() if model.derived_fn is None else tuple(name for name in presented if name not in free),
            gradients=gradients,
            stats=stats,
            client_names=run.federation.names,
            client_drift=drift,
            settings={**self._settings, **lengths, "ended": ended, "versions": _versions()},
            cost=self._cost(),
            dims=model.dims,
            coords=model.coords,
            model=model,
            account={**outcome.account, "messages": self._messages()},
        )

    def _messages(self) -> list[dict[str, Any]]:
        """Say of each phase with rounds what its messages held: the fields of one client's, with their shapes."""
        told = []
        for phase, rounds in zip(self.phases, self.rounds, strict=True):
            exchange = self._run.exchange(phase)
            parts = {"to_clients": exchange.broadcast, "to_server": exchange.reply}
            fields = {
                way: {name: list(field.full_shape(self._run.num_chains)) for name, field in part.items()}
                for way, part in parts.items()
            }
            if rounds:
                told.append({"phase": phase.name, "rounds": rounds, "is_masked": self._run.is_masked(phase), **fields})
        return told

    def _cost(self) -> dict[str, float]:
        """Add up what all phases took."""
        run, cost = self._run, {"rounds": sum(self.rounds), "seconds": self.seconds, "row_gradients": 0.0}
        for phase, rounds in zip(self.phases, self.rounds, strict=True):
            chains = run.num_chains if run.exchange(phase).has_chains else 1
            row_gradients = phase.sampler.row_gradients(run.federation.sizes)
            spent = {"row_gradients": np.nan if row_gradients is None else row_gradients * chains}
            spent |= run.crossing_bytes(phase)
            cost |= {name: cost.get(name, 0.0) + float(amount * rounds) for name, amount in spent.items()}
        # Half of a sum would mislead: it is told only where all phases know.
        return {name: amount for name, amount in cost.items() if not np.isnan(amount)}


def _joined(blocks: list[dict[str, Any]], run: Run) -> tuple[np.ndarray, np.ndarray | None, dict[str, np.ndarray]]:
    """Put the draws of blocks, their gradients and their statistics together."""
    if not blocks:
        return np.zeros((run.num_chains, 0, run.dimension), run.dtype), None, {}

    def join(parts: list[np.ndarray]) -> np.ndarray:
        return np.concatenate(parts, axis=1)

    gradients = [block["gradients"] for block in blocks if block.get("gradients") is not None]
    return (
        join([block["positions"] for block in blocks]),
        # Half of them could not be told apart: they are there where all phases know theirs.
        join(gradients) if len(gradients) == len(blocks) else None,
        {name: join([block["stats"][name] for block in blocks]) for name in blocks[0]["stats"]},
    )


def _versions() -> dict[str, str]:
    """Return what draws depend on beside settings and rows."""
    packages = {name: version(name) for name in ("fahmc", "jax", "numpy")}
    return {**packages, "python": platform.python_version(), "machine": platform.machine()}


def _outline(value: Any) -> Any:
    """Return the shapes and dtypes of arrays, however they are nested."""
    if isinstance(value, Mapping):
        return {name: _outline(entry) for name, entry in value.items()}
    array = np.asarray(value)
    return array.shape, array.dtype
