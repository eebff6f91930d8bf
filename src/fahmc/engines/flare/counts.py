"""What a site writes into its ledger of the work that it does for others, and how it counts that.

Everything is counted by the content of the site's file. A choice of columns, a run and a question count once, however
often they come: the answer is the same. So does a round with the same broadcast. A run is all that its draws follow
from but the phase: model, sampler, seed, chains, weights and the site's rows.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from fahmc.data.columns import Columns
from fahmc.engines.flare.ledger import MARK_BYTES, Ledger
from fahmc.engines.flare.questions import Question
from fahmc.engines.flare.refusals import Refusal, Refused
from fahmc.engines.flare.rules import Rules, row_mark
from fahmc.engines.order import Order
from fahmc.errors import DataError


class Counts:
    """One job's entries in a site's ledger."""

    def __init__(self, rules: Rules, secret: bytes, ledger: Ledger):
        self._rules, self._secret, self.ledger = rules, secret, ledger
        self._content, self._columns = "", []
        self._run = ""
        """The run that the site was last made ready for."""

    def read_content(self) -> None:
        """Find out which content the site's file has now."""
        self._content = content_of(self._rules.file, self._secret)

    def survey(self, columns: Columns | None, features: Sequence[str]) -> AbstractContextManager[None]:
        """Count a choice of columns."""
        asked = None if columns is None else dataclasses.asdict(columns)
        self._columns = [] if columns is None else columns.in_table(features)
        key = _digest(json.dumps([asked, list(features)], sort_keys=True, default=list))
        most, facts = self._rules.maximum_runs, {"columns": self._columns} if self._columns else {}
        return self.ledger.admitting("survey", key, self._content, most, Refusal.SURVEYS, **facts)

    def run(self, order: Order, mark: str) -> AbstractContextManager[None]:
        """Count a run on rows of this mark, of which an order is a phase."""
        self._run = _digest(f"{order.run_identity} {mark}")
        facts = {"model": name_in(order.model), "sampler": name_in(order.leader), "columns": self._columns}
        most = self._rules.maximum_runs
        return self.ledger.admitting("run", self._run, self._content, most, Refusal.RUNS, **facts)

    def round(self, order: str, round_index: int, broadcast: bytes) -> None:
        """Count a round of the run that the site was made ready for, before it is computed."""
        told = f"{order} {round_index} ".encode() + broadcast
        mark = hashlib.blake2b(told, key=self._secret, digest_size=MARK_BYTES)
        self.ledger.count_round(self._run, mark.digest(), self._rules.maximum_rounds)

    def question(self, text: str, question: Question) -> AbstractContextManager[None]:
        """Count a question about draws."""
        facts = {"check": name_in(question.check), "model": ", ".join(name_in(fit.model) for fit in question.fits)}
        facts |= {"columns": self._columns}
        most = self._rules.maximum_questions
        return self.ledger.admitting("question", _digest(text), self._content, most, Refusal.QUESTIONS, **facts)


def content_of(file: str, secret: bytes) -> str:
    """Return what the content of a site's file is called in its ledger: nobody else can tell which it is."""
    try:
        with Path(file).open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise Refused(Refusal.FILE) from DataError(f"{file} cannot be read: {error.strerror}.")
    return row_mark(secret, digest)


def name_in(recipe: Mapping[str, Any]) -> str:
    """Return what a model, sampler or check is called where plain values name it."""
    return str(recipe.get("name", recipe.get("object", "")))[:200]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
