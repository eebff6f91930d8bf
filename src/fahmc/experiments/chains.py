"""Chains of an experiment: section 5's reading of T, and ends that are told apart."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fahmc.data.federation import Federation
from fahmc.density.gradient import FullGradient, Gradient
from fahmc.density.model import Model
from fahmc.draws import Draws
from fahmc.dynamics.fa_hmc import FAHMC
from fahmc.errors import DivergenceError
from fahmc.sample import sample


def section_5(
    step_size: float,
    num_leapfrog_steps: int,
    num_local_steps: int,
    gradient: Gradient = FullGradient(),
    *,
    reuse_gradient: bool = False,
) -> FAHMC:
    """Return FA-HMC as section 5 runs it: one shared momentum, all averaged every T leapfrog steps."""
    return FAHMC(
        step_size,
        num_leapfrog_steps=num_leapfrog_steps,
        num_local_steps=num_local_steps,
        momentum_correlation=1.0,
        gradient=gradient,
        sync_unit="leapfrog",
        reuse_gradient=reuse_gradient,
    )


@contextmanager
def _unwarned() -> Iterator[None]:
    """Keep the sampler's advice to itself: a sweep has step sizes that are too large on purpose."""
    logger = logging.getLogger("fahmc")
    logger.addFilter(_refuse)
    try:
        yield
    finally:
        logger.removeFilter(_refuse)


def _refuse(record: logging.LogRecord) -> bool:
    return record.levelno > logging.WARNING


def run_chains(
    model: Model, federation: Federation, sampler: Any, num_rounds: int, checkpoints: Path | None, **options: Any
) -> Draws | None:
    """Sample in single precision without a bar of its own; None if a chain diverged.

    ``checkpoints`` makes long runs durable. Ctrl-C raises, since a figure has no use for half a run.
    """
    try:
        with _unwarned():
            draws = sample(
                model,
                federation,
                sampler,
                num_rounds,
                dtype="float32",
                progress=False,
                checkpoint_dir=checkpoints,
                **options,
            )
    except DivergenceError:
        return None
    if draws.settings["ended"] == "interrupted":
        raise KeyboardInterrupt
    return draws
