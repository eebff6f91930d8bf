"""Configuration files: what they build, and refusals that name the line."""

import inspect
import re
import tomllib

import numpy as np
import pytest

import fahmc
from fahmc.cli.config import build, load_config
from fahmc.cli.sections import RunSection
from fahmc.cli.toml_lines import locate_keys
from fahmc.data.trial import opt_csv_path
from fahmc.errors import DataError, SettingsError
from fahmc.registry import choices

TRIAL = f"""\
[model]
name = "logistic_regression"
prior_scale = 2.5

[data]
file = '{opt_csv_path()}'
site_column = "Clinic"
outcome = "Preg.ended...37.wk"
outcome_positive = "Yes"
features = ["Group", "Age", "Education"]
missing = "drop"

[sampler]
name = "FAHMC"
step_size = 0.05
num_leapfrog_steps = 5
gradient = {{name = "gaussian_noise", scale = 10.0, of = {{name = "minibatch", size = 100}}}}

[run]
num_rounds = 20
num_chains = 2
seed = 7
stop_when = {{r_hat = 1.05, every = 50}}
output = "results"
"""


def write(folder, text):
    path = folder / "study.toml"
    path.write_text(text, encoding="utf-8")
    return path


def change(old, new, text=TRIAL):
    assert text.count(old) == 1
    return text.replace(old, new)


def line_of(text, fragment):
    return next(number for number, line in enumerate(text.split("\n"), start=1) if fragment in line)


def refusal(folder, text, kind=SettingsError, *, needs_data=False):
    with pytest.raises(kind) as caught:
        config = load_config(write(folder, text))
        if needs_data:
            build(config)
    return str(caught.value)


def test_the_trial_builds_from_its_file(tmp_path):
    job = build(load_config(write(tmp_path, TRIAL)))
    assert job.federation.names == ("KY", "MN", "MS", "NY") and job.federation.num_rows == 814
    assert job.sampler == fahmc.FAHMC(
        0.05, num_leapfrog_steps=5, gradient=fahmc.GaussianNoise(10.0, of=fahmc.Minibatch(100))
    )
    assert job.run_kwargs["stop_when"] == fahmc.RHatBelow(1.05, every=50)
    assert (job.run_kwargs["num_rounds"], job.run_kwargs["seed"]) == (20, 7)
    assert job.output == tmp_path / "results"
    names = ["Group[T]", "Age", "Education[LT 8 yrs]", "Education[MT 12 yrs]"]
    assert job.model.coords["feature"] == names
    assert job.study is not None and sum(job.study.dropped.values()) == 9


def test_the_job_can_be_sampled(tmp_path, short_shuffles):
    job = build(load_config(write(tmp_path, change("every = 50", "every = 20"))))
    draws = fahmc.sample(job.model, job.federation, job.sampler, progress=False, **job.run_kwargs)
    assert np.shape(draws.positions["coefficients"]) == (2, 20, 4)


def test_run_settings_are_those_of_sample():
    parameters = inspect.signature(fahmc.sample).parameters
    for name, field in RunSection.model_fields.items():
        if name not in ("output", "num_rounds"):
            assert field.default == parameters[name].default, name


@pytest.mark.parametrize(
    ("settings", "sampler"),
    [
        ('name = "FALD"\nstep_size = 0.1\nnum_local_steps = 3', fahmc.FALD(0.1, num_local_steps=3)),
        ('name = "HMC"\nstep_size = 1\nmetropolis = true', fahmc.HMC(1.0, metropolis=True)),
        ('name = "DebiasedFAHMC"\nstep_size = 0.1\ngradient = "full"', fahmc.DebiasedFAHMC(0.1)),
        (
            'name = "FAHMC"\nstep_size = {name = "stages", step_size = 0.1, first_stage = 10}\nsync_unit = "leapfrog"',
            fahmc.FAHMC(fahmc.schedules.Stages(0.1, 10), sync_unit="leapfrog"),
        ),
        (
            'name = "FAHMC"\nstep_size = 0.1\ngradient.name = "minibatch"\ngradient.size = 10',
            fahmc.FAHMC(0.1, gradient=fahmc.Minibatch(10)),
        ),
    ],
)
def test_every_sampler_can_be_written(tmp_path, settings, sampler):
    text = re.sub(r"(?s)\[sampler\].*?\[run\]", f"[sampler]\n{settings}\n[run]", TRIAL)
    assert build(load_config(write(tmp_path, text))).sampler == sampler


