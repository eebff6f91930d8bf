"""What fits a type hint: the one answer to that, for Python's values and plain ones alike, and its words.

Hints are those of `typing`, with the limits of `annotated_types` among their marks; classes and protocols of fahmc's
are introduced with words of their own. A hint that is not understood here lets everything in.
"""

from __future__ import annotations

import collections.abc
import math
import os
import types
import typing
from collections.abc import Callable, Hashable, Iterable
from typing import Annotated, Any, Literal, NamedTuple

import jax
import numpy as np
from annotated_types import Interval, Len

from fahmc.errors import FahmcError, shown

_UNIONS = (typing.Union, types.UnionType)
_LISTS = (collections.abc.Sequence, list, tuple)
_TABLES = (collections.abc.Mapping, dict)
_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a finite number",
    bool: "True or False",
    str: "text",
    os.PathLike: "a path",
    None: "None",
    types.NoneType: "None",
}


class Unfit(Exception):
    """What came does not fit a hint; ``needed`` says what would, ``error`` what is raised, if the hint says so.

    In a list or table it is a single ``value`` that does not fit; ``place`` says where, such as ``[3]``.
    """

    def __init__(self, needed: str, value: Any, error: type[FahmcError] | None = None, place: str = ""):
        super().__init__(needed)
        self.needed, self.value, self.error, self.place = needed, value, error, place


class _Kind(NamedTuple):
    """What a class or protocol stands for."""

    words: str
    admits: Callable[[Any], bool]
    error: type[FahmcError] | None


_kinds: dict[Any, _Kind] = {}


def introduce(
    hint: Any, words: str, admits: Callable[[Any], bool] | None = None, error: type[FahmcError] | None = None
) -> None:
    """Say in words what fits a class or protocol; by default its instances, refused with the caller's error."""
    _kinds[hint] = _Kind(words, admits or (lambda value: isinstance(value, hint)), error)


def fitted(hint: Any, value: Any) -> Any:
    """Return a value as a hint has it, or raise `Unfit`."""
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        try:
            kept = fitted(options[0], value)
        except Unfit as unfit:
            raise unfit if unfit.place else Unfit(words(hint), value, unfit.error) from None
        return kept if _is_within(options[1:], kept) else _fits(False, hint, value)
    if origin in _UNIONS:
        return _first_fitting(hint, options, value)
    if origin is Literal:
        value = str(value) if isinstance(value, np.str_) else value
        return _fits(any(type(value) is type(option) and value == option for option in options), hint, value)
    if origin in _LISTS:
        return _fitted_items(hint, options, value)
    if origin in _TABLES:
        return _fitted_entries(hint, options, value)
    if hint in (int, float):
        return _fitted_number(hint, value)
    if hint in (None, types.NoneType):
        return _fits(value is None, hint, value)
    if isinstance(value, np.bool_ | np.str_) and hint in (bool, str):
        value = value.item()
    if isinstance(hint, Hashable) and hint in _kinds:
        return _fits(_kinds[hint].admits(value), hint, value)
    if _is_function(hint):
        return _fits(callable(value), hint, value)
    is_class = isinstance(hint, type) and hint is not Any and origin is None
    is_checked = is_class and not getattr(hint, "_is_protocol", False)
    return _fits(not is_checked or isinstance(value, typing.cast(type, hint)), hint, value)


def words(hint: Any) -> str:
    """Say what fits a hint, to stand after 'it must be'."""
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _bounded_words(*options)
    if origin in _UNIONS or origin is Literal:
        return _either(_alternatives(hint))
    if origin in _LISTS:
        return f"a list of {_plural(options[0])}" if options else "a list"
    if origin in _TABLES:
        return f"a dict from names to {_plural(options[1])}" if options else "a dict"
    if isinstance(hint, Hashable) and hint in _kinds:
        return _kinds[hint].words
    if _is_function(hint):
        return "a function"
    return _WORDS.get(origin or hint) or f"a {getattr(hint, '__name__', hint)}"


def _alternatives(hint: Any) -> list[str]:
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return [repr(option) for option in options]
    return [word for option in options for word in _alternatives(option)] if origin in _UNIONS else [words(hint)]


def _either(alternatives: Iterable[str]) -> str:
    *others, last = dict.fromkeys(alternatives)
    return f"{', '.join(others)} or {last}" if others else last


def _plural(hint: Any) -> str:
    """Say what fits a hint of many: ``whole numbers from 1 to 9``, ``texts``."""
    said = words(hint).removeprefix("a ")
    nouns = ("list", "dict", "number", "text", "function")
    first = min((noun for noun in nouns if noun in said), key=said.index, default="")
    return said.replace(first, f"{first}s", 1) if first else said


