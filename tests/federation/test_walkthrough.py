"""docs/federation.md, run as it is written; only the port is one that is free here."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fahmc
from fahmc.data.columns import Columns
from fahmc.data.study import build_study
from fahmc.data.tables import read_clients
from fahmc.engines.flare.kits import Kit
from fahmc.engines.flare.loopback import free_port
from fahmc.engines.flare.processes import find_processes

pytestmark = pytest.mark.federation

PAGE = Path(__file__).parents[2] / "docs" / "federation.md"


def test_the_walk_through_works_as_written(tmp_path):
    commands = "\n".join(re.findall(r"```sh\n(.*?)```", PAGE.read_text(), flags=re.DOTALL))
    # The page has rounds for a posterior; for a test of the commands a few do.
    commands = commands.replace("localhost:8002", f"localhost:{free_port()}")
    commands = commands.replace("num_rounds = 2000", "num_rounds = 40")
    commands = commands.replace("num_warmup_rounds = 200", "num_warmup_rounds = 20")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=tmp_path,
        env=os.environ | {"PATH": path, "JAX_ENABLE_X64": "0"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "not connected" not in done.stdout
    kits = [Kit.load(folder) for folder in (tmp_path / "kits").iterdir()]
    assert len(kits) == 5
    assert [process for kit in kits for process in find_processes(kit)] == [], "processes are left"

    draws = fahmc.Draws.load(tmp_path / "preterm-run" / "draws.nc")
    clinics = {name: tmp_path / f"{name}.csv" for name in ("KY", "MN", "MS")}
    features = ["treatment", "age", "previous_pregnancy", "pocket_depth"]
    study = build_study(read_clients(clinics), Columns("outcome", features, "preterm", missing="drop"))
    here = fahmc.sample(
        fahmc.models.logistic_regression(2.5),
        fahmc.Federation.from_clients(study.clients),
        fahmc.DebiasedFAHMC(0.03, num_leapfrog_steps=8),
        num_rounds=40,
        num_warmup_rounds=20,
        num_chains=4,
        dtype="float32",
        row_space=False,
    )
    assert draws.settings["clients"] == here.settings["clients"]
    # Single precision, and rounding has had 60 rounds to grow.
    np.testing.assert_allclose(draws.positions["coefficients"], here.positions["coefficients"], rtol=1e-3, atol=1e-3)
    assert (tmp_path / "preterm-run" / "report.html").exists()
