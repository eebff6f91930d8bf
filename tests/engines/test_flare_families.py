"""Every ready-made family from a study.toml, here and at sites: the same rows, and its recipe makes the same model."""

import json

import jax
import numpy as np
import pandas as pd
import pytest
from test_flare_work import PRIVATE, Nearby

import fahmc
from fahmc.cli.config import build, build_model, build_sites, load_config
from fahmc.engines.flare.rules import Rules
from fahmc.engines.flare.work import Work
from fahmc.engines.order import Order
from fahmc.models import recipes
from fahmc.runs.plan import make_run

SIZES = {"north": 30, "south": 30}  # as many, so that one program serves both
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


def at_sites(folder):
    """Return each family's model as a site makes it of the order, and the rows that each site keeps."""
    work = {
        name: Work(name, Rules(file=str(folder / f"{name}.csv"), columns="all", minimum_rows=10), bytes(32))
        for name in SIZES
    }
    found = {}
    with Nearby(folder, work, []) as engine:
        for family in FAMILIES:
            config = load_config(folder / f"{family}-sites.toml")
            model, federation = engine.open(build_model(config), build_sites(config), PRIVATE)
            run = make_run(model, federation, PRIVATE, num_rounds=1, dtype=np.dtype("float64"))
            order = Order.read(Order.of(run, run.phases[-1]).text)
            found[family] = recipes.build_model(order.model), {name: site._rows for name, site in work.items()}
    return found


def test_every_family_is_the_same_here_and_at_sites(folder):
    others = {"check_counts", "family", "from_numpyro", "generalized_linear"}
    assert set(FAMILIES) == set(fahmc.models.__all__) - others
    here = {family: build(load_config(folder / f"{family}.toml")) for family in FAMILIES}
    there = at_sites(folder)
    rows = {family: job.federation.rows for family, job in here.items()}
    for family, parts in rows.items():
        for own, kept in zip(parts, there[family][1].values(), strict=True):
            jax.tree.map(np.testing.assert_array_equal, kept, own)
    models = {family: (recipes.with_num_rows(job.model, 60), there[family][0]) for family, job in here.items()}

    @jax.jit
    def compute(keys, rows):
        """All families in one program."""
        positions = {family: models[family][0].initial_position(keys[family], rows[family]) for family in models}
        return {
            family: ([model.row_loglikelihoods(positions[family], rows[family]) for model in pair],
                     pair[1].predict(positions[family], rows[family]))
            for family, pair in models.items()
        }  # fmt: skip

    keys = dict(zip(models, jax.random.split(jax.random.key(0), len(models)), strict=True))
    computed = compute(keys, {family: parts[0] for family, parts in rows.items()})
    for family, ((one, other), predicted) in computed.items():
        assert np.isfinite(one).all() and np.isfinite(predicted).all() and len(predicted) == SIZES["north"], family
        np.testing.assert_array_equal(one, other)
        assert models[family][0].prior_words == there[family][0].prior_words
