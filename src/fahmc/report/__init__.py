"""Whether to believe the draws: convergence, distance from a reference, predictions, figures, a report.

ArviZ and matplotlib are imported where they are used, since they take seconds to load.
"""

from fahmc.report.convergence import RHatBelow, difference_in_mcse, ess, max_r_hat, mcse, r_hat, relative_drift
from fahmc.report.distances import marginal_error, marginal_error_floor, wasserstein2_gaussians, wasserstein2_samples
from fahmc.report.parameters import parameter_table
from fahmc.report.plots import plot_calibration, plot_client_drift, plot_forest, plot_marginals, plot_trace
from fahmc.report.predictive import (
    Reliability,
    accuracy,
    brier_score,
    expected_calibration_error,
    negative_log_likelihood,
    reliability,
)
from fahmc.report.render import write_report
from fahmc.report.verdict import Verdict, judge

__all__ = [
    "RHatBelow",
    "Reliability",
    "Verdict",
    "accuracy",
    "brier_score",
    "difference_in_mcse",
    "ess",
    "expected_calibration_error",
    "judge",
    "marginal_error",
    "marginal_error_floor",
    "max_r_hat",
    "mcse",
    "negative_log_likelihood",
    "parameter_table",
    "plot_calibration",
    "plot_client_drift",
    "plot_forest",
    "plot_marginals",
    "plot_trace",
    "r_hat",
    "relative_drift",
    "reliability",
    "wasserstein2_gaussians",
    "wasserstein2_samples",
    "write_report",
]
