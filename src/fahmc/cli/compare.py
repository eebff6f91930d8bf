"""`fahmc compare`: whether two runs of one model agree, in means and in standard deviations.

With equal laws, the difference of two means over its Monte Carlo standard error is about standard normal, and so is
the logarithm of the ratio of two standard deviations over its own. The largest of m such numbers exceeds
Φ⁻¹(1 − α / 2m) with probability at most α (Bonferroni); α = 1 % for all means and standard deviations together.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from rich.markup import escape
from rich.table import Table

from fahmc.cli.exits import NOT_GOOD
from fahmc.cli.folder import ResultFolder
from fahmc.cli.output import Output, parameter_rows
from fahmc.draws import Draws
from fahmc.errors import CheckpointError
from fahmc.report import parameter_table
from fahmc.report.quantities import in_bytes, in_words, rounded
from fahmc.report.verdict import R_HAT_LIMIT, false_alarm_limit

FALSE_ALARM = 0.01
# Rows of a printed table; --json has them all.
_MAX_ROWS = 40


def compare_runs(first: Path, second: Path, is_strict: bool, output: Output) -> None:
    """Print two runs side by side, and say whether they differ."""
    draws, other = load_run(first), load_run(second)
    with output.working("Comparing"):
        table = comparison_table(draws, other)
    facts = conclude(table)
    output.show(
        printed_table(table, str(first), str(second)),
        _cost_line(first, draws),
        _cost_line(second, other),
        f"[{'green' if facts['agree'] else 'red'}]{escape(facts['sentence'])}[/]",
        *map(escape, facts["remarks"]),
    )
    exit_code = NOT_GOOD if is_strict and not facts["agree"] else 0
    runs = {"first": (first, draws), "second": (second, other)}
    output.result(
        exit_code=exit_code,
        **facts,
        parameters=parameter_rows(table),
        runs={
            label: {"path": path, "num_chains": run.num_chains, "num_draws": run.num_draws, "cost": run.cost}
            for label, (path, run) in runs.items()
        },
    )
    output.end(exit_code)


def load_run(path: Path) -> Draws:
    """Read the draws of a folder of results, or of one file."""
    if path.is_dir():
        file = ResultFolder(path).draws
        if not file.exists():
            raise CheckpointError(f"{path} holds no draws.nc; give folders of `fahmc sample` or `demo`, or .nc files.")
        return Draws.load(file)
    return Draws.load(path)


def comparison_table(draws: Draws, other: Draws) -> Any:
    """Return means and standard deviations of both, and how they differ; one row a parameter."""
    both: Any = parameter_table(draws, reference=other)
    table = both[["mean", "sd", "r_hat", "reference_mean", "reference_sd", "reference_r_hat"]]
    table = table.set_axis(["mean", "sd", "r_hat", "other_mean", "other_sd", "other_r_hat"], axis=1)
    ratio = both["sd"] / both["reference_sd"]
    share = np.hypot(both["mcse_sd"] / both["sd"], both["reference_mcse_sd"] / both["reference_sd"])
    return table.assign(
        difference_mcse=(both["mean"] - both["reference_mean"])
        / np.hypot(both["mcse_mean"], both["reference_mcse_mean"]),
        difference_sd=both["difference_sd"],
        sd_ratio=ratio,
        sd_ratio_error=ratio * share,
        sd_ratio_mcse=np.log(ratio) / share,
    )


def conclude(table: Any) -> dict[str, Any]:
    """Say whether the runs differ by more than chance would have it."""
    limit = false_alarm_limit(2 * len(table), FALSE_ALARM)
    means, sds = table["difference_mcse"].abs(), table["sd_ratio_mcse"].abs()
    shifts = table["difference_sd"].abs()
    facts: dict[str, Any] = {"false_alarm": FALSE_ALARM, "limit_mcse": limit, "remarks": []}
    if means.isna().any() or sds.isna().any():
        untold = table.index[means.isna() | sds.isna()][0]
        sentence = f"The runs cannot be compared: {untold} never moves in one of them, or the draws are too few."
        return facts | {"agree": False, "means_agree": False, "sds_agree": False, "sentence": sentence}
    means_agree, sds_agree = bool(means.max() <= limit), bool(sds.max() <= limit)
    claim = "No standard deviation differs" if sds_agree else "Some standard deviations differ"
    ratio = f"{table['sd_ratio'][sds.idxmax()]:.3f} ± {table['sd_ratio_error'][sds.idxmax()]:.3f}"
    sentence = (
        f"{'No mean differs' if means_agree else 'Some means differ'} by more than chance: at most {means.max():.1f} "
        f"Monte Carlo standard errors ({means.idxmax()}); the largest difference is {shifts.max():.2g} posterior "
        f"standard deviations ({shifts.idxmax()}). {claim} by more than chance: at most {sds.max():.1f} standard "
        f"errors, a ratio of {ratio} ({sds.idxmax()}). Runs of one law stay below {limit:.1f} standard errors in 99 of "
        "100 comparisons."
    )
    if (r_hat := np.nanmax(table[["r_hat", "other_r_hat"]])) > R_HAT_LIMIT:
        facts["remarks"].append(
            f"One of the runs has an R-hat of {r_hat:.3f}, so its Monte Carlo errors are too small: run it longer."
        )
    worst_parameters = {"worst_mean": means.idxmax(), "largest_shift": shifts.idxmax(), "worst_sd": sds.idxmax()}
    agreement = {"agree": means_agree and sds_agree, "means_agree": means_agree, "sds_agree": sds_agree}
    return facts | agreement | {"sentence": sentence} | worst_parameters


def printed_table(table: Any, first: str, second: str) -> Table:
    """Build the table, with the parameters that differ most if they are too many."""
    title, shown = f"{first} and {second}", table
    if len(table) > _MAX_ROWS:
        order = table["difference_mcse"].abs().sort_values(ascending=False, na_position="first").index
        shown = table.loc[order[:_MAX_ROWS]]
        title += f" ({_MAX_ROWS} of {len(table):,} parameters, those whose means differ most; --json has all)"
    printed = Table("parameter", title=escape(title), title_justify="left")
    for heading in ("mean", "mean", "sd", "sd", "in MCSE", "in sd", "ratio of sds"):
        printed.add_column(heading, justify="right", no_wrap=True)
    for name, row in parameter_rows(shown).items():
        pairs = (rounded(row[f"{run}{key}"], row[f"{run}sd"]) for key in ("mean", "sd") for run in ("", "other_"))
        differences = f"{row['difference_mcse']:+.1f}", f"{row['difference_sd']:+.3f}"
        printed.add_row(escape(name), *pairs, *differences, f"{row['sd_ratio']:.3f} ± {row['sd_ratio_error']:.3f}")
    return printed


def _cost_line(path: Path, draws: Draws) -> str:
    cost = draws.cost
    sizes = [in_bytes(cost[name]) for name in ("bytes_to_clients", "bytes_to_server") if cost.get(name)]
    crossing = f", {sizes[0]} to clients, {sizes[1]} back" if len(sizes) == 2 else ""
    rounds = f"{in_words(cost['rounds'])} rounds" if "rounds" in cost else "rounds not told"
    return escape(f"{path}: {draws.num_chains} chains x {draws.num_draws:,} draws, {rounds}{crossing}.")