def test_a_dense_mass_matrix_stays_a_matrix(tmp_path):
    text = change("step_size = 0.05", "step_size = 0.05\ninverse_mass_matrix = [[1.0, 0.5],\n  [0.5, 2.0]]")
    sampler = build(load_config(write(tmp_path, text))).sampler
    np.testing.assert_array_equal(sampler.inverse_mass_matrix, [[1.0, 0.5], [0.5, 2.0]])


def test_one_file_per_client_weights_and_a_flat_prior(tmp_path):
    (tmp_path / "n.csv").write_text("a,y\n1,0\n2,1\n")
    (tmp_path / "s.csv").write_text("a,y\n3,1\n")
    text = re.sub(
        r"(?s)\[data\].*?\[sampler\]",
        '[data]\noutcome = "y"\n[data.clients]\nnorth = "n.csv"\nsouth = "s.csv"\n'
        "[data.weights]\nnorth = 0.25\nsouth = 0.75\n[sampler]",
        change("prior_scale = 2.5", 'prior_scale = "none"'),
    )
    job = build(load_config(write(tmp_path, text)))
    assert job.federation.weights.tolist() == [0.25, 0.75]
    assert float(job.model.logprior_fn({"coefficients": np.array([9.0])})) == 0.0
    message = refusal(tmp_path, text.replace("south = 0.75", "south = 0.5"), needs_data=True)
    assert message.startswith(f"study.toml, line {line_of(text, '[data.weights]')}: ") and "sum to 1" in message


