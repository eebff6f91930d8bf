"""A formula: the outcome and the terms of its predictor, read from text without running anything of it.

    preterm ~ treatment * age + bs(pocket_depth, df=4) + (1 | site)

formulaic splits the text and multiplies terms out (``*``, ``:``, ``^``, ``/``, ``-``). It would evaluate any Python
between them; here every factor is read as one of a closed list of forms (`fahmc.data.factors`) or refused, at
whoever asks and again at every site.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fahmc.data.factor_syntax import NoSuchForm, called, read_factor, read_name
from fahmc.data.factors import Factor, Levels, Plain, Variable
from fahmc.data.formula_text import (
    PLACEHOLDER,
    at_place,
    check_letters,
    expanded,
    refuse,
    said,
    span_of,
    syntax_of,
    without_group,
)
from fahmc.errors import DataError


@dataclass(frozen=True)
class Formula:
    """What a formula says."""

    text: str
    outcome: str
    event: str | None
    terms: tuple[tuple[Factor, ...], ...]
    """Products of factors, without the intercept, by the number of factors."""
    has_intercept: bool
    has_site_effects: bool
    offset: str | None
    exposure: str | None

    @property
    def factors(self) -> tuple[Factor, ...]:
        """The factors, each once."""
        return tuple(dict.fromkeys(factor for term in self.terms for factor in term))

    @property
    def features(self) -> tuple[str, ...]:
        """The columns of the table that it predicts from."""
        return tuple(dict.fromkeys(factor.variable.column for factor in self.factors))

    @property
    def categorical(self) -> tuple[str, ...]:
        """Those said to hold levels."""
        return tuple(dict.fromkeys(factor.variable.column for factor in self.factors if isinstance(factor, Levels)))

    @property
    def standardized(self) -> tuple[Variable, ...]:
        """The variables that a study which standardises takes in units of their sd, if they are numbers."""
        return _variables(factor for factor in self.factors if not factor.is_raw and not isinstance(factor, Levels))

    @property
    def spread(self) -> tuple[Variable, ...]:
        """The variables of which a factor needs mean and sd over all rows."""
        return _variables(factor for factor in self.factors if factor.needs_spread)

    def summarized(self, standardize: bool) -> tuple[Variable, ...]:
        """Return the variables of which every client's mean and sum of squares are needed."""
        return tuple(dict.fromkeys([*(self.standardized if standardize else ()), *self.spread]))

    @property
    def functions(self) -> tuple[Variable, ...]:
        """The variables that are functions of a column."""
        return tuple(variable for variable in _variables(self.factors) if variable.function)

    @property
    def model_settings(self) -> dict[str, Any]:
        """What it says of the model rather than of the rows."""
        effects = {"site_effects": "intercept"} if self.has_site_effects else {}
        return effects | ({} if self.has_intercept else {"intercept": False})


def _variables(factors: Iterable[Factor]) -> tuple[Variable, ...]:
    return tuple(dict.fromkeys(factor.variable for factor in factors))


@functools.lru_cache(maxsize=64)
def read_formula(text: str) -> Formula:
    """Read a formula, or refuse it in a sentence that says where."""
    check_letters(text)
    group, plain = without_group(text)
    left, right = expanded(plain)
    outcome, event = _read_outcome(text, left)
    has_intercept, has_site_effects, offsets, terms = False, False, {}, []
    for term in right:
        factors = [factor for factor in term if factor.expr != "1"]
        if not factors:
            has_intercept = True
        elif any(factor.expr.startswith(PLACEHOLDER) for factor in factors):
            if len(factors) > 1:
                refuse(text, group, "(1 | site) stands for itself; it cannot be multiplied with anything")
            has_site_effects = True
        elif (setting := _read_offset(text, factors)) is not None:
            name, column = setting
            if offsets.setdefault(name, column) != column:
                refuse(text, span_of(factors[0]), f"there is another {name} already: {offsets[name]!r}")
        else:
            terms.append(tuple(_read_factor(text, factor) for factor in factors))
    formula = Formula(
        text,
        outcome,
        event,
        tuple(terms),
        has_intercept,
        has_site_effects,
        offset=offsets.get("offset"),
        exposure=offsets.get("exposure"),
    )
    _check(formula)
    return formula


def _read_outcome(text: str, terms: Sequence[Any]) -> tuple[str, str | None]:
    """Read the left side: a column, or ``Surv(time, event)``."""
    words = "the outcome is one column, or Surv(time, event); make a column of anything else"
    if len(terms) != 1 or len(terms[0]) != 1:
        raise DataError(f"formula = {said(text)}: {words}.")
    (factor,) = terms[0]
    if factor.expr.startswith(PLACEHOLDER):
        raise DataError(f"formula = {said(text)}: {words}.")
    if factor.eval_method.value == "lookup":
        return factor.expr, None
    node, columns = syntax_of(text, factor)
    if called(node) != "Surv" or not isinstance(node, ast.Call) or len(node.args) != 2 or node.keywords:
        refuse(text, span_of(factor), words)
    with at_place(text, factor):
        outcome, event = (read_name(argument, columns) for argument in node.args)
    return outcome, event


def _read_offset(text: str, factors: Sequence[Any]) -> tuple[str, str] | None:
    """Read ``offset(x)`` or ``offset(log(x))``: the setting that it is, and its column."""
    for factor in factors:
        if factor.eval_method.value != "python" or not factor.expr.startswith("offset("):
            continue
        if len(factors) > 1:
            refuse(text, span_of(factor), "an offset has no coefficient; it cannot be multiplied with anything")
        node, columns = syntax_of(text, factor)
        with at_place(text, factor):
            if not isinstance(node, ast.Call) or len(node.args) != 1 or node.keywords:
                raise NoSuchForm("it is written offset(x) or offset(log(x))")
            (inner,) = node.args
            if isinstance(inner, ast.Call) and called(inner) == "log" and len(inner.args) == 1 and not inner.keywords:
                return "exposure", read_name(inner.args[0], columns)
            return "offset", read_name(inner, columns)
    return None


def _read_factor(text: str, factor: Any) -> Factor:
    if factor.eval_method.value == "lookup":
        return Plain(factor.expr, Variable(factor.expr))
    with at_place(text, factor):
        if factor.eval_method.value == "literal":
            raise NoSuchForm("a number may be 0 or 1, for the intercept; coefficients find the scale of terms")
        node, columns = syntax_of(text, factor)
        return read_factor(factor.expr, node, columns)


def _check(formula: Formula) -> None:
    """Refuse what no table could make sense of."""
    text = formula.text
    if not formula.terms:
        raise DataError(f"formula = {said(text)}: it names no predictor; name at least one.")
    if formula.outcome in formula.features:
        raise DataError(f"formula = {said(text)}: {formula.outcome!r} is the outcome, and cannot predict itself.")
    coded: dict[str, str] = {}
    for factor in formula.factors:
        column = factor.variable.column
        if column in formula.categorical and (other := coded.setdefault(column, factor.name)) != factor.name:
            raise DataError(
                f"formula = {said(text)}: {column!r} stands both as {other} and as {factor.name}; write it in one way "
                "everywhere."
            )
    for variable in formula.functions:
        if variable.name in formula.features:
            raise DataError(
                f"formula = {said(text)}: {variable.name} is the name of a column and a function of one. Rename it."
            )
