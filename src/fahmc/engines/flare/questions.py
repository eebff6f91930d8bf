"""A question about draws on its way: what the analyst writes, a site reads, and what comes back.

    analyst ── Ask(question) ──▶ server ── answer(question) ──▶ every site
            ◀── their answers ──        ◀── arrays of the shapes that the check declares

The server passes it on and has no use for it. Models and checks go by name and settings, draws as arrays, and rows by
the mark that the site gave them when it wrote them as numbers, so that one question can be about several models.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import jax
import numpy as np
import pydantic

from fahmc import registry, tree
from fahmc.checks.ask import Asked
from fahmc.checks.check import Answer, Check, Fit, checked_answer
from fahmc.data.places import with_site
from fahmc.engines.flare.arrays import arrays_to_text, text_to_arrays
from fahmc.errors import DataError, FederationError
from fahmc.hints import Name
from fahmc.models.recipes import build_model, model_recipe
from fahmc.types import Batch

# Models in one question.
_MOST_FITS = 16


@dataclass(frozen=True)
class AskedFit:
    """A model and draws of it."""

    model: dict[str, Any]
    """How to make the model (`fahmc.models.recipes`)."""
    template: Any
    """The structure of a position (`fahmc.tree.skeleton`)."""
    draws: str
    """The leaves, [draw, ...], as `arrays_to_text` writes them."""
    marks: dict[Name, str]
    """Of the rows, by site."""


@dataclass(frozen=True)
class Question:
    """What is asked of every site."""

    check: dict[str, Any]
    """How to make the check (`fahmc.registry`)."""
    sites: list[Name]
    """In the federation's order: models with parameters of single sites count them."""
    fits: Annotated[list[AskedFit], pydantic.Field(min_length=1, max_length=_MOST_FITS)]

    @classmethod
    def of(cls, check: Check, sites: Sequence[str], asked: Sequence[Asked], marks: Sequence[Mapping[str, str]]):
        """Write down what is asked, given the marks of every fit's rows."""
        registry.require("check", check)
        fits = [
            AskedFit(
                model=model_recipe(one.model),
                template=tree.skeleton(one.positions),
                draws=arrays_to_text(
                    dict(zip(tree.leaf_names(one.positions), jax.tree.leaves(one.positions), strict=True))
                ),
                marks=dict(own),
            )
            for one, own in zip(asked, marks, strict=True)
        ]
        return cls(registry.encode(check, "the check"), list(sites), fits)

    @classmethod
    def read(cls, text: str) -> Question:
        """Read what `text` wrote, or refuse it."""
        try:
            return _ADAPTER.validate_json(text, strict=True)
        except pydantic.ValidationError as error:
            raise FederationError("the question cannot be read; is this fahmc as new as the analyst's?") from error

    @property
    def text(self) -> str:
        """The question as JSON."""
        return _ADAPTER.dump_json(self).decode()

    def build_check(self, own_checks: Collection[str] = ()) -> Check:
        """Make the check; one that is not fahmc's only if it is listed."""
        return registry.decode("check", self.check, ("check",), own_checks)

    def build_fits(self, site: str, rows: Mapping[str, Batch], own_models: Collection[str]) -> list[Fit]:
        """Make what the check is asked about, with this site's rows."""
        return [self._build_fit(fit, site, rows, own_models) for fit in self.fits]

    def _build_fit(self, fit: AskedFit, site: str, rows: Mapping[str, Batch], own_models: Collection[str]) -> Fit:
        found = rows.get(fit.marks.get(site, ""))
        if found is None or site not in self.sites:
            raise FederationError("the question is about rows that this site was not asked for.")
        model, leaves = build_model(fit.model, own_models), text_to_arrays(fit.draws)
        try:
            positions = tree.fill(fit.template, leaves)
            if sorted(map(id, jax.tree.leaves(positions))) != sorted(map(id, leaves.values())):
                raise ValueError("a leaf is not used, or used twice")
            sizes = {leaf.shape[0] for leaf in leaves.values()}
            if len(sizes) != 1 or not sizes.pop() or not all(np.isfinite(leaf).all() for leaf in leaves.values()):
                raise ValueError("leaves of different length, none, or not finite")
        except (AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError) as error:
            raise FederationError("the draws do not fit the question's template.") from error
        if model.validate_fn is not None and (complaint := model.validate_fn(found)):
            raise DataError(f"the rows of {site!r} do not fit the model: {complaint}")
        placed = with_site(found, self.sites.index(site), site) if model.is_by_site else found
        return Fit(model, positions, placed, site)


_ADAPTER = pydantic.TypeAdapter(Question)


def read_answers(check: Check, asked: Sequence[Asked], texts: Mapping[str, Any]) -> dict[str, Answer]:
    """Read the sites' answers, held against what the check declares."""
    num_draws = [len(jax.tree.leaves(one.positions)[0]) for one in asked]
    answers = {}
    for site, text in texts.items():
        if not isinstance(text, str):
            raise FederationError(f"Site {site!r} answered with a {type(text).__name__}; is its fahmc as new?")
        answers[site] = checked_answer(check, num_draws, text_to_arrays(text), f"Site {site!r}")
    return answers


def check_same_study(answer: Mapping[str, Any], one: Asked) -> None:
    """Refuse rows other than those that the draws were made from, as far as what sites agree on tells."""
    before, sizes = one.settings.get("sites"), one.settings.get("clients")
    if sizes is not None and dict(sizes) != dict(answer["sizes"]):
        raise DataError(f"The draws were made from rows by site {dict(sizes)}, but now these are {answer['sizes']}.")
    if before is not None and _plain(before) != _plain(answer["about"]):
        raise DataError(
            "The sites write their rows as numbers in another way than when the draws were made: columns, levels or "
            "scales differ. Ask for the same columns, and restore the rows."
        )


def _plain(about: Any) -> Any:
    return json.loads(json.dumps(about))
