"""A progress bar for rounds, on standard error, and a Ctrl-C that ends a run between two blocks."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class ShowRounds(Protocol):
    """Called after each block with the rounds done so far."""

    def __call__(self, rounds_done: int, /) -> None:
        """Move the bar."""
        ...


@contextmanager
def round_progress(total: int, done: int, num_warmup_rounds: int, shown: bool | None) -> Iterator[ShowRounds]:
    """Show a bar with rounds per second and the time left; ``shown=None`` means only on a terminal."""
    if not (sys.stderr.isatty() if shown is None else shown):
        yield lambda rounds_done: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = [
        TextColumn("{task.description:<8}"), BarColumn(), MofNCompleteColumn(), TextColumn("rounds"),
        TextColumn("{task.fields[rate]}"), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
    ]  # fmt: skip
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("warm-up", total=total, completed=done, rate="compiling")

        def show_rounds(rounds_done: int) -> None:
            speed = bar.tasks[0].speed
            bar.update(
                task,
                completed=rounds_done,
                description="warm-up" if rounds_done < num_warmup_rounds else "sampling",
                rate=f"{speed:,.0f}/s" if speed else "",
            )

        yield show_rounds


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
