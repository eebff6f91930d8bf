"""The text of a formula: what formulaic takes apart and multiplies out, and where in it something is refused.

Nothing of the text is run: formulaic's parser is used, and not what evaluates. What would multiply out to more terms
than a study has is refused before it does, as a site reads formulas that others write.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from fahmc.data.factor_syntax import NoSuchForm
from fahmc.errors import DataError, shown

SITE_GROUP = "site"
"""What stands for the client in ``(1 | site)``."""
MAX_LETTERS = 10_000
MAX_TERMS = 1_000
MAX_FACTORS = 5
"""Of one product."""

PLACEHOLDER = "\x01"
"""Stands in for (1 | site), which formulaic has no word for; no text of a user's holds it."""
_ONLY_SITES = (
    "the only such term is (1 | site), an intercept of every site. Rows of different sites never meet, so other groups "
    "(wards inside a site), and slopes that vary by site, are not supported; a column may be a predictor of its own"
)
_COLORS = re.compile(r"\x1b\[[0-9;]*m")


def name_group(text: str, column: str | None) -> str:
    """Return a formula in which ``(1 | column)`` is ``(1 | site)``, for a column that tells whose a row is."""
    check_letters(text)
    for tokens in _groups(text):
        name = tokens[3]
        if column is not None and name.token == column:
            return f"{text[: tokens[0].source_start]}(1 | {SITE_GROUP}){text[tokens[4].source_end + 1 :]}"
    return text


def check_letters(text: str) -> None:
    """Refuse texts that are too long, or that no message could show."""
    if len(text) > MAX_LETTERS:
        raise DataError(f"the formula has {len(text):,} letters; at most {MAX_LETTERS:,} are read.")
    if odd := next((letter for letter in text if not letter.isspace() and not letter.isprintable()), None):
        raise DataError(f"the formula holds the control character {odd!r}. Take it out.")


# Of formulaic's tokens: (1 | site)


def _groups(text: str) -> Iterator[Sequence[Any]]:
    """Find what has the form of ``(1 | name)``: its five tokens; refuse every other use of ``|``."""
    tokens = _tokens(text)
    for place, token in enumerate(tokens):
        if token.kind is not token.Kind.OPERATOR or "|" not in token.token:
            continue
        around = tokens[max(place - 2, 0) : place + 3]
        kinds = [near.kind.value for near in around]
        written = [near.token for near in around[:3]] + [around[-1].token]
        if kinds != ["context", "value", "operator", "name", "context"] or written != ["(", "1", "|", ")"]:
            refuse(text, (token.source_start, token.source_end), _ONLY_SITES)
        yield around


def without_group(text: str) -> tuple[tuple[int, int] | None, str]:
    """Put a name in the place of (1 | site), as long as that: what else is refused is refused where it stands."""
    span = None
    for tokens in _groups(text):
        here = (tokens[0].source_start, tokens[4].source_end)
        if tokens[3].token != SITE_GROUP:
            words = f"{_ONLY_SITES}. Where site_column tells whose a row is, its name may stand for site"
            refuse(text, here, words)
        span = here
        length = here[1] - here[0] + 1
        text = f"{text[: here[0]]}`{PLACEHOLDER * (length - 2)}`{text[here[1] + 1 :]}"
    return span, text


def _tokens(text: str) -> list[Any]:
    from formulaic.parser.algos.tokenize import tokenize  # slow to import, and only formulas need it

    with in_sentences(text):
        return list(tokenize(text))


# Terms


def expanded(text: str) -> tuple[Sequence[Any], Sequence[Any]]:
    """Return both sides as formulaic multiplies them out: products of its factors, those of few factors first."""
    from formulaic.parser import DefaultFormulaParser

    parser = DefaultFormulaParser(feature_flags=DefaultFormulaParser.FeatureFlags.TWOSIDED)
    with in_sentences(text):
        _check_names(text, parser.get_tokens(text))
        _check_extent(text, parser.get_ast(text))
        sides = parser.get_terms(text)
    if set(getattr(sides, "_structure", {})) != {"lhs", "rhs"}:
        raise DataError(f"formula = {said(text)}: it has no outcome; write outcome ~ predictors.")
    for term in sides.rhs:
        if len(term.factors) > MAX_FACTORS:
            raise DataError(
                f"formula = {said(text)}: a product of {len(term.factors)} columns; at most {MAX_FACTORS} are "
                "multiplied. Leave such terms out."
            )
    return [term.factors for term in sides.lhs], [term.factors for term in sorted(sides.rhs, key=lambda t: t.degree)]


