"""What a report is about: [report] of the file, the tables, and what sites told."""

import json

import numpy as np
import pytest

import fahmc
from fahmc.cli.about import about_sites, about_study
from fahmc.cli.config import build, load_config
from fahmc.cli.folder import ResultFolder
from fahmc.data.trial import opt_csv_path
from fahmc.errors import CheckpointError, SettingsError
from fahmc.report import About
from fahmc.report.effect import Effect, answer

STUDY = f"""
[model]
name = "logistic_regression"

[data]
file = "{opt_csv_path()}"
site_column = "Clinic"
outcome = "Preg.ended...37.wk"
outcome_positive = "Yes"
features = ["Group", "Age"]
missing = "drop"
"""


def about(folder, report=""):
    file = folder / "study.toml"
    file.write_text(STUDY + report)
    config = load_config(file)
    return about_study(config, build(config))


def test_the_tables_tell_what_the_file_does_not(tmp_path):
    told = about(tmp_path)
    assert (told.title, told.outcome, told.effect) == ("study", "Preg.ended...37.wk = Yes", [])
    assert told.baselines == {"Group": "C"}
    effect = Effect("coefficients[Group[T]]", "Group[T]", "odds ratio", np.zeros(9))
    assert "= Yes for Group[T] (against C): 1," in answer(effect, told, {})[0]
    assert sum(told.dropped.values()) == 9 and 4 < told.spreads["Age"] < 7 and told.again == "fahmc sample study.toml"


def test_the_file_names_title_outcome_and_effect(tmp_path):
    report = {"title": "T", "question": "Q?", "outcome": "birth", "effect": "Group", "scale": "ratio"}
    told = about(tmp_path, "[report]\n" + "".join(f'{name} = "{value}"\n' for name, value in report.items()))
    assert vars(told).items() >= (report | {"effect": ["Group"]}).items()
    assert about(tmp_path, '[report]\neffect = ["Group[T]", "coefficients[Age]"]\n').effect[1] == "coefficients[Age]"


@pytest.mark.parametrize(
    ("report", "words"),
    [
        ('effect = "Grop"', "line 13: effect is 'Grop', and no feature is called so, did you mean 'Group.*'"),
        ('scale = "odds"', "line 13: report.scale = 'odds': input should be 'odds ratio', "),
        ('titel = "T"', "line 13: report.titel is not known, did you mean 'title'"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_line(tmp_path, report, words):
    with pytest.raises(SettingsError, match=words):
        about(tmp_path, f"[report]\n{report}\n")


def sampled(sites):
    values = np.random.default_rng(0).normal(size=(1, 4, 2))
    return fahmc.Draws(
        {"coefficients": values}, {"diverging": np.zeros((1, 4))}, ("a",), None, {"sites": sites}, {},
        dims={"coefficients": ["feature"]}, coords={"feature": ["dose", "age"]},
    )  # fmt: skip


def test_sites_tell_the_rest_and_a_name_that_is_none_keeps_nothing_from_being_reported():
    sites = {"dropped": {"north": 2}, "standardization": {"age": [50.0, 8.0]}, "remarks": ["A level is odd."]}
    told = about_sites(About(effect=["dose"]), sampled(sites))
    assert (told.dropped, told.spreads, list(told.notes)) == ({"north": 2}, {"age": 8.0}, ["A level is odd."])
    assert list(told.effect) == ["dose"]
    told = about_sites(About(effect=["does"]), sampled(sites))
    assert told.effect == () and "did you mean 'dose'?" in told.notes[-1]


def test_it_is_kept_with_the_run_and_damage_is_told(tmp_path):
    results = ResultFolder(tmp_path)
    said = About(title="T", effect=["dose"], scale="odds ratio", dropped={"a": 1}, spreads={"b": 2.0}, notes=["N."])
    results.write_about(said)
    assert results.read_about() == said
    values = json.loads((tmp_path / "report.json").read_text())
    (tmp_path / "report.json").write_text(json.dumps(values | {"scale": "odd"}))
    with pytest.raises(CheckpointError, match=r"report\.json cannot be read \(.*; delete it to go without"):
        results.read_about()
