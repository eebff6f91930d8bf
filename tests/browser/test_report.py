"""The report in a browser: readable on a telephone and a screen, light and dark, and on paper."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import fahmc
from fahmc.checks.calibration_result import Calibration
from fahmc.data.trial import load_opt_trial
from fahmc.report import About, write_report
from fahmc.report.fit import FitReport
from looks import NARROW, WIDE, Open, overflows, serious_findings


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    study = load_opt_trial()
    federation = fahmc.Federation.from_clients(study.clients)
    model = fahmc.models.logistic_regression(2.5, feature_names=study.feature_names)
    draws = fahmc.sample(model, federation, num_chains=4, dtype="float32", progress=False)
    chances = draws.calibration(federation)
    assert isinstance(chances, Calibration)
    fit = FitReport(predictive=draws.predictive_check(federation, max_draws=100), calibration=chances)
    about = About(title="Trial", outcome="preterm birth", effect=["treatment"], dropped=study.dropped)
    folder = tmp_path_factory.mktemp("report")
    # Another run beside it, so that tables are as wide as they get.
    return write_report(draws, folder, reference=draws, reference_label="again", about=about, fit=fit)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_it_fits_the_window_and_can_be_read(open_page: Open, report, width, dark):
    page = open_page(report.as_uri(), width, dark)
    assert overflows(page) <= 0
    assert serious_findings(page) == []
    # Letters in figures, in pixels of the screen.
    heights = page.eval_on_selector_all("svg text", "all => all.map(text => text.getBoundingClientRect().height)")
    assert len(heights) > 200 and np.min([height for height in heights if height > 0]) > 9
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", paper)[:3])) < 200) == dark
    ink = page.eval_on_selector("svg text", "text => getComputedStyle(text).fill")
    assert (sum(map(int, re.findall(r"\d+", ink)[:3])) > 500) == dark, "letters of figures follow the page"


def test_it_begins_with_the_answer_and_a_telephone_shows_tables_as_cards(open_page: Open, report):
    page = open_page(report.as_uri(), NARROW)
    headings = page.eval_on_selector_all("h1, h2", "all => all.map(heading => heading.textContent)")
    assert headings[:3] == ["Trial", "How far to trust it", "All parameters"] and "Does it fit?" in headings
    assert "Odds ratio of preterm birth for treatment" in page.inner_text(".answer p:first-child")
    box = page.locator(".answer svg").bounding_box()
    assert box is not None and box["y"] < 900, "the picture is in the first window"
    first = page.locator("table.wide tbody tr").first
    assert "display: block" in f"display: {first.evaluate('row => getComputedStyle(row).display')}"
    page.set_viewport_size({"width": WIDE, "height": 900})
    assert first.evaluate("row => getComputedStyle(row).display") == "table-row"


def test_it_can_be_printed(open_page: Open, report, tmp_path):
    page = open_page(report.as_uri(), WIDE, True)
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.pdf(path=tmp_path / "report.pdf", format="A4")
    pages = len(re.findall(rb"/Type\s*/Page\b", (tmp_path / "report.pdf").read_bytes()))
    assert 4 <= pages <= 20
