"""`Flare`: rounds at the sites of a real federation, kept going whatever happens to sites and server.

The analyst's own checkpoint is the run. The server's job and the sites' workers hold nothing that could not be made
again. When a site is lost, a worker dies or the server restarts, the job is ended; a new one is submitted once all
sites are there, and goes on from the last round that arrived here. Keys derive from indices: it is the same chain.
"""

from __future__ import annotations

import dataclasses
import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fahmc import door
from fahmc.checks.ask import Asked
from fahmc.checks.check import Answer, Check
from fahmc.data.sites import RemoteFederation, Sites
from fahmc.density.model import Model
from fahmc.dynamics.sampler import Phase
from fahmc.engines.flare.arrays import arrays_to_text
from fahmc.engines.flare.connection import Unreachable
from fahmc.engines.flare.kits import Kit
from fahmc.engines.flare.messages import Ask, Begin, Fetch, Prepare, Stop, Survey, text_to_block
from fahmc.engines.flare.questions import Question, check_same_study, read_answers
from fahmc.engines.flare.session import Session, raise_end
from fahmc.engines.order import Order, sampler_recipe
from fahmc.engines.record import record
from fahmc.engines.run import Abandoned, Block, Divergence, Run, TellSites
from fahmc.errors import FederationError
from fahmc.hints import Seconds
from fahmc.models.recipes import following_formula, model_recipe, with_feature_names
from fahmc.types import Message

# A survey asks each site three times, and a site that is silent is asked again.
_SURVEY_STEPS, _ASKED_TWICE = 6, 2

