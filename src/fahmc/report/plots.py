"""Figures: traces, marginals, intervals, client drift.

Each function returns a `matplotlib.figure.Figure` that belongs to no backend: save it with ``figure.savefig(path)``;
a notebook shows it as the last expression of a cell. Parameters are named as in the summary, e.g.
``"coefficients[age]"``; a variable's name stands for all its entries.

Estimates are ArviZ's, the drawing is ours: ArviZ 0.23 draws highest-density intervals, where the summary has
equal-tailed ones, nothing for a constant, a pair of ``$`` in a name as a formula, and its traces need what matplotlib
3.13 removes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fahmc.errors import DataError, SettingsError
from fahmc.report.canvas import COLOURS, LINE_STYLES, MARKERS, dress, legend_below_title, panels, plain
from fahmc.report.convergence import max_r_hat, relative_drift
from fahmc.report.parameters import Parameters

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fahmc.draws import Draws

# Points per line above which a trace is thinned for drawing: more than the pixels of any panel.
_MAX_POINTS = 4000
_MAX_CLIENTS = 30


def plot_trace(draws: Draws, names: str | Sequence[str] | None = None, *, title: str | None = None) -> Figure:
    """Draw each chain's path, one panel per parameter.

    Chains that have met overlap and show no trend. Without ``names`` all parameters are shown, or if there are more
    than 16 those with the worst R-hat.
    """
    parameters = Parameters.from_draws(draws)
    chosen, remark = parameters.choose(names)
    title = title or f"Traces{remark}"
    figure, axes = panels(len(chosen), title, num_columns=2, panel=(5.2, 1.7), has_legend=draws.num_chains > 1)
    for axis, name in zip(axes, chosen, strict=True):
        draw_paths(axis, draws, parameters[name])
        r_hat = max_r_hat(parameters[name])
        dress(axis, name if np.isnan(r_hat) else f"{name}   (R-hat {r_hat:.3f})")
    for axis in axes[:-2]:
        axis.set_xlabel("")
    legend_below_title(figure, axes[0])
    return figure


def plot_marginals(
    runs: Mapping[str, Draws], names: str | Sequence[str] | None = None, *, title: str | None = None
) -> Figure:
    """Lay the marginal densities of several runs over each other, one panel per parameter.

    The runs go by label, e.g. ``{"federated": draws, "pooled": pooled}``. The first one chooses the parameters, as in
    `plot_trace`.
    """
    parameters, chosen, remark = _common(runs, names)
    title = title or f"Marginal posteriors{remark}"
    figure, axes = panels(len(chosen), title, num_columns=3, panel=(3.5, 2.1), has_legend=len(runs) > 1)
    for axis, name in zip(axes, chosen, strict=True):
        draw_densities(axis, {label: own[name].ravel() for label, own in parameters.items()})
        dress(axis, name)
        axis.locator_params(axis="x", nbins=5)
    legend_below_title(figure, axes[0])
    return figure


def plot_forest(
    runs: Mapping[str, Draws],
    names: str | Sequence[str] | None = None,
    *,
    interval: float = 0.95,
    title: str | None = None,
) -> Figure:
    """Draw the intervals of several runs next to each other, one row per parameter.

    A thin line is the equal-tailed interval of mass ``interval``, the thick part its middle half (50 %), the dot the
    median. Runs and names are as in `plot_marginals`.
    """
    if not 0.5 < interval < 1:
        raise SettingsError(f"interval is {interval}; it must lie between 0.5 and 1, e.g. 0.95.")
    parameters, chosen, remark = _common(runs, names)
    height = 1.3 + len(chosen) * (0.2 + 0.17 * len(runs))
    title = title or f"Medians, 50 % and {100 * interval:g} % intervals{remark}"
    figure, (axis,) = panels(1, title, num_columns=1, panel=(8, height), has_legend=len(runs) > 1)
    draw_intervals(axis, {label: [own[name] for name in chosen] for label, own in parameters.items()}, interval)
    axis.axvline(0, color="0.6", lw=0.8, zorder=0)
    axis.set_yticks(range(len(chosen)), [plain(name) for name in chosen])
    dress(axis)
    axis.set_xlabel("parameter value", fontsize=9)
    legend_below_title(figure, axis)
    return figure


def plot_client_drift(draws: Draws, *, title: str | None = None) -> Figure:
    """Draw how far the clients stray from their average before it is taken.

    Left, per client, the root mean square over rounds of ‖θ_c − θ̄‖ (bar: all chains; dots: each), unless a secure sum
    hid it. Right, the weighted root mean square over clients, at every kept draw. The title sets it against the
    posterior's width √tr Cov(θ): the bias of local steps comes from this distance.
    """
    if "client_drift" not in draws.stats:
        raise DataError("These draws hold no client drift: their sampler records none.")
    names, total, per_chain = client_drifts(draws)
    num_clients = len(draws.client_names)
    which = "per client" if len(names) == num_clients else f"{len(names)} largest of {num_clients} clients"
    share = relative_drift(draws)
    words = "" if np.isnan(share) else f": {100 * share:.2g} % of the posterior's width"
    size = 5, max(3.2, 1.2 + 0.26 * len(names))
    title = title or f"Client drift before averaging{words}"
    figure, [*by_client, over_run] = panels(1 + bool(names), title, num_columns=2, panel=size, has_legend=False)
    for axis in by_client:
        draw_drifts(axis, [plain(name) for name in names], total, per_chain)
        dress(axis, f"{which} (bar: all chains, dots: each chain)")
    draw_paths(over_run, draws, draws.stats["client_drift"])
    over_run.set_ylim(bottom=0)
    over_run.set_ylabel("weighted RMS over clients", fontsize=9)
    dress(over_run, "over the run, one line per chain")
    return figure


def client_drifts(draws: Draws) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Return the clients that stray furthest, how far all chains do, [client], and how far each, [chain, client].

    None, if a secure sum hid them.
    """
    if draws.client_drift is None:
        return [], np.zeros(0), np.zeros((draws.num_chains, 0))
    drift = np.asarray(draws.client_drift, dtype=np.float64)
    total = np.sqrt(np.mean(drift**2, axis=0))
    shown = np.sort(np.argsort(-total, kind="stable")[:_MAX_CLIENTS])
    return [draws.client_names[i] for i in shown], total[shown], drift[:, shown]


