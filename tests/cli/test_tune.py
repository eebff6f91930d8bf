"""`fahmc tune`: what it prints is a configuration that `fahmc sample` takes."""

import json
import tomllib

import numpy as np
from typer.testing import CliRunner

import fahmc
from fahmc import registry
from fahmc.cli.app import app
from fahmc.cli.config import parse_config

STUDY = """\
[model]
name = "logistic_regression"

[data]
file = "rows.csv"
site_column = "site"
outcome = "ill"
outcome_positive = "yes"

[run]
seed = 5
dtype = "float64"
"""


def test_what_is_printed_can_be_sampled(tmp_path):
    rng, rows, study = np.random.default_rng(0), ["site,dose,sex,ill"], tmp_path / "study.toml"
    for site, shift in (("north", 0.5), ("south", -0.5)):
        for dose in rng.normal(shift, 1.0, 40):
            is_ill = rng.random() < 1 / (1 + np.exp(-dose))
            rows.append(f"{site},{dose:.4f},{rng.choice(['f', 'm'])},{'yes' if is_ill else 'no'}")
    (tmp_path / "rows.csv").write_text("\n".join(rows) + "\n")
    study.write_text(STUDY)
    result = CliRunner().invoke(app, ["tune", str(study), "--rounds", "120"])
    assert result.exit_code == 0, result.output
    assert "# The metric is the covariance of the surrogate posterior" in result.stdout
    start = result.stdout.index("[sampler]")
    found = tomllib.loads(result.stdout[start:])
    assert found["sampler"]["name"] == "FAHMC" and found["run"]["num_rounds"] > 0
    config = parse_config(STUDY.partition("[run]")[0] + result.stdout[start:], study)
    sampler = registry.decode("sampler", config.sampler)
    assert isinstance(sampler, fahmc.FAHMC) and sampler.with_gradients and sampler.correction is None
    as_json = json.loads(CliRunner().invoke(app, ["tune", str(study), "--rounds", "120", "--json"]).stdout)
    assert as_json["sampler"] == found["sampler"] and as_json["rounds"] <= 120
    assert len(as_json["shift"]) == 3
