"""`sample`: the one call that wires a model, a federation, a sampler and an engine together."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from fahmc import door
from fahmc.adaptive.auto import Auto
from fahmc.data.federation import Federation
from fahmc.data.sites import Sites
from fahmc.density.model import Model
from fahmc.draws import Draws
from fahmc.dynamics.sampler import Phase, Sampler
from fahmc.engines.in_process import InProcess
from fahmc.engines.run import SAMPLING, Abandoned, Divergence, Engine, Run, Session
from fahmc.errors import DivergenceError, FederationError, SettingsError
from fahmc.hints import Chains, Rounds, Seed, WarmupRounds
from fahmc.models.recipes import following_formula, with_feature_names
from fahmc.report.convergence import EssAbove, RHatBelow
from fahmc.runs.checkpoint import RunFolder
from fahmc.runs.checks import check_length, check_stop_when, checked_num_rounds
from fahmc.runs.history import History
from fahmc.runs.journal import Journal
from fahmc.runs.pacing import Pacing
from fahmc.runs.plan import fingerprint_of, make_run, settings_of
from fahmc.runs.progress import Interrupt, round_progress
from fahmc.runs.start import model_values
from fahmc.types import Position

logger = logging.getLogger("fahmc")


@door.checked()
def sample(
    model: Model,
    federation: Federation | Sites,
    sampler: Sampler | None = None,
    num_rounds: Rounds | None = None,
    *,
    num_warmup_rounds: WarmupRounds = 0,
    num_chains: Chains = 4,
    seed: Seed = 0,
    private_seed: Seed | None = None,
    init: Position | None = None,
    thin: Rounds | None = None,
    dtype: Literal["float32", "float64"] | None = None,
    engine: Engine | None = None,
    checkpoint_dir: str | os.PathLike | None = None,
    stop_when: RHatBelow | EssAbove | None = None,
    progress: bool | None = None,
    block_rounds: Rounds | None = None,
    row_space: bool | None = None,
) -> Draws:
    """Draw from the posterior that a federation's rows define together.

    Parameters
    ----------
    federation
        The clients' rows; or `Sites`, with an engine that reaches the sites which hold them.
    sampler
        By default `fahmc.Auto`, which needs no settings and finds out by itself how many rounds it takes.
    num_rounds, num_warmup_rounds
        Rounds after warm-up, and warm-up rounds before them that are not kept. With ``stop_when``, ``num_rounds`` may
        be left out.
    seed, private_seed
        The same seeds give the same draws. ``private_seed`` feeds the clients' private momentum and minibatches.
    init
        Where chains start, instead of the model's ``init``: one position, or one a chain (leading axis ``num_chains``).
    thin
        Keep every ``thin``-th round; by default every one, or with a sampler whose draws take K rounds every K-th.
    dtype
        ``"float32"`` or ``"float64"``; by default whichever JAX is set to.
    engine
        Who runs the clients; by default this process, `fahmc.engines.Flare` the sites of a real federation.
    checkpoint_dir
        Folder that makes the run durable: after a kill, the same call goes on where it stopped, with the same draws.
        A larger ``num_rounds`` extends a finished plan.
    stop_when
        Stop before ``num_rounds`` once this rule holds, e.g. ``RHatBelow(1.01)`` or ``EssAbove(400)``.
    progress
        Show a progress bar; by default only on a terminal.
    block_rounds
        Rounds run between two looks at the outside world; by default about a second's worth. Draws do not depend on it.
    row_space
        The same setting of `fahmc.engines.InProcess`; other engines refuse it.

    Notes
    -----
    Ctrl-C ends the run after the current block and returns what was drawn; a second Ctrl-C raises KeyboardInterrupt.
    A chain that leaves the finite numbers raises `DivergenceError`, whose ``draws`` are those before it.
    """
    sampler = Auto() if sampler is None else sampler
    num_rounds = checked_num_rounds(num_rounds, sampler, stop_when)
    thin = sampler.rounds_per_draw if thin is None else thin
    check_length(num_rounds, num_warmup_rounds, thin, sampler)
    check_stop_when(stop_when, num_chains, None if num_rounds is None else num_rounds // thin)
    precision, engine = np.dtype(dtype or jnp.result_type(float)), _chosen_engine(engine, row_space)
    with (
        jax.enable_x64(precision == np.float64),
        Interrupt() as interrupt,
        _kept(checkpoint_dir) as folder,
        Journal(None if folder is None else folder.path) as journal,
        _reached(model, federation, sampler, private_seed, engine, interrupt, journal) as (model, federation),
    ):
        run = make_run(
            model,
            federation,
            sampler,
            num_rounds,
            num_warmup_rounds=num_warmup_rounds,
            thin=thin,
            seed=seed,
            private_seed=private_seed,
            num_chains=num_chains,
            init=init,
            dtype=precision,
            is_stopping=lambda: interrupt.requested,
        )
        clients = dict(zip(federation.names, map(int, federation.sizes), strict=True))
        values, session = model_values(run), engine.start(run)
        settings = settings_of(run, clients, session.path)
        journal.tell_run(run)
        if folder is not None:
            folder.claim(fingerprint_of(run, settings, values))
        history = History(run, settings, folder)
        return _drive(run, session, history, Pacing(stop_when, block_rounds), interrupt, journal, progress)


def _chosen_engine(engine: Engine | None, row_space: bool | None) -> Engine:
    """Return the engine, this process by default, with the user's word on row space, which is the business of one."""
    if engine is None:
        return InProcess(row_space=row_space)
    if row_space is not None and isinstance(engine, InProcess):
        return replace(engine, row_space=row_space)
    if row_space is not None:
        raise SettingsError(
            f"row_space = {row_space}, but {type(engine).__name__} does not know it: rounds in row space need all rows "
            "in this process. Leave row_space out, or the engine."
        )
    return engine


