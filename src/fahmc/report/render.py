"""The report of a run: one HTML page that holds everything, and its parts as files."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from fahmc.durable import write_atomically
from fahmc.errors import SettingsError
from fahmc.own_folder import REPORT, own_folder
from fahmc.report import plots
from fahmc.report.canvas import as_image
from fahmc.report.fit import FitReport, fit_section
from fahmc.report.page import Content, Table, as_html, as_markdown
from fahmc.report.parameters import Parameters, parameter_table
from fahmc.report.quantities import in_bytes, in_time, in_words, rounded
from fahmc.report.verdict import judge

if TYPE_CHECKING:
    from fahmc.draws import Draws

Numbers: TypeAlias = Mapping[str, float]
"""One row of the parameter table."""

# Rows of the table on the page; the CSV file has them all.
_MAX_ROWS = 200
_COSTS = {
    "rounds": ("rounds, warmup included", in_words),
    "seconds": ("time", in_time),
    "row_gradients": ("gradients of single rows", in_words),
    "bytes_to_clients": ("sent from the server to clients", in_bytes),
    "bytes_to_server": ("sent from clients to the server", in_bytes),
}
# Column of the table, its heading, unit and digits.
_ERRORS = (("mean_shift", "mean off by (sd)", 1, 3), ("sd_excess", "sd off by (%)", 100, 1))


def write_report(
    draws: Draws,
    folder: str | Path,
    *,
    reference: Draws | None = None,
    label: str = "federated",
    reference_label: str = "pooled",
    title: str = "Posterior report",
    notes: Sequence[str] = (),
    highlight: str | Sequence[str] | None = None,
    fit: FitReport | None = None,
) -> Path:
    """Write the report of a run into a folder, and return the path of its page.

    The folder gets ``report.html`` (self-contained: figures are inside), ``summary.csv``, ``summary.md``,
    ``trace.png``, ``marginals.png``, ``forest.png`` and, if clients drift, ``drift.png``. Nothing is written before all
    is computed.

    Parameters
    ----------
    folder
        Made if it does not exist; files of an earlier report there are replaced. A folder that holds files which are
        not fahmc's is refused (`fahmc.own_folder`).
    reference
        Another run of the same model to set beside it, e.g. HMC on the pooled rows.
    label, reference_label
        What to call the two runs.
    notes
        Sentences to print under the verdict, e.g. on the data.
    highlight
        Parameters of interest, by name: stated in words, marked in the table, and in every figure.
    fit
        Whether the model fits, if that was asked: a section with figures of its own.
    """
    if reference is not None and label == reference_label:
        raise SettingsError(f"Both runs are called {label!r}; give them different labels.")
    parameters = Parameters.from_draws(draws)
    marked = [] if highlight is None else parameters.find(highlight)
    table = parameter_table(draws, reference=reference)
    rows = {str(name): numbers for name, numbers in table.to_dict("index").items()}
    runs = {label: draws} if reference is None else {label: draws, reference_label: reference}
    shown = _rows_shown(rows, marked)
    cut = f"{len(shown)} of {len(rows)} parameters, those with the worst R-hat; summary.csv has all."
    content = Content(
        title=title,
        verdict=judge(draws, table, reference_label=reference_label),
        sentences=[*(_in_words(name, rows[name], tuple(runs)) for name in marked), *notes],
        parameters={name: _cells(rows[name], tuple(runs)) for name in shown},
        marked=marked,
        table_remark="" if len(shown) == len(rows) else cut,
        certificate_words=_certificate_words(table.attrs["found_by"]),
        certificate={name: _errors(rows[name]) for name in shown if table.attrs["found_by"] != "nothing"},
        images=_images(draws, runs, *parameters.choose(None, first=marked)),
        settings={name: {("", "value"): value} for name, value in _flat(draws.settings)},
        cost=_cost(runs),
        fit=None if fit is None else fit_section(fit),
    )
    images = [content.images] if content.fit is None else [content.images, content.fit.images]
    files = {f"{name}.png": png for part in images for name, (_, png) in part.items()}
    texts = {"summary.csv": table.to_csv(), "summary.md": as_markdown(content), "report.html": as_html(content)}
    folder = own_folder(folder, REPORT)
    for name, data in (files | {name: text.encode() for name, text in texts.items()}).items():
        write_atomically(folder / name, data)
    return folder / "report.html"


def _rows_shown(rows: Mapping[str, Numbers], marked: list[str]) -> list[str]:
    """Return the parameters of the page's table: ``marked`` first; of too many others, those with the worst R-hat."""
    first = set(marked)
    others = [name for name in rows if name not in first]
    if len(rows) > _MAX_ROWS:
        # No R-hat at all is the worst.
        badness = {name: math.inf if math.isnan(rows[name]["r_hat"]) else rows[name]["r_hat"] for name in others}
        others.sort(key=badness.__getitem__, reverse=True)
    return [*marked, *others][: max(_MAX_ROWS, len(marked))]