logger = logging.getLogger("fahmc")


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
    One run, or several that share the sites' warm processes:

        draws = fahmc.sample(model, fahmc.Sites(outcome="y"), sampler, 2000, engine=fahmc.engines.Flare("kits/analyst"))

        with fahmc.engines.Flare("kits/analyst") as engine:
            first = fahmc.sample(..., engine=engine)
            second = fahmc.sample(..., engine=engine)
    """

    kit: str | Path
    round_timeout: Seconds = 60.0
    patience: Seconds = 600.0
    setup_timeout: Seconds = 300.0
    _session: Session | None = field(default=None, init=False, repr=False)
    _is_kept: bool = field(default=False, init=False, repr=False)
    _survey: Survey | None = field(default=None, init=False, repr=False)

    def __post_init__(self):
        door.check(self)

    def __enter__(self) -> Flare:
        self._is_kept = True
        return self

    def __exit__(self, *error: object) -> None:
        self._is_kept = False
        self.release()

    def open(
        self,
        model: Model,
        sites: Sites,
        sampler: Any,
        is_stopping: Callable[[], bool] = lambda: False,
        tell_sites: TellSites = lambda sites, reason: None,
    ) -> tuple[Model, RemoteFederation]:
        """Ask the sites what they hold; the model comes back with its coefficients named after their columns."""
        model = following_formula(model, sites.model_settings)
        # What cannot be sent is refused before anybody is asked.
        model_recipe(model)
        sampler_recipe(sampler)
        self._session = self._session or Session(Kit.load(self.kit), self.patience)
        self._session.tell_sites = tell_sites
        self._survey = self._survey_of(self._session, sites)
        session, seconds = self._session, _SURVEY_STEPS * self.setup_timeout
        survey = self._survey
        answer = session.insist(lambda: session.ask(survey, seconds), is_stopping)
        example = {
            name: np.zeros((1, *array["shape"]), array["dtype"]) for name, array in sorted(answer["arrays"].items())
        }
        federation = RemoteFederation.from_reports(
            sizes={site: answer["sizes"][site] for site in session.kit.sites},
            example=example,
            marks=answer["marks"],
            weights=dict(zip(session.kit.sites, answer["weights"], strict=True)),
            about=answer["about"],
            secure_sum=answer["secure_sum"],
        )
        for remark in answer["about"].get("remarks", ()):
            logger.warning("%s", remark)
        names = answer["about"].get("feature_names")
        return (model if names is None else with_feature_names(model, names)), federation

    def ask(self, check: Check, asked: Sequence[Asked]) -> dict[str, Answer]:
        """Have every site answer a question about draws; what the sites were told before is told again if need be."""
        for one in asked:
            model_recipe(one.model)
        session = self._session = self._session or Session(Kit.load(self.kit), self.patience)
        try:
            texts = session.insist(lambda: self._ask(session, check, asked))
        except Abandoned:
            raise KeyboardInterrupt("interrupted while the sites were asked") from None
        finally:
            self.release()
        return read_answers(check, asked, texts)

    def _ask(self, session: Session, check: Check, asked: Sequence[Asked]) -> dict[str, Any]:
        """Have the sites make their rows ready for every fit, then ask."""
        sites, marks, seconds = list(session.kit.sites), [], self.setup_timeout
        for one in asked:
            assert isinstance(one.rows, Sites)
            answer = session.ask(self._survey_of(session, one.rows), _SURVEY_STEPS * seconds)
            check_same_study(answer, one)
            marks.append(answer["marks"])
        question = Question.of(check, sites, asked, marks).text
        answers = session.ask(Ask(sites, question, seconds), _ASKED_TWICE * seconds)["answers"]
        return {site: answers.get(site) for site in sites}

    def _survey_of(self, session: Session, sites: Sites) -> Survey:
        columns = sites.columns
        return Survey(
            sites=list(session.kit.sites),
            columns=None if columns is None else dataclasses.asdict(columns),
            weights=None if sites.weights is None else dict(sites.weights),
            seconds=self.setup_timeout,
        )

    def start(self, run: Run) -> FlareRun:
        """Take a run to the sites that were asked; they are told with its first round."""
        assert self._session is not None and self._survey is not None, "open comes before start"
        return FlareRun(self._session, run, self._survey, self.round_timeout, self.setup_timeout)

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
    """The rounds of one run, fetched from the server phase by phase."""

    path = "plain"

    def __init__(self, session: Session, run: Run, survey: Survey, round_timeout: float, setup_timeout: float):
        self.session, self._run, self._survey = session, run, survey
        self._round_timeout, self._setup_timeout = round_timeout, setup_timeout
        self._told: tuple[int, str] | None = None
        """The job and the order that its workers were told last."""
        self._survey_in = session.number
        self._begun: tuple[int, str, str] | None = None
        """The job, the order and the identity under which rounds were begun last."""

    def advance(self, phase: Phase, state: Message, first_round: int, num_rounds: int) -> Block:
        """Return the next rounds, fewer if a chain diverges or the federation had to be put together anew."""
        order = Order.of(self._run, phase)
        return self.session.insist(
            lambda: self._fetch(order, phase, state, first_round, num_rounds), self._run.is_stopping
        )

    def _fetch(self, order: Order, phase: Phase, state: Message, first_round: int, num_rounds: int) -> Block:
        self._make_ready(order)
        if self._begun is None or self._begun[:2] != (self.session.number, order.identity):
            self._begin(order, phase, state, first_round)
        assert self._begun is not None
        request = Fetch(self._begun[2], first_round, num_rounds)
        while (answer := self.session.command(request)).get("pending"):
            self.session.check_job()
        if "block" in answer:
            return text_to_block(answer["block"])
        raise_end(end := answer["end"])
        if end is None or end["kind"] != "divergence":
            raise Unreachable("the server had no rounds to give")
        divergence = Divergence(end["chain"], end["round"], end["client"])
        return record(phase, state, first_round, [])._replace(divergence=divergence)

    def _make_ready(self, order: Order) -> None:
        """Tell the sites what they were told before, if this job's workers have not heard it."""
        number = self.session.number
        if self._told == (number, order.identity):
            return
        if self._survey_in != number:
            self._check_marks(self.session.ask(self._survey, _SURVEY_STEPS * self._setup_timeout)["marks"])
            self._survey_in = number
        if self._begun is not None and self._begun[0] == number:
            self.session.command(Stop(), wait=0.0)
        request = Prepare(order.text, self._setup_timeout, self._round_timeout)
        self.session.ask(request, _ASKED_TWICE * self._setup_timeout)
        self._told = number, order.identity

    def _check_marks(self, marks: dict[str, str]) -> None:
        federation = self._run.federation
        assert isinstance(federation, RemoteFederation)
        for name, mark in zip(federation.names, federation.marks, strict=True):
            if marks[name] != mark:
                raise FederationError(
                    f"Site {name!r} came back with other rows than the run began with. Restore them, or begin anew."
                )

    def _begin(self, order: Order, phase: Phase, state: Message, first_round: int) -> None:
        self.session.command(Stop(), wait=0.0)
        text = arrays_to_text(state)
        request = Begin(first_round, phase.num_rounds, phase.num_warmup_rounds, phase.thin, text)
        identity = uuid.uuid4().hex
        self.session.command(request, wait=0.0, identity=identity)
        self._begun = self.session.number, order.identity, identity
