"""The report's figures of whether the model fits; as files they are those of `fahmc.report.fit_plots`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fahmc.report.fit_plots import (
    MOST_NAMED,
    colour_of,
    draw_p_values,
    draw_ranks,
    draw_reliability,
    draw_roc,
    sites_of,
)
from fahmc.report.panels import Group, Panel, small_panel
from fahmc.report.svg import as_svg

if TYPE_CHECKING:
    from fahmc.checks.calibration_result import Calibration
    from fahmc.checks.predictive_result import PredictiveCheck


def predictive_group(check: PredictiveCheck) -> Group:
    """Draw where outcomes rank, and p of the statistics."""
    figure, axis = small_panel(2.6)
    draw_ranks(axis, check)
    ranks = as_svg(figure, "Where outcomes rank among those that the model makes of the same rows.")
    figure, axis = small_panel(2.6)
    draw_p_values(axis, check)
    p_values = as_svg(figure, f"p of the statistics {', '.join(check.statistics)}; the table has the numbers.")
    caption = (
        f"Posterior predictive check on {check.num_rows:,} rows. Ranks: where the outcomes rank among those that the "
        "model makes of the same rows, with the 90 % intervals that a right model keeps to (grey). A slope is a bias; "
        "too many at both ends, and the model is too sure; too many in the middle, too unsure. Statistics: p of each, "
        "over all sites (diamonds) and at each."
    )
    sites = sites_of(check) if len(check.sites) <= MOST_NAMED else []
    legend = {site: colour_of(check, place) for place, (site, _) in enumerate(sites)}
    return Group("predictive", caption, [Panel("", ranks), Panel("", p_values)], legend)


def calibration_group(chances: Calibration) -> Group:
    """Draw the reliability of predicted chances, and the ROC."""
    figure, axis = small_panel(3.2)
    draw_reliability(axis, chances)
    reliability = as_svg(figure, f"Shares of ones against predicted chances, in {len(chances.groups)} groups of rows.")
    figure, axis = small_panel(3.2)
    draw_roc(axis, chances)
    roc = as_svg(figure, f"ROC of the predicted chances; the area under it is {chances.auc:.3f}.")
    caption = (
        f"Predicted chances against the share of ones, in {len(chances.groups)} groups of rows, with 95 % intervals; "
        f"on the diagonal they are calibrated (Brier score {chances.brier:.3f}). The ROC's points are the groups of "
        f"rows that sites tell (AUC {chances.auc:.3f})."
    )
    return Group("calibration", caption, [Panel("", reliability), Panel("", roc)], {})
