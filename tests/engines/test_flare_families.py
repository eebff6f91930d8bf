"""Every ready-made family from a study.toml, here and at sites: the same rows, and its recipe makes the same model."""

import json

import jax
import numpy as np
import pandas as pd
import pytest
from test_flare_work import PRIVATE, Nearby, workers

import fahmc
from fahmc.cli.config import build, build_model, build_sites, load_config
from fahmc.engines.order import Order
from fahmc.models import recipes
from fahmc.runs.plan import make_run

SIZES = {"north": 30, "south": 30, "east": 30}  # as many, so that one program serves all
CLASSES = 'outcome_levels = ["mild", "severe", "fatal"]'
FAMILIES = {  # settings of the model, and of the rows
    "linear_regression": ("", 'formula = "score ~ arm * age + bs(dose, df=4)"'),
    "student_t_regression": ("degrees = 3.0", 'outcome = "score"\nfeatures = ["age", "arm"]'),
    "gamma_regression": ("shape_scale = 2.0", 'formula = "months ~ log(dose) + center(age)"'),
    "logistic_regression": ('prior = {name = "horseshoe", num_relevant = 1}', 'formula = "died ~ age + arm + dose"'),
    "binomial_regression": ("", 'outcome = "found"\ntrials = "tested"\nfeatures = ["dose"]'),
    "softmax_regression": ("num_classes = 3", f'outcome = "grade"\nfeatures = ["age", "arm"]\n{CLASSES}'),
    "ordered_regression": ("num_classes = 3", f'formula = "grade ~ arm + age"\n{CLASSES}'),
    "poisson_regression": ("", 'formula = "falls ~ age + offset(log(days))"\nrow_weights = "share"'),
    "negative_binomial_regression": ("", 'outcome = "falls"\nexposure = "days"\nfeatures = ["age"]'),
    "exponential_survival": ("horizon = 2.0", 'formula = "Surv(months, died) ~ arm"'),
    "weibull_survival": ("", 'formula = "Surv(months, died) ~ arm * age"\nrow_weights = "share"'),
    "piecewise_exponential": ("cuts = [1, 3]", 'outcome = "months"\nevent = "died"\nfeatures = ["arm", "dose"]'),
    "mlp": ("num_classes = 3\nhidden = [2]", f'outcome = "grade"\nfeatures = ["age", "arm"]\n{CLASSES}'),
}


def table(rng: np.random.Generator, size: int) -> pd.DataFrame:
    tested = rng.integers(1, 9, size)
    return pd.DataFrame(
        {
            "age": rng.normal(50, 12, size).round(1),
            "dose": rng.gamma(2.0, 3.0, size).round(3) + 0.1,
            "arm": rng.choice(["new", "old"], size),
            "score": rng.normal(size=size),
            "months": rng.gamma(2.0, 1.0, size) + 0.01,
            "died": rng.integers(0, 2, size),
            "grade": rng.choice(["mild", "severe"], size),  # "fatal" has no row anywhere
            "falls": rng.poisson(2.0, size),
            "days": rng.integers(30, 365, size),
            "tested": tested,
            "found": rng.binomial(tested, 0.4),
            "share": rng.uniform(0.5, 2.0, size),
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("families"), np.random.default_rng(3)
    for name, size in SIZES.items():
        table(rng, size).to_csv(folder / f"{name}.csv", index=False)
    clients = "\n".join(f'{name} = "{name}.csv"' for name in SIZES)
    federation = f'[federation]\nserver = "localhost:8002"\nsites = {json.dumps(list(SIZES))}'
    for family, (settings, data) in FAMILIES.items():
        study = f'[model]\nname = "{family}"\n{settings}\n[data]\n{data}\n'
        (folder / f"{family}.toml").write_text(f"{study}[data.clients]\n{clients}\n")
        (folder / f"{family}-sites.toml").write_text(f"{study}{federation}\n")
    return folder


def told_to_sites(folder):
    """Return the recipe that sites are sent for each family, and the rows that each site keeps."""
    rules = {"columns": "all", "minimum_rows": 10, "minimum_rows_per_level": 1, "rows_per_parameter": 1}
    work = workers({name: folder / f"{name}.csv" for name in SIZES}, **rules, maximum_runs=len(FAMILIES))
    told = {}
    with Nearby(folder, work, []) as engine:
        for family in FAMILIES:
            config = load_config(folder / f"{family}-sites.toml")
            model, federation = engine.open(build_model(config), build_sites(config), PRIVATE)
            run = make_run(model, federation, PRIVATE, num_rounds=1, dtype=np.dtype("float64"))
            order = Order.read(Order.of(run, run.phases[-1]).text)
            told[family] = order.model, {name: site._rows for name, site in work.items()}
    return told


def test_every_family_is_the_same_here_and_at_sites(folder):
    others = {"check_counts", "family", "from_numpyro", "generalized_linear"}
    assert set(FAMILIES) == set(fahmc.models.__all__) - others
    models, rows = {}, {}
    for family, (recipe, kept) in told_to_sites(folder).items():
        job = build(load_config(folder / f"{family}.toml"))
        model = recipes.with_num_rows(job.model, sum(SIZES.values()))
        models[family], rows[family] = recipes.build_model(recipe), kept["north"]
        assert recipes.model_recipe(model) == recipe and model.prior_words == models[family].prior_words
        for own, there in zip(job.federation.rows, kept.values(), strict=True):
            jax.tree.map(np.testing.assert_array_equal, there, own)

    @jax.jit
    def compute(keys, rows):
        """All families in one program."""
        positions = {family: model.initial_position(keys[family], rows[family]) for family, model in models.items()}
        return {
            family: (model.row_loglikelihoods(at, rows[family]), model.predict(at, rows[family]))
            for (family, model), at in zip(models.items(), positions.values(), strict=True)
        }

    keys = dict(zip(models, jax.random.split(jax.random.key(0), len(models)), strict=True))
    for family, (fits, predicted) in compute(keys, rows).items():
        assert np.isfinite(fits).all() and np.isfinite(predicted).all(), family
        assert len(fits) == len(predicted) == SIZES["north"], family
