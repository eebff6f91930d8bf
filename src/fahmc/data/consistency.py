"""Whether an encoding can have been agreed on with a client, judged by what the client has told of itself.

An encoding comes from elsewhere. If a client tried it on its rows, and refused where it does not fit, whoever wrote it
could learn cells: with a scale that overflows above a threshold, or a list of levels that lacks one. So the cells are
not looked at. What does not follow from the client's own summary is refused, whatever the rows hold; what does follow
from it fits them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fahmc.data.columns import Columns
from fahmc.data.encoding import Encoding
from fahmc.data.formula import read_formula
from fahmc.data.scales import Scale
from fahmc.data.summaries import MAX_LEVELS, ColumnSummary, TableSummary
from fahmc.errors import DataError

# In units of a scale that was pooled over n rows, no row is further than √(2n) from the mean.
_FURTHEST = 1e9


class TextHere(DataError):
    """A column that was agreed to hold numbers holds text at this client."""


def check_encoding(columns: Columns, encoding: Encoding, summary: TableSummary) -> None:
    """Refuse an encoding that `agree` cannot have made, given this summary among others."""
    features = list(encoding.features)
    if not features or len(set(features)) < len(features) or columns.outcome in features:
        raise DataError("an encoding needs features, each once, and not the outcome.")
    _check_formula(columns, encoding, summary)
    named = [*encoding.levels, *encoding.standardization]
    if len(set(named)) < len(named) or not set(named) <= {*features, *summary.functions}:
        raise DataError("an encoding has levels or a scale for some of its features, and not both.")
    for name in features:
        _check_column(name, summary.features[name], encoding.levels.get(name))
    _check_column(columns.named_outcome, summary.outcome, encoding.outcome_levels or None)
    for name, scale in encoding.standardization.items():
        if not columns.standardize or not _is_pooled(scale, summary.of(name)):
            raise DataError(f"the scale of {name!r} is {tuple(scale)}, which cannot come from these rows.", [name])


def _check_formula(columns: Columns, encoding: Encoding, summary: TableSummary) -> None:
    """Refuse a formula other than the one asked for, and what it cannot make sense of or has no scale for."""
    if encoding.formula != columns.formula:
        raise DataError("an encoding has the formula that was asked for, and no other.")
    if columns.formula is None:
        if encoding.spreads:
            raise DataError("without a formula, nothing but standardised features has a mean and an sd.")
        return
    formula = read_formula(columns.formula)
    standardized, spread = ({variable.name for variable in some} for some in (formula.standardized, formula.spread))
    if not set(encoding.standardization) <= standardized or not set(encoding.spreads) <= spread:
        raise DataError("an encoding of a formula has scales of what the formula takes in units of them.")
    for name, scale in encoding.spreads.items():
        if not _is_pooled(scale, summary.of(name)):
            raise DataError(f"mean and sd of {name!r} are {tuple(scale)}, which cannot come from these rows.", [name])
    encoding.feature_names  # noqa: B018  # which refuses what does not go together


def _check_column(name: str, summary: ColumnSummary, levels: Sequence[str] | None) -> None:
    if levels is None:
        if not summary.has_numbers:
            raise TextHere(f"column {name!r} holds text here, and was agreed to hold numbers.", [name])
        return
    is_list = 2 <= len(levels) <= MAX_LEVELS and len(set(levels)) == len(levels)
    if not is_list or summary.has_numbers or summary.num_levels > MAX_LEVELS or not set(summary.levels) <= set(levels):
        raise DataError(f"the levels of {name!r} do not follow from those that it has here.", [name])


def _is_pooled(scale: Scale, summary: ColumnSummary) -> bool:
    """Whether every row, of which only mean and sum of squares count here, is a number in units of the scale."""
    if not (math.isfinite(scale.mean) and math.isfinite(scale.sd) and scale.sd > 0):
        return False
    furthest = abs(summary.mean - scale.mean) + math.sqrt(summary.squares)
    return math.isfinite(furthest) and furthest <= _FURTHEST * scale.sd
