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
from fahmc.report.fit_panels import calibration_group, predictive_group
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
    sentences, tables, groups, images = [], {}, [], {}
    if (check := fit.predictive) is not None:
        sentences += check.remarks
        tables["statistic"] = _predictive_table(check)
        groups.append(predictive_group(check))
        images["predictive"] = as_image(plot_predictive_check(check), format="png")
    if (chances := fit.calibration) is not None:
        sentences += chances.remarks
        tables["chances of a 1"] = _calibration_table(chances)
        groups.append(calibration_group(chances))
        images["calibration"] = as_image(plot_calibration(chances), format="png")
    if (loo := fit.loo) is not None:
        sentences += loo.remarks
        tables["leave-one-out cross-validation"] = _loo_table(loo)
    return Section("Does it fit?", [*sentences, *fit.remarks], tables, groups, images)


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
