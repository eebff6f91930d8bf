"""`Flare`: rounds at the sites of a real federation, kept going whatever happens to sites and server.

The analyst's own checkpoint is the run. The server's job and the sites' workers hold nothing that could not be made
again. When a site is lost, a worker dies or the server restarts, the job is ended; a new one is submitted once all
sites are there, and goes on from the last round that arrived here. Keys derive from indices: it is the same chain.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

from fahmc import tree
from fahmc.data.sites import RemoteFederation, Sites
from fahmc.density.potential import Model
from fahmc.engines.block import FREE_FLIGHTS, Block, Divergence, Task
from fahmc.engines.flare.connection import Connection, Unreachable
from fahmc.engines.flare.kits import Kit
from fahmc.engines.flare.wire import from_text, state_layout, to_text
from fahmc.engines.recipes import model_recipe, sampler_recipe, with_feature_names
from fahmc.errors import FederationError, SettingsError, error_class

logger = logging.getLogger("fahmc")
_Answer = TypeVar("_Answer")

# Between two looks at a federation that is not ready.
_POLL = 0.5
# Sites that were started a moment ago need some seconds to connect, which is nothing to warn of.
_START_QUIETLY = 15.0
# Starting the workers of a job takes some seconds; one that does not speak after this has failed.
_START_TIMEOUT = 120.0
# So many jobs in a row that get nothing done, though all sites are connected: waiting will not help.
_MANY_JOBS = 5
# An analyst's process that speaks to its job asks every two seconds; one silent for this long is gone.
_BUSY = 10.0


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
    _session: _Session | None = field(default=None, init=False, repr=False)
    _is_kept: bool = field(default=False, init=False, repr=False)
    _asked: dict[str, Any] = field(default_factory=dict, init=False, repr=False)

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
        self._session = self._session or _Session(self)
        columns = sites.columns
        self._asked = {
            "do": "survey",
            "sites": list(self._session.kit.sites),
            "columns": None if columns is None else dataclasses.asdict(columns),
            "weights": None if sites.weights is None else dict(sites.weights),
            "seconds": self.setup_timeout,
        }
        answer = self._session.insist(self._survey)
        example = {
            name: np.zeros((1, *array["shape"]), array["dtype"]) for name, array in sorted(answer["arrays"].items())
        }
        federation = RemoteFederation.from_reports(
            sizes=answer["sizes"],
            example=example,
            marks=answer["marks"],
            weights=dict(zip(answer["sizes"], answer["weights"], strict=True)),
            about=answer["about"],
        )
        names = answer["about"].get("feature_names")
        return (model if names is None else with_feature_names(model, names)), federation

    def start(self, task: Task) -> FlareRun:
        """Make ready to run rounds at the sites that were asked."""
        assert self._session is not None, "open comes before start"
        run = FlareRun(self, self._session, task)
        self._session.insist(run.make_ready)
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

    def _survey(self) -> dict[str, Any]:
        assert self._session is not None
        return self._session.ask(self._asked, 4 * self.setup_timeout)


class _Session:
    """A job of ours, and a new one when it is lost."""

    def __init__(self, settings: Flare):
        self.kit = Kit.load(settings.kit)
        self._settings = settings
        self._connection = Connection(self.kit)
        self._job: str | None = None
        self._own_jobs: set[str] = set()
        self._lost_since: float | None = None
        self._has_warned = False
        self._vain_jobs = 0
        self.number = 0
        """How many jobs there were: what the sites were told before the latest one is forgotten."""

    def insist(self, action: Callable[[], _Answer]) -> _Answer:
        """Do something that needs the job, as often as it takes, until patience ends."""
        while True:
            try:
                self._ensure_job()
                answer = action()
                self._lost_since, self._vain_jobs = None, 0
                return answer
            except Unreachable as error:
                self._be_patient(str(error))

    def ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Have the job do something; what a site refuses is raised, what may pass becomes `Unreachable`."""
        assert self._job is not None
        answer = self._connection.ask(self._job, request, seconds)
        raise_end(answer.get("end"))
        return answer

    def command(self, request: dict[str, Any], wait: float = 2.0) -> dict[str, Any]:
        """Send one command."""
        assert self._job is not None
        return self._connection.command(self._job, request, wait)

    def check_job(self) -> None:
        """Notice a job that has ended."""
        assert self._job is not None
        status = self._connection.job_status(self._job)
        if status.startswith("FINISHED") or status in ("None", "UNKNOWN"):
            raise Unreachable("the job ended at the server: a site's or the server's worker stopped")

    def stop_run(self) -> None:
        """Have the server do no more rounds of a run that was left early."""
        if self._job is not None:
            with contextlib.suppress(Unreachable, FederationError):
                self.command({"do": "stop"}, wait=0.0)

    def close(self) -> None:
        """End the job and log out."""
        if self._job is not None:
            try:
                self.command({"do": "close"}, wait=0.0)
            except (Unreachable, FederationError):
                self._connection.abort(self._job)
        self._connection.close()
        self._job = None

    def _be_patient(self, reason: str) -> None:
        """Give the job up and say so; a new one is made when everybody is back."""
        now = time.monotonic()
        if self._lost_since is None:
            self._lost_since, self._has_warned = now, False
        if not self._has_warned and (self.number or now - self._lost_since > _START_QUIETLY):
            self._has_warned = True
            logger.warning(
                "%s. Waiting for all sites, at most %g s, to go on.", reason.rstrip("."), self._settings.patience
            )
        if self._job is not None:
            self._connection.abort(self._job)
            self._job = None
            self._vain_jobs += 1
        if now - self._lost_since > self._settings.patience or self._vain_jobs >= _MANY_JOBS:
            waited = f"{now - self._lost_since:.0f} s and {self._vain_jobs} jobs"
            raise FederationError(f"Given up after {waited}: {reason.rstrip('.')}. {self._missing_words()}")
        time.sleep(_POLL)

    def _missing_words(self) -> str:
        try:
            missing = [site for site in self.kit.sites if site not in self._connection.connected_sites()]
        except (Unreachable, FederationError):
            return f"The server {self.kit.server} cannot be reached: is it running there?"
        if missing:
            return f"Not connected: {', '.join(missing)}. Have them run `fahmc federation start` again."
        return "All sites are connected now."

    def _check_sites(self) -> None:
        connected = self._connection.connected_sites()
        missing = [site for site in self.kit.sites if site not in connected]
        if missing:
            raise Unreachable(f"Site {missing[0]!r} is not connected")

    def _end_other_jobs(self) -> None:
        """End what is left of our own jobs, or of an analyst's process that was killed; another's work is not ours."""
        for entry in self._connection.running_jobs():
            job = str(entry["job_id"])
            if job not in self._own_jobs and self._is_in_use(job):
                raise FederationError(
                    "Another run with this kit is in progress; sites work for one at a time. Wait for it, or end it."
                )
            self._connection.abort(job)

    def _is_in_use(self, job: str) -> bool:
        try:
            status = self._connection.command(job, {"do": "status"}, wait=0.0)
        except Unreachable:  # it has not started, or ends just now
            return False
        return status["is_working"] and status["silent_for"] < _BUSY

    def _ensure_job(self) -> None:
        """Have a job whose workers are up at the server and at all sites."""
        if self._job is not None:
            return
        self._check_sites()
        self._end_other_jobs()
        self._job = self._connection.submit()
        self._own_jobs.add(self._job)
        self.number += 1
        deadline = time.monotonic() + _START_TIMEOUT
        while True:
            try:
                self.command({"do": "status"}, wait=0.0)
                return
            except Unreachable as error:
                self.check_job()
                self._check_sites()
                if time.monotonic() > deadline:
                    raise Unreachable(f"the job did not start within {_START_TIMEOUT:g} s ({error})") from error
            time.sleep(_POLL)


