"""The report's figures: one small panel for each thing to see, no wider than a telephone.

Where there is room they lie side by side. They show what `fahmc.report.plots` shows; there a figure is one picture with
a panel for each parameter, to be saved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fahmc.report.canvas import COLOURS, dress, plain
from fahmc.report.convergence import max_r_hat
from fahmc.report.effect import Effect, short_name
from fahmc.report.parameters import Parameters
from fahmc.report.plots import client_drifts, draw_densities, draw_drifts, draw_intervals, draw_paths
from fahmc.report.svg import as_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fahmc.draws import Draws

# Inches; letters of 9 points in it can be read on a telephone.
_WIDTH = 4.6
# Of a path in a panel this wide, more are not seen; and of chains, more are a blur.
_MAX_POINTS, _MAX_CHAINS = 250, 8
_MAX_LETTERS = 24


class Panel(NamedTuple):
    """A figure of the page."""

    heading: str
    svg: str


class Group(NamedTuple):
    """Panels of one kind, with what to make of them, and what the colours stand for."""

    name: str
    caption: str
    panels: Sequence[Panel]
    legend: Mapping[str, str]


def effect_group(runs: Mapping[str, Effect]) -> Group:
    """Draw an effect's density on its own scale, by run, with the interval and the place of no effect."""
    effect = next(iter(runs.values()))
    figure, axis = small_panel(2.2)
    draw_densities(axis, {label: own.drawn for label, own in runs.items()})
    top = axis.get_ylim()[1]
    for place, own in enumerate(runs.values()):
        lower, median, upper = np.quantile(own.drawn, [0.025, 0.5, 0.975])
        height = -top * (0.08 + 0.1 * place)
        axis.hlines(height, lower, upper, color=COLOURS[place], lw=4)
        axis.plot([median], [height], "o", color=COLOURS[place], mec="white", ms=7)
    axis.set_ylim(-top * (0.08 + 0.1 * len(runs)), top)
    _mark_none(axis, effect)
    axis.set_xlabel(f"{effect.scale} for {plain(effect.label, 40)}", fontsize=9)
    dress(axis)
    words = f"Density of the {effect.scale} for {effect.label}: {effect.numbers}."
    caption = "Where the posterior puts it; the bar is the 95 % interval, the dot the median, the line no effect."
    return Group("effect", caption, [Panel("", as_svg(figure, words))], _legend(runs))


def effects_group(runs: Mapping[str, Sequence[Effect]]) -> Group:
    """Draw the intervals of several effects on their own scale, by run."""
    effects = next(iter(runs.values()))
    figure, axis = _rows_panel(len(effects), len(runs))
    draw_intervals(axis, {label: [effect.drawn for effect in own] for label, own in runs.items()})
    axis.set_yticks(range(len(effects)), [_short(effect.label) for effect in effects])
    _mark_none(axis, effects[0])
    axis.set_xlabel(effects[0].scale, fontsize=9)
    dress(axis)
    words = f"{effects[0].scale.capitalize()}s with 95 % intervals: "
    words += "; ".join(f"{effect.label} {effect.numbers}" for effect in effects)
    caption = "Medians with 50 % (thick) and 95 % (thin) intervals; the line is no effect."
    return Group("effect", caption, [Panel("", as_svg(figure, f"{words}."))], _legend(runs))


def forest_group(runs: Mapping[str, Parameters], names: Sequence[str]) -> Group:
    """Draw the intervals of parameters as they were sampled, by run."""
    figure, axis = _rows_panel(len(names), len(runs))
    draw_intervals(axis, {label: [own[name] for name in names] for label, own in runs.items()})
    axis.axvline(0, color="#999999", lw=0.8, zorder=0)
    axis.set_yticks(range(len(names)), [_short(short_name(name)) for name in names])
    axis.set_xlabel("parameter value", fontsize=9)
    dress(axis)
    words = f"Intervals of {len(names)} parameters; the table of parameters has their numbers."
    caption = "Medians with 50 % (thick) and 95 % (thin) intervals."
    return Group("forest", caption, [Panel("", as_svg(figure, words))], _legend(runs))


