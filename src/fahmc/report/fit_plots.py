"""Figures of whether a model fits: ranks of outcomes, p by site, reliability, ROC. None of them shows a row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fahmc.report.canvas import COLOURS, dress, legend_below_title, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fahmc.checks.calibration_result import Calibration
    from fahmc.checks.predictive_result import PredictiveCheck, SiteFit

_LABELS = {"mean": "mean", "sd": "sd", "zeros": "zeros", "residuals": "residuals", "ranks": "ranks",
           "inside_50": "inside 50 %"}  # fmt: skip
# More colours than that are hard to tell apart, and more names too many for a legend.
MOST_NAMED = 5


def plot_predictive_check(check: PredictiveCheck) -> Figure:
    """Draw where outcomes rank among those that the model makes, and p of every statistic by site."""
    verdict = "nothing speaks against the model" if check.fits else "the model does not fit"
    figure, (left, right) = panels(
        2, f"Posterior predictive check: {verdict}", num_columns=2, panel=(5.4, 3.6), has_legend=True
    )
    draw_ranks(left, check)
    draw_p_values(right, check)
    legend_below_title(figure, left)
    return figure


def draw_ranks(axis: Axes, check: PredictiveCheck) -> None:
    """Draw rows per bin as a density, since bins that were put together are wider."""
    starts = np.array([bin.start for bin in check.bins])
    widths = np.array([bin.end - bin.start for bin in check.bins])
    per_width = 1 / (check.num_rows * widths)
    counts = np.array([[bin.observed, bin.lower, bin.predicted, bin.upper] for bin in check.bins])
    observed, lower, predicted, upper = counts.T * per_width
    axis.bar(starts, observed, widths, align="edge", color=COLOURS[5], ec="white", lw=0.8, label="outcomes")
    axis.bar(
        starts,
        upper - lower,
        widths,
        lower,
        align="edge",
        color="0.2",
        alpha=0.18,
        lw=0,
        label="90 % if it fits",
    )
    axis.hlines(predicted, starts, starts + widths, color="0.2", lw=1.2)
    for place, (site, _) in enumerate(sites_of(check)) if len(check.sites) <= MOST_NAMED else ():
        axis.plot([], [], "o", color=colour_of(check, place), label=site)  # for the legend of both panels
    axis.set_xlim(0, 1)
    axis.set_ylim(bottom=0)
    axis.set_xlabel("rank among predicted outcomes", fontsize=9)
    axis.set_ylabel("density of rows", fontsize=9)
    dress(axis, "Where the outcomes rank")


def draw_p_values(axis: Axes, check: PredictiveCheck) -> None:
    """Draw p of every statistic, over all sites and at each."""
    names = list(check.statistics)
    for place, (_, part) in enumerate(sites_of(check)):
        values = [part.statistics[name].p_value if name in part.statistics else np.nan for name in names]
        axis.plot(values, range(len(names)), "o", color=colour_of(check, place), ms=6, alpha=0.8)
    axis.plot([statistic.p_value for statistic in check.statistics.values()], range(len(names)), "D", color="0.1", ms=7)
    for limit in (0.005, 0.995):
        axis.axvline(limit, color=COLOURS[1], lw=1, ls="--")
    axis.set_xlim(-0.03, 1.03)
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.set_yticks(range(len(names)), [_LABELS[name] for name in names])
    axis.set_xlabel("p: share of predicted values above the observed one", fontsize=9)
    dress(axis, "Statistics of all sites (black) and of each" if sites_of(check) else "Statistics")


def sites_of(check: PredictiveCheck) -> list[tuple[str, SiteFit]]:
    """Return the sites, where there are several."""
    return list(check.sites.items()) if len(check.sites) > 1 else []


def colour_of(check: PredictiveCheck, place: int) -> str:
    """Return a site's colour; many share one."""
    return COLOURS[place] if len(check.sites) <= MOST_NAMED else "0.6"


def plot_calibration(chances: Calibration) -> Figure:
    """Draw predicted chances against shares of ones, and the ROC."""
    figure, (left, right) = panels(
        2, f"Predicted chances: Brier score {chances.brier:.3f}, AUC {chances.auc:.3f}",
        num_columns=2, panel=(4.6, 4.2), has_legend=False,
    )  # fmt: skip
    draw_reliability(left, chances)
    draw_roc(right, chances)
    return figure


def draw_roc(axis: Axes, chances: Calibration) -> None:
    """Draw the ROC, through the groups of rows that sites tell."""
    axis.plot(chances.false_positives, chances.true_positives, "-", color=COLOURS[0], lw=1.8)
    axis.plot([0, 1], [0, 1], color="0.6", lw=0.8, zorder=0)
    axis.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    axis.set_xlabel("share of zeros predicted above a threshold", fontsize=9)
    axis.set_ylabel("share of ones", fontsize=9)
    dress(axis, "ROC")


def draw_reliability(axis: Axes, chances: Calibration) -> None:
    """Draw shares of ones against predicted chances."""
    means = np.array([group.mean_chance for group in chances.groups])
    shares = np.array([group.share for group in chances.groups])
    lower, upper = np.array([group.interval for group in chances.groups]).T
    top = min(1.0, 1.08 * max(upper.max(), means.max()))
    axis.plot([0, top], [0, top], color="0.6", lw=0.8, zorder=0)
    axis.vlines(means, lower, upper, color=COLOURS[0], lw=1.5)
    axis.plot(means, shares, "o", color=COLOURS[0], mec="white", mew=0.8, ms=7)
    for group, mean, height in zip(chances.groups, means, upper, strict=True):
        axis.annotate(
            f"{group.num_rows:,}",
            (mean, height),
            (0, 3),
            textcoords="offset points",
            ha="center",
            fontsize=7,
            color="0.35",
        )
    axis.set(xlim=(0, top), ylim=(0, min(1.08, 1.06 * top)))
    axis.set_xlabel("mean predicted chance", fontsize=9)
    axis.set_ylabel("share of ones, 95 % interval", fontsize=9)
    dress(axis, "Reliability (numbers: rows)")
