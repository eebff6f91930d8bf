"""Figures: what is drawn, not how it looks."""

from __future__ import annotations

import dataclasses
import io
import itertools
import subprocess
import sys
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from fahmc.errors import DataError, SettingsError
from fahmc.report import plot_client_drift, plot_forest, plot_marginals, plot_trace
from fahmc.report.crossing import crossing_section
from fahmc.report.panels import drift_group


def save(figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    assert buffer.getvalue().startswith(b"\x89PNG")
    return buffer.getvalue()


def axes_of(figure: Figure) -> list[Any]:
    """Return the panels; untyped, since matplotlib's stubs do not know what kind of artist was drawn."""
    return list(figure.axes)


def legend_labels(figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def head_is_free(figure) -> bool:
    """Say whether title, legend and panels are stacked without touching."""
    figure.draw_without_rendering()
    boxes = [artist.get_window_extent() for artist in (figure._suptitle, *figure.legends)]
    boxes.append(Bbox.union([axis.get_tightbbox() for axis in axes_of(figure)]))
    boxes.sort(key=lambda box: box.y0)
    return all(lower.y1 <= upper.y0 for lower, upper in itertools.pairwise(boxes))


def test_traces_show_every_chain_of_the_named_parameters(federated):
    figure = plot_trace(federated, ["intercept", "coefficients[age]"])
    assert [axis.get_title().split("   ")[0] for axis in axes_of(figure)] == ["intercept", "coefficients[age]"]
    lines = axes_of(figure)[0].get_lines()
    assert len(lines) == 4
    np.testing.assert_allclose(lines[2].get_ydata(), federated.positions["intercept"][2])
    assert lines[0].get_xdata()[0] == 501  # the first round after warmup
    assert lines[0].get_xdata()[-1] == 1500
    assert legend_labels(figure) == ["chain 1", "chain 2", "chain 3", "chain 4"]
    save(figure)


def test_long_traces_are_thinned_and_say_so(make_draws):
    figure = plot_trace(make_draws(num_draws=9000, num_chains=1), "intercept")
    assert len(axes_of(figure)[0].get_lines()[0].get_xdata()) == 3000
    assert "1 draw in 3" in axes_of(figure)[0].get_xlabel()


def test_too_many_parameters_show_the_worst(make_draws_of):
    values = np.random.default_rng(0).normal(size=(4, 100, 20))
    values[0, :, 13] += 5
    figure = plot_trace(make_draws_of(values))
    assert len(axes_of(figure)) == 16
    assert "16 of 20 parameters, those with the worst R-hat" in figure.get_suptitle()
    assert any(axis.get_title().startswith("w[13]") for axis in axes_of(figure))


def test_marginals_overlay_runs_with_densities_of_mass_one(federated, pooled):
    figure = plot_marginals({"federated": federated, "pooled": pooled})
    assert len(axes_of(figure)) == 12
    assert legend_labels(figure) == ["federated", "pooled"]
    for line in axes_of(figure)[0].get_lines():
        assert np.trapezoid(line.get_ydata(), line.get_xdata()) == pytest.approx(1, abs=0.02)
    save(figure)


def test_marginals_of_a_constant_are_a_line(federated):
    stuck = dataclasses.replace(federated, positions={"intercept": np.full((4, 1000), 2.5)}, dims={}, coords={})
    (line,) = axes_of(plot_marginals({"run": stuck}))[0].get_lines()
    assert list(line.get_xdata()) == [2.5, 2.5]


def test_forest_draws_the_stated_quantiles(federated, pooled):
    figure = plot_forest({"federated": federated, "pooled": pooled}, ["intercept"], interval=0.9)
    thin, thick = axes_of(figure)[0].collections[:2]
    values = federated.positions["intercept"].ravel()
    np.testing.assert_allclose(thin.get_segments()[0][:, 0], np.quantile(values, [0.05, 0.95]), rtol=1e-6)
    np.testing.assert_allclose(thick.get_segments()[0][:, 0], np.quantile(values, [0.25, 0.75]), rtol=1e-6)
    # The two runs stand at different heights within the same row.
    heights = [line.get_ydata()[0] for line in axes_of(figure)[0].get_lines()[:2]]
    assert -0.5 < heights[0] < heights[1] < 0.5
    assert "90 %" in figure.get_suptitle()
    save(figure)


def test_drift_shows_each_client_by_name_and_its_share_of_the_posterior(federated):
    figure = plot_client_drift(federated)
    bars, over_time = axes_of(figure)
    assert [label.get_text() for label in bars.get_yticklabels()] == ["MN", "KY", "MS", "NY"]
    expected = np.sqrt(np.mean(federated.client_drift**2, axis=0))
    np.testing.assert_allclose([bar.get_width() for bar in bars.patches], expected)
    assert len(over_time.get_lines()) == 4
    width = np.sqrt(sum(np.var(value, axis=(0, 1)).sum() for value in federated.named().values()))
    share = 100 * np.sqrt(np.mean(federated.stats["client_drift"] ** 2)) / width
    assert f"{share:.2g} % of the posterior's width" in figure.get_suptitle()
    save(figure)


def test_what_a_secure_sum_hides_is_not_drawn(federated):
    hidden = dataclasses.replace(federated, client_drift=None)
    [over_time] = axes_of(plot_client_drift(hidden))
    assert len(over_time.get_lines()) == 4
    assert [panel.heading for panel in drift_group(hidden).panels] == ["over the run, all clients"]
    save(plot_client_drift(hidden))


@pytest.mark.parametrize(
    ("masked", "words", "others"),
    [
        ([True, True], "All replies went through a secure sum", "could be read one by one"),
        ([False, False], "The replies of every site could be read one by one by the server", "went through"),
        ([True, False], "The replies in search went through a secure sum", "All replies"),
    ],
)
def test_the_report_says_who_could_read_replies(federated, masked, words, others):
    phases = [
        {"phase": name, "rounds": 3, "is_masked": is_masked, "to_clients": {}, "to_server": {}}
        for name, is_masked in zip(("search", "sampling"), masked, strict=True)
    ]
    settings = {**federated.settings, "sites": {}}
    draws = dataclasses.replace(federated, settings=settings, account={"messages": phases})
    told = " ".join(crossing_section({"": draws}).sentences)
    assert words in told and others not in told


def test_many_clients_show_those_that_drift_most(federated):
    drift = np.linspace(1, 2, 100)[None].repeat(4, axis=0)
    names = tuple(f"site {i}" for i in range(100))
    bars = axes_of(plot_client_drift(dataclasses.replace(federated, client_drift=drift, client_names=names)))[0]
    assert [label.get_text() for label in bars.get_yticklabels()] == [f"site {i}" for i in range(70, 100)]
    assert "30 largest of 100 clients" in bars.get_title()


def test_titles_legends_and_panels_do_not_overlap(federated, pooled):
    runs = {"federated": federated, "pooled": pooled}
    figures = [plot_trace(federated), plot_marginals(runs), plot_forest(runs), plot_client_drift(federated)]
    for figure in [*figures, plot_forest({"one": federated}, "intercept")]:
        assert head_is_free(figure)


def test_any_name_is_shown_as_it_is_and_beside_its_neighbours(make_draws_of):
    names = [r"$ $\frac{", "a very long name with its unit (mmol/l) and more", 60 * "x", "cost in $ and $"]
    values = np.random.default_rng(0).normal(size=(2, 9, 4))
    draws = make_draws_of(values, dims={"w": ("k",)}, coords={"k": names}, client_names=(names[0],))
    runs = {names[0]: draws, "other": draws}
    for figure in (plot_trace(draws), plot_marginals(runs), plot_forest(runs), plot_client_drift(draws)):
        save(figure)
        boxes = [axis.title.get_window_extent() for axis in axes_of(figure)]
        assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))


def test_unusable_requests_are_named(federated, make_draws):
    with pytest.raises(SettingsError, match="no parameter 'slope'"):
        plot_trace(federated, "slope")
    with pytest.raises(SettingsError, match="no runs"):
        plot_forest({})
    with pytest.raises(SettingsError, match="interval is 95"):
        plot_forest({"run": federated}, interval=95)
    other = dataclasses.replace(make_draws(), positions={"intercept": np.zeros((4, 1000))}, dims={}, coords={})
    with pytest.raises(DataError, match="'other' has no parameter"):
        plot_marginals({"run": federated, "other": other})


def test_figures_leave_the_caller_s_matplotlib_alone(federated):
    before = dict(mpl.rcParams)
    save(plot_trace(federated, "intercept"))
    assert dict(mpl.rcParams) == before


def test_importing_the_report_loads_neither_arviz_nor_matplotlib():
    code = (
        "import sys, fahmc.report; print([m for m in ('arviz', 'matplotlib', 'xarray', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
