"""What a site does: describe its table, make ready for a run, and run its part of a round.

A site keeps nothing from one round to the next. Its rows, the compiled round and the roots of its random keys are made
once a run; everything else comes with the call. A site that restarts therefore loses nothing.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import pydantic

from fahmc import keys, tree
from fahmc.data.buckets import check_integers, single_client
from fahmc.data.columns import Columns
from fahmc.data.encoding import Encoding, encode, summarize
from fahmc.data.federation import Federation
from fahmc.data.tables import Table, read_arrays, read_table
from fahmc.density.gradient import check_minibatch
from fahmc.density.potential import build_potentials
from fahmc.dynamics.kernel import build_kernel
from fahmc.engines.flare.rules import Rules, private_seed, row_mark
from fahmc.engines.flare.wire import reply_layout, state_layout
from fahmc.engines.recipes import build_model, build_sampler
from fahmc.errors import DataError, FederationError
from fahmc.types import Batch, ChainKeys, Client

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
        self._run: _Run | None = None

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
        """Build and compile this site's round for a run, told as JSON."""
        self._run = _Run(self.name, self._rules, self._secret, self._rows, order)
        return {}

    def local_round(self, run: str, round_index: int, state: Mapping[str, bytes]) -> dict[str, Any]:
        """Run this site's part of one round of all chains."""
        if self._run is None or self._run.identity != run:
            raise FederationError("this site was not told to make ready for this run.")
        return {"site": self.name, "round": round_index, "reply": self._run.local_round(round_index, state)}

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
        self._rows = federation.rows[0]
        shapes = {name: {"dtype": leaf.dtype.name, "shape": list(leaf.shape[1:])} for name, leaf in self._rows.items()}
        return {
            "num_rows": federation.num_rows,
            "mark": row_mark(self._secret, tree.digest(self._rows)),
            "arrays": shapes,
        }


class _Run:
    """A compiled round on this site's rows."""

    def __init__(self, name: str, rules: Rules, secret: bytes, rows: Batch, order_text: str):
        order = json.loads(order_text)
        self.identity = order["run"]
        if rows is None:
            raise FederationError("this site was not asked for its rows before the run.")
        rules.check_model(order["model"])
        model, sampler = build_model(order["model"], rules.own_models), build_sampler(order["sampler"])
        federation = Federation.from_clients({name: rows})
        self._dtype = np.dtype(order["dtype"])
        check_integers(federation, self._dtype)
        check_minibatch(sampler.gradient, (name,), federation.sizes)
        if model.validate_fn is not None and (complaint := model.validate_fn(rows)):
            logger.warning("the rows do not fit the model: %s", complaint)
            raise DataError("its rows do not fit the model; its log says why.")
        shape = (order["num_chains"], order["dimension"])
        self._state_layout = state_layout(sampler, shape, self._dtype)
        self._reply_layout = reply_layout(sampler, shape, self._dtype)
        with jax.enable_x64(self._dtype == np.float64):
            weight = next(site["weight"] for site in order["sites"] if site["name"] == name)
            client = self._client(federation, weight, order["num_rows"])
            position = tree.fill(
                order["template"],
                {leaf: np.zeros(shape, self._dtype) for leaf, shape in order["leaf_shapes"].items()},
            )
            potentials = build_potentials(model, position, client, name)
            kernel = build_kernel(sampler, potentials, client, self._dtype)
            own_seed = rules.private_seed if rules.private_seed is not None else private_seed(secret, order_text)
            self._keys: ChainKeys = keys.chain_keys(order["seed"], shape[0], own_seed)
            self._client_arrays = jax.tree.map(jnp.asarray, client)
            state = jax.vmap(kernel.init)(jnp.zeros(shape, self._dtype))
            over_chains = jax.jit(jax.vmap(kernel.client_round, in_axes=(0, None, 0, None)))
            # Compiled now, so that no round has to wait for it.
            self._program = over_chains.lower(self._keys, jnp.int32(0), state, self._client_arrays).compile()

    def _client(self, federation: Federation, weight: float, num_rows: int) -> Client:
        """Return this site as one of the whole federation's clients."""
        alone = single_client(federation, 0, self._dtype)
        return alone._replace(
            weight=np.asarray(weight, self._dtype),
            scale=np.asarray(num_rows / federation.num_rows, self._dtype),
        )

    def local_round(self, round_index: int, fields: Mapping[str, bytes]) -> dict[str, bytes]:
        state = self._state_layout.unpack(fields, "the server")
        with jax.enable_x64(self._dtype == np.float64):
            reply, _ = self._program(self._keys, np.int32(round_index), state, self._client_arrays)
            return self._reply_layout.pack(jax.device_get(reply))
