"""Whether the model fits, and which of two: questions about draws that are answered where the rows are, in sums.

check.py             what a question is: `Check`, answered at a site, concluded by the analyst
groups.py            counts that may be told
pointwise.py         values of every row at every draw
ask.py               which draws go to the rows, and how these are reached
loo.py               leave-one-out cross-validation by Pareto-smoothed importance sampling
cross_validation.py  `Draws.loo`, `compare_models`
replicates.py        outcomes drawn from the model for the same rows
predictive.py        posterior predictive checks: statistics and ranks of outcomes against those that the model makes
calibration.py       reliability, scores and ROC of predicted chances
*_result.py          what these come to, in numbers and in words
fitted.py            `Draws.predictive_check`, `Draws.calibration`
"""

from fahmc.checks.calibration import BinnedChances
from fahmc.checks.calibration_result import Calibration
from fahmc.checks.check import Answer, Check, Fit
from fahmc.checks.cross_validation import Comparison, compare_models
from fahmc.checks.loo import Loo, PsisLoo, SiteLoo
from fahmc.checks.predictive import PosteriorPredictive
from fahmc.checks.predictive_result import PredictiveCheck

__all__ = [
    "Answer",
    "BinnedChances",
    "Calibration",
    "Check",
    "Comparison",
    "Fit",
    "Loo",
    "PosteriorPredictive",
    "PredictiveCheck",
    "PsisLoo",
    "SiteLoo",
    "compare_models",
]
