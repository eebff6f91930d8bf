"""The report on disk: complete, self-contained, escaped, and its numbers are those of the table."""

from __future__ import annotations

import dataclasses
import re
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest

from fahmc.draws import Draws
from fahmc.errors import DataError, SettingsError
from fahmc.own_folder import MARKER
from fahmc.report import About, judge, parameter_table, plot_client_drift, write_report
from fahmc.report.render import answer_of

FILES = ["drift.png", "forest.png", "marginals.png", "report.html", "summary.csv", "summary.md", "trace.png"]


class Page(HTMLParser):
    """Collects text, figures and table rows, and checks that tags are closed in order."""

    def __init__(self, text: str):
        super().__init__()
        self.open, self.figures, self.rows, self.marked, self.words = [], [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        if tag == "svg":
            self.figures.append(dict(attrs)["aria-label"])
        if tag != "meta":
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

    def handle_startendtag(self, tag, attrs):
        pass

    def row(self, name: str, which: int = 0) -> list[str]:
        """Return the cells of a row: the tables of the posterior and of the chains both have one a parameter."""
        return [row for row in self.rows if row and row[0] == name][which]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, federated, pooled):
    path = write_report(
        federated,
        tmp_path_factory.mktemp("report") / "new" / "folder",
        reference=pooled,
        about=About(
            title="Preterm <birth> & treatment",
            question="Does it help?",
            outcome="preterm birth",
            effect=["treatment"],
            scale="odds ratio",
            dropped={"MN": 3},
            spreads={"age": 5.6},
            notes=["823 women, n > 800."],
            again="fahmc sample trial.toml",
        ),
    )
    assert path.name == "report.html"
    return path.parent


@pytest.fixture(scope="module")
def page(folder):
    return Page((folder / "report.html").read_text())


def test_all_files_are_there_and_the_page_needs_none_of_them(folder, page):
    assert sorted(path.name for path in folder.iterdir()) == [MARKER, *FILES]
    raw = (folder / "report.html").read_text()
    # Effect, forest, twelve marginals, twelve traces, two of drift.
    assert len(page.figures) == 28 and all(page.figures)
    assert not re.search(r"""(src|href)=["']?(http|/|\.)""", raw)
    assert len(raw) < 1_000_000


def test_figures_take_the_page_s_colours_and_leave_names_alone(make_draws_of, tmp_path):
    names = ["dose 1.23456 #000000", "<b>&\"'"]
    values = np.random.default_rng(0).normal(size=(2, 50, 2))
    draws = make_draws_of(values, dims={"w": ["part"]}, coords={"part": names})
    raw = write_report(draws, tmp_path).read_text()
    figures = re.findall(r"<svg.*?</svg>", raw, flags=re.DOTALL)
    assert "w[dose 1.23456 #000000]" in figures[0] and "&lt;b&gt;&amp;" in figures[0]
    drawn = "".join(re.findall(r"<[^>]*>", "".join(figure.split(">", 1)[1] for figure in figures)))
    assert "#000000" not in drawn and "#ffffff" not in drawn and "var(--ink)" in drawn
    assert not re.search(r"[-\d]\.\d{3}", drawn), "digits that nobody sees"
    Page(raw)


def test_text_is_escaped(folder, page):
    raw = (folder / "report.html").read_text()
    assert "Preterm &lt;birth&gt; &amp; treatment" in raw
    assert "<birth>" not in raw
    assert "Preterm <birth> & treatment" in page.text
    assert "823 women, n > 800." in page.text


def test_the_page_begins_with_question_and_answer(page, federated, pooled):
    odds = {
        label: np.exp(run.named()["coefficients"][..., 0]) for label, run in (("own", federated), ("other", pooled))
    }
    numbers = {
        label: "{:.2f}, 95 % interval {:.2f} to {:.2f}".format(*np.quantile(values, [0.5, 0.025, 0.975]))
        for label, values in odds.items()
    }
    chance = f"{100 * (odds['own'] < 1).mean():.0f}"
    answer = (
        f"Odds ratio of preterm birth for treatment: {numbers['own']} (pooled: {numbers['other']}). "
        f"With a probability of {chance} % it is below 1."
    )
    text = page.text
    assert text.index("Does it help?") < text.index(answer) < text.index("How far to trust it")
    assert "The interval holds 1, which stands for no difference" in text
    assert "Do not rely on" in text[: text.index("How far to trust it")] or "not known to be little" in text
    assert page.figures[0].startswith("Density of the odds ratio for treatment: ")


