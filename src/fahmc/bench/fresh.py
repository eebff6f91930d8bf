"""What only a process of its own can tell: how soon the first draw is there, and how memory grows over a long run.

``python -m fahmc.bench.fresh MEASURE NUM_ROUNDS`` prints one JSON object; `measure` runs it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time

import psutil

import fahmc
from fahmc.bench import problems
from fahmc.dynamics.sampler import Phase
from fahmc.engines.in_process import InProcess
from fahmc.engines.run import Block, Run, Session
from fahmc.errors import FahmcError
from fahmc.types import Message

# The program is compiled in the first block; memory is compared from so many seconds after it on.
_SETTLES_IN = 2.0
_SAMPLED_EVERY = 0.05


def measure(name: str, num_rounds: int) -> dict[str, float]:
    """Measure in a new process, which finds no compiled programs of earlier ones."""
    environment = {key: value for key, value in os.environ.items() if key != "JAX_COMPILATION_CACHE_DIR"}
    command = [sys.executable, "-m", "fahmc.bench.fresh", name, str(num_rounds)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise FahmcError(f"The process that measures {name} failed: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout)


def first_draw(num_rounds: int) -> dict[str, float]:
    """Time a first call from the import's end on."""
    problem = problems.small()
    began = time.perf_counter()
    sampler = fahmc.FAHMC(0.1, num_leapfrog_steps=10)
    fahmc.sample(problem.model, problem.federation, sampler, num_rounds, progress=False)
    return {"value": time.perf_counter() - began}


def memory_growth(num_rounds: int) -> dict[str, float]:
    """Watch resident memory while a long run keeps every thousandth draw."""
    problem, engine, is_over = problems.linear(), _Watched(), threading.Event()
    samples: list[tuple[float, float]] = []

    def watch() -> None:
        while not is_over.wait(_SAMPLED_EVERY):
            samples.append((time.perf_counter(), _resident_megabytes()))

    watcher = threading.Thread(target=watch)
    watcher.start()
    began = time.perf_counter()
    try:
        sampler = fahmc.FALD(0.1)
        fahmc.sample(problem.model, problem.federation, sampler, num_rounds, thin=1000, engine=engine, progress=False)
    finally:
        is_over.set()
        watcher.join()
    ended = time.perf_counter()
    # A short run has settled half-way through what follows the first block.
    since = engine.block_ends[0] + min(_SETTLES_IN, (ended - engine.block_ends[0]) / 2)
    settled = [megabytes for when, megabytes in samples if when >= since] or [_resident_megabytes()]
    return {
        "value": max(settled) / settled[0],
        "megabytes_settled": settled[0],
        "megabytes_later": max(settled),
        "seconds": ended - began,
    }


class _Watched:
    """The default engine, noting when its blocks are over."""

    def __init__(self):
        self.block_ends: list[float] = []

    def start(self, run: Run) -> Session:
        return _WatchedSession(InProcess().start(run), self.block_ends)


class _WatchedSession:
    def __init__(self, session: Session, block_ends: list[float]):
        self._session, self._block_ends, self.path = session, block_ends, session.path

    def advance(self, phase: Phase, state: Message, first_round: int, num_rounds: int) -> Block:
        block = self._session.advance(phase, state, first_round, num_rounds)
        self._block_ends.append(time.perf_counter())
        return block


def _resident_megabytes() -> float:
    return psutil.Process().memory_info().rss / 2**20


if __name__ == "__main__":
    measures = {"first_draw": first_draw, "memory_growth": memory_growth}
    print(json.dumps(measures[sys.argv[1]](int(sys.argv[2]))))
