"""The studies of docs/models.md are built from files with these columns, and their rows fit their models."""

import re
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest

from fahmc.cli.config import build, load_config
from fahmc.data.places import with_places
from fahmc.density.local import at_sites
from fahmc.models.recipes import build_model, model_recipe

DOCS = Path(__file__).parents[2] / "docs" / "models.md"
STUDIES = re.findall(r"```toml\n(.*?)```", DOCS.read_text(), flags=re.DOTALL)
COLUMNS = {
    "months": [2.0, 11.5, 60.0],
    "died": [1, 0, 1],
    "arm": ["new", "old", "new"],
    "age": [50, 61, 72],
    "falls": [0, 3, 1],
    "days": [30, 90, 365],
    "programme": [1, 0, 1],
    "bmi": [22.5, 31.0, 27.5],
    "share": [0.5, 1.0, 2.0],
}


@pytest.mark.parametrize("study", STUDIES, ids=["survival", "counts", "all of it", "censored times"])
def test_a_documented_study_is_built(study, tmp_path):
    for name in ("north", "south"):
        pd.DataFrame(COLUMNS).to_csv(tmp_path / f"{name}.csv", index=False)
    (tmp_path / "study.toml").write_text(study)
    job = build(load_config(tmp_path / "study.toml"))
    model, [rows, _] = at_sites(job.model, job.federation.names), with_places(job.federation).rows
    assert model.validate_fn is not None and model.validate_fn(rows) is None

    @jax.jit
    def compute(key, rows):
        position = model.initial_position(key, rows)
        return model.row_loglikelihoods(position, rows), model.predict(position, rows)

    fits, predicted = compute(jax.random.key(0), rows)
    assert np.isfinite(fits).all()
    assert build_model(model_recipe(job.model)).coords == job.model.coords
    if "event" in rows:
        np.testing.assert_array_equal(rows["event"], COLUMNS["died"])
        assert ((predicted > 0) & (predicted < 1)).all()
    else:
        np.testing.assert_allclose(rows["offset"], np.log(COLUMNS["days"]))
    if "row_weights" in study:
        np.testing.assert_array_equal(rows["weight"], COLUMNS["share"])
        assert any(name.startswith("bs(") for name in job.model.coords["feature"])
    if "1 | site" in study:
        assert model.local and "programme:age" in job.model.coords["feature"]
