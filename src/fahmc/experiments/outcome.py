"""What a figure comes to: a table, a picture, and for each claim of the paper whether it shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

    from fahmc.experiments.work import Work

# A pandas DataFrame. Pandas' own annotations let every selection be a Series too, which would need a cast each time.
Table = Any
Scale = Literal["smoke", "laptop", "paper"]
SCALES: tuple[Scale, ...] = ("smoke", "laptop", "paper")


class Standing(StrEnum):
    """Whether a claim of the paper shows in our numbers."""

    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not reproduced"
    OUT_OF_REACH = "out of reach at this scale"


class Claim(NamedTuple):
    """One claim of the paper, what we got, and how the two compare."""

    statement: str
    found: str
    standing: Standing


def judge(statement: str, found: str, holds: bool) -> Claim:
    """Return a claim that the numbers decide."""
    return Claim(statement, found, Standing.REPRODUCED if holds else Standing.NOT_REPRODUCED)


def out_of_reach(statement: str, found: str) -> Claim:
    """Return a claim that the numbers at hand cannot decide, and why."""
    return Claim(statement, found, Standing.OUT_OF_REACH)


@dataclass(frozen=True)
class Outcome:
    """A figure after its runs."""

    table: Table
    """Every number of the picture and of the sweeps behind it."""
    draw: Callable[[], Picture]
    claims: list[Claim]
    settings: Mapping[str, Any]
    """What was chosen for the whole figure, as JSON values; each run's own settings are filed with it."""
    notes: list[str] = field(default_factory=list)
    """What a reader should know before believing the picture."""
    tables: Mapping[str, Table] = field(default_factory=dict)
    """Further tables, by the name of their file."""


class Run(NamedTuple):
    """What a figure is given."""

    scale: Scale
    work: Work
    others: Callable[[str], Table | None]
    """The table of another figure of the same scale, if it was made."""
    hidden: tuple[int, ...] | None = None
    """Units of figure 5's hidden layers, if not the scale's own."""


@dataclass(frozen=True)
class Figure:
    """A figure of the paper."""

    name: str
    title: str
    needs: str
    """The data it takes, in words."""
    make: Callable[[Run], Outcome]
    images: tuple[str, ...] = ()
    """The image sets among it, by the names of `fahmc.experiments.image_sets`."""