@pytest.mark.parametrize("is_function", [True, False])
def test_a_model_of_ones_own_with_untouched_arrays(tmp_path, is_function):
    name = f"own_model_{is_function}".lower()
    (tmp_path / f"{name}.py").write_text(
        "import fahmc\n"
        "model = fahmc.Model(lambda position, batch: -(batch['image'] - position) ** 2, init=0.0)\n"
        "def make():\n    return model\n"
        "def make_two(prior):\n    return model\n"
    )
    np.savez(tmp_path / "all.npz", image=np.arange(4.0), site=np.array(["n", "s", "n", "s"]))
    attribute = "make" if is_function else "model"
    text = TRIAL[TRIAL.index("[sampler]") :]
    text = f'[model]\nobject = "{name}:{attribute}"\n[data]\nfile = "all.npz"\nsite_column = "site"\n{text}'
    job = build(load_config(write(tmp_path, text)))
    assert isinstance(job.model, fahmc.Model) and job.study is None
    assert job.federation.rows[0]["image"].tolist() == [0.0, 2.0]
    for wrong, words in {
        f"{name}:modle": "did you mean 'model'",
        f"{name}:make_two": "make_two() is called without arguments: missing a required argument: 'prior'",
        "nowhere:model": "Put nowhere.py next to this file",
        f"{name}:fahmc": "is a module; it should be a fahmc.Model",
        name: '"module:attribute"',
    }.items():
        message = refusal(tmp_path, text.replace(f"{name}:{attribute}", wrong))
        assert message.startswith("study.toml, line 2: ") and words in message


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        (
            "own_raises",
            "x = 1\n1 / 0\n",
            "importing own_raises raised ZeroDivisionError: division by zero (own_raises.py, line 2)",
        ),
        ("own_syntax", "def model(:\n", "importing own_syntax raised SyntaxError: "),
        ("own_exit", "raise SystemExit(0)\n", "importing own_exit raised SystemExit: 0"),
        ("own_needs", "import not_installed\n", "raised ModuleNotFoundError: No module named 'not_installed'"),
        ("own_name", "from fahmc import nothing\n", "raised ImportError: cannot import name 'nothing'"),
        ("own_call", "def model():\n    raise KeyError('k')\n", "model() raised KeyError: 'k' (own_call.py, line 2)"),
    ],
)
def test_a_model_whose_code_fails_is_refused_with_the_line(tmp_path, name, code, words):
    (tmp_path / f"{name}.py").write_text(code)
    text = re.sub(r"(?s)\[model\].*?\[data\]", f'[model]\nobject = "{name}:model"\n[data]', TRIAL)
    message = refusal(tmp_path, text)
    assert message.startswith("study.toml, line 2: model.object: ") and words in message


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("step_size = 0.05", "step_siz = 0.05", "sampler.step_siz is not known, did you mean 'step_size'"),
        ("step_size = 0.05", "step_size = -1.0", "step_size is -1.0; it must be a positive number"),
        ("step_size = 0.05", 'step_size = "x"', "step_size = 'x': it should be a number, written without quotation"),
        (
            "step_size = 0.05",
            'step_size = "0.05"',
            "'0.05': it should be a number, written without quotation marks, or",
        ),
        ("step_size = 0.05", 'step_size = {name = "x"}', "step_size.name = 'x' is not known. Known here: stages"),
        ("step_size = 0.05", "step_size = true", "sampler.step_size is True; it must be a positive number or a table"),
        ("num_leapfrog_steps = 5", "num_leapfrog_steps = 5.5", "it must be a whole number from 1"),
        ("num_leapfrog_steps = 5", "num_leapfrog_steps = 0", "num_leapfrog_steps is 0"),
        (
            "num_leapfrog_steps = 5",
            'sync_unit = "round"',
            "sync_unit is 'round'; it must be 'trajectory' or",
        ),
        ("num_leapfrog_steps = 5", "inverse_mass_matrix = [[1.0], [1.0, 2.0]]", "inhomogeneous"),
        ("num_leapfrog_steps = 5", 'inverse_mass_matrix = [[1,0],[0,"a"]]', "it should hold numbers only"),
        ("num_leapfrog_steps = 5", 'inverse_mass_matrix = {a = [1, "b"]}', "it should hold numbers only"),
        ('"FAHMC"', '"FAHCM"', "sampler.name = 'FAHCM' is not known, did you mean 'FAHMC'"),
        ('"gaussian_noise"', '"gausian_noise"', "sampler.gradient.name = 'gausian_noise' is not known, did you mean"),
        ("scale = 10.0", "scale = -1.0", "sampler.gradient.scale is -1.0; it must be a number of at least 0"),
        ("scale = 10.0", "scal = 1.0", "sampler.gradient.scal is not known, did you mean 'scale'"),
        ("scale = 10.0, ", "", "sampler.gradient.scale is missing"),
        ("size = 100", "size = 1.5", "sampler.gradient.of.size is 1.5; it must be a whole number"),
        (
            '"logistic_regression"',
            '"logistic"',
            "model.name = 'logistic' is not known, did you mean 'logistic_regression'",
        ),
        ("prior_scale = 2.5", "prior_scal = 2.5", "model.prior_scal is not known, did you mean 'prior_scale'"),
        (
            "prior_scale = 2.5",
            'prior_scale = "wide"',
            "model.prior_scale is 'wide'; it must be a positive number or None",
        ),
        ("prior_scale = 2.5", "prior_scale = -2", "prior_scale is -2"),
        ("prior_scale = 2.5", 'object = "a:b"', "model.object stands alone, but name came with it"),
        ("num_rounds = 20", "num_round = 20", "run.num_round is not known, did you mean 'num_rounds'"),
        ("num_chains = 2", "num_chains = 0", "run.num_chains = 0: input should be greater than or equal to 1"),
        ("num_chains = 2", 'num_chains = "2"', "run.num_chains = '2': input should be a valid integer"),
        ("num_chains = 2", 'dtype = "float16"', "'float32' or 'float64'"),
        ("r_hat = 1.05", "r_hat = 0.9", "r_hat is 0.9; it must be a number above 1"),
        ("r_hat = 1.05", "rhat = 1.05", "run.stop_when.rhat is not known, did you mean 'r_hat'"),
        ('missing = "drop"', 'missing = "impute"', "data.missing = 'impute': input should be 'error' or 'drop'"),
        ('missing = "drop"', 'categorical = "Age"', "data.categorical = 'Age': input should be a list"),
        ('missing = "drop"', "categorical = 3", "data.categorical = 3: input should be a list"),
        ('missing = "drop"', "standardise = false", "data.standardise is not known, did you mean 'standardize'"),
        ('missing = "drop"', "[extra]", "extra is not known. Known here: model, data, sampler, run"),
        ('"FAHMC"', '"FAHMC', "this is not TOML"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_line(tmp_path, old, new, words):
    text = change(old, new)
    message = refusal(tmp_path, text)
    lines = zip(text.split("\n"), TRIAL.split("\n"), strict=False)
    changed = next(number for number, (line, before) in enumerate(lines, start=1) if line != before)
    assert f"study.toml, line {changed}: " in message
    assert words in message


def test_all_wrong_settings_of_the_fixed_sections_are_reported_at_once(tmp_path):
    message = refusal(tmp_path, change("num_rounds = 20", "num_rounds = 0").replace('"drop"', '"x"'))
    assert len(message.split("\n")) == 2


@pytest.mark.parametrize(
    ("pattern", "replacement", "words"),
    [
        (r'site_column = "Clinic"\n', "", r"line 5: \[data\]: give either file and site_column, or a table"),
        (r'outcome = ".*\n', "", r"line 5: \[data\]: features, missing, outcome_positive without outcome"),
        (r'name = "FAHMC"\n', "", r"line 13: sampler.name is missing; add name = one of FAHMC, FALD"),
        (r"step_size = 0.05\n", "", r"line 13: sampler.step_size is missing"),
    ],
)
def test_what_is_missing_is_named(tmp_path, pattern, replacement, words):
    assert re.search(words, refusal(tmp_path, re.sub(pattern, replacement, TRIAL)))


@pytest.mark.parametrize(
    ("old", "new", "kind", "words"),
    [
        (
            '"Group"',
            '"Grup"',
            DataError,
            "line 10: there is no column 'Grup' in opt.csv of client 'KY', did you mean 'Group'",
        ),
        ('missing = "drop"', "", DataError, "line 8: client 'KY' lacks values in 'Preg.ended...37.wk' (3)"),
        ('"Preg.ended...37.wk"\noutcome_positive = "Yes"', '"Hypertension"', DataError, 'outcome_positive = "Y"'),
        (
            '"Preg.ended...37.wk"\noutcome_positive = "Yes"',
            '"BL..BOP"',
            SettingsError,
            "line 8: client 'KY': the outcome 'BL..BOP' must be 0 or 1, but a row has",
        ),
        (
            '"Preg.ended...37.wk"\noutcome_positive = "Yes"',
            '"Education"',
            DataError,
            "line 9: features = ['Group', 'Age', 'Education'] with outcome 'Education'",
        ),
        ('"Group"', '"Clinic"', DataError, "line 10: there is no column 'Clinic'"),
        ('"Clinic"', '"Clinik"', DataError, "line 7: there is no column 'Clinik' in opt.csv, did you mean 'Clinic'"),
        ('"Yes"', '"yes"', DataError, "line 9: outcome 'Preg.ended...37.wk' has the levels ['No', 'Yes']"),
    ],
)
def test_what_only_the_data_can_tell_is_refused_too(tmp_path, old, new, kind, words):
    assert words in refusal(tmp_path, change(old, new), kind, needs_data=True)


def test_the_outcome_points_to_the_model_that_is_for_it(tmp_path):
    """Pain is written 0 to 3, grade 1 and 2, weight as numbers, and mood as text."""
    rows = "pain,grade,weight,mood,age\n0,1,61.5,good,40\n1,2,70.2,bad,50\n2,1,80.0,so-so,60\n3,2,55.1,bad,45\n"
    (tmp_path / "north.csv").write_text(rows)
    (tmp_path / "south.csv").write_text(rows)

    def words(outcome, model='name = "logistic_regression"', more=""):
        text = f"[model]\n{model}\n[data]\noutcome = '{outcome}'\nfeatures = ['age']\n{more}\n[data.clients]\n"
        text += "north = 'north.csv'\nsouth = 'south.csv'\n"
        with pytest.raises((DataError, SettingsError)) as caught:
            build(load_config(write(tmp_path, text)))
        return str(caught.value)

    assert "line 4: client 'north': the outcome 'pain' must be 0 or 1" in words("pain")
    assert "softmax_regression, or ordered_regression if they have an order" in words("pain")
    assert 'Write the classes as 0 to 1, as outcome_levels = ["1", "2"] does' in words("grade")
    assert "linear_regression" in words("weight")
    assert "for softmax_regression, or for ordered_regression" in words("mood")
    assert "line 4: outcome 'mood' is text with the levels [" in words("mood")
    ordered = 'name = "ordered_regression"\nnum_classes = 3'
    assert "line 5: outcome 'mood' is text" in words("mood", ordered)
    assert 'outcome_levels = ["bad", "good", "so-so"], or so' in words("mood", ordered)
    assert "line 7: outcome 'mood' has the level 'so-so'" in words("mood", ordered, 'outcome_levels = ["bad", "good"]')
    (tmp_path / "south.csv").unlink()
    assert "study.toml, line 9: " in words("pain") and "south.csv" in words("pain")


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(SettingsError, match=r"none.toml cannot be read: No such file"):
        load_config(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes("name = 'é'".encode("latin-1"))
    with pytest.raises(SettingsError, match="not UTF-8"):
        load_config(tmp_path / "latin.toml")
    (tmp_path / "cut.toml").write_text("[model")
    with pytest.raises(SettingsError, match=r"cut.toml.*not TOML"):
        load_config(tmp_path / "cut.toml")


def test_lines_are_found_through_every_shape_of_toml():
    text = '''# a comment
top = 1
[a]  # [not.a.header]
x = [
  1,  # y = 2
  2,
]
"quoted.key" = """
z = 3
"""
inline = {deep = {er = 1}}
dotted.key.here = 2

[a.b."c.d"]
last = 'x'
[[list]]
item = 1
'''
    tomllib.loads(text)
    lines = locate_keys(text)
    assert lines == {
        ("top",): 2,
        ("a",): 3,
        ("a", "x"): 4,
        ("a", "quoted.key"): 8,
        ("a", "inline"): 11,
        ("a", "inline", "deep"): 11,
        ("a", "inline", "deep", "er"): 11,
        ("a", "dotted"): 12,
        ("a", "dotted", "key"): 12,
        ("a", "dotted", "key", "here"): 12,
        ("a", "b"): 14,
        ("a", "b", "c.d"): 14,
        ("a", "b", "c.d", "last"): 15,
        ("list",): 16,
        ("list", "item"): 17,
    }


def test_the_choices_are_the_librarys():
    assert set(choices("model")) == {
        "linear_regression",
        "logistic_regression",
        "poisson_regression",
        "softmax_regression",
        "mlp",
        "negative_binomial_regression",
        "binomial_regression",
        "gamma_regression",
        "student_t_regression",
        "ordered_regression",
        "exponential_survival",
        "weibull_survival",
        "piecewise_exponential",
    }
    assert all(target is getattr(fahmc, name) for name, target in choices("sampler").items())
