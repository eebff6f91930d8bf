"""Which columns a study takes from every client's table, and how: the one list of these settings.

`Sites` and the section [data] of a configuration inherit them. Nothing here needs pandas, which `import fahmc` spares.
"""

# Annotations are not left as strings: Pydantic before 2.10 would look up their names where a class inherits them.
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fahmc import door
from fahmc.errors import DataError, shown
from fahmc.hints import Name


@dataclass(frozen=True)
class Columns:
    """What a study takes from every client's table, the same at all of them."""

    outcome: Name | None = None
    """Column to predict. Text needs ``outcome_levels`` or, with two levels, ``outcome_positive``; numbers stay. Without
    an outcome, npz arrays go as they are."""
    features: Sequence[Name] | None = None
    """Columns to predict from; by default all but the outcome and those that say how a row counts. Numbers stay
    numbers. Text becomes one 0/1 column for each level but the alphabetically first."""
    outcome_positive: str | None = None
    """The level of the outcome that counts as 1."""
    categorical: Sequence[Name] = ()
    """Features whose numbers are codes, to be treated as text."""
    missing: Literal["error", "drop"] = "error"
    """What to do with a row that lacks a value: refuse it, or drop it and count it."""
    standardize: bool = True
    """Centre and scale features that are numbers other than 0/1, by the mean and sd over all clients' rows."""
    offset: Name | None = None
    """Column that is added to the linear predictor, with no coefficient of its own."""
    exposure: Name | None = None
    """Column whose logarithm is added to the linear predictor: days observed, women at risk. Above 0."""
    row_weights: Name | None = None
    """Column by which a row's log likelihood is multiplied: 2 is like having the row twice. 0 or more."""
    event: Name | None = None
    """Column of a survival study: 1 where it happened at the time of the outcome, 0 where that time was censored."""
    trials: Name | None = None
    """Column of a binomial study: of how many trials the outcome counts the successes."""
    formula: Name | None = None
    """Outcome and predictor in one, ``"ill ~ treatment * age + bs(dose, df=4) + (1 | site)"``, instead of outcome,
    features and categorical: docs/formula.md."""
    outcome_levels: Sequence[Name] = ()
    """The levels of the outcome in the order in which they count as 0, 1, ...: ``["none", "mild", "severe"]``."""
    missing_values: Sequence[Name | int | float] = ()
    """What stands for a missing value in the files, beside empty cells, ``.``, ``NA``, ``N/A``, ``NaN`` and ``NULL``:
    ``["?", -9]``. The same at all clients; a number is one however it is written."""
    bounds: Mapping[Name, Sequence[float]] | None = None
    """Public bounds [low, high] of every feature that is a number. Scales then come from them and levels from
    ``levels``, and nothing of the rows is told to agree on either (`fahmc.data.public`)."""
    levels: Mapping[Name, Sequence[Name]] | None = None
    """With bounds, the levels of every feature that is text or codes."""

    def __post_init__(self):
        door.check(self, DataError)
        if self.formula is not None:
            self._follow(self.formula)
        levels = self.outcome_positive or self.outcome_levels
        others = self.features is not None or self.categorical or levels or self.row_columns
        if self.outcome is None and others:
            raise DataError(
                f"{type(self).__name__} names features without an outcome; name the outcome column as well."
            )
        if setting := next((name for name, column in self.row_columns.items() if column == self.outcome), None):
            raise DataError(f"{setting} and outcome are both {self.outcome!r}; name another column as {setting}.")
        if self.outcome_positive is not None and self.outcome_levels:
            raise DataError("outcome_positive and outcome_levels both say how the outcome counts; leave one out.")
        if len(set(self.outcome_levels)) < len(self.outcome_levels):
            raise DataError(f"outcome_levels = {shown(list(self.outcome_levels))}; name each level once.")
        _check_public(self)
        object.__setattr__(self, "outcome_levels", tuple(self.outcome_levels))
        object.__setattr__(self, "features", None if self.features is None else tuple(self.features))
        object.__setattr__(self, "categorical", tuple(self.categorical))
        object.__setattr__(self, "missing_values", tuple(self.missing_values))

    def _follow(self, text: str) -> None:
        """Take what the formula says; what was said beside it may not say otherwise."""
        from fahmc.data.formula import read_formula  # which needs pandas

        formula = read_formula(text)
        for name in ("outcome", "event", "offset", "exposure", "features", "categorical"):
            given, meant = getattr(self, name), getattr(formula, name)
            is_list = name in ("features", "categorical")
            if (is_list and given and tuple(given) != meant) or (not is_list and given and meant and given != meant):
                raise DataError(
                    f"{name} = {shown(given)}, but the formula says {shown(meant)}: {shown(text)}. Leave {name} out."
                )
            object.__setattr__(self, name, meant or given)

    @property
    def named_outcome(self) -> str:
        """The outcome, where there must be one."""
        if self.outcome is None:
            raise DataError("no outcome is named; name the column to predict.")
        return self.outcome

    @property
    def outcome_is_text(self) -> bool:
        """Whether the outcome's numbers are codes, since its levels are named."""
        return self.outcome_positive is not None or bool(self.outcome_levels)

    @property
    def row_columns(self) -> dict[str, str]:
        """The columns that say how a row counts, by the setting that names them."""
        named = {name: getattr(self, name) for name in ("offset", "exposure", "row_weights", "event", "trials")}
        return {name: column for name, column in named.items() if column is not None}

    @property
    def model_settings(self) -> dict[str, Any]:
        """What the formula says of the model rather than of the rows: (1 | site), no intercept."""
        if self.formula is None:
            return {}
        from fahmc.data.formula import read_formula

        return read_formula(self.formula).model_settings

    def in_table(self, features: Sequence[str]) -> list[str]:
        """Return every column of a table that is needed for these features, each once."""
        if self.formula is not None and tuple(features) != self.features:
            raise DataError(f"features = {shown(features)}, but the formula names {shown(self.features)}.")
        return list(dict.fromkeys([self.named_outcome, *features, *self.row_columns.values()]))


def _check_public(columns: Columns) -> None:
    """Refuse bounds that leave anything to the rows."""
    bounds, levels = columns.bounds, columns.levels or {}
    if bounds is None:
        if levels:
            raise DataError("levels are named, but no bounds. Name bounds of the features that are numbers as well.")
        return
    for name, pair in bounds.items():
        if len(pair) != 2 or not -math.inf < pair[0] < pair[1] < math.inf:
            raise DataError(f"bounds of {name!r} are {shown(list(pair))}; two numbers are needed, [low, high].")
    if columns.formula is not None or columns.row_columns or not columns.standardize:
        raise DataError(
            "With bounds, name outcome and features: no formula, no column that says how a row counts, and "
            "standardize stays as it is."
        )
    if columns.outcome_positive is not None:
        raise DataError('With bounds, name all levels of the outcome: outcome_levels = ["no", "yes"].')
    named = [*bounds, *levels]
    if columns.features is None or sorted(columns.features) != sorted(named):
        raise DataError(
            f"With bounds, every feature has bounds or levels: features = {shown(list(columns.features or ()))}, but "
            f"named are {shown(named)}."
        )
    for name, some in levels.items():
        if len(set(some)) < max(2, len(some)):
            raise DataError(f"levels of {name!r} are {shown(list(some))}; two or more are needed, each once.")