def draw_drifts(axis: Axes, names: Sequence[str], total: np.ndarray, per_chain: np.ndarray) -> None:
    """Draw a bar for each client, and dots for the chains."""
    axis.barh(range(len(names)), total, color=COLOURS[5], height=0.65)
    for chain in per_chain:
        axis.plot(chain, range(len(names)), "o", color="0.15", ms=4, alpha=0.7)
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    axis.set_xlim(left=0)
    axis.set_xlabel("RMS distance from the average", fontsize=9)


def _common(
    runs: Mapping[str, Draws], names: str | Sequence[str] | None
) -> tuple[dict[str, Parameters], list[str], str]:
    """Return the parameters of every run, the names to show, and what the title says of the choice."""
    if not runs:
        raise SettingsError("There are no runs to draw; give at least one, e.g. {'federated': draws}.")
    parameters = {label: Parameters.from_draws(draws) for label, draws in runs.items()}
    chosen, remark = next(iter(parameters.values())).choose(names)
    for label, own in parameters.items():
        missing = [name for name in chosen if name not in own.names]
        if missing:
            raise DataError(f"The run {label!r} has no parameter {missing[0]!r}; compare runs of one model.")
    return parameters, chosen, remark


def draw_densities(axis: Axes, values: Mapping[str, np.ndarray]) -> None:
    """Draw the densities of several runs' draws [draw], the first one filled."""
    from fahmc._arviz import kde

    for index, (label, own) in enumerate(values.items()):
        colour, style = COLOURS[index % len(COLOURS)], LINE_STYLES[index % len(LINE_STYLES)]
        if np.ptp(own) == 0:
            axis.axvline(own[0], lw=1.8, color=colour, ls=style, label=label)  # a constant has no density
            continue
        grid, density = kde(own)
        axis.plot(grid, density, lw=1.8, color=colour, ls=style, label=label)
        if index == 0:
            axis.fill_between(grid, density, color=colour, alpha=0.12, lw=0)
    axis.set_ylim(bottom=0)
    axis.set_yticks([])
    axis.set_ylabel("density", fontsize=9)


def draw_intervals(axis: Axes, values: Mapping[str, Sequence[np.ndarray]], interval: float = 0.95) -> None:
    """Draw a row for each parameter: ``values`` are every run's draws of all of them, by label."""
    probabilities = [(1 - interval) / 2, 0.25, 0.5, 0.75, (1 + interval) / 2]
    # The runs of one parameter share 60 % of its row, in the order of the legend from the top.
    offsets = np.linspace(-0.3, 0.3, len(values) + 2)[1:-1]
    num_rows = 0
    for index, (label, own) in enumerate(values.items()):
        colour, num_rows = COLOURS[index % len(COLOURS)], len(own)
        rows = np.arange(num_rows) + offsets[index]
        lower, quarter, median, three_quarters, upper = np.quantile(
            [draws.ravel() for draws in own], probabilities, axis=1
        )
        axis.hlines(rows, lower, upper, color=colour, lw=1.5)
        axis.hlines(rows, quarter, three_quarters, color=colour, lw=4)
        axis.plot(median, rows, MARKERS[index % len(MARKERS)], color=colour, mec="white", mew=0.8, ms=6, label=label)
    axis.set_ylim(num_rows - 0.5, -0.5)


def draw_paths(axis: Axes, draws: Draws, paths: np.ndarray, max_points: int = _MAX_POINTS) -> None:
    """Draw values [chain, draw], one line per chain, against the round after which each draw was kept, if any was."""
    thin, warmup = draws.settings.get("thin", 1) or 1, draws.settings.get("num_warmup_rounds", 0) or 0
    # Draws that were resampled by their weights are of no round.
    unit, first, step = ("draw", 0, 1) if draws.account.get("weights") else ("round", warmup, thin)
    rounds = first + step * np.arange(1, draws.num_draws + 1)
    every = -(-draws.num_draws // max_points)
    axis.set_prop_cycle(color=COLOURS)
    labels = [f"chain {chain}" for chain in range(1, draws.num_chains + 1)]
    axis.plot(rounds[::every], paths.T[::every], lw=0.6, alpha=0.75, label=labels)
    axis.margins(x=0.01)
    axis.set_xlabel(unit if every == 1 else f"{unit} (1 draw in {every} shown)", fontsize=9)