def _check_names(text: str, tokens: Iterable[Any]) -> None:
    """Refuse a column that is called like a form: formulaic would take both for one."""
    kinds: dict[str, Any] = {}
    for token in tokens:
        if kinds.setdefault(token.token, token.kind) is not token.kind:
            raise DataError(f"formula = {said(text)}: {token.token} is a column and something else. Rename the column.")


def _check_extent(text: str, tree: Any) -> None:
    """Refuse what would multiply out to too many terms, before it does."""
    order, waiting = [], [tree]
    while waiting:
        node = waiting.pop()
        order.append(node)
        waiting += getattr(node, "args", ())
    extent: dict[int, int] = {}
    for node in reversed(order):
        if not hasattr(node, "operator"):
            extent[id(node)] = 1
            continue
        counts, symbol = [extent[id(part)] for part in node.args], node.operator.symbol
        if symbol == ".":
            raise DataError(f"formula = {said(text)}: `.` does not stand for other columns here; write them out.")
        if symbol in ("^", "**"):
            exponent = str(node.args[1])
            times = int(exponent) if re.fullmatch(r"[0-9]{1,2}", exponent) else 0
            if not 1 <= times <= MAX_FACTORS:
                raise DataError(
                    f"formula = {said(text)}: the power {exponent[:20]} of a sum of terms must be a whole number from "
                    f"1 to {MAX_FACTORS}."
                )
            extent[id(node)] = counts[0] ** times
        elif symbol in ("*", ":") and len(counts) == 2:
            extent[id(node)] = counts[0] * counts[1] + (sum(counts) if symbol == "*" else 0)
        else:
            extent[id(node)] = sum(counts)
        if extent[id(node)] > MAX_TERMS:
            raise DataError(f"formula = {said(text)}: it multiplies out to more than {MAX_TERMS:,} terms. Write fewer.")


def syntax_of(text: str, factor: Any) -> tuple[ast.expr, dict[str, str]]:
    """Parse what stands in a call, and return which columns the names in it mean that were quoted."""
    from formulaic.utils.code import sanitize_variable_names

    columns: dict[str, str] = {}
    with in_sentences(text):
        expression = sanitize_variable_names(factor.expr, {}, columns, template="_quoted_{}")
        return ast.parse(expression, mode="eval").body, columns


# Refusals


@contextmanager
def in_sentences(text: str) -> Iterator[None]:
    """Turn what formulaic and Python's parser complain about into a sentence."""
    from formulaic.errors import FormulaicError

    try:
        yield
    except DataError:
        raise
    except FormulaicError as error:
        message, _, context = _COLORS.sub("", str(error)).partition("\n\n")
        place = context.find("⧛")
        where = f", at letter {place + 1}" if place >= 0 else ""
        message = message.replace(PLACEHOLDER, "").split(" (tip")[0].rstrip(".")
        raise DataError(f"formula = {said(text)}{where}: {message}.") from error
    except SyntaxError as error:
        reason = error.msg.rstrip(".?")
        raise DataError(f"formula = {said(text)}: what stands in a call cannot be read: {reason}.") from error
    except (RecursionError, MemoryError) as error:
        raise DataError(f"formula = {said(text)}: it is nested too deeply to be read.") from error
    except Exception as error:  # of a parser that was given what no formula is
        raise DataError(f"formula = {said(text)}: it cannot be read; see whether a sign is missing.") from error


@contextmanager
def at_place(text: str, factor: Any) -> Iterator[None]:
    """Say where it stands, if no form can be read from a factor."""
    try:
        yield
    except NoSuchForm as error:
        refuse(text, span_of(factor), str(error), error)


def span_of(factor: Any) -> tuple[int, int] | None:
    """Return where in the text a factor of formulaic's begins and ends."""
    token = factor.token
    return None if token is None or token.source_start is None else (token.source_start, token.source_end)


def refuse(text: str, span: tuple[int, int] | None, complaint: str, cause: Exception | None = None) -> NoReturn:
    """Refuse a part of the text, and say where it stands."""
    where = "" if span is None else f", at letter {span[0] + 1}, {shown(text[span[0] : span[1] + 1])}"
    raise DataError(f"formula = {said(text)}{where}: {complaint}.") from cause


def said(text: str) -> str:
    """Show a formula in few words, as it was written."""
    return shown(re.sub(f"`{PLACEHOLDER}+`", "(1 | site)", " ".join(text.split())))
