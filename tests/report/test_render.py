"""The report on disk: complete, self-contained, escaped, and its numbers are those of the table."""

from __future__ import annotations

import base64
import dataclasses
import re
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest

from fahmc.draws import Draws
from fahmc.errors import DataError, SettingsError
from fahmc.own_folder import MARKER
from fahmc.report import parameter_table, plot_client_drift, write_report

FILES = ["drift.png", "forest.png", "marginals.png", "report.html", "summary.csv", "summary.md", "trace.png"]


class Page(HTMLParser):
    """Collects text, images and table rows, and checks that tags are closed in order."""

    def __init__(self, text: str):
        super().__init__()
        self.open, self.images, self.rows, self.marked, self.words = [], [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        if tag == "img":
            self.images.append(dict(attrs)["src"])
        if tag not in ("meta", "img"):
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
            self.marked.append(("class", "marked") in attrs)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1].append(data)

    @property
    def text(self) -> str:
        return " ".join(self.words)

    def row(self, name: str) -> list[str]:
        return next(row for row in self.rows if row and row[0] == name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, federated, pooled):
    path = write_report(
        federated,
        tmp_path_factory.mktemp("report") / "new" / "folder",
        reference=pooled,
        title="Preterm <birth> & treatment",
        notes=["823 women, n > 800."],
        highlight="coefficients[treatment]",
    )
    assert path.name == "report.html"
    return path.parent


@pytest.fixture(scope="module")
def page(folder):
    return Page((folder / "report.html").read_text())


def test_all_files_are_there_and_the_page_needs_none_of_them(folder, page):
    assert sorted(path.name for path in folder.iterdir()) == [MARKER, *FILES]
    assert len(page.images) == 4
    embedded = {base64.b64decode(source.removeprefix("data:image/png;base64,")) for source in page.images}
    assert embedded == {path.read_bytes() for path in folder.glob("*.png")}
    assert not re.search(r"""(src|href)=["']?(http|/|\.)""", (folder / "report.html").read_text())


def test_text_is_escaped(folder, page):
    raw = (folder / "report.html").read_text()
    assert "Preterm &lt;birth&gt; &amp; treatment" in raw
    assert "<birth>" not in raw
    assert "Preterm <birth> & treatment" in page.text
    assert "823 women, n > 800." in page.text


def test_the_page_states_verdict_highlight_and_comparison(page):
    assert "The chains agree" in page.text and "worst R-hat 1.00" in page.text
    assert "No mean differs from the pooled run" in page.text
    assert re.search(r"coefficients\[treatment\]: mean -0\.1\d\d, 95 % interval \[.*\] \(federated\); mean", page.text)
    assert page.marked[page.rows.index(page.row("coefficients[treatment]"))]
    assert not page.marked[page.rows.index(page.row("intercept"))]


def test_the_page_s_numbers_are_the_table_s(page, federated, pooled):
    row = parameter_table(federated, reference=pooled).loc["intercept"]
    name, mean, sd, interval, r_hat, bulk, tail, ref_mean, ref_sd, ref_interval, in_mcse, in_sd = page.row("intercept")
    assert name == "intercept"
    assert [mean, sd, ref_mean, ref_sd] == [f"{row[c]:.3f}" for c in ("mean", "sd", "reference_mean", "reference_sd")]
    assert interval == f"[{row['2.5%']:.3f}, {row['97.5%']:.3f}]"
    assert ref_interval == f"[{row['reference_2.5%']:.3f}, {row['reference_97.5%']:.3f}]"
    assert [r_hat, bulk, tail] == [f"{row['r_hat']:.3f}", f"{row['ess_bulk']:.0f}", f"{row['ess_tail']:.0f}"]
    assert [in_mcse, in_sd] == [f"{row['difference_mcse']:.1f}", f"{row['difference_sd']:.2f}"]


def test_settings_and_cost_are_readable(page):
    assert page.row("sampler.step_size") == ["sampler.step_size", "0.02"]
    assert page.row("num_warmup_rounds") == ["num_warmup_rounds", "500"]
    assert page.row("sent from clients to the server")[1] == "1.15 MB"
    assert page.row("gradients of single rows")[1] == "61.7 million"
    assert page.row("time")[1] == "12.3 s"
    assert page.row("rounds, warmup included")[1] == "1,500"