def marginal_group(runs: Mapping[str, Parameters], names: Sequence[str]) -> Group:
    """Draw the marginal density of each parameter, by run."""

    def panel(name: str) -> Panel:
        figure, axis = small_panel(1.7)
        draw_densities(axis, {label: own[name].ravel() for label, own in runs.items()})
        dress(axis)
        axis.locator_params(axis="x", nbins=5)
        return Panel(short_name(name), as_svg(figure, f"Marginal density of {name}."))

    caption = "Marginal posterior densities, all chains joined."
    return Group("marginals", caption, [panel(name) for name in names], _legend(runs))


def trace_group(draws: Draws, parameters: Parameters, names: Sequence[str]) -> Group:
    """Draw the path of each chain, a panel for each parameter."""

    def panel(name: str) -> Panel:
        figure, axis = small_panel(1.5)
        values = parameters[name]
        draw_paths(axis, draws, values[:_MAX_CHAINS], _MAX_POINTS)
        dress(axis)
        r_hat = max_r_hat(values)
        said = "" if np.isnan(r_hat) else f"R-hat {r_hat:.3f}"
        words = f"Paths of {len(values)} chains of {name}{f', {said}' if said else ''}."
        return Panel(f"{short_name(name)}   {said}".rstrip(), as_svg(figure, words))

    shown = "" if draws.num_chains <= _MAX_CHAINS else f" {_MAX_CHAINS} of {draws.num_chains} chains are shown."
    caption = f"The path of each chain. Chains that have met overlap and show no trend.{shown}"
    return Group("trace", caption, [panel(name) for name in names], {})


def drift_group(draws: Draws) -> Group:
    """Draw how far clients stray from their average before it is taken: by client, and over the run."""
    names, total, per_chain = client_drifts(draws)
    panels = []
    if names:
        figure, axis = small_panel(0.8 + 0.22 * len(names))
        draw_drifts(axis, [_short(name) for name in names], total, per_chain)
        dress(axis)
        by_client = as_svg(figure, "Distance of each client from the average before it is taken.")
        panels.append(Panel("by client (bar: all chains, dots: each)", by_client))
    figure, axis = small_panel(1.7)
    draw_paths(axis, draws, draws.stats["client_drift"][:_MAX_CHAINS], _MAX_POINTS)
    axis.set_ylim(bottom=0)
    dress(axis)
    over_run = as_svg(figure, "Distance of clients from their average over the run.")
    caption = (
        "How far clients stray from their average before it is taken. Long local trajectories save rounds and raise "
        "this distance, and with it the bias." + ("" if names else " How far each one strays, the secure sum hides.")
    )
    panels.append(Panel("over the run, all clients", over_run))
    return Group("drift", caption, panels, {})


def small_panel(height: float) -> tuple[Figure, Axes]:
    """Return a figure of one panel, so many inches high."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH, height))
    figure.set_layout_engine("constrained")
    return figure, figure.subplots()


def _rows_panel(num_rows: int, num_runs: int) -> tuple[Figure, Axes]:
    return small_panel(0.7 + num_rows * (0.17 + 0.12 * num_runs))


def _mark_none(axis: Axes, effect: Effect) -> None:
    """Draw the line of no effect. Ratios lie on an axis of logarithms, on which twice is as far from one as half."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.axvline(0, color="#262626", lw=1, ls="--", zorder=0)
    if effect.is_ratio:
        lower, upper = axis.get_xlim()
        axis.set_xticks(*_ratio_ticks(lower, upper))
        axis.set_xlim(lower, upper)
    else:
        axis.xaxis.set_major_locator(MaxNLocator(5))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _ratio_ticks(lower: float, upper: float) -> tuple[np.ndarray, list[str]]:
    """Choose some five round ratios between two logarithms."""
    for leading in ([1], [1, 3], [1, 2, 5], [1, 1.5, 2, 3, 5, 7], [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9]):
        ratios = np.array([digit * 10.0**power for power in range(-9, 10) for digit in leading])
        ticks = ratios[(np.log(ratios) >= lower) & (np.log(ratios) <= upper)]
        if len(ticks) >= 4:
            return np.log(ticks), [f"{tick:g}" for tick in ticks]
    # A narrow range: even steps, of which the labels need more digits.
    ticks = np.linspace(np.exp(lower), np.exp(upper), 5)[1:-1]
    return np.log(ticks), [f"{tick:.4g}" for tick in ticks]


def _legend(runs: Mapping[str, object]) -> dict[str, str]:
    """Return colours by label, where there is more than one."""
    return dict(zip(runs, COLOURS, strict=False)) if len(runs) > 1 else {}


def _short(name: str) -> str:
    return plain(name, _MAX_LETTERS)
