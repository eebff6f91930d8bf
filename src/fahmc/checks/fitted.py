"""`Draws.predictive_check` and `Draws.calibration`: whether a run's model fits the rows that it was fitted to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fahmc.checks.ask import ask, kept_draws
from fahmc.checks.calibration import BinnedChances
from fahmc.checks.calibration_result import Calibration
from fahmc.checks.cross_validation import asked_of
from fahmc.checks.predictive import PosteriorPredictive
from fahmc.checks.predictive_result import PredictiveCheck
from fahmc.checks.replicates import NO_SAMPLE_FN
from fahmc.errors import ModelError

if TYPE_CHECKING:
    from fahmc.draws import Draws

MAX_REPLICATES = 1000
"""Draws at which outcomes are made again unless said otherwise: p is then known to 0.016."""


def predictive_check(draws: Draws, rows: Any, engine: Any, model: Any, max_draws: int, seed: int) -> PredictiveCheck:
    """Return whether the model makes outcomes like those there are: see `Draws.predictive_check`."""
    asked = asked_of(draws, rows, model, kept_draws(draws.parameters, max_draws))
    if asked.model.sample_fn is None:
        raise ModelError(NO_SAMPLE_FN)
    check = PosteriorPredictive(seed)
    return check.conclude(ask(check, [asked], engine))


def calibration(draws: Draws, rows: Any, engine: Any, model: Any, max_draws: int) -> Calibration:
    """Return how well the model predicts chances of a 1: see `Draws.calibration`."""
    asked = asked_of(draws, rows, model, kept_draws(draws.parameters, max_draws))
    if asked.model.predict_fn is None:
        raise ModelError(
            "The model has no predict_fn, so it has no chances to check; give Model(predict_fn=...) a function of "
            "(position, batch) that returns P(y = 1) of every row."
        )
    check = BinnedChances()
    return check.conclude(ask(check, [asked], engine))
