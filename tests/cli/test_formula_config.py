"""A formula in a configuration file: from CSV to model and rows, and its line where it is refused."""

import re

import numpy as np
import pytest

import fahmc
from fahmc.cli.config import build, build_model, build_sites, load_config
from fahmc.data.tables import read_sites
from fahmc.data.trial import opt_csv_path
from fahmc.errors import DataError, SettingsError

FORMULA = "`Preg.ended...37.wk` ~ Group * Age + bs(`BL.PD.avg`, df=4)"
STUDY = f"""\
[model]
name = "logistic_regression"
[data]
file = '{opt_csv_path()}'
site_column = "Clinic"
outcome_positive = "Yes"
missing = "drop"
formula = "{FORMULA}"
"""


def load(folder, old="", new="", text=STUDY):
    assert old in text
    (folder / "study.toml").write_text(text.replace(old, new))
    return load_config(folder / "study.toml")


OWN_FAMILY = """
import fahmc


@fahmc.models.family
def grouped_regression(site_effects: str | None = None, intercept: bool = True) -> fahmc.Model:
    return fahmc.models.logistic_regression(intercept=intercept)
"""


def test_the_trial_from_its_csv_file(tmp_path):
    job = build(load(tmp_path))
    assert job.study is not None
    spline = [f"bs(`BL.PD.avg`, df=4)[{place}]" for place in range(1, 5)]
    assert list(job.study.feature_names) == ["Group[T.T]", "Age", *spline, "Group[T.T]:Age"]
    assert list(job.model.coords["feature"]) == list(job.study.feature_names)
    assert set(job.study.standardization) == {"Age"}
    tables = read_sites(opt_csv_path(), "Clinic")
    same = fahmc.Federation.from_clients(job.study.clients)
    assert job.federation.names == tuple(tables) == same.names
    by_hand = job.federation.rows[0]["x"]
    np.testing.assert_array_equal(by_hand[:, -1], by_hand[:, 0] * by_hand[:, 1])


def test_what_a_formula_says_of_the_model_is_a_setting_of_it(tmp_path):
    (tmp_path / "grouped_by_site.py").write_text(OWN_FAMILY)
    text = STUDY.replace('name = "logistic_regression"', 'object = "grouped_by_site:grouped_regression"')

    def settings(terms: str, text: str = text) -> dict[str, object]:
        recipe = build_model(load(tmp_path, FORMULA, f"{FORMULA} {terms}", text)).recipe
        assert recipe is not None
        return {name: value for name, value in recipe.items() if name in ("site_effects", "intercept")}

    assert settings("+ (1 | Clinic) - 1") == {"site_effects": "intercept", "intercept": False}
    assert settings("+ (1 | site)") == {"site_effects": "intercept"}
    said = text.replace("[data]", 'site_effects = "private"\n[data]')
    assert settings("+ (1 | site)", said) == {"site_effects": "private"}, "what the user says stays"
    assert settings("- 1", STUDY) == {"intercept": False}
    assert settings("", STUDY) == {}


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("Group *", "open('x') *", r"line 8: formula = .*, at letter 24, .*: formulas run no code"),
        ("df=4)", "df=4) + (1 | Ward)", "line 8: .*the only such term is .*site_column tells whose a row is"),
        ("missing =", "outcome = 'Age'\nmissing =", "line 9: outcome = 'Age', but the formula says 'Preg"),
        (
            "df=4)",
            "df=4) + (1 | Clinic)",
            r"line 9: The formula has \(1 \| site\), but mlp has no setting site_effects",
        ),
        ("missing =", "formulla = 'a'\nmissing =", "line 7: data.formulla is not known, did you mean 'formula'"),
        (f'"{FORMULA}"', "3", "line 8: data.formula = 3: "),
    ],
)
def test_what_is_wrong_with_a_formula_is_refused_with_its_line(tmp_path, old, new, words):
    text = STUDY.replace('"logistic_regression"', '"mlp"\nnum_classes = 2') if "Clinic" in new else STUDY
    with pytest.raises(SettingsError, match=f"^study.toml, {words}"):
        load(tmp_path, old, new, text)


def test_what_only_the_tables_can_tell_is_refused_when_they_are_read(tmp_path):
    with pytest.raises(DataError, match=re.escape("the formula takes log(Group), but column 'Group' is text")):
        build(load(tmp_path, "Group *", "log(Group) *"))
    with pytest.raises(SettingsError, match=r"^study.toml, line 8: client 'KY': the outcome 'BL..BOP' must be 0 or 1"):
        build(
            load(
                tmp_path,
                "`Preg.ended...37.wk` ~ Group",
                "`BL..BOP` ~ Group",
                STUDY.replace('outcome_positive = "Yes"', ""),
            )
        )


def test_sites_are_asked_for_the_same(tmp_path):
    federation = '[federation]\nserver = "localhost:8002"\nsites = ["KY", "MN"]\n[data]'
    text = STUDY.replace(f"file = '{opt_csv_path()}'\nsite_column = \"Clinic\"\n", "").replace("[data]", federation)
    sites = build_sites(load(tmp_path, text=text))
    assert sites.outcome == "Preg.ended...37.wk" and sites.features == ("Group", "Age", "BL.PD.avg")
    assert sites.formula == FORMULA
