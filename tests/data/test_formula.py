"""Formulas: what they mean, as formulaic has it on all rows together; what they may hold; and that nothing is run."""

import dataclasses
import itertools

import numpy as np
import pandas as pd
import pytest
from formulaic import model_matrix

import fahmc
from fahmc.data.columns import Columns
from fahmc.data.formula import read_formula
from fahmc.data.formula_text import name_group
from fahmc.data.row_columns import UnfitCell
from fahmc.data.splines import Knots, spline_basis
from fahmc.data.study import study_of_tables
from fahmc.errors import DataError, ModelError

SIZES = {"north": 13, "south": 17, "east": 11}


def make_frames() -> dict[str, pd.DataFrame]:
    rng, frames = np.random.default_rng(0), {}
    for name, size in SIZES.items():
        frame = pd.DataFrame({"ill": rng.integers(0, 2, size), "age": rng.normal(50, 10, size)})
        frame["dose"], frame["smokes"] = rng.lognormal(size=size), rng.integers(0, 2, size)
        # One level is not in the south, and stage is a code.
        frame["group"] = rng.choice(["A", "B"] if name == "south" else ["A", "B", "C"], size)
        frame["sex"], frame["stage"] = rng.choice(["f", "m"], size), rng.integers(1, 4, size)
        frame["blood pressure"], frame["days"] = rng.normal(120, 15, size), rng.uniform(1, 300, size)
        frames[name] = frame
    return frames


FRAMES = make_frames()
POOLED = pd.concat(list(FRAMES.values()))
AS_FORMULAIC = [
    "ill ~ age * group + dose",
    "ill ~ group * sex * age",
    "ill ~ 0 + group:sex + age:group",
    "ill ~ (age + group + sex)^2 - age:group",
    "ill ~ group / age + sex %in% group - 1",
    "ill ~ C(stage) * smokes + C(group, Treatment('B')):age",
    "ill ~ C(sex, contr.treatment('m')) + age",
    "ill ~ `blood pressure`:group + log(dose) + log1p(dose) + sqrt(`blood pressure`) + age:1",
    "ill ~ I(age ** 3) + I(log(dose) ** 2):sex + poly(dose, degree=3, raw=True) * group",
    "ill ~ center(age) + center(log(dose)):group + age:sex + log(dose)",
    "ill ~ bs(age, knots=[45, 60], lower_bound=0, upper_bound=100) * sex + group",
    "ill ~ bs(log(dose), df=5, degree=2, lower_bound=-6, upper_bound=6, knots=None)".replace(", knots=None", ""),
]


def rows_of(
    formula: str, standardize: bool = False, **settings
) -> tuple[np.ndarray, tuple[str, ...], fahmc.Federation]:
    federation = fahmc.Federation.from_tables(FRAMES, formula=formula, standardize=standardize, **settings)
    x = np.concatenate([rows["x"] for rows in federation.rows])
    return x, tuple(federation.about["feature_names"]), federation


def expected_columns(formula: str, frame: pd.DataFrame) -> pd.DataFrame:
    if "df=5, degree=2" in formula:  # formulaic would take quantiles of the rows for knots
        formula = formula.replace("df=5", "knots=[-3, 0, 3]")
    right = model_matrix(formula, frame, context={"sqrt": np.sqrt, "log1p": np.log1p}).rhs  # type: ignore[union-attr]
    return right.drop(columns="Intercept", errors="ignore")


@pytest.mark.parametrize("formula", AS_FORMULAIC)
def test_clients_build_the_columns_that_formulaic_builds_from_all_rows(formula):
    x, names, _ = rows_of(formula)
    expected = expected_columns(formula, POOLED)
    assert names == tuple(name.replace("knots=[-3, 0, 3]", "df=5") for name in expected.columns)
    np.testing.assert_allclose(x, expected.to_numpy(float), rtol=1e-12, atol=1e-12)


def test_numbers_are_standardised_before_they_are_multiplied_and_logarithms_after_they_are_taken():
    formula = "ill ~ age * group + I(age ** 2) + log(dose):smokes + bs(age, knots=[50], lower_bound=0, upper_bound=99)"
    x, names, federation = rows_of(formula, standardize=True)
    score = lambda cells: (cells - cells.mean()) / cells.std(ddof=0)  # noqa: E731
    scored = POOLED.assign(age=score(POOLED["age"]), logdose=score(np.log(POOLED["dose"])))
    plain = expected_columns("ill ~ age * group + I(age ** 2) + logdose:smokes", scored)
    spline = expected_columns("ill ~ bs(age, knots=[50], lower_bound=0, upper_bound=99)", POOLED)
    for column, name in enumerate(names):
        source = spline if name.startswith("bs") else plain
        np.testing.assert_allclose(x[:, column], source[name.replace("log(dose)", "logdose")], atol=1e-12)
    assert set(federation.about["standardization"]) == {"age", "log(dose)"}, "smokes is 0 or 1"
    assert set(names) == {"log(dose):smokes" if name == "logdose:smokes" else name for name in [*plain, *spline]}


