"""Whether to believe the draws: convergence, distance from a reference, predictions, figures, a report.

ArviZ and matplotlib are imported where they are used, since they take seconds to load.
"""

from fahmc.report.about import About
from fahmc.report.convergence import (
    EssAbove,
    RHatBelow,
    difference_in_mcse,
    ess,
    max_r_hat,
    mcse,
    r_hat,
    relative_drift,
)
from fahmc.report.distances import marginal_error, marginal_error_floor, wasserstein2_gaussians
from fahmc.report.parameters import parameter_table
from fahmc.report.plots import plot_client_drift, plot_forest, plot_marginals, plot_trace
from fahmc.report.predictive import accuracy, brier_score, expected_calibration_error, negative_log_likelihood
from fahmc.report.render import write_report
from fahmc.report.verdict import Verdict, judge

__all__ = ["EssAbove", "RHatBelow", "difference_in_mcse", "ess", "max_r_hat", "mcse", "r_hat", "relative_drift"]
__all__ += ["marginal_error", "marginal_error_floor", "parameter_table", "wasserstein2_gaussians"]
__all__ += ["plot_client_drift", "plot_forest", "plot_marginals", "plot_trace"]
__all__ += ["accuracy", "brier_score", "expected_calibration_error", "negative_log_likelihood"]
__all__ += ["About", "Verdict", "judge", "write_report"]
