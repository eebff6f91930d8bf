"""Tries many mutated inputs, one a case, and counts what came of them.

A case is a number: case 123 of a part is the same on every machine, so a finding is repeated by naming it. A part tries
one input and returns a word for what became of it, such as ``"accepted"``; an error of fahmc's own counts as
``"refused"`` if it is a sentence. Everything else is a finding: another exception, a case that takes too long, an
assertion of the part's that fails (something was lost, something wrong was accepted).
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import pkgutil
import random
import signal
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import parts
from fahmc.errors import FahmcError

# A single case does some milliseconds of work; what computes for this long grows faster than its input.
SECONDS_A_CASE = 20
# What waits for so many times as long hangs. By the clock alone, other work on the machine would make findings.
_PATIENCE = 15

TryOne = Callable[[random.Random, Path], str]
_parts: dict[str, TryOne] = {}


def part(name: str) -> Callable[[TryOne], TryOne]:
    """Declare what tries one input: called with the case's own randomness and an empty folder."""

    def add(try_one: TryOne) -> TryOne:
        _parts[name] = try_one
        return try_one

    return add


def all_parts() -> dict[str, TryOne]:
    """Return every part, by name."""
    for module in pkgutil.iter_modules(parts.__path__):
        importlib.import_module(f"parts.{module.name}")
    return dict(sorted(_parts.items()))


class Finding(NamedTuple):
    """A case that should not have gone as it did."""

    part: str
    case: int
    what: str

    def __str__(self) -> str:
        return f"{self.part}, case {self.case}:\n{self.what}"


class Tally(NamedTuple):
    """What came of some cases."""

    outcomes: Counter[str]
    findings: list[Finding]
    seconds: float


def try_cases(name: str, cases: Iterable[int]) -> Tally:
    """Try cases of one part."""
    try_one, outcomes, findings, began = all_parts()[name], Counter(), [], time.perf_counter()
    logging.getLogger("fahmc").setLevel(logging.ERROR)
    for case in cases:
        with tempfile.TemporaryDirectory(prefix="fahmc-fuzz-") as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                with limited(SECONDS_A_CASE):
                    outcomes[try_one(random.Random(f"{name}:{case}"), Path(folder))] += 1
            except FahmcError as error:
                if complaint := _no_sentence(str(error)):
                    findings.append(Finding(name, case, f"{complaint}: {type(error).__name__}: {error}"))
                else:
                    outcomes["refused"] += 1
            except Exception:
                findings.append(Finding(name, case, traceback.format_exc()))
    outcomes["unexpected"] = len(findings)
    return Tally(outcomes, findings, time.perf_counter() - began)


def _no_sentence(message: str) -> str | None:
    """Say why a message helps nobody, or nothing."""
    if not message.strip():
        return "refused without a word"
    if message.rstrip()[-1] not in ".?!)":
        return "refused, but not in a sentence"
    return "refused at great length" if len(message) > 2000 else None


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise `TimeoutError` in what computes for longer, or waits for much longer, where signals can be had."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: object) -> None:
        raise TimeoutError(f"the case took more than {seconds} s")

    limits = ((signal.SIGPROF, signal.ITIMER_PROF, seconds), (signal.SIGALRM, signal.ITIMER_REAL, _PATIENCE * seconds))
    previous = [signal.signal(number, stop) for number, _, _ in limits]
    for _, timer, limit in limits:
        signal.setitimer(timer, limit)
    try:
        yield
    finally:
        for (number, timer, _), handler in zip(limits, previous, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(number, handler)