def test_scale_is_by_the_sd_of_all_rows_whatever_the_study_does():
    for standardize in (False, True):
        x, _, _ = rows_of("ill ~ scale(age) + center(smokes)", standardize)
        np.testing.assert_allclose(x[:, 0], (POOLED["age"] - POOLED["age"].mean()) / POOLED["age"].std(ddof=0))
        np.testing.assert_allclose(x[:, 1], POOLED["smokes"] - POOLED["smokes"].mean(), atol=1e-15)


def test_knots_that_were_not_given_follow_from_mean_and_sd_alone():
    age = POOLED["age"].to_numpy()
    mean, sd = float(age.mean()), float(age.std())
    lower, upper, inner = mean - 2 * sd, mean + 2 * sd, [mean - sd, mean, mean + sd]
    x, names, _ = rows_of("ill ~ bs(age, df=6)", standardize=True)
    assert names == tuple(f"bs(age, df=6)[{place}]" for place in range(1, 7))
    is_within = np.abs(age - mean) < 2 * sd
    assert 0 < (~is_within).sum() < 6
    spline = f"ill ~ bs(age, knots={inner!r}, lower_bound={lower!r}, upper_bound={upper!r}, extrapolation='clip')"
    expected = expected_columns(spline, POOLED).to_numpy(float)
    np.testing.assert_allclose(x[is_within], expected[is_within], atol=1e-12)
    assert not np.allclose(x[~is_within], expected[~is_within])


@pytest.mark.parametrize("degree", [1, 3])
def test_a_spline_goes_on_as_the_straight_line_that_touches_it(degree):
    knots = Knots((1.0, 2.0), 0.0, 4.0)
    for bound, outward in ((0.0, -1.0), (4.0, 1.0)):
        at, near, far, further = spline_basis(bound + outward * np.array([0.0, 1e-7, 1.0, 1000.0]), knots, degree)
        np.testing.assert_allclose(further - at, 1000 * (far - at), rtol=1e-12, atol=1e-9)
        inside = spline_basis(np.array([bound - outward * 1e-7]), knots, degree)[0]
        np.testing.assert_allclose(near - at, at - inside, atol=1e-12)
        np.testing.assert_allclose(far - at, (near - at) * 1e7, atol=1e-6)