def _cells(row: Numbers, labels: tuple[str, ...]) -> dict[tuple[str, str], str]:
    """Return one parameter's numbers as text. Groups of columns are headed only where there are two runs."""
    own, *other = labels if len(labels) == 2 else ("",)
    cells = {(own, column): text for column, text in _posterior(row).items()}
    cells[own, "R-hat"] = "n/a" if math.isnan(row["r_hat"]) else f"{row['r_hat']:.3f}"
    cells |= {(own, f"ESS {part}"): rounded(row[f"ess_{part}"], 100.0) for part in ("bulk", "tail")}
    for label in other:
        cells |= {(label, column): text for column, text in _posterior(row, "reference_").items()}
        cells["difference of means", "in MCSE"] = rounded(row["difference_mcse"], 10.0)
        cells["difference of means", "in sd"] = rounded(row["difference_sd"], 1.0)
    return cells


def _certificate_words(found_by: str) -> str:
    """Say what tells how far off the draws are."""
    unit = "of the means in posterior standard deviations and of the standard deviations as a share"
    words = {
        "gradients": "Distance of the run's means from the posterior's, in posterior standard deviations, and excess "
        "of its standard deviations, each with its standard error; found from gradients at the draws. They do not see "
        "a mode that no chain has visited.",
        "exactness": "The sampler accepts or rejects, so its draws have no bias: what remains is Monte Carlo error, "
        f"{unit}.",
        "weights": "The draws are weighted by the exact posterior: what remains is the weights' Monte Carlo error, "
        f"{unit}.",
        "reference": "Distance from the reference, in its standard deviations, and excess over its standard "
        "deviations, each with its Monte Carlo error.",
    }
    return words.get(found_by, "It is not known: this sampler has no accept/reject step, and no gradients were kept.")


def _errors(row: Numbers) -> dict[tuple[str, str], str]:
    """Return how far one parameter's mean and standard deviation are off, as text."""
    cells = {}
    for name, heading, scale, digits in _ERRORS:
        value, error = scale * row[name], scale * row[f"{name}_error"]
        cells["", heading] = "not known" if math.isnan(value) else f"{value:+.{digits}f} ± {error:.{digits}f}"
    if "mean_cv" in row:
        error = "" if math.isnan(row["mcse_cv"]) else f" ± {row['mcse_cv']:.1g}"
        cells["", "mean by control variates"] = f"{rounded(row['mean_cv'], row['sd'] / 10)}{error}"
    return cells


def _in_words(name: str, row: Numbers, labels: tuple[str, ...]) -> str:
    """Say what a parameter of interest is."""
    posteriors = [_posterior(row, prefix) for prefix in ("", "reference_")[: len(labels)]]
    words = [f"mean {posterior['mean']}, 95 % interval {posterior['95 % interval']}" for posterior in posteriors]
    if len(labels) == 2:
        words = [f"{word} ({label})" for word, label in zip(words, labels, strict=True)]
    return f"{name}: {'; '.join(words)}."


def _posterior(row: Numbers, prefix: str = "") -> dict[str, str]:
    mean, sd, lower, upper = (rounded(row[prefix + k], row[f"{prefix}sd"]) for k in ("mean", "sd", "2.5%", "97.5%"))
    return {"mean": mean, "sd": sd, "95 % interval": f"[{lower}, {upper}]"}


def _images(draws: Draws, runs: Mapping[str, Draws], names: list[str], remark: str) -> dict[str, tuple[str, bytes]]:
    """Draw all figures; name -> (caption, PNG)."""
    captions = {
        "forest": "Medians with 50 % (thick) and 95 % (thin) intervals.",
        "marginals": "Marginal posterior densities, all chains joined.",
        "trace": "The path of each chain. Chains that have met overlap and show no trend.",
        "drift": "How far clients stray from their average before it is taken. Long local trajectories save rounds and "
        "raise this distance, and with it the bias.",
    }
    figures = {
        "forest": plots.plot_forest(runs, names, title=f"Medians, 50 % and 95 % intervals{remark}"),
        "marginals": plots.plot_marginals(runs, names, title=f"Marginal posteriors{remark}"),
        "trace": plots.plot_trace(draws, names, title=f"Traces{remark}"),
    }
    if draws.client_drift is not None and "client_drift" in draws.stats:
        figures["drift"] = plots.plot_client_drift(draws)
    return {name: (captions[name], as_image(figure, format="png")) for name, figure in figures.items()}


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield nested settings as ``sampler.step_size`` and text."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value if isinstance(value, str) else json.dumps(value, default=str)


def _cost(runs: Mapping[str, Draws]) -> Table:
    """Return what each run cost, in units for people; a kind of cost that is not known here is printed as it is."""
    rows = {}
    for kind in dict.fromkeys(kind for draws in runs.values() for kind in draws.cost):
        name, unit = _COSTS.get(kind, (kind.replace("_", " "), in_words))
        rows[name] = {("", k): unit(draws.cost[kind]) if kind in draws.cost else "n/a" for k, draws in runs.items()}
    rates = {("", label): draws.stats.get("acceptance_rate") for label, draws in runs.items()}
    if any(rate is not None for rate in rates.values()):
        words = {key: "no accept/reject step" if rate is None else f"{rate.mean():.3f}" for key, rate in rates.items()}
        rows["mean acceptance rate"] = words
    return rows