def test_the_page_states_verdict_and_comparison(page):
    assert "The chains agree" in page.text and "worst R-hat 1.00" in page.text
    assert "No mean differs from the pooled run" in page.text
    assert page.marked[page.rows.index(page.row("coefficients[treatment]"))]
    assert not page.marked[page.rows.index(page.row("intercept"))]


def test_the_page_s_numbers_are_the_table_s(page, federated, pooled):
    row = parameter_table(federated, reference=pooled).loc["intercept"]
    name, mean, sd, interval, odds, above, ref_mean, ref_sd, ref_interval, in_sd = page.row("intercept")
    assert name == "intercept" and odds == "–"
    assert above == "< 0.001" and (federated.named()["intercept"] > 0).mean() < 0.0005
    assert page.row("coefficients[age]")[5] == f"{(federated.named()['coefficients'][..., 1] > 0).mean():.3f}"
    assert [mean, sd, ref_mean, ref_sd] == [f"{row[c]:.3f}" for c in ("mean", "sd", "reference_mean", "reference_sd")]
    assert interval == f"[{row['2.5%']:.3f}, {row['97.5%']:.3f}]"
    assert ref_interval == f"[{row['reference_2.5%']:.3f}, {row['reference_97.5%']:.3f}]"
    assert in_sd == f"{row['difference_sd']:.2f}"
    name, r_hat, bulk, tail, in_mcse, shift, excess = page.row("intercept", 1)
    assert [r_hat, bulk, tail] == [f"{row['r_hat']:.3f}", f"{row['ess_bulk']:,.0f}", f"{row['ess_tail']:,.0f}"]
    assert in_mcse == f"{row['difference_mcse']:.1f}"
    assert shift == f"{row['mean_shift']:+.3f} ± {row['mean_shift_error']:.3f}"
    assert excess == f"{100 * row['sd_excess']:+.1f} ± {100 * row['sd_excess_error']:.1f}"


def test_without_a_named_effect_all_coefficients_are_looked_at(make_draws):
    draws = make_draws(shift=1.5)
    draws.settings["model"] = {"name": "logistic_regression", "scale": "odds ratio"}
    text = " ".join(answer_of({"": draws}, About(), judge(draws, parameter_table(draws))))
    found = re.search(r"(\d+) of 11 coefficients (?:has|have) a 95 % interval without 1", text)
    lower, upper = np.quantile(np.exp(draws.named()["coefficients"]).reshape(-1, 11), [0.025, 0.975], axis=0)
    assert found is not None and int(found[1]) == np.sum((lower > 1) | (upper < 1))


@pytest.mark.parametrize(
    ("about", "words"),
    [
        (About(effect=["treatment"]), "Difference for treatment: -0.13, 95 %"),
        (About(effect=["coefficients[treatment]"], scale="rate ratio"), "Rate ratio for treatment: 0.8"),
        (About(effect=["intercept"], outcome="weight"), "Difference of weight for intercept: -1.9"),
        (About(effect=["age"], spreads={"age": 5.6}), "Difference for age (per standard deviation, 5.6): 0.0"),
        (About(effect=["hypertension"]), "it is above 0. The interval holds 0"),
        (About(effect=["treatment", "age"], scale="odds ratio"), "Odds ratio for age: 1.0"),
    ],
)
def test_effects_are_told_on_their_scale(federated, about, words):
    assert words in " ".join(answer_of({"": federated}, about, judge(federated, parameter_table(federated))))


def test_background_says_model_priors_rows_messages_and_versions(make_draws, tmp_path):
    draws = make_draws(num_covariates=1)
    draws.settings.update(
        {
            "model": {"name": "logistic_regression", "scale": "odds ratio", "horizon": 3},
            "prior": {"coefficients": "N(0, 2.5²)", "intercept": "N(0, 10²)"},
            "clients": {"MN": 247, "KY": 211},
            "versions": {"fahmc": "0.1.0"},
        }
    )
    draws.account["messages"] = [
        {"phase": "sampling", "rounds": 1500, "to_clients": {"position": [4, 12]}, "to_server": {"position": [4, 12]}}
    ]
    about = About(
        dropped={"MN": 3}, spreads={"age": 5.6}, baselines={"site": "A"}, again="fahmc sample trial.toml", outcome="ill"
    )
    page = Page(write_report(draws, tmp_path, about=about).read_text())
    assert page.row("intercept", 1) == ["intercept", "N(0, 10²)"] and page.row("horizon") == ["horizon", "3"]
    assert page.row("MN") == ["MN", "247", "53.9 %", "3"] and page.row("KY") == ["KY", "211", "46.1 %", "0"]
    assert page.row("sampling, 1,500")[1] == "position [4 × 12]"
    assert page.row("fahmc") == ["fahmc", "0.1.0"]
    for words in (
        "Logistic regression.",
        "Outcome: ill.",
        "age (5.6)",
        "compared with one of them: site (A)",
        "fahmc sample trial.toml",
        "nothing crossed",
    ):
        assert words in page.text


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
    assert len(rows) == 2 * 11, "of the posterior, and of the chains"
    assert len({line.count("|") for line in rows[:11]}) == len({line.count("|") for line in rows[11:]}) == 1
    assert "| parameter | federated: mean |" in markdown