REFUSED = {
    "ill ~ open('x')": "letter 7, \"open\\('x'\\)\": formulas run no code, and this is none of what they know",
    "ill ~ lgo(age)": "none of what they know, did you mean 'log'",
    "ill ~ np.log(age)": "letter 7, 'np.log.age.': formulas run no code",
    "ill ~ {age + 1}": "formulas run no code",
    "ill ~ age[0]": "formulas run no code",
    "ill ~ log(age if dose else 1)": "a column's name is needed, not age if dose else 1",
    "ill ~ log(log(age))": "a column's name is needed",
    "ill ~ bs(C(age))": r"C\(\) may not stand there",
    "ill ~ bs(age, df=2)": "df must be a whole number from 3 to 53, written out",
    "ill ~ bs(age, df=len)": "df must be a whole number",
    "ill ~ bs(age, df=4, knots=[1])": "df and knots say the same",
    "ill ~ bs(age, knots=[2, 1], lower_bound=0, upper_bound=3)": r"the knots \(2, 1\) must lie one after the other",
    "ill ~ bs(age, knots=[1e31])": "a knot must be a number up to 1e[+]30",
    "ill ~ bs(age, **df)": r"bs\(\) takes no \*\* there",
    "ill ~ bs(*age)": "bs.. takes 6 thing",
    "ill ~ poly(age, 2)": r"orthogonal over all rows .* write poly\(age, 2, raw=True\), or a spline",
    "ill ~ I(age + dose)": "I.. takes a power of a column",
    "ill ~ I(age ** 99)": "the power must be a whole number from 1 to 5",
    "ill ~ C(stage) + stage": r"'stage' stands both as C\(stage\) and as stage",
    "ill ~ C(stage, Sum)": "levels are coded against one of them",
    "ill ~ 2:age": "a number may be 0 or 1",
    "ill ~ age + (1 | ward)": r"letter 13, '\(1 \| ward\)': the only such term is .*wards inside a site.* not",
    "ill ~ (1 + age | site)": "slopes that vary by site, are not supported",
    "ill ~ age | site": "the only such term",
    "ill ~ age:(1 | site)": "cannot be multiplied with anything",
    "ill ~ offset(age):dose": "an offset has no coefficient",
    "ill ~ dose + offset(age + 1)": "a column's name is needed, not age [+] 1",
    "ill ~ offset(age) + offset(days) + dose": "there is another offset already: 'age'",
    "ill ~ .": "`.` does not stand for other columns here",
    "ill ~ 1": "it names no predictor",
    "~ age": "it has no outcome; write outcome ~ predictors",
    "ill ~ ill": "'ill' is the outcome, and cannot predict itself",
    "log(ill) ~ age": "the outcome is one column, or Surv",
    "(1 | site) ~ age": "the outcome is one column, or Surv",
    "ill + age ~ dose": "the outcome is one column, or Surv",
    "ill ~ age dose": "letter 7: Missing operator between `age` and `dose`",
    "ill ~ log(age": "letter 7: Formula ended before",
    "ill ~ log(age dose)": "what stands in a call cannot be read",
    "ill ~ `log(age)` + log(age)": r"log\(age\) is a column and something else",
    "ill ~ log(" + "(" * 900 + "age" + ")" * 901: "cannot be read",
    "ill ~ age\x01": "control character",
    "ill ~ " + "age + " * 2000: "has 12,006 letters",
    "ill ~ (" + " + ".join(f"x{i}" for i in range(26)) + ")^5": "multiplies out to more than 1,000 terms",
    "ill ~ " + "*".join(f"(a{i} + b{i})" for i in range(300)): "multiplies out to more than 1,000 terms",
    "ill ~ (age + dose)^7": "the power 7 of a sum of terms must be a whole number from 1 to 5",
    "ill ~ a:b:c:d:e:f": "a product of 6 columns; at most 5",
}


@pytest.mark.parametrize("formula", REFUSED, ids=range(len(REFUSED)))
def test_what_is_not_on_the_list_is_refused_with_its_place(formula):
    with pytest.raises(DataError, match=REFUSED[formula]) as refusal:
        Columns(formula=formula)
    assert "\x1b" not in str(refusal.value) and "\n" not in str(refusal.value) and len(str(refusal.value)) < 800


def test_nothing_of_a_formula_is_run(tmp_path):
    forms = ["{}", "log({})", "C({})", "bs(age, df={})", "I({} ** 2)", "offset({})", "{{{}}}", "C(group, {})", "age:{}"]
    made = tmp_path / "made"
    for form, code in itertools.product(forms, [f"open('{made}', 'w')", f"age.__class__(open('{made}', 'w'))"]):
        with pytest.raises(DataError):
            Columns(formula=f"ill ~ {form.format(code)}")
    assert not made.exists()


def test_a_formula_says_all_that_columns_and_model_are_told_otherwise():
    columns = Columns(
        formula="Surv(days, ill) ~ age * C(stage) + offset(dose) + offset(log(`blood pressure`)) + (1|site)"
    )
    assert (columns.outcome, columns.event, columns.offset, columns.exposure) == (
        "days",
        "ill",
        "dose",
        "blood pressure",
    )
    assert (columns.features, columns.categorical) == (("age", "stage"), ("stage",))
    assert columns.model_settings == {"site_effects": "intercept"}
    assert Columns(**dataclasses.asdict(columns)) == columns, "as it goes to sites"
    assert read_formula("ill ~ (1 | site) + age - 1").model_settings == {
        "site_effects": "intercept",
        "intercept": False,
    }
    assert name_group("ill ~ age + ( 1 |`my clinic`) ", "my clinic") == "ill ~ age + (1 | site) "
    assert name_group("ill ~ age + (1 | site)", "clinic") == "ill ~ age + (1 | site)"
    assert fahmc.Sites(formula="ill ~ age + (1 | site)").columns == Columns(formula="ill ~ age + (1 | site)")


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"outcome": "dose"}, "outcome = 'dose', but the formula says 'ill'"),
        ({"features": ["dose"]}, r"features = \['dose'\], but the formula says \('age',\).* Leave features out"),
        ({"categorical": ["age"]}, r"categorical = \['age'\], but the formula says \(\)"),
        ({"exposure": "age"}, "exposure = 'age', but the formula says 'days'"),
    ],
)
def test_what_contradicts_the_formula_is_refused_by_name(setting, words):
    with pytest.raises(DataError, match=words):
        Columns(formula="ill ~ age + offset(log(days))", **setting)
    assert Columns(formula="ill ~ age", row_weights="days", offset="dose").row_columns == {
        "offset": "dose",
        "row_weights": "days",
    }