@contextmanager
def _kept(folder: str | os.PathLike | None) -> Iterator[RunFolder | None]:
    """Have the folder of a durable run to this process alone."""
    if folder is None:
        yield None
        return
    with closing(RunFolder(folder)) as own:
        yield own


@contextmanager
def _reached(
    model: Model,
    federation: Any,
    sampler: Any,
    private_seed: int | None,
    engine: Any,
    interrupt: Interrupt,
    journal: Journal,
) -> Iterator[tuple[Model, Federation]]:
    """Have a federation to sample: the one given, or that of sites, which are let go at the end."""
    is_remote = hasattr(engine, "open")
    if isinstance(federation, Sites) != is_remote:
        raise SettingsError(
            "fahmc.Sites says what to take from the sites of a real federation, so it needs an engine that reaches "
            "them: engine=fahmc.engines.Flare(kit=...)."
            if not is_remote
            else f"{type(engine).__name__} runs rounds where the rows are, so its federation is not a "
            f"{type(federation).__name__} but fahmc.Sites(outcome=..., features=...)."
        )
    if not is_remote:
        names = federation.about.get("feature_names")
        model = following_formula(model, federation.model_settings)
        yield (model if names is None else with_feature_names(model, names)), federation
        return
    if private_seed is not None:
        raise SettingsError("private_seed is set, but every site draws its private part from a secret of its own.")
    try:
        try:
            reached = engine.open(model, federation, sampler, lambda: interrupt.requested, journal.tell_sites)
        except Abandoned:
            raise KeyboardInterrupt("interrupted while the sites were asked: nothing was drawn yet") from None
        yield reached
    finally:
        engine.release()


def _drive(
    run: Run,
    session: Session,
    history: History,
    pacing: Pacing,
    interrupt: Interrupt,
    journal: Journal,
    progress: bool | None,
) -> Draws:
    """Run block after block until the end, the stopping rule, Ctrl-C or a divergence."""
    ended = "complete"
    with round_progress(progress) as show:
        show(history.phase, history.rounds_done)
        journal.tell_progress(history)
        while not history.is_complete:
            phase = history.phase
            if pacing.is_over(phase, history.rounds_done, history.positions):
                ended = "stop_when"
                break
            if interrupt.requested:
                break
            began = time.perf_counter()
            try:
                num_rounds = pacing.next_block(phase, history.rounds_done, max(1, run.capacity(phase)))
                block = session.advance(phase, history.state, history.rounds_done, num_rounds)
            except Abandoned:
                continue
            except FederationError as error:
                raise _with_draws(error, history) from error
            seconds = time.perf_counter() - began
            pacing.measured(block.num_rounds, seconds)
            history.append(block, seconds)
            if block.divergence is not None and not phase.may_diverge:
                raise _divergence_error(run, phase, history, block.divergence)
            show(history.phase, history.rounds_done)
            journal.tell_progress(history)
        # Also in the last block: whoever has more runs to come should not begin them.
        if interrupt.requested:
            ended = "interrupted"
    journal.tell(ended=ended)
    return _conclude(history, ended)


def _conclude(history: History, ended: str) -> Draws:
    """Put the draws together, and say what the user should know of them."""
    if ended == "interrupted" and not history.num_draws:
        raise KeyboardInterrupt("interrupted during warm-up: nothing was drawn yet")
    if ended == "interrupted":
        wanted = history.phase.draws_after(history.phase.num_rounds)
        logger.warning("Interrupted: %d of %d draws a chain were made.", history.num_draws, wanted)
    draws = history.draws(ended)
    if num_diverging := int(np.sum(draws.stats.get("diverging", 0))):
        logger.warning(
            "%d of %d draws come from trajectories that went further than their momentum carries them: the step size "
            "is too large, which R-hat need not show, or the chain was still on its way from a far start. Use a "
            "smaller step_size, or more warm-up rounds.",
            num_diverging,
            draws.num_chains * draws.num_draws,
        )
    return draws


def _with_draws(error: FederationError, history: History) -> FederationError:
    """Say what was saved when sites or server are given up."""
    draws = history.draws("interrupted") if history.num_draws else None
    kept = f"The {history.num_draws} draws a chain so far are kept" if draws else "No draw was made yet"
    where = f" in {history.folder.path}; the same call goes on from there" if history.folder is not None else ""
    return FederationError(f"{error} {kept}{where}.", draws)


def _divergence_error(run: Run, phase: Phase, history: History, divergence: Divergence) -> DivergenceError:
    draws = history.draws("diverged") if history.num_draws else None
    kept = f"The {history.num_draws} draws a chain before it are kept" if draws else "No draw was made before it"
    where = f" in {history.folder.path}" if history.folder is not None and draws else ""
    hint = ", or look for a NaN gradient at the start" if divergence.round == 0 else ""
    when = f"round {divergence.round}" + ("" if phase.name == SAMPLING else f" of the phase {phase.name!r}")
    who = f"Chain {divergence.chain} diverged" if run.exchange(phase).has_chains else "All chains diverged"
    places = [*(f"at client {name!r}" for name in run.federation.names), "where the replies are put together"]
    return DivergenceError(
        f"{who} in {when} {places[divergence.client]}: its position is no longer finite. Use "
        f"{phase.sampler.remedy(divergence.round)}, or start closer to the posterior (init){hint}. {kept}{where}.",
        draws,
    )
