"""What a site does as far as its rules allow: describe its table, make ready for a run, run its part of a round."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pydantic

from fahmc import tree
from fahmc.data.columns import Columns
from fahmc.data.encoding import Encoding, encode, summarize
from fahmc.data.federation import Federation
from fahmc.data.tables import Table, read_arrays, read_table
from fahmc.engines.client import ClientProgram
from fahmc.engines.flare.rules import Rules, private_seed, row_mark
from fahmc.engines.flare.wire import Layout
from fahmc.engines.order import Order
from fahmc.errors import DataError, FederationError
from fahmc.types import Batch

logger = logging.getLogger("fahmc")
_File = TypeVar("_File")
_COLUMNS, _ENCODING = pydantic.TypeAdapter(Columns), pydantic.TypeAdapter(Encoding)


class Work:
    """One site's part in one job."""

    def __init__(self, name: str, rules: Rules, secret: bytes):
        self.name, self._rules, self._secret = name, rules, secret
        self._table: Table | None = None
        self._withheld: set[str] = set()
        self._rows: Batch = None
        self._program: ClientProgram | None = None

    def list_columns(self, request: str) -> dict[str, Any]:
        """Name the columns that others may use; refuse if they ask for one that is here but not for them."""
        columns = list(self._read().columns)
        asked = _COLUMNS.validate_python(json.loads(request))
        self._rules.check_columns([name for name in (asked.outcome, *(asked.features or ())) if name in self._withheld])
        return {"columns": columns, "file": Path(self._rules.file).name}

    def summarize(self, request: str) -> dict[str, Any]:
        """Sum up the chosen columns, so that the sites can agree on how to write them as numbers."""
        parts = json.loads(request)
        asked, features = _COLUMNS.validate_python(parts["columns"]), parts["features"]
        self._rules.check_columns([asked.named_outcome, *features])
        summary = summarize(self._read(), self.name, asked, features, show_cells=False)
        self._rules.check_rows(summary.num_rows)
        return dataclasses.asdict(summary)

    def encode(self, request: str) -> dict[str, Any]:
        """Write the site's rows as numbers, and keep them here."""
        parts = json.loads(request)
        asked, agreed = _COLUMNS.validate_python(parts["columns"]), _ENCODING.validate_python(parts["encoding"])
        self._rules.check_columns([asked.named_outcome, *agreed.features])
        return self._keep(encode(self._read(), self.name, asked, agreed, show_cells=False))

    def take_arrays(self) -> dict[str, Any]:
        """Keep the site's arrays as they are: those that others may use."""
        if Path(self._rules.file).suffix.lower() != ".npz":
            raise DataError(
                f"no outcome is named, and {Path(self._rules.file).name} is not an .npz file, whose arrays can go as "
                "they are. Name the outcome."
            )
        arrays = self._own_file(read_arrays)
        return self._keep({name: array for name, array in arrays.items() if self._rules.allows(name)})

    def prepare(self, order: str) -> dict[str, Any]:
        """Build and compile this site's round for a phase of a run, told as JSON."""
        if self._rows is None:
            raise FederationError("this site was not asked for its rows before the run.")
        told, rules = Order.read(order), self._rules
        rules.check_model(told.model)
        before, self._program = self._program, None
        self._program = ClientProgram(
            told,
            self.name,
            self._rows,
            private_seed=private_seed(self._secret, order) if rules.private_seed is None else rules.private_seed,
            own_models=rules.own_models,
            own_samplers=rules.own_samplers,
            before=before,
        )
        return {}

    def local_round(self, run: str, round_index: int, state: Mapping[str, bytes]) -> dict[str, Any]:
        """Run this site's part of one round of all chains."""
        program = self._program
        if program is None or program.order.identity != run:
            raise FederationError("this site was not told to make ready for this run.")
        exchange, order = program.exchange, program.order
        states, replies = (
            Layout(part, order.num_chains, order.precision) for part in (exchange.broadcast, exchange.reply)
        )
        reply = program.reply(round_index, states.unpack(state, "the server"))
        return {"site": self.name, "round": round_index, "reply": replies.pack(reply)}

    def _read(self) -> Table:
        """Return the table without the columns that are nobody else's business."""
        if self._table is None:
            table = self._own_file(read_table)
            allowed = {name: cells for name, cells in table.columns.items() if self._rules.allows(name)}
            self._rules.check_rows(len(table.row_numbers))
            self._table, self._withheld = table._replace(columns=allowed), set(table.columns) - set(allowed)
        return self._table

    def _own_file(self, read: Callable[[str], _File]) -> _File:
        """Read the site's file; what is wrong with it is for the site's own log, as it may quote the file."""
        try:
            return read(self._rules.file)
        except DataError as error:
            logger.warning("%s cannot be used: %s", self._rules.file, error)
            raise DataError("this site's file cannot be read; its log says why.") from None

    def _keep(self, rows: dict[str, np.ndarray]) -> dict[str, Any]:
        federation = Federation.from_clients({self.name: rows})
        self._rules.check_rows(federation.num_rows)
        self._rows, self._program = federation.rows[0], None
        shapes = {name: {"dtype": leaf.dtype.name, "shape": list(leaf.shape[1:])} for name, leaf in self._rows.items()}
        return {
            "num_rows": federation.num_rows,
            "mark": row_mark(self._secret, tree.digest(self._rows)),
            "arrays": shapes,
        }
