"""A model of one's own in NumPyro, named in study.toml and at sites: the file of docs/numpyro.md as it stands."""

import re
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from test_flare_work import Nearby, workers

import fahmc
from clinics import COLUMNS, SIZES, write_tables
from fahmc.cli.config import build, load_config

DOCS = (Path(__file__).parent.parent.parent / "docs" / "numpyro.md").read_text()
FILE = re.findall(r"```python\n(.*?)```", DOCS, flags=re.DOTALL)[0]
MODEL, RULE = re.findall(r"```toml\n(.*?)```", DOCS, flags=re.DOTALL)
(REFERENCE,) = re.findall(r'own_models = \["(.*)"\]', RULE)


@pytest.fixture
def study(tmp_path, monkeypatch):
    """A folder with study.toml and the model's file; tables of as many rows, so that one program serves all."""
    tables = write_tables(tmp_path)
    for table in tables.values():
        table.write_text("\n".join(table.read_text().splitlines()[: SIZES["east"] + 1]))
    files = "\n".join(f'{name} = "{table}"' for name, table in tables.items())
    columns = "\n".join(f"{name} = {list(v) if isinstance(v, tuple) else v!r}" for name, v in COLUMNS.items())
    (tmp_path / "mymodels.py").write_text(FILE)
    (tmp_path / "study.toml").write_text(f"{MODEL}\n[data]\n{columns}\n[data.clients]\n{files}\n")
    monkeypatch.syspath_prepend(tmp_path)
    # Sites run in a thread of their own; NumPyro leaves promotion to JAX, as users do.
    jax.config.update("jax_numpy_rank_promotion", "allow")
    jax.config.update("jax_numpy_dtype_promotion", "standard")
    yield tables, tmp_path
    jax.config.update("jax_numpy_rank_promotion", "raise")
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    sys.modules.pop("mymodels", None)


def test_sites_that_list_it_draw_what_one_process_does(study):
    tables, folder = study
    job = build(load_config(folder / "study.toml"))
    sampler = fahmc.FAHMC(0.05, num_leapfrog_steps=1, momentum_correlation=1.0)
    run = {"num_rounds": 3, "num_chains": 1, "seed": 3, "dtype": "float64"}
    here = fahmc.sample(job.model, job.federation, sampler, **run)
    model, sites = fahmc.Model.named(REFERENCE), fahmc.Sites(**COLUMNS)
    with Nearby(folder, workers(tables, own_models=[REFERENCE], site_effects="shared"), []) as engine:
        remote = fahmc.sample(model, sites, sampler, engine=engine, **run)
    for name, values in here.positions.items():
        np.testing.assert_allclose(remote.positions[name], values, rtol=1e-9)
    assert remote.positions["effect"].shape == (1, 3, 3) and remote.coords["sites"] == list(SIZES)
