"""What a site does as far as its rules allow: describe its table, make ready for a run, run its part of a round.

Everything that it does not do is a `Refused`: the errors below it say more than others may know.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pydantic

from fahmc import tree
from fahmc.checks.check import OtherRows, answer_here
from fahmc.data.cells import complete_rows
from fahmc.data.columns import Columns
from fahmc.data.consistency import TextHere, check_encoding
from fahmc.data.encoding import Encoding, encode
from fahmc.data.federation import Federation
from fahmc.data.rare import Rare, find_rare, find_rare_array
from fahmc.data.row_columns import UnfitCell, effective_rows
from fahmc.data.summaries import MAX_LEVELS, ColumnSummary, TableSummary, summarize
from fahmc.data.tables import Table, read_arrays, read_table
from fahmc.dynamics.sampler import Exchange
from fahmc.engines.client import ClientProgram, SharedEffects, TooLarge, TooLong, check_memory, check_time
from fahmc.engines.flare.agreement import Agreement, Identity, Party
from fahmc.engines.flare.arrays import arrays_to_text
from fahmc.engines.flare.counts import Counts
from fahmc.engines.flare.ledger import Ledger, noting_refusals
from fahmc.engines.flare.masked_replies import MaskedReplies, broadcast_digest, shares_for
from fahmc.engines.flare.masked_survey import SumRequest, share, without_moments
from fahmc.engines.flare.noise import normal_of
from fahmc.engines.flare.privacy import Purse, without_bounds
from fahmc.engines.flare.questions import Question
from fahmc.engines.flare.refusals import Refusal, Refused, refusing
from fahmc.engines.flare.rules import Rules, private_seed, row_mark
from fahmc.engines.flare.versions import own_versions
from fahmc.engines.flare.wire import Layout
from fahmc.engines.order import Order
from fahmc.errors import DataError, FahmcError, ModelError
from fahmc.types import Batch

_Asked = TypeVar("_Asked")
# Values that are read from JSON take several times the memory of their text.
_TEXT_SHARE = 16
# Encodings of the rows that a question about several models may need.
_MOST_KEPT = 8
_NUMBER_BYTES = np.dtype(np.float64).itemsize
# Of a reply while it is masked: words, masks, and what they are made of.
_MASK_COPIES = 5


@dataclass(frozen=True)
class SummaryRequest:
    """What `Work.summarize` is asked."""

    columns: Columns
    features: list[str]


@dataclass(frozen=True)
class EncodingRequest:
    """What `Work.encode` is asked."""

    columns: Columns
    encoding: Encoding


_SUMMARY, _ENCODING = pydantic.TypeAdapter(SummaryRequest), pydantic.TypeAdapter(EncodingRequest)
_SUMS = pydantic.TypeAdapter(SumRequest)


class Work:
    """One site's part in one job."""

    def __init__(
        self,
        name: str,
        rules: Rules,
        secret: bytes,
        identity: Identity | None = None,
        ledger: Ledger | None = None,
    ):
        self.name, self.rules, self._secret, self._identity = name, rules, secret, identity
        self.ledger = ledger or Ledger()
        self._counts, self._purse = Counts(rules, secret, self.ledger), Purse(rules.privacy, self.ledger)
        self._table: Table | None = None
        self._rows: Batch = None
        self._num_rows, self._mark = 0, ""
        self._program: ClientProgram | None = None
        self._party: Party | None = None
        self._agreement: Agreement | None = None
        self._masked: MaskedReplies | None = None
        """For the order that was prepared; None where replies go as they are."""
        self._masked_rows: dict[str, str] = {}
        """The mark of the rows by order, of those whose replies were masked in this job."""
        self._kept: dict[str, Batch] = {}
        """Rows by mark, those that were asked for last: a question may be about models of different columns."""

    def hello(self) -> dict[str, Any]:
        """Tell what runs here."""
        return {"versions": own_versions()}

    def greet(self) -> dict[str, Any]:
        """Say who this is, with a key for this job, for the other sites."""
        return {"hello": self._as_party().hello}

    @noting_refusals
    def agree(self, hellos: str) -> dict[str, Any]:
        """Agree with the other sites on keys that the server does not know, and on whether replies are masked."""
        self._check_size(hellos)
        self._agreement = None
        self._agreement = self._as_party().agree(hellos)
        return {"secure_sum": self._agreement.secure_sum}

    def _as_party(self) -> Party:
        if self._identity is None:
            raise Refused(Refusal.KIT)
        if self._party is None:
            self._party = Party(self._identity, self.rules.secure_sum)
        return self._party

    @noting_refusals
    def list_columns(self) -> dict[str, Any]:
        """Name the columns that others may use; whether there are more is nobody's business."""
        return {"columns": list(self._read().columns)}

    @noting_refusals
    def summarize(self, request: str) -> dict[str, Any]:
        """Sum up the chosen columns, so that the sites can agree on how to write them as numbers."""
        asked, agreement = self._asked(_SUMMARY, request), self._agreed()
        summary = self._summary(asked.columns, asked.features)
        return dataclasses.asdict(summary if agreement is None else without_moments(summary))

    @noting_refusals
    def add_up(self, request: str) -> dict[str, Any]:
        """Tell of the chosen columns what is added up over all sites, masked."""
        asked, agreement = self._asked(_SUMS, request), self._agreed()
        if agreement is None:
            raise Refused(Refusal.NOT_AGREED)
        return {"share": share(agreement, request, asked, self._summary(asked.columns, asked.features))}

    def _agreed(self) -> Agreement | None:
        """Return what the sites agreed on if they add up in masks; refuses where nobody asked them to agree."""
        if self._agreement is None and self.rules.secure_sum != "off":
            raise Refused(Refusal.NOT_AGREED)
        return None if self._agreement is None or self._agreement.secure_sum == "off" else self._agreement

    @noting_refusals
    def encode(self, request: str) -> dict[str, Any]:
        """Write the site's rows as numbers, and keep them here."""
        asked = self._asked(_ENCODING, request)
        columns, encoding = asked.columns, asked.encoding
        summary = self._summary(columns, encoding.features)
        with refusing({TextHere: Refusal.TEXT_HERE, FahmcError: Refusal.ENCODING}):
            check_encoding(columns, encoding, summary)
        with refusing(Refusal.TOO_LARGE):
            width = len(encoding.feature_names) + 1 + len(columns.row_columns)
            check_memory(summary.num_rows * width * _NUMBER_BYTES, self.rules.limits)
        rows = encode(self._read(), self.name, columns, encoding)
        if "weight" in rows:
            # A column that is 0 in all rows but one would single that one out.
            self.rules.check_rows(effective_rows(rows["weight"]))
        return self._keep(rows, request)

    @noting_refusals
    def take_arrays(self) -> dict[str, Any]:
        """Keep the site's arrays as they are: those that others may use."""
        if Path(self.rules.file).suffix.lower() != ".npz":
            raise Refused(Refusal.NOT_ARRAYS)
        self._counts.read_content()
        with refusing(Refusal.FILE):
            arrays = read_arrays(self.rules.file)
        arrays = {name: array for name, array in arrays.items() if self.rules.allows(name)}
        with self._counts.survey(None, sorted(arrays)):
            if self.rules.privacy is None:
                _refuse_rare(find_rare_array(arrays, self.rules.minimum_rows_per_level))
            return self._keep(arrays)

    @noting_refusals
    def prepare(self, order: str) -> dict[str, Any]:
        """Build and compile this site's round for a phase of a run, told as JSON."""
        if self._rows is None:
            raise Refused(Refusal.NO_ROWS)
        self._check_size(order)
        with refusing(Refusal.ORDER):
            told = Order.read(order)
        rules = self.rules
        before, self._program = self._program, None
        with refusing(Refusal.SETTINGS):
            rules.check_order(told, self.name, self._num_rows)
            exchange = told.exchange(told.build_sampler(rules.own_samplers))
        self._masked = self._masked_replies(told, exchange)
        self._purse.check(told, exchange, self._masked is not None)
        reasons = {
            SharedEffects: Refusal.SITE_EFFECTS,
            TooLarge: Refusal.TOO_LARGE,
            TooLong: Refusal.TOO_LONG,
            DataError: Refusal.FIT,
        }
        reasons |= {ModelError: Refusal.FIT, FahmcError: Refusal.SETTINGS}
        with self._counts.run(told, self._mark), refusing(reasons):
            self._program = ClientProgram(
                told,
                self.name,
                self._rows,
                private_seed=private_seed(self._secret, order) if rules.private_seed is None else rules.private_seed,
                own_models=rules.own_models,
                own_samplers=rules.own_samplers,
                limits=rules.limits,
                keeps_effects=rules.keeps_effects,
                draw_normal=normal_of(self._secret, self._mark),
                before=before,
            )
        return {}

    def _masked_replies(self, order: Order, exchange: Exchange) -> MaskedReplies | None:
        """Return what masks the replies of an order, or None where they go as they are."""
        shares = shares_for(order, exchange, self._agreement, self.rules.secure_sum)
        if shares is None:
            return None
        # With other rows there would be two replies to one broadcast, and their masks would be the same.
        if self._masked_rows.setdefault(order.text, self._mark) != self._mark:
            raise Refused(Refusal.CHANGED_ROWS)
        masked = MaskedReplies(order, exchange, shares, self.name)
        with refusing(Refusal.TOO_LARGE):
            check_memory(_MASK_COPIES * masked.num_bytes(), self.rules.limits)
        return masked

    @noting_refusals
    def local_round(
        self, run: str, round_index: int, state: Mapping[str, bytes], is_wide: bool = False
    ) -> dict[str, Any]:
        """Run this site's part of one round of all chains; ``is_wide`` asks for wide numbers, where they are masked."""
        program = self._program
        if program is None or program.order.identity != run:
            raise Refused(Refusal.NOT_READY)
        exchange, order = program.exchange, program.order
        states, replies = (
            Layout(part, order.num_chains, order.precision) for part in (exchange.broadcast, exchange.reply)
        )
        if not isinstance(round_index, int) or not 0 <= round_index < 2**31:
            raise Refused(Refusal.BROADCAST)
        with refusing(Refusal.BROADCAST):
            sent = states.unpack(state, "the server")
        broadcast = broadcast_digest(state)
        self._counts.round(run, round_index, broadcast)
        if exchange.release is not None:
            self._purse.spend(order, round_index, sent, self._mark, exchange.release)
        answer, reply = {"site": self.name, "round": round_index}, program.reply(round_index, sent)
        if self._masked is None:
            return answer | {"reply": replies.pack(reply)}
        return answer | self._masked.hide(round_index, is_wide is True, broadcast, sent, reply)

    @noting_refusals
    def answer(self, question: str) -> dict[str, Any]:
        """Answer a question about draws, told as JSON, in sums and counts of no fewer rows than the rules' minimum."""
        self._check_size(question)
        with refusing(Refusal.REQUEST):
            told = Question.read(question)
        rules = self.rules
        with refusing(Refusal.SETTINGS):
            if rules.privacy is not None:
                raise Refused(Refusal.NOT_PRIVATE)
            rules.check_question(told.check, [fit.model for fit in told.fits])
            check = told.build_check(rules.own_checks)
        reasons = {OtherRows: Refusal.OTHER_ROWS, FahmcError: Refusal.UNFIT_DRAWS}
        with self._counts.question(question, told), refusing(reasons):
            fits = told.build_fits(self.name, self._kept, rules.own_models)
            if rules.keeps_effects and any(fit.model.is_by_site for fit in fits):
                # Draws that somebody made up, and what they come to here, would tell it as well.
                raise Refused(Refusal.SITE_EFFECTS)
            own = private_seed(self._secret, question) if rules.private_seed is None else rules.private_seed
            fits = [fit._replace(private_seed=own) for fit in fits]
            shapes = check.shapes([fit.num_draws for fit in fits])
            with refusing(Refusal.TOO_LARGE):
                check_memory(sum(map(math.prod, shapes.values())) * _NUMBER_BYTES, rules.limits)
            with refusing(Refusal.TOO_LONG):
                check_time(sum(float(fit.num_draws * fit.num_rows) for fit in fits), rules.limits)
            answer = answer_here(check, fits, rules.minimum_rows)
        return {"site": self.name, "answer": arrays_to_text(answer)}

    def _asked(self, adapter: pydantic.TypeAdapter[_Asked], request: str) -> _Asked:
        self._check_size(request)
        with refusing({pydantic.ValidationError: Refusal.REQUEST, FahmcError: Refusal.REQUEST}):
            return adapter.validate_json(request)

    def _check_size(self, text: str) -> None:
        with refusing(Refusal.TOO_LARGE):
            check_memory(len(text) * _TEXT_SHARE, self.rules.limits)

    def _read(self) -> Table:
        """Return the table without the columns that are nobody else's business."""
        if self._table is None:
            self._counts.read_content()
            with refusing(Refusal.FILE):
                table = read_table(self.rules.file)
            self.rules.check_rows(len(table.row_numbers))
            allowed = {name: cells for name, cells in table.columns.items() if self.rules.allows(name)}
            self._table = table._replace(columns=allowed)
        return self._table

    def _summary(self, columns: Columns, features: Sequence[str]) -> TableSummary:
        """Sum up; whether there are rows enough is looked at before any of their cells."""
        with refusing(Refusal.REQUEST):
            names = columns.in_table(features)
        without_bounds(self.rules.privacy, columns.bounds)
        table = self._read()
        # One that is not here is refused like one that is not for others.
        if unknown := [name for name in names if name not in table.columns]:
            raise Refused(Refusal.COLUMNS, *unknown)
        self.rules.check_missing_values(columns.missing_values)
        with refusing(Refusal.GAPS):
            rows = complete_rows(table, self.name, names, columns)
        self.rules.check_rows(len(rows.row_numbers))
        with (
            self._counts.survey(columns, features),
            refusing({UnfitCell: Refusal.UNFIT_CELLS, FahmcError: Refusal.CELLS}),
        ):
            summary = summarize(table, self.name, columns, features)
            if columns.bounds is None:  # else nothing of the values is told, also not that one is rare
                self.rules.check_levels(summary)
                _refuse_rare(find_rare(rows, self.name, columns, features, self.rules.minimum_rows_per_level))
        return dataclasses.replace(
            summary,
            features={name: _countable(column) for name, column in summary.features.items()},
            outcome=_countable(summary.outcome),
        )

    def _keep(self, rows: dict[str, np.ndarray], encoding: str = "") -> dict[str, Any]:
        with refusing(Refusal.ARRAYS):
            federation = Federation.from_clients({self.name: rows})
        self.rules.check_rows(federation.num_rows)
        self._rows, self._num_rows, self._program = federation.rows[0], federation.num_rows, None
        # With the encoding, or two encodings that give the same rows would show that they do.
        mark = row_mark(self._secret, tree.digest(self._rows) + encoding)
        before = {other: rows for other, rows in self._kept.items() if other != mark}
        self._mark = mark
        self._kept = dict([*before.items(), (mark, self._rows)][-_MOST_KEPT:])
        shapes = {name: {"dtype": leaf.dtype.name, "shape": list(leaf.shape[1:])} for name, leaf in self._rows.items()}
        return {
            "num_rows": federation.num_rows,
            "mark": mark,
            "arrays": shapes,
        }


def _refuse_rare(rare: Rare | None) -> None:
    """Refuse the columns, without a word of the value."""
    if rare is not None:
        raise Refused(Refusal.RARE_LEVEL, *rare.columns) from DataError(rare.words)


def _countable(column: ColumnSummary) -> ColumnSummary:
    """Leave out what an error here would quote of too many levels: likely names, which stay here."""
    return dataclasses.replace(column, levels=()) if column.num_levels > MAX_LEVELS else column
