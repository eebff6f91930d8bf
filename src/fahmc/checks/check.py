"""What a question about draws is: answered where the rows are, concluded where the draws are.

    analyst                          every site                               analyst
    ───────                          ──────────                               ───────
    check, fits ── question ──▶      check.answer(fits, minimum) ── sums ──▶  check.conclude(answers by site)

A site makes the check itself from its name and settings, like a sampler, and refuses what it does not list. An answer
is arrays of shapes that the check declares before it has seen a row, so none of them can have a place for every row;
and what it counts, it counts no less than ``minimum`` of, or does not tell (`fahmc.checks.groups`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import jax
import numpy as np

from fahmc.density.model import Model
from fahmc.errors import DataError, FederationError, ModelError, SettingsError, shown
from fahmc.registry import takes
from fahmc.types import Batch, Position

Answer: TypeAlias = Mapping[str, np.ndarray]
"""What a site says: sums and counts, by name."""


class Fit(NamedTuple):
    """A model, draws from its posterior, and the rows of one site as the model takes them."""

    model: Model
    positions: Position
    """A pytree of arrays [draw, ...]: chains side by side, on the scale of the model's functions."""
    rows: Batch
    site: str = ""
    """Whose rows they are."""
    private_seed: int | None = None
    """Of randomness that a site keeps to itself; None where rows are here, and everything follows from the question."""

    @property
    def num_draws(self) -> int:
        """Draws of all chains."""
        return len(jax.tree.leaves(self.positions)[0])

    @property
    def num_rows(self) -> int:
        """Rows of the site."""
        return len(jax.tree.leaves(self.rows)[0])

    @property
    def outcome(self) -> np.ndarray:
        """What the model explains, [row]."""
        name = getattr(self.model, "outcome", None) or "y"
        if not isinstance(self.rows, Mapping) or name not in self.rows:
            raise ModelError(f"The rows have no entry {name!r} with the outcome; name it in Model(outcome=...).")
        return np.asarray(self.rows[name])


class Check(Protocol):
    """A question about draws: a frozen dataclass with ``@fahmc.register("check")``, whose fields are its settings."""

    def shapes(self, num_draws: Sequence[int]) -> dict[str, tuple[int, ...]]:
        """Return the shape of every array of an answer, given how many draws each fit has."""
        ...

    def answer(self, fits: Sequence[Fit], minimum: int) -> Answer:
        """Sum up, where the rows are; what counts fewer than ``minimum`` rows is not told."""
        ...

    def conclude(self, answers: Mapping[str, Answer]) -> Any:
        """Put the sites' answers together."""
        ...


takes("check", Check)


def only_fit(fits: Sequence[Any], check: str) -> Any:
    """Return the one fit that a check of single models is asked about."""
    if len(fits) != 1:
        raise SettingsError(f"{check} is about one model, but {len(fits)} came; ask about them one by one.")
    return fits[0]


class OtherRows(DataError):
    """Models that are compared were fitted to different rows."""


def checked_answer(check: Check, num_draws: Sequence[int], answer: Any, sender: str) -> dict[str, np.ndarray]:
    """Return an answer as arrays of double precision, or refuse one that is not what the check declares."""
    expected = check.shapes(num_draws)
    came = {name: np.shape(value) for name, value in answer.items()}
    if came != expected:
        raise FederationError(
            f"{sender} answered {type(check).__name__} with arrays of shapes {shown(came)}; it declares "
            f"{shown(expected)}."
        )
    return {name: np.asarray(value, np.float64) for name, value in answer.items()}


def answer_here(check: Check, fits: Sequence[Fit], minimum: int) -> dict[str, np.ndarray]:
    """Answer a question with rows that are here."""
    answer = check.answer(fits, minimum)
    return checked_answer(check, [fit.num_draws for fit in fits], answer, type(check).__name__)