def test_a_bad_run_without_reference_says_what_to_do(make_draws, tmp_path):
    bad = make_draws(num_draws=100, autocorrelation=0.98, num_covariates=1)
    bad.stats["diverging"][0, 0] = True
    bad.settings["client"] = "<script>alert(1)</script>"
    raw = write_report(bad, tmp_path).read_text()
    page = Page(raw)
    assert 'class="verdict bad"' in raw
    assert "<script>" not in raw
    assert "Do not use these draws yet" in page.text
    assert "Set step_size = 0.01." in page.text
    assert "Do not rely on these numbers yet" in page.text
    assert "pooled" not in " ".join(page.row("parameter"))
    assert len(page.row("intercept")) == 5


def test_one_chain_can_be_reported(make_draws, tmp_path):
    page = Page(write_report(make_draws(num_chains=1, num_covariates=1), tmp_path).read_text())
    assert page.row("intercept", 1)[1] == "n/a"


@pytest.mark.parametrize("num_draws", [2, 3])
def test_hardly_any_draws_and_no_drift_can_be_reported(make_draws, tmp_path, num_draws):
    draws = make_draws(num_chains=2, num_draws=num_draws, is_metropolis=True, num_covariates=1)
    draws.client_drift[:] = 0
    draws.stats["client_drift"][:] = 0
    page = Page(write_report(draws, tmp_path, reference=make_draws(seed=1, num_covariates=1)).read_text())
    assert page.row("intercept", 1)[1] == "n/a"
    assert "Do not use these draws yet: no R-hat" in page.text


def test_the_page_shows_at_most_200_parameters_and_the_csv_all(make_draws_of, tmp_path):
    values = np.random.default_rng(0).normal(size=(4, 20, 250))
    values[0, :, 249] += 10
    page = Page(write_report(make_draws_of(values), tmp_path, about=About(effect=["w[0]"])).read_text())
    shown = [row[0] for row in page.rows if row[0].startswith("w[")]
    assert len(shown) == 400 and shown[:200] == shown[200:], "of the posterior, and of the chains"
    assert shown[:2] == ["w[0]", "w[249]"]
    assert "200 of 250 parameters" in page.text
    assert len(pd.read_csv(tmp_path / "summary.csv")) == 250


def test_nothing_is_written_when_something_is_wrong(federated, tmp_path):
    with pytest.raises(SettingsError, match="did you mean 'treatment'"):
        write_report(federated, tmp_path / "report", about=About(effect=["treatmnt"]))
    with pytest.raises(SettingsError, match="Both runs are called 'pooled'"):
        write_report(federated, tmp_path / "report", reference=federated, label="pooled")
    assert not (tmp_path / "report").exists()


def test_a_sampler_without_steps_and_drift_can_be_reported(make_draws, tmp_path):
    draws = make_draws(num_draws=100, autocorrelation=0.98, num_covariates=1)
    bare = dataclasses.replace(draws, stats={"diverging": draws.stats["diverging"]}, client_drift=None)
    bare.save(tmp_path / "run.nc")
    loaded = Draws.load(tmp_path / "run.nc")
    assert loaded.client_drift is None and loaded.client_names == bare.client_names
    page = Page(write_report(loaded, tmp_path / "report").read_text())
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == [MARKER, *FILES[1:]]
    assert "have not met" in page.text and "step_size" not in page.text.split("Settings")[0]
    assert "How far off the numbers are is not known" in page.text
    with pytest.raises(DataError, match="no client drift"):
        plot_client_drift(loaded)


def test_acceptance_rate_is_reported(tmp_path, make_draws):
    draws = make_draws(num_covariates=1)
    rate = np.full((draws.num_chains, draws.num_draws), 0.857)
    adjusted = dataclasses.replace(draws, stats=draws.stats | {"acceptance_rate": rate})
    write_report(adjusted, tmp_path)
    assert "mean acceptance rate | 0.857" in (tmp_path / "summary.md").read_text()
