"""A progress bar for rounds, on standard error, and a Ctrl-C that ends a run between two blocks."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from fahmc.dynamics.sampler import Phase


class ShowRounds(Protocol):
    """Called after each block with the phase and its rounds done so far."""

    def __call__(self, phase: Phase, rounds_done: int, /) -> None:
        """Move the bar."""
        ...


@contextmanager
def round_progress(shown: bool | None) -> Iterator[ShowRounds]:
    """Show a bar with rounds per second and the time left; ``shown=None`` means only on a terminal."""
    if not (sys.stderr.isatty() if shown is None else shown):
        yield lambda phase, rounds_done: None
        return
    from rich import progress
    from rich.console import Console

    columns = [
        "{task.description:<8}", progress.BarColumn(), progress.MofNCompleteColumn(), "rounds", "{task.fields[rate]}",
        progress.TimeElapsedColumn(), "left", progress.TimeRemainingColumn(),
    ]  # fmt: skip
    with progress.Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=None, rate="compiling")

        def show(phase: Phase, rounds_done: int) -> None:
            speed = bar.tasks[0].speed
            is_warmup = phase.num_warmup_rounds is not None and phase.rounds_sampled(rounds_done) <= 0
            bar.update(
                task,
                completed=rounds_done,
                total=phase.num_rounds,
                description="warm-up" if is_warmup else phase.name,
                rate=f"{speed:,.0f}/s" if speed else "compiling",
            )

        yield show


class Interrupt:
    """Whether Ctrl-C was pressed. The first asks the run to stop after its block, the second stops it at once."""

    def __init__(self):
        self.requested = False

    def __enter__(self) -> Interrupt:
        # Only the main thread may set handlers; elsewhere Ctrl-C keeps its usual meaning.
        self._previous = None
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)

    def _handle(self, number: int, frame: object) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
