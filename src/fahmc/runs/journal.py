"""What a run tells of itself while it lives, for those who watch (`fahmc.live`): ``progress.json`` beside its blocks.

Nothing of the run depends on it. It is replaced as a whole whenever something is new: whoever reads sees one state or
the next; where it cannot be written, the run goes on untold.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fahmc import tree
from fahmc.durable import read_whole, write_atomically
from fahmc.engines.run import Run
from fahmc.owner import this_process
from fahmc.runs.checks import MANY_ROUNDS
from fahmc.runs.history import History

FILE = "progress.json"
FORMAT = 1
MOST_NAMES = 64
"""Parameters that are told by name, and may be watched."""


class Journal:
    """Tells where a run stands; to nobody, where it is kept nowhere.

    Parameters
    ----------
    folder
        The run's own, which this process holds.
    """

    def __init__(self, folder: Path | None):
        self._file = None if folder is None else folder / FILE
        self._said: dict[str, Any] = {}
        self.tell(format=FORMAT, process=this_process(), began=time.time(), ended=None, reason="")

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is not None and self._said.get("ended") is None:
            self.tell(ended="interrupted" if isinstance(error, KeyboardInterrupt) else "failed", reason=str(error))

    def tell(self, **news: Any) -> None:
        """Say what is new."""
        if self._file is not None and any(self._said.get(name, self) != value for name, value in news.items()):
            self._said |= news
            with suppress(OSError):
                content = json.dumps({**self._said, "at": time.time()}).encode()
                write_atomically(self._file, content, is_lasting=False)

    def tell_sites(self, sites: Mapping[str, str], reason: str) -> None:
        """Say how the sites of a federation are, and why nothing goes on, if that is so."""
        self.tell(sites=dict(sites), reason=reason)

    def tell_run(self, run: Run) -> None:
        """Say what is sampled."""
        self.tell(
            sampler=type(run.sampler).__name__,
            clients=list(run.federation.names),
            num_chains=run.num_chains,
            dimension=run.dimension,
            names=free_names(run),
            is_planned=run.num_rounds not in (None, MANY_ROUNDS),
        )

    def tell_progress(self, history: History) -> None:
        """Say which phase the run is in, and what its course has decided."""
        phases = [
            {"name": phase.name, "rounds": rounds, "num_rounds": phase.num_rounds, "warmup": phase.num_warmup_rounds}
            for phase, rounds in zip(history.phases, history.rounds, strict=True)
        ]
        course = {name: history.course[name] for name in ("choices", "doubts", "trace") if name in history.course}
        self.tell(phases=phases, course=course, reason="")


def free_names(run: Run) -> list[str]:
    """Name the first of the numbers that a run moves: the parameters, or what they are made of."""
    model, names = run.model, []
    for name, leaf in tree.named_leaves(run.target.template).items():
        free = " (unconstrained)" if name in (model.supports or {}) else ""
        dims = itertools.chain(() if free else model.dims.get(name, ()), itertools.repeat(""))
        labels = [model.coords.get(dim, range(size)) for dim, size in zip(dims, leaf.shape, strict=False)]
        entries = itertools.islice(itertools.product(*labels), MOST_NAMES - len(names))
        names += [f"{name}[{', '.join(map(str, entry))}]{free}" if entry else f"{name}{free}" for entry in entries]
    return names


def read_journal(folder: Path) -> dict[str, Any] | None:
    """Return what a run has told, if there is anything that can be read."""
    try:
        told = json.loads(read_whole(folder / FILE))
        return told if isinstance(told, dict) and {"process", "began", "at", "ended", "reason"} <= told.keys() else None
    except (OSError, ValueError):
        return None
