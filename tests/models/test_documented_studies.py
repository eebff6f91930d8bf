"""The studies of docs/models.md are built from files with these columns, and their rows fit their models."""

import re
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest

from fahmc.cli.config import build, load_config
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
}


@pytest.mark.parametrize("study", STUDIES, ids=["survival", "counts"])
def test_a_documented_study_is_built(study, tmp_path):
    for name in ("north", "south"):
        pd.DataFrame(COLUMNS).to_csv(tmp_path / f"{name}.csv", index=False)
    (tmp_path / "study.toml").write_text(study)
    job = build(load_config(tmp_path / "study.toml"))
    [rows, _] = job.federation.rows
    assert job.model.validate_fn is not None and job.model.validate_fn(rows) is None
    position = job.model.initial_position(jax.random.key(0), rows)
    assert np.isfinite(job.model.row_loglikelihoods(position, rows)).all()
    assert build_model(model_recipe(job.model)).coords == job.model.coords
    if "event" in study:
        np.testing.assert_array_equal(rows["event"], COLUMNS["died"])
        survival = job.model.predict(position, rows)
        assert ((survival > 0) & (survival < 1)).all()
    else:
        np.testing.assert_allclose(rows["offset"], np.log(COLUMNS["days"]))