@pytest.mark.parametrize(
    ("formula", "words"),
    [
        ("ill ~ aeg", "no column 'aeg' in the table of client 'north', did you mean 'age'"),
        ("ill ~ log(group)", r"the formula takes log\(group\), but column 'group' is text"),
        ("ill ~ bs(group)", r"the formula takes bs\(group\), but column 'group' is text"),
        ("ill ~ C(group, Treatment('D'))", "the levels of 'group' are A, B, C. Name one of them"),
        ("ill ~ bs(age, knots=[500])", r"the knots \(500\) must lie one after the other .* Give other knots, or lower"),
    ],
)
def test_tables_that_the_formula_does_not_fit_are_refused(formula, words):
    with pytest.raises(DataError, match=words):
        rows_of(formula)


def test_a_logarithm_of_what_has_none_names_the_cell():
    frames = FRAMES | {"south": FRAMES["south"].assign(dose=[1.0, 0.0, *FRAMES["south"]["dose"][2:]])}
    with pytest.raises(
        UnfitCell, match=r"takes log\(dose\), so column 'dose' must be above 0, but 0 in row 2 .*'south'"
    ):
        study_of_tables(frames, {"formula": "ill ~ log(dose)"})


def test_large_products_stay_numbers():
    large = {name: frame.assign(age=frame["age"] * 1e28, dose=frame["dose"] * 1e28) for name, frame in FRAMES.items()}
    study = study_of_tables(large, {"formula": "ill ~ age:dose + I(age ** 5):I(dose ** 5)", "standardize": False})
    assert np.isfinite(study.clients["north"]["x"]).all() and study.clients["north"]["x"].max() == 1e30


def test_tables_come_as_frames_or_files_and_their_columns_name_the_coefficients(tmp_path):
    FRAMES["north"].to_csv(tmp_path / "north.csv", index=False)
    tables = {**FRAMES, "north": tmp_path / "north.csv"}
    federation = fahmc.Federation.from_tables(tables, formula="ill ~ 0 + age + group")
    np.testing.assert_allclose(federation.rows[0]["x"], rows_of("ill ~ 0 + age + group", True)[0][: SIZES["north"]])
    assert federation.pooled().about == federation.about
    sampler = fahmc.FAHMC(0.01, num_leapfrog_steps=1)
    model = fahmc.models.logistic_regression()
    draws = fahmc.sample(model, federation, sampler, 2, num_chains=1, progress=False)
    assert list(draws.coords["feature"]) == ["age", "group[A]", "group[B]", "group[C]"]
    assert set(draws.positions) == {"coefficients"}, "the formula has no intercept"
    with pytest.raises(ModelError, match=r"formula has \(1 \| site\), which ready-made models have as a setting"):
        own = fahmc.Model(lambda theta, batch: -((batch["y"] - theta) ** 2), init=np.zeros(()))
        fahmc.sample(own, fahmc.Federation.from_tables(FRAMES, formula="ill ~ age + (1 | site)"), sampler, 2)
    with pytest.raises(DataError, match="formulla is no setting of columns, did you mean 'formula'"):
        fahmc.Federation.from_tables(tables, formulla="ill ~ age")
    with pytest.raises(DataError, match="table of client 'a' is 3; give a pandas DataFrame or the path of a file"):
        fahmc.Federation.from_tables({"a": 3}, formula="ill ~ age")
    with pytest.raises(DataError, match="Tables need an outcome"):
        fahmc.Federation.from_tables(tables)


@pytest.mark.parametrize(
    ("right", "baselines"),
    [
        ("group * age + sex", {"group": "A", "sex": "f"}),
        ("C(group, Treatment('B')) + C(stage)", {"C(group, Treatment('B'))": "B", "C(stage)": "1"}),
        ("0 + group", {}),
        ("age:group", {}),
    ],
)
def test_it_is_known_what_levels_are_compared_with(right, baselines):
    assert study_of_tables(FRAMES, {"formula": f"ill ~ {right}"}).baselines == baselines
