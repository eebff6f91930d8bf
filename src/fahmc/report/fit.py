"""Whether the model fits, as a section of the report: cross-validation, predictive check, calibration, ROC."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import pydantic

from fahmc.checks.calibration_result import Calibration
from fahmc.checks.loo import Loo
from fahmc.checks.predictive_result import NAMES, PredictiveCheck
from fahmc.report.canvas import as_image
from fahmc.report.fit_plots import plot_calibration, plot_predictive_check
from fahmc.report.page import Section, Table


@dataclass(frozen=True)
class FitReport:
    """What was asked of the rows about a run; None for what was not, or has no answer."""

    loo: Loo | None = None
    predictive: PredictiveCheck | None = None
    calibration: Calibration | None = None
    remarks: list[str] = field(default_factory=list)
    """Why something has no answer, as sentences."""

    @property
    def fits(self) -> bool:
        """Whether nothing that was asked speaks against the model."""
        return self.predictive is None or self.predictive.fits

    def as_text(self) -> str:
        """Write it as JSON."""
        return json.dumps(asdict(self), indent=1, default=lambda number: number.item())

    @classmethod
    def from_text(cls, text: str) -> FitReport:
        """Read what `as_text` wrote; a ValueError says that it is something else."""
        return pydantic.TypeAdapter(cls).validate_python(json.loads(text))


def fit_section(fit: FitReport) -> Section:
    """Return the section: sentences, tables and figures."""
    sentences, tables, images = [], {}, {}
    if (check := fit.predictive) is not None:
        sentences += check.remarks
        tables["statistic"] = _predictive_table(check)
        caption = (
            f"Posterior predictive check on {check.num_rows:,} rows. Left: where the outcomes rank among those that "
            "the model makes of the same rows, with the 90 % intervals that a right model keeps to. A slope is a bias; "
            "too many at both ends, and the model is too sure; too many in the middle, too unsure. Right: p of each "
            "statistic, over all sites (black) and at each."
        )
        images["predictive"] = caption, as_image(plot_predictive_check(check), format="png")
    if (chances := fit.calibration) is not None:
        sentences += chances.remarks
        tables["chances of a 1"] = _calibration_table(chances)
        caption = (
            f"Left: predicted chances against the share of ones, in {len(chances.groups)} groups of rows, with 95 % "
            "intervals; on the diagonal they are calibrated. Right: the ROC; its points are the groups of rows that "
            "sites tell."
        )
        images["calibration"] = caption, as_image(plot_calibration(chances), format="png")
    if (loo := fit.loo) is not None:
        sentences += loo.remarks
        tables["leave-one-out cross-validation"] = _loo_table(loo)
    return Section("Does it fit?", [*sentences, *fit.remarks], tables, images)


def _predictive_table(check: PredictiveCheck) -> Table:
    return {
        NAMES[name]: {
            ("", "observed"): f"{statistic.observed:.4g}",
            ("", "predicted"): f"{statistic.predicted:.4g}",
            ("", "90 % interval"): f"[{statistic.lower:.4g}, {statistic.upper:.4g}]",
            ("", "p"): f"{statistic.p_value:.3f}",
        }
        for name, statistic in check.statistics.items()
    }


def _calibration_table(chances: Calibration) -> Table:
    values = {
        "Brier score": chances.brier,
        "Brier score of the share of ones for all": chances.brier_of_share,
        "log score": chances.log_score,
        "expected calibration error": chances.ece,
        "AUC": chances.auc,
    }
    table: dict[str, Mapping[Any, str]] = {name: {("", "all sites"): f"{value:.4f}"} for name, value in values.items()}
    lower, upper = chances.auc_bounds
    table["AUC, what is known of it"] = {("", "all sites"): f"{lower:.4f} to {upper:.4f}"}
    return table


def _loo_table(loo: Loo) -> Table:
    def row(elpd: float, se: float, p_loo: float, num_rows: int) -> dict[tuple[str, str], str]:
        return {
            ("", "elpd_loo"): f"{elpd:.2f}",
            ("", "SE"): f"{se:.2f}",
            ("", "p_loo"): f"{p_loo:.2f}",
            ("", "rows"): f"{num_rows:,}",
        }

    sites = {name: row(site.elpd_loo, site.se, site.p_loo, site.num_rows) for name, site in loo.sites.items()}
    return {"all sites": row(loo.elpd_loo, loo.se, loo.p_loo, loo.num_rows), **sites}
