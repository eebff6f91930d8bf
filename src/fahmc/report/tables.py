"""The tables of numbers on the page: the posterior, how far off it may be, how well the chains agree."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from fahmc.report.effect import Effect
from fahmc.report.page import Table
from fahmc.report.quantities import rounded

Numbers: TypeAlias = Mapping[str, float]
"""One row of `fahmc.report.parameter_table`."""

# Rows of a table on the page; summary.csv has them all.
_MAX_ROWS = 200
# Column of the table, its heading, unit and digits.
_ERRORS = (("mean_shift", "mean off by (sd)", 1, 3), ("sd_excess", "sd off by (%)", 100, 1))


def rows_of(table: Any) -> dict[str, Numbers]:
    """Return the table's rows by name."""
    return {str(name): numbers for name, numbers in table.to_dict("index").items()}


def rows_shown(rows: Mapping[str, Numbers], marked: Sequence[str]) -> tuple[list[str], str]:
    """Return the parameters on the page, and what to say of the others.

    ``marked`` come first, and of too many others those with the worst R-hat.
    """
    first = set(marked)
    others = [name for name in rows if name not in first]
    if len(rows) <= _MAX_ROWS:
        return [*marked, *others], ""
    # No R-hat at all is the worst.
    badness = {name: math.inf if math.isnan(rows[name]["r_hat"]) else rows[name]["r_hat"] for name in others}
    others.sort(key=badness.__getitem__, reverse=True)
    shown = [*marked, *others][: max(_MAX_ROWS, len(marked))]
    return shown, f"{len(shown)} of {len(rows)} parameters, those with the worst R-hat; summary.csv has all."


def posterior_table(
    rows: Mapping[str, Numbers], natural: Mapping[str, Effect], chances: Mapping[str, float], labels: Sequence[str]
) -> Table:
    """Return mean, sd and interval, the effect on its natural scale, and the chance to be above 0.

    With two runs the second one's numbers stand beside the first one's.
    """
    own, *other = labels if len(labels) == 2 else ("",)
    scale = next((effect.scale for effect in natural.values() if effect.is_ratio), "")

    def cells(name: str, row: Numbers) -> dict[tuple[str, str], str]:
        found = {(own, column): text for column, text in _posterior(row).items()}
        if scale:
            found[own, f"{scale}, 95 % interval"] = natural[name].in_brackets if name in natural else "–"
        found[own, "P(above 0)"] = _chance(chances[name])
        for label in other:
            found |= {(label, column): text for column, text in _posterior(row, "reference_").items()}
            found["difference of means", "in sd"] = rounded(row["difference_sd"], 1.0)
        return found

    return {name: cells(name, row) for name, row in rows.items()}


def _chance(value: float) -> str:
    """Write a probability: so many draws do not tell it from 0 or 1."""
    return "< 0.001" if value < 0.0005 else "> 0.999" if value > 0.9995 else f"{value:.3f}"


def chains_table(rows: Mapping[str, Numbers], is_error_known: bool) -> Table:
    """Return how well the chains agree, and how far means and standard deviations are off."""

    def cells(row: Numbers) -> dict[tuple[str, str], str]:
        found = {("", "R-hat"): "n/a" if math.isnan(row["r_hat"]) else f"{row['r_hat']:.3f}"}
        for part in ("bulk", "tail"):
            size = row[f"ess_{part}"]
            found["", f"ESS {part}"] = "n/a" if math.isnan(size) else f"{size:,.0f}"
        if "difference_mcse" in row:
            found["", "difference of means in MCSE"] = rounded(row["difference_mcse"], 10.0)
        return found | (_errors(row) if is_error_known else {})

    return {name: cells(row) for name, row in rows.items()}


def _errors(row: Numbers) -> dict[tuple[str, str], str]:
    found = {}
    for name, heading, scale, digits in _ERRORS:
        value, error = scale * row[name], scale * row[f"{name}_error"]
        found["", heading] = "not known" if math.isnan(value) else f"{value:+.{digits}f} ± {error:.{digits}f}"
    if "mean_cv" in row:
        error = "" if math.isnan(row["mcse_cv"]) else f" ± {row['mcse_cv']:.1g}"
        found["", "mean by control variates"] = f"{rounded(row['mean_cv'], row['sd'] / 10)}{error}"
    return found


def error_words(found_by: str) -> str:
    """Say what tells how far off the draws are."""
    where = "stands in the table under Chains"
    words = {
        "gradients": "How far means and standard deviations are off is found from gradients at the draws, and with its "
        f"standard error {where}. They do not see a mode that no chain has visited.",
        "exactness": "The sampler accepts or rejects, so its draws have no bias; what remains is Monte Carlo error, "
        f"which {where}.",
        "weights": "The draws are weighted by the exact posterior, so they have no bias; what remains is the weights' "
        f"Monte Carlo error, which {where}.",
        "reference": "How far means and standard deviations are from those of the reference, and the Monte Carlo error "
        f"of that, {where}.",
    }
    unknown = "How far off the numbers are is not known: this sampler has no accept/reject step, and kept no gradients."
    return words.get(found_by, unknown)


def _posterior(row: Numbers, prefix: str = "") -> dict[str, str]:
    mean, sd, lower, upper = (rounded(row[prefix + k], row[f"{prefix}sd"]) for k in ("mean", "sd", "2.5%", "97.5%"))
    return {"mean": mean, "sd": sd, "95 % interval": f"[{lower}, {upper}]"}