def raise_end(end: dict[str, Any] | None) -> None:
    """Raise what the server says went wrong."""
    if end is None or end["kind"] in ("complete", "divergence"):
        return
    if end["kind"] in ("lost", "stopped"):
        raise Unreachable(end.get("message", "the server stopped the run"))
    raise error_class(end["kind"])(end["message"])


class FlareRun:
    """The rounds of one run, fetched from the server."""

    def __init__(self, settings: Flare, session: _Session, task: Task):
        self._settings, self._session, self._task = settings, session, task
        shape = (task.chain_keys.shared.size, task.dimension)
        self._states = state_layout(task.sampler, shape, task.dtype)
        self._order = self._write_order(shape)
        self._prepared_in = self._begun_in = -1
        self._survey_in = session.number
        self._begun = ""

    def run(self, state: Any, first_round: int, num_rounds: int) -> Block:
        """Return the next rounds, fewer if a chain diverges or the federation had to be put together anew."""
        return self._session.insist(lambda: self._fetch(state, first_round, num_rounds))

    def time_rounds(self, state: Any, num_rounds: int) -> dict[str, list[float]]:
        """Return the seconds of rounds, and of bare calls that carry as many bytes, by turns (`fahmc bench`)."""
        request = {
            "do": "time",
            "sites": list(self._task.federation.names),
            "num_rounds": num_rounds,
            "seconds": self._settings.round_timeout,
            "state": self._in_text(state),
        }
        return self._session.ask(request, 3600.0)["seconds"]

    def server_memory(self) -> int:
        """Return the bytes that the server's worker holds."""
        return int(self._session.command({"do": "status"}, wait=0.0)["memory"])

    def _in_text(self, state: Any) -> dict[str, str]:
        return {name: to_text(content) for name, content in self._states.pack(state).items()}

    def _write_order(self, shape: tuple[int, int]) -> str:
        """Say to the sites what to run."""
        task = self._task
        leaves = zip(tree.leaf_names(task.template), jax.tree.leaves(task.template), strict=True)
        sites = zip(task.federation.names, task.federation.weights, strict=True)
        order = {
            "model": model_recipe(task.model),
            "sampler": sampler_recipe(task.sampler),
            "seed": task.seed,
            "num_chains": shape[0],
            "dimension": shape[1],
            "dtype": task.dtype.name,
            "template": tree.skeleton(task.template),
            "leaf_shapes": {name: list(leaf.shape) for name, leaf in leaves},
            "sites": [{"name": name, "weight": float(weight)} for name, weight in sites],
            "num_rows": task.federation.num_rows,
        }
        text = json.dumps(order, sort_keys=True)
        return json.dumps({"run": hashlib.sha256(text.encode()).hexdigest()[:16]} | order, sort_keys=True)

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
        return self._as_block(answer, state, first_round)

    def make_ready(self) -> None:
        """Tell the sites what they were told before, if this job's workers have not heard it."""
        number = self._session.number
        if self._prepared_in == number:
            return
        if self._survey_in != number:
            again = self._settings._survey()
            marks = tuple(again["marks"][name] for name in self._task.federation.names)
            assert isinstance(self._task.federation, RemoteFederation)
            for name, old, new in zip(self._task.federation.names, self._task.federation.marks, marks, strict=True):
                if old != new:
                    raise FederationError(
                        f"Site {name!r} came back with other rows than the run began with. Restore them, or begin a "
                        "new run."
                    )
            self._survey_in = number
        request = {
            "do": "prepare",
            "order": self._order,
            "seconds": self._settings.setup_timeout,
            "round_timeout": self._settings.round_timeout,
        }
        self._session.ask(request, 3 * self._settings.setup_timeout)
        self._prepared_in = number

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

    def _as_block(self, answer: dict[str, Any], state: Any, first_round: int) -> Block:
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