def test_csv_and_markdown_hold_the_same_parameters(folder, federated, pooled):
    table = pd.read_csv(folder / "summary.csv", index_col="parameter")
    expected = parameter_table(federated, reference=pooled)
    assert list(table.index) == list(expected.index)
    np.testing.assert_allclose(table.to_numpy(), expected.to_numpy(dtype=float), rtol=1e-6)
    markdown = (folder / "summary.md").read_text()
    rows = [line for line in markdown.splitlines() if line.startswith("| coefficients[")]
    assert len(rows) == 2 * 11, "of the posterior, and of how far it is off"
    assert len({line.count("|") for line in rows[:11]}) == len({line.count("|") for line in rows[11:]}) == 1
    assert "| parameter | federated: mean |" in markdown


def test_a_bad_run_without_reference_says_what_to_do(make_draws, tmp_path):
    bad = make_draws(num_draws=100, autocorrelation=0.98)
    bad.stats["diverging"][0, 0] = True
    bad.settings["client"] = "<script>alert(1)</script>"
    raw = write_report(bad, tmp_path).read_text()
    page = Page(raw)
    assert 'class="verdict bad"' in raw
    assert "<script>" not in raw
    assert "Do not use these draws yet" in page.text
    assert "Set step_size = 0.01." in page.text
    assert "pooled" not in " ".join(page.row("parameter"))
    assert len(page.row("intercept")) == 7


def test_one_chain_can_be_reported(make_draws, tmp_path):
    page = Page(write_report(make_draws(num_chains=1), tmp_path).read_text())
    assert page.row("intercept")[4] == "n/a"


@pytest.mark.parametrize("num_draws", [2, 3])
def test_hardly_any_draws_and_no_drift_can_be_reported(make_draws, tmp_path, num_draws):
    draws = make_draws(num_chains=2, num_draws=num_draws, is_metropolis=True)
    draws.client_drift[:] = 0
    draws.stats["client_drift"][:] = 0
    page = Page(write_report(draws, tmp_path, reference=make_draws(seed=1)).read_text())
    assert page.row("intercept")[4] == "n/a"
    assert "Do not use these draws yet: no R-hat" in page.text


def test_the_page_shows_at_most_200_parameters_and_the_csv_all(make_draws_of, tmp_path):
    values = np.random.default_rng(0).normal(size=(4, 20, 250))
    values[0, :, 249] += 10
    page = Page(write_report(make_draws_of(values), tmp_path, highlight="w[0]").read_text())
    shown = [row[0] for row in page.rows if row[0].startswith("w[")]
    assert len(shown) == 200
    assert shown[:2] == ["w[0]", "w[249]"]
    assert "200 of 250 parameters" in page.text
    assert len(pd.read_csv(tmp_path / "summary.csv")) == 250


def test_nothing_is_written_when_something_is_wrong(federated, tmp_path):
    with pytest.raises(SettingsError, match="did you mean"):
        write_report(federated, tmp_path / "report", highlight="treatment")
    with pytest.raises(SettingsError, match="Both runs are called 'pooled'"):
        write_report(federated, tmp_path / "report", reference=federated, label="pooled")
    assert not (tmp_path / "report").exists()


def test_a_sampler_without_steps_and_drift_can_be_reported(make_draws, tmp_path):
    draws = make_draws(num_draws=100, autocorrelation=0.98)
    bare = dataclasses.replace(draws, stats={"diverging": draws.stats["diverging"]}, client_drift=None)
    bare.save(tmp_path / "run.nc")
    loaded = Draws.load(tmp_path / "run.nc")
    assert loaded.client_drift is None and loaded.client_names == bare.client_names
    page = Page(write_report(loaded, tmp_path / "report").read_text())
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == [MARKER, *FILES[1:]]
    assert "have not met" in page.text and "step_size" not in page.text.split("Settings")[0]
    assert "It is not known" in page.text
    with pytest.raises(DataError, match="no client drift"):
        plot_client_drift(loaded)


def test_acceptance_rate_is_reported(tmp_path, federated):
    rate = np.full((federated.num_chains, federated.num_draws), 0.857)
    adjusted = dataclasses.replace(federated, stats=federated.stats | {"acceptance_rate": rate})
    write_report(adjusted, tmp_path)
    assert "mean acceptance rate | 0.857" in (tmp_path / "summary.md").read_text()
