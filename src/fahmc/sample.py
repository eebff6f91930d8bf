"""`sample`: the one call that wires a model, a federation, a sampler and an engine together."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fahmc.data.federation import Federation
from fahmc.data.sites import Sites
from fahmc.density.potential import Model
from fahmc.draws import Draws
from fahmc.dynamics.fa_hmc import FAHMC
from fahmc.dynamics.hmc import HMC
from fahmc.engines.block import Abandoned, Divergence, Engine, EngineFactory, RemoteEngineFactory
from fahmc.engines.in_process import InProcess
from fahmc.errors import DivergenceError, FederationError, SettingsError
from fahmc.report.convergence import RHatBelow
from fahmc.runs.history import History
from fahmc.runs.pacing import Pacing
from fahmc.runs.plan import Plan, make_plan, make_task
from fahmc.runs.progress import Interrupt, round_progress
from fahmc.types import Position

logger = logging.getLogger("fahmc")


def sample(
    model: Model,
    federation: Federation | Sites,
    sampler: FAHMC | HMC,
    num_rounds: int,
    *,
    num_warmup_rounds: int = 0,
    num_chains: int = 4,
    seed: int = 0,
    private_seed: int | None = None,
    init: Position | None = None,
    thin: int = 1,
    dtype: str | None = None,
    engine: EngineFactory | RemoteEngineFactory | None = None,
    checkpoint_dir: str | os.PathLike | None = None,
    stop_when: RHatBelow | None = None,
    progress: bool | None = None,
    block_rounds: int | None = None,
    row_space: bool | None = None,
) -> Draws:
    """Draw from the posterior that a federation's rows define together.

    Parameters
    ----------
    federation
        The clients' rows; or `Sites`, with an engine that reaches the sites which hold them.
    num_rounds, num_warmup_rounds
        Rounds after warm-up, and warm-up rounds before them that are not kept.
    seed, private_seed
        The same seeds give the same draws. ``private_seed`` feeds the clients' private momentum and minibatches.
    init
        Where chains start, instead of the model's ``init``: one position, or one a chain (leading axis ``num_chains``).
    thin
        Keep every ``thin``-th round.
    dtype
        ``"float32"`` or ``"float64"``; by default whichever JAX is set to.
    engine
        Who runs the clients; by default this process, `fahmc.engines.Flare` the sites of a real federation.
    checkpoint_dir
        Folder that makes the run durable: after a kill, the same call goes on where it stopped, with the same draws.
        A larger ``num_rounds`` extends a finished plan.
    stop_when
        Stop before ``num_rounds`` once this rule holds, e.g. ``RHatBelow(1.01)``.
    progress
        Show a progress bar; by default only on a terminal.
    block_rounds
        Rounds run between two looks at the outside world; by default about a second's worth. Draws do not depend on it.
    row_space
        Run generalised linear models in the space of their rows (`fahmc.dynamics.row_space`): the same draws to
        rounding, under `GaussianNoise` the same law. By default where it pays; ``draws.settings["path"]`` says.

    Notes
    -----
    Ctrl-C ends the run after the current block and returns what was drawn; a second Ctrl-C raises KeyboardInterrupt.
    A chain that leaves the finite numbers raises `DivergenceError`, whose ``draws`` are those before it.
    """
    num_rounds = _checked_count("num_rounds", num_rounds)
    num_warmup_rounds = _checked_count("num_warmup_rounds", num_warmup_rounds, least=0)
    num_chains = _checked_count("num_chains", num_chains)
    thin = _checked_count("thin", thin)
    block_rounds = None if block_rounds is None else _checked_count("block_rounds", block_rounds)
    seed = _checked_seed("seed", seed)
    private_seed = None if private_seed is None else _checked_seed("private_seed", private_seed)
    if thin > num_rounds:
        raise SettingsError(f"thin = {thin} keeps no draw of num_rounds = {num_rounds}; thin at most that much.")
    _check_stop_when(stop_when, num_chains, num_rounds // thin)
    precision = _precision(dtype)
    with (
        jax.enable_x64(precision == np.float64),
        _reached(model, federation, sampler, private_seed, engine) as (model, federation),
    ):
        plan = make_plan(
            model,
            federation,
            sampler,
            seed=seed,
            private_seed=private_seed,
            num_chains=num_chains,
            init=init,
            dtype=precision,
            # Another engine's clients hold their own rows, so nobody could do their rounds together.
            row_space=row_space if engine is None or isinstance(engine, InProcess) else False,
        )
        pacing = Pacing(num_warmup_rounds, num_rounds, thin, stop_when, block_rounds)
        return _drive(plan, pacing, engine or InProcess(), checkpoint_dir, progress)


@contextmanager
def _reached(
    model: Model, federation: Any, sampler: Any, private_seed: int | None, engine: Any
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
        yield model, federation
        return
    if private_seed is not None:
        raise SettingsError("private_seed is set, but every site draws its private part from a secret of its own.")
    try:
        yield engine.open(model, federation, sampler)
    finally:
        engine.release()


def _checked_count(name: str, value: Any, least: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise SettingsError(f"{name} is {value!r}; it must be a whole number of at least {least}.")
    return int(value)


def _checked_seed(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 0 <= value < 2**64:
        raise SettingsError(f"{name} is {value!r}; it must be a whole number from 0 to 2^64 - 1.")
    return int(value)


def _check_stop_when(stop_when: Any, num_chains: int, num_draws: int) -> None:
    if stop_when is None:
        return
    if not isinstance(stop_when, RHatBelow):
        raise SettingsError(f"stop_when is {stop_when!r}; give a rule such as fahmc.RHatBelow(1.01).")
    if num_chains < 2:
        raise SettingsError("stop_when needs R-hat, which compares chains; use num_chains of at least 2.")
    if stop_when.every > num_draws:
        raise SettingsError(
            f"stop_when looks every {stop_when.every} draws, but a chain keeps only {num_draws}; lower every."
        )


def _precision(dtype: str | None) -> np.dtype:
    if dtype is None:
        return np.dtype(jnp.result_type(float))
    if str(dtype) not in ("float32", "float64"):
        raise SettingsError(f"dtype is {dtype!r}; choose 'float32' or 'float64'.")
    return np.dtype(dtype)


def _drive(plan: Plan, pacing: Pacing, factory: EngineFactory, checkpoint_dir, progress: bool | None) -> Draws:
    """Run block after block until the end, the stopping rule, Ctrl-C or a divergence."""
    ended = "complete"
    with (
        closing(History(plan, pacing, checkpoint_dir)) as history,
        Interrupt() as interrupt,
        round_progress(pacing.total, history.rounds_done, pacing.num_warmup_rounds, progress) as report,
    ):
        task = make_task(plan, pacing, is_stopping=lambda: interrupt.requested)
        engine: Engine | None = None
        while history.rounds_done < pacing.total:
            if pacing.is_over(history.rounds_done, history.positions):
                ended = "stop_when"
                break
            if interrupt.requested:
                break
            try:
                engine = engine or factory.start(task)
                began = time.perf_counter()
                block = engine.run(
                    history.state, history.rounds_done, pacing.next_block(history.rounds_done, task.capacity)
                )
            except Abandoned:
                continue
            except FederationError as error:
                raise _with_draws(error, history) from error
            seconds = time.perf_counter() - began
            pacing.measured(block.num_rounds, seconds)
            history.append(block, seconds)
            if block.divergence is not None:
                raise _divergence_error(plan, history, block.divergence)
            report(history.rounds_done)
        # Also in the last block: whoever has more runs to come should not begin them.
        if interrupt.requested:
            ended = "interrupted"
    return _conclude(history, ended, pacing.draws_at(pacing.total))


def _conclude(history: History, ended: str, num_wanted: int) -> Draws:
    """Put the draws together, and say what the user should know of them."""
    if ended == "interrupted" and not history.num_draws:
        raise KeyboardInterrupt("interrupted during warm-up: nothing was drawn yet")
    if ended == "interrupted":
        logger.warning("Interrupted: %d of %d draws a chain were made.", history.num_draws, num_wanted)
    draws = history.draws(ended)
    if num_diverging := int(draws.stats["diverging"].sum()):
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


def _divergence_error(plan: Plan, history: History, divergence: Divergence) -> DivergenceError:
    draws = history.draws("diverged") if history.num_draws else None
    kept = f"The {history.num_draws} draws a chain before it are kept" if draws else "No draw was made before it"
    where = f" in {history.folder.path}" if history.folder is not None and draws else ""
    hint = ", or look for a NaN gradient at the start" if divergence.round == 0 else ""
    eta = float(plan.kernel.step_size(jnp.int32(divergence.round)))
    return DivergenceError(
        f"Chain {divergence.chain} diverged in round {divergence.round} at client "
        f"{plan.federation.names[divergence.client]!r}: its position is no longer finite. Use a smaller step_size (it "
        f"was {eta:g}; try {eta / 2:g}), or start closer to the posterior (init){hint}. {kept}{where}.",
        draws,
    )
