"""The clock: contenders take turns in one process, so that whatever else the machine does hits all of them alike.

Each repeat runs every contender once, for about the same time, and begins with another one. Ratios are taken within a
repeat, then summarised: the median, with the smallest and the largest.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

# A trial run of this share of the time wanted is long enough to extrapolate from.
_TRIAL_SHARE = 0.2


class Contender(Protocol):
    """Something that does the work of a case, unit by unit, going on from where it stopped."""

    @property
    def work_per_unit(self) -> float:
        """Chain-leapfrog steps in the smallest piece of work it can be asked for."""
        ...

    def run(self, num_units: int) -> None:
        """Do the work, and return when its result is there."""
        ...


class Spread(NamedTuple):
    """A number of each repeat, summarised."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Summarise."""
        values = list(values)
        return cls(statistics.median(values), min(values), max(values))


Rates = dict[str, list[float]]
"""Chain-leapfrog steps a second: of every contender, in every repeat."""


def race(
    contenders: Mapping[str, Contender],
    *,
    repeats: int,
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> Rates:
    """Time all contenders, ``repeats`` times each for about ``seconds``."""
    units = {label: calibrate(contender.run, seconds, clock) for label, contender in contenders.items()}
    rates: Rates = {label: [] for label in contenders}
    for repeat in range(repeats):
        for label in rotated(list(contenders), repeat):
            began = clock()
            contenders[label].run(units[label])
            rates[label].append(units[label] * contenders[label].work_per_unit / (clock() - began))
    return rates


def calibrate(run: Callable[[int], None], seconds: float, clock: Callable[[], float] = time.perf_counter) -> int:
    """Warm up, which compiles, and return how many units take about ``seconds``."""
    run(1)
    units = 1
    while True:
        began = clock()
        run(units)
        took = clock() - began
        if took >= _TRIAL_SHARE * seconds:
            return max(1, round(units * seconds / took))
        units *= 2


def rotated(labels: list[str], repeat: int) -> list[str]:
    """Return the order of a repeat: everybody's turn to go first comes."""
    first = repeat % len(labels)
    return labels[first:] + labels[:first]


def best(rates: Rates, labels: Iterable[str]) -> list[float]:
    """Return the highest rate of these contenders in each repeat."""
    return [max(turns) for turns in zip(*(rates[label] for label in labels), strict=True)]


def ratio(ours: Iterable[float], theirs: Iterable[float]) -> Spread:
    """Divide rates repeat by repeat."""
    return Spread.of(our_rate / their_rate for our_rate, their_rate in zip(ours, theirs, strict=True))
