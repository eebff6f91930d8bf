"""`Flare`: rounds at the sites of a real federation, kept going whatever happens to sites and server.

The analyst's own checkpoint is the run. The server's job and the sites' workers hold nothing that could not be made
again. When a site is lost, a worker dies or the server restarts, the job is ended; a new one is submitted once all
sites are there, and goes on from the last round that arrived here. Keys derive from indices: it is the same chain.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fahmc import tree
from fahmc.data.sites import RemoteFederation, Sites
from fahmc.density.potential import Model
from fahmc.engines.block import FREE_FLIGHTS, Block, Divergence, Task
from fahmc.engines.flare.connection import Unreachable
from fahmc.engines.flare.kits import Kit
from fahmc.engines.flare.session import Session, raise_end
from fahmc.engines.flare.wire import from_text, state_layout, to_text
from fahmc.engines.recipes import model_recipe, sampler_recipe, with_feature_names
from fahmc.errors import FederationError, SettingsError

# A survey asks each site three times, and a site that is silent is asked again.
_SURVEY_STEPS, _ASKED_TWICE = 6, 2


@dataclass
class Flare:
    """Run the clients at the sites of a real federation, each with its own rows.

    Parameters
    ----------
    kit
        The analyst's start-up kit, a folder made by ``fahmc federation init``.
    round_timeout
        Seconds to wait for a site's reply in a round. It is then asked once more, then counted as lost.
    patience
        Seconds to wait for lost sites or the server to come back, before the run is given up with everything saved.
    setup_timeout
        Seconds that reading data and compiling may take at a site.

    Examples
    --------
    One run, or several that share the sites' warm processes::

        draws = fahmc.sample(model, fahmc.Sites(outcome="y"), sampler, 2000, engine=fahmc.engines.Flare("kits/analyst"))

        with fahmc.engines.Flare("kits/analyst") as engine:
            first = fahmc.sample(..., engine=engine)
            second = fahmc.sample(..., engine=engine)
    """

    kit: str | Path
    round_timeout: float = 60.0
    patience: float = 600.0
    setup_timeout: float = 300.0
    _session: Session | None = field(default=None, init=False, repr=False)
    _is_kept: bool = field(default=False, init=False, repr=False)
    _survey: dict[str, Any] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self):
        for name in ("round_timeout", "patience", "setup_timeout"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
                raise SettingsError(f"{name} is {value!r}; it must be a number of seconds above 0.")

    def __enter__(self) -> Flare:
        self._is_kept = True
        return self

    def __exit__(self, *error: object) -> None:
        self._is_kept = False
        self.release()

    def open(self, model: Model, sites: Sites, sampler: Any) -> tuple[Model, RemoteFederation]:
        """Ask the sites what they hold; the model comes back with its coefficients named after their columns."""
        # What cannot be sent is refused before anybody is asked.
        model_recipe(model)
        sampler_recipe(sampler)
        self._session = self._session or Session(Kit.load(self.kit), self.patience)
        columns = sites.columns
        self._survey = {
            "do": "survey",
            "sites": list(self._session.kit.sites),
            "columns": None if columns is None else dataclasses.asdict(columns),
            "weights": None if sites.weights is None else dict(sites.weights),
            "seconds": self.setup_timeout,
        }
        session, seconds = self._session, _SURVEY_STEPS * self.setup_timeout
        answer = session.insist(lambda: session.ask(self._survey, seconds))
        example = {
            name: np.zeros((1, *array["shape"]), array["dtype"]) for name, array in sorted(answer["arrays"].items())
        }
        federation = RemoteFederation.from_reports(
            sizes={site: answer["sizes"][site] for site in session.kit.sites},
            example=example,
            marks=answer["marks"],
            weights=dict(zip(session.kit.sites, answer["weights"], strict=True)),
            about=answer["about"],
        )
        names = answer["about"].get("feature_names")
        return (model if names is None else with_feature_names(model, names)), federation

    def start(self, task: Task) -> FlareRun:
        """Make ready to run rounds at the sites that were asked."""
        assert self._session is not None, "open comes before start"
        run = FlareRun(self._session, task, self._survey, self.round_timeout, self.setup_timeout)
        self._session.insist(run.make_ready, task.is_stopping)
        return run

    def release(self) -> None:
        """Let the sites go, unless the engine is used in a ``with`` block, which has more runs to come."""
        if self._session is None:
            return
        if self._is_kept:
            self._session.stop_run()
        else:
            self._session.close()
            self._session = None


class FlareRun:
    """The rounds of one run, fetched from the server."""

    def __init__(
        self, session: Session, task: Task, survey: dict[str, Any], round_timeout: float, setup_timeout: float
    ):
        self._session, self._task, self._survey = session, task, survey
        self._round_timeout, self._setup_timeout = round_timeout, setup_timeout
        self._states = state_layout(task.sampler, (task.num_chains, task.dimension), task.dtype)
        self._order = write_order(task)
        self._prepared_in = self._begun_in = -1
        self._survey_in = session.number
        self._begun = ""

    def run(self, state: Any, first_round: int, num_rounds: int) -> Block:
        """Return the next rounds, fewer if a chain diverges or the federation had to be put together anew."""
        return self._session.insist(lambda: self._fetch(state, first_round, num_rounds), self._task.is_stopping)

    def time_rounds(self, state: Any, num_rounds: int) -> dict[str, list[float]]:
        """Return the seconds of rounds, and of bare calls that carry as many bytes, by turns (`fahmc bench`)."""
        request = {
            "do": "time",
            "sites": list(self._task.federation.names),
            "num_rounds": num_rounds,
            "seconds": self._round_timeout,
            "state": self._in_text(state),
        }
        return self._session.ask(request, 3600.0)["seconds"]

    def server_memory(self) -> int:
        """Return the bytes that the server's worker holds."""
        return int(self._session.command({"do": "status"}, wait=0.0)["memory"])

    def _in_text(self, state: Any) -> dict[str, str]:
        return {name: to_text(content) for name, content in self._states.pack(state).items()}

    def _fetch(self, state: Any, first_round: int, num_rounds: int) -> Block:
        self.make_ready()
        if self._begun_in != self._session.number:
            self._begin(state, first_round)
        request = {
            "do": "fetch",
            "begun": self._begun,
            "first_round": first_round,
            "num_rounds": num_rounds,
            "num_warmup_rounds": self._task.num_warmup_rounds,
            "thin": self._task.thin,
        }
        while (answer := self._session.command(request)).get("pending"):
            self._session.check_job()
        if answer["num_rounds"] == 0:
            end = answer["end"]
            raise_end(end)
            if end is None or end["kind"] != "divergence":
                raise Unreachable("the server had no rounds to give")
            return self._empty_block(state, first_round, Divergence(end["chain"], end["round"], end["client"]))
        return self._as_block(answer, first_round)

    def make_ready(self) -> None:
        """Tell the sites what they were told before, if this job's workers have not heard it."""
        number = self._session.number
        if self._prepared_in == number:
            return
        if self._survey_in != number:
            self._check_marks(self._session.ask(self._survey, _SURVEY_STEPS * self._setup_timeout)["marks"])
            self._survey_in = number
        request = {
            "do": "prepare",
            "order": self._order,
            "seconds": self._setup_timeout,
            "round_timeout": self._round_timeout,
        }
        self._session.ask(request, _ASKED_TWICE * self._setup_timeout)
        self._prepared_in = number

    def _check_marks(self, marks: dict[str, str]) -> None:
        federation = self._task.federation
        assert isinstance(federation, RemoteFederation)
        for name, mark in zip(federation.names, federation.marks, strict=True):
            if marks[name] != mark:
                raise FederationError(
                    f"Site {name!r} came back with other rows than the run began with. Restore them, or begin anew."
                )

    def _begin(self, state: Any, first_round: int) -> None:
        self._session.command({"do": "stop"}, wait=0.0)
        self._begun = uuid.uuid4().hex
        request = {
            "do": "begin",
            "id": self._begun,
            "first_round": first_round,
            "total_rounds": self._task.total_rounds,
            "state": self._in_text(state),
        }
        self._session.command(request, wait=0.0)
        self._begun_in = self._session.number

    def _as_block(self, answer: dict[str, Any], first_round: int) -> Block:
        task, chains, dimension = self._task, *self._states.shape
        draws, clients = answer["num_draws"], task.federation.num_clients

        def read(name: str, *shape: int) -> np.ndarray:
            content = np.frombuffer(from_text(answer[name]), task.dtype.newbyteorder("<"))
            return content.astype(task.dtype).reshape(shape)

        squares, displacement = read("drift", draws, chains, clients), read("displacement", draws, chains)
        due = [index for index in range(answer["num_rounds"]) if task.is_due(first_round + index)]
        step_size = np.array([float(task.kernel.step_size(np.int32(first_round + index))) for index in due], task.dtype)
        free_flight = (task.kernel.leapfrog_steps * task.kernel.speed * step_size)[:, None]
        stats = {
            "client_drift": np.sqrt(squares @ task.federation.weights.astype(task.dtype)),
            "step_size": np.broadcast_to(step_size[:, None], (draws, chains)),
            "diverging": displacement > FREE_FLIGHTS * free_flight,
        }
        return Block(
            first_round=first_round,
            num_rounds=answer["num_rounds"],
            positions=np.moveaxis(read("positions", draws, chains, dimension), 0, 1).copy(),
            stats={name: np.ascontiguousarray(value.T) for name, value in stats.items()},
            drift_squares=read("drift_squares", chains, clients),
            state=self._states.unpack({name: from_text(text) for name, text in answer["state"].items()}, "the server"),
        )

    def _empty_block(self, state: Any, first_round: int, divergence: Divergence) -> Block:
        chains, dimension = self._states.shape
        dtype = self._task.dtype
        nothing = np.zeros((chains, 0), dtype)
        return Block(
            first_round=first_round,
            num_rounds=0,
            positions=np.zeros((chains, 0, dimension), dtype),
            stats={"client_drift": nothing, "step_size": nothing, "diverging": nothing.astype(bool)},
            drift_squares=np.zeros((chains, self._task.federation.num_clients), dtype),
            state=state,
            divergence=divergence,
        )


def write_order(task: Task) -> str:
    """Say to the sites what to run; its ``run`` names it by its content."""
    leaves = zip(tree.leaf_names(task.template), jax.tree.leaves(task.template), strict=True)
    sites = zip(task.federation.names, task.federation.weights, strict=True)
    order = {
        "model": model_recipe(task.model),
        "sampler": sampler_recipe(task.sampler),
        "seed": task.seed,
        "num_chains": task.num_chains,
        "dimension": task.dimension,
        "dtype": task.dtype.name,
        "template": tree.skeleton(task.template),
        "leaf_shapes": {name: list(leaf.shape) for name, leaf in leaves},
        "sites": [{"name": name, "weight": float(weight)} for name, weight in sites],
        "num_rows": task.federation.num_rows,
    }
    text = json.dumps(order, sort_keys=True)
    return json.dumps({"run": hashlib.sha256(text.encode()).hexdigest()[:16]} | order, sort_keys=True)
