"""How a run is cut into blocks: draws do not depend on it, but a progress bar, Ctrl-C and a kill do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fahmc.dynamics.sampler import Phase
from fahmc.report.convergence import EssAbove, RHatBelow
from fahmc.types import Position

# A block takes about 1 % of the time so far, within these seconds: short enough for a progress bar, Ctrl-C and little
# loss at a kill, long enough that starting a block and writing it to disk cost nothing.
_SHORTEST_BLOCK, _LONGEST_BLOCK = 0.5, 10.0


@dataclass
class Pacing:
    """How a phase is cut into blocks, and whether it may stop before its end."""

    stop_when: RHatBelow | EssAbove | None
    block_rounds: int | None
    _rate: float = field(default=0.0, init=False)
    _elapsed: float = field(default=0.0, init=False)
    _last: int = field(default=0, init=False)

    def is_over(self, phase: Phase, rounds_done: int, positions: Callable[[], Position]) -> bool:
        """Whether the stopping rule holds. It looks at fixed counts of draws, so that speed decides nothing."""
        sampled = phase.rounds_sampled(rounds_done - 1)
        if self.stop_when is None or sampled <= 0 or sampled % (phase.thin * self.stop_when.every):
            return False
        return self.stop_when(positions())

    def next_block(self, phase: Phase, rounds_done: int, capacity: int) -> int:
        """How many rounds to run next: not past the warm-up's end, the next check, or the buffers' capacity."""
        if self.block_rounds is not None:
            wanted = self.block_rounds
        else:
            seconds = min(max(_SHORTEST_BLOCK, 0.01 * self._elapsed), _LONGEST_BLOCK)
            # The first blocks are short, as nothing is known of the speed yet.
            wanted = max(1, min(8 * self._last, int(self._rate * seconds)))
        limits = [wanted, capacity * phase.thin, phase.num_rounds - rounds_done]
        sampled = phase.rounds_sampled(rounds_done - 1)
        if sampled < 0:
            limits.append(-sampled)
        elif self.stop_when is not None:
            between = phase.thin * self.stop_when.every
            limits.append(between - sampled % between)
        return min(limits)

    def measured(self, num_rounds: int, seconds: float) -> None:
        """Learn from a block how long the next should be."""
        self._rate, self._elapsed, self._last = num_rounds / max(seconds, 1e-6), self._elapsed + seconds, num_rounds
