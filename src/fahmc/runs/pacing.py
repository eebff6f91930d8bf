"""How a run is cut into blocks: draws do not depend on it, but a progress bar, Ctrl-C and a kill do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fahmc.report.convergence import RHatBelow
from fahmc.types import Position

# A block takes about 1 % of the time so far, within these seconds: short enough for a progress bar, Ctrl-C and little
# loss at a kill, long enough that starting a block and writing it to disk cost nothing.
_SHORTEST_BLOCK, _LONGEST_BLOCK = 0.5, 10.0


@dataclass
class Pacing:
    """How long the run is, and how it is cut into blocks."""

    num_warmup_rounds: int
    num_rounds: int
    thin: int
    stop_when: RHatBelow | None
    block_rounds: int | None
    _rate: float = field(default=0.0, init=False)
    _elapsed: float = field(default=0.0, init=False)
    _last: int = field(default=0, init=False)

    @property
    def total(self) -> int:
        """Rounds with warm-up."""
        return self.num_warmup_rounds + self.num_rounds

    def draws_at(self, rounds_done: int) -> int:
        """How many draws a chain has kept after so many rounds."""
        return max(0, rounds_done - self.num_warmup_rounds) // self.thin

    def is_over(self, rounds_done: int, positions: Callable[[], Position]) -> bool:
        """Whether the stopping rule holds. It looks at fixed counts of draws, so that speed decides nothing."""
        sampled = rounds_done - self.num_warmup_rounds
        if self.stop_when is None or sampled <= 0 or sampled % (self.thin * self.stop_when.every):
            return False
        return self.stop_when(positions())

    def next_block(self, rounds_done: int, capacity: int) -> int:
        """How many rounds to run next: not past the warm-up's end, the next check, or the buffers' capacity."""
        if self.block_rounds is not None:
            wanted = self.block_rounds
        else:
            seconds = min(max(_SHORTEST_BLOCK, 0.01 * self._elapsed), _LONGEST_BLOCK)
            # The first blocks are short, as nothing is known of the speed yet.
            wanted = max(1, min(8 * self._last, int(self._rate * seconds)))
        limits = [wanted, capacity * self.thin, self.total - rounds_done]
        if rounds_done < self.num_warmup_rounds:
            limits.append(self.num_warmup_rounds - rounds_done)
        elif self.stop_when is not None:
            between = self.thin * self.stop_when.every
            limits.append(between - (rounds_done - self.num_warmup_rounds) % between)
        return min(limits)

    def measured(self, num_rounds: int, seconds: float) -> None:
        """Learn from a block how long the next should be."""
        self._rate, self._elapsed, self._last = num_rounds / max(seconds, 1e-6), self._elapsed + seconds, num_rounds
