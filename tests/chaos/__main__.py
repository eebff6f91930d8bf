"""Harm real federations at random: ``python tests/chaos [--faults N] [--seed S]``; one fault again: ``--one 123``.

Kills, stops and cuts what a federation consists of while it samples. Ends with 1 unless every run came to its end with
the very draws of an undisturbed run, and nothing was left behind.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import numpy as np
from faults import Fault
from world import Analyst, World

# So many rounds after a fault show that the federation is over it: the server may have had some in store.
_ENOUGH = 25
_FAULTS_A_FEDERATION, _FAULTS_A_RUN = 34, 9


class Chaos:
    """Federations, what is done to them, and what became of it."""

    def __init__(self, faults: Iterator[Fault], folder: Path):
        self._faults, self._folder = faults, folder
        self._expected: dict[str, dict[str, np.ndarray]] = {}
        self.lost: dict[str, list[float]] = defaultdict(list)
        self.failures: list[str] = []
        self.survived = 0

    def harm_one_federation(self, number: int, studies: Iterator[str]) -> None:
        """Start a federation, do harm to a few runs of it, stop it, and look whether it is gone."""
        folder = self._folder / f"federation-{number}"
        folder.mkdir()
        waiting = list(itertools.islice(self._faults, _FAULTS_A_FEDERATION))
        with World(folder) as world:
            _say(f"federation {number}: {len(waiting)} faults to come")
            while waiting:
                study = next(studies)
                if study not in self._expected:
                    began, run = time.monotonic(), Analyst(world, study, folder / f"undisturbed-{study}")
                    while not run.is_over:
                        time.sleep(0.1)
                    self._expected[study] = run.draws()
                    _say(f"undisturbed {study}: {run.rounds} rounds in {time.monotonic() - began:.0f} s")
                self._harm_one_run(world, study, waiting, folder)
        if left := world.leftovers():
            self._fail(f"federation {number} left behind: {', '.join(left)}")
        else:
            _say(f"federation {number}: gone, no process and no port left")

    def _harm_one_run(self, world: World, study: str, waiting: list[Fault], folder: Path) -> None:
        done: list[Fault] = []
        run = Analyst(world, study, folder / f"{study}-{waiting[0].number}")
        try:
            pace = run.await_rounds(_ENOUGH)
            while waiting and len(done) < _FAULTS_A_RUN and pace is not None and not run.is_over:
                # Two that come on each other's heels, not more: nobody promises to survive without end.
                together = 2 if len(waiting) > 1 and waiting[1].is_hasty else 1
                done += (now := [waiting.pop(0) for _ in range(together)])
                self._do(world, run, now)
            while not run.is_over:
                run.await_rounds(1)
            self._compare(study, run.draws())
        except AssertionError as fault:
            self._fail(f"{study}, faults {', '.join(str(one.number) for one in done)}: {fault}")
            run.process.kill()
            return
        self.survived += len(done)
        _say(f"{study}: {run.rounds} rounds, {len(done)} faults, {run.number_of_starts} starts: the very same draws")

    def _do(self, world: World, run: Analyst, faults: list[Fault]) -> None:
        began = 0.0
        for fault in faults:
            time.sleep(fault.moment)
            began = time.monotonic()
            end = fault.do(world, run)
            fault.last()
            end()
        took = run.await_rounds(_ENOUGH)
        lost = time.monotonic() - began
        if took is None:
            return _say(f"  {faults[-1].number:>4} {faults[-1]}: the run was about to end")
        for fault in faults[:-1]:
            _say(f"  {fault.number:>4} {fault}: and before that was over")
        self.lost[faults[-1].kind].append(lost)
        _say(f"  {faults[-1].number:>4} {faults[-1]}: {lost:.1f} s lost")

    def _compare(self, study: str, draws: dict[str, np.ndarray]) -> None:
        expected = self._expected[study]
        assert draws.keys() == expected.keys(), "other values than an undisturbed run has"
        for name, values in expected.items():
            assert draws[name].tobytes() == values.tobytes(), f"{name} differs from the undisturbed run"

    def _fail(self, words: str) -> None:
        self.failures.append(words)
        _say(f"FAILED {words}")

    def report(self) -> None:
        """Print how much time each kind of fault cost."""
        print(f"\n{'fault':<32}{'times':>6}  {'median':>7}  {'most':>7}   seconds until rounds come again")
        for kind, seconds in sorted(self.lost.items()):
            print(f"{kind:<32}{len(seconds):>6}  {statistics.median(seconds):>7.1f}  {max(seconds):>7.1f}")


def _say(words: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {words}", flush=True)


def main() -> int:
    """Do what the command line asks for."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--faults", type=int, default=100, help="how many")
    arguments.add_argument("--seed", type=int, default=0, help="another seed, other faults")
    arguments.add_argument("--one", type=int, help="this fault alone")
    asked = arguments.parse_args()
    numbers = range(asked.faults) if asked.one is None else [asked.one]
    began, faults = time.monotonic(), [Fault.of(asked.seed, number) for number in numbers]
    studies = itertools.cycle(["split", "fa-hmc", "fa-hmc"])
    with tempfile.TemporaryDirectory(prefix="fahmc-chaos-") as folder:
        # Participants keep what they compile in their kits; here all of them may share it.
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(folder) / "compiled"))
        chaos = Chaos(iter(faults), Path(folder))
        for number, _ in enumerate(range(0, len(faults), _FAULTS_A_FEDERATION)):
            chaos.harm_one_federation(number, studies)
    chaos.report()
    minutes = (time.monotonic() - began) / 60
    print(f"{chaos.survived} of {len(faults)} faults survived to the bit in {minutes:.0f} minutes")
    for failure in chaos.failures:
        print(failure, file=sys.stderr)
    return 0 if chaos.survived == len(faults) and not chaos.failures else 1


if __name__ == "__main__":
    sys.exit(main())