def _is_function(hint: Any) -> bool:
    return hint is Callable or typing.get_origin(hint) is collections.abc.Callable


def _fits(does_it: bool, hint: Any, value: Any) -> Any:
    if not does_it:
        kind = _kinds.get(hint) if isinstance(hint, Hashable) else None
        raise Unfit(words(hint), value, None if kind is None else kind.error)
    return value


def _first_fitting(hint: Any, options: Iterable[Any], value: Any) -> Any:
    error = None
    for option in options:
        try:
            return fitted(option, value)
        except Unfit as unfit:
            if unfit.place:
                raise
            error = error or unfit.error
    raise Unfit(words(hint), value, error)


def _fitted_number(hint: type, value: Any) -> int | float:
    """Return a number of any library as Python's; floats are finite."""
    is_array = isinstance(value, np.generic | np.ndarray | jax.Array) and np.ndim(value) == 0
    kind = (
        getattr(value.dtype, "kind", "")
        if is_array
        else "i"
        if isinstance(value, int)
        else "f"
        if isinstance(value, float)
        else ""
    )
    if isinstance(value, bool) or kind not in tuple("iu" if hint is int else "iuf"):
        raise Unfit(words(hint), value)
    try:
        number = hint(value)
    except OverflowError:
        number = math.inf
    if hint is float and not math.isfinite(number):
        raise Unfit(words(hint), value)
    return number


def _fitted_items(hint: Any, options: tuple[Any, ...], value: Any) -> Any:
    """Return a list as a list unless a tuple is asked for; any other sequence, or array of one axis, as a tuple."""
    if getattr(value, "ndim", None) == 1 and hasattr(value, "tolist"):  # an array, or a column or index of pandas
        value = tuple(value.tolist())
    if isinstance(value, str | bytes) or not isinstance(value, collections.abc.Sequence):
        raise Unfit(words(hint), value)
    items = [_fitted_at(f"[{index}]", options[0], item) for index, item in enumerate(value)] if options else value
    return items if isinstance(value, list) and typing.get_origin(hint) is not tuple else tuple(items)


def _fitted_entries(hint: Any, options: tuple[Any, ...], value: Any) -> Any:
    if not isinstance(value, collections.abc.Mapping):
        raise Unfit(words(hint), value)
    return {
        _fitted_at(" has a name that", options[0], key): _fitted_at(f"[{shown(key)}]", options[1], entry)
        for key, entry in value.items()
    }


def _fitted_at(place: str, hint: Any, value: Any) -> Any:
    try:
        return fitted(hint, value)
    except Unfit as unfit:
        raise Unfit(unfit.needed, unfit.value, unfit.error, place + unfit.place) from None


# Limits


class Of(NamedTuple):
    """A mark of a hint that says what is counted or measured."""

    unit: str


def _is_within(marks: Iterable[Any], value: Any) -> bool:
    """Say whether a value keeps to the limits among a hint's marks."""
    holds = True
    for mark in marks:
        if isinstance(mark, Interval):
            is_above = (mark.ge is None or value >= mark.ge) and (mark.gt is None or value > mark.gt)
            holds &= is_above and (mark.le is None or value <= mark.le) and (mark.lt is None or value < mark.lt)
        elif isinstance(mark, Len):
            holds &= mark.min_length <= len(value) and (mark.max_length is None or len(value) <= mark.max_length)
    return holds


def _bounded_words(hint: Any, *marks: Any) -> str:
    """Name what is meant, with its limits: ``a whole number of rows from 1 to 9``, ``a positive number``."""
    said = words(hint).replace("finite ", "") + "".join(f" of {mark.unit}" for mark in marks if isinstance(mark, Of))
    for mark in marks:
        if isinstance(mark, Interval) and mark.ge is not None and mark.le is not None:
            said += f" from {_digits(mark.ge)} to {_digits(mark.le)}"
        elif mark == Interval(gt=0):
            said = said.replace("number", "positive number", 1)
        elif isinstance(mark, Interval):
            bounds = {"above": mark.gt, "of at least": mark.ge, "below": mark.lt, "at most": mark.le}
            said += " " + " and ".join(
                f"{word} {_digits(bound)}" for word, bound in bounds.items() if bound is not None
            )
        elif isinstance(mark, Len) and mark.max_length is not None:
            said += f", with {mark.min_length} to {mark.max_length} of them"
        elif isinstance(mark, Len):
            said = f"non-empty {said}"
    return said


def _digits(bound: Any) -> str:
    """Write a limit for people."""
    is_huge = isinstance(bound, int) and bound > 2**53
    return f"2^{bound.bit_length()} - 1" if is_huge and bound + 1 == 1 << bound.bit_length() else f"{bound:,}"
