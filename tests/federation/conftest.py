"""A real federation of three clinics: provisioned, mutual TLS, processes of FLARE."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import fahmc
import own_samplers
from clinics import BREAKS, COLUMNS, OWN_MODELS, write_tables
from fahmc.data.columns import Columns
from fahmc.data.study import build_study
from fahmc.data.tables import read_clients
from fahmc.engines.flare.loopback import Loopback
from fahmc.engines.flare.processes import find_processes
from fahmc.engines.flare.rules import Rules
from fahmc.engines.flare.server_rules import SERVER_FILE


@pytest.fixture(scope="session")
def tables(tmp_path_factory) -> dict[str, Path]:
    return write_tables(tmp_path_factory.mktemp("tables"))


@pytest.fixture(scope="session")
def pooled_here(tables) -> fahmc.Federation:
    """The same clients in one process: what a real federation must agree with."""
    return fahmc.Federation.from_clients(build_study(read_clients(tables), Columns(**COLUMNS)).clients)


@pytest.fixture(scope="session")
def real(tables, tmp_path_factory):
    """Return a running federation, for all tests of this folder; when it is over, no process may be left."""
    rules = {
        name: Rules(
            file=str(file),
            columns=["age", "group", "ill"] + (["income"] if name != "south" else []),
            minimum_rows=30,
            rows_per_parameter=4,
            maximum_runs=200,
            own_models=[f"own_models:{attribute}" for attribute in ("steady", *BREAKS)],
            own_samplers=["own_samplers:ServerLangevin"],
            private_seed=5,
        )
        for name, file in tables.items()
    }
    folder = tmp_path_factory.mktemp("federation") / "kits"
    with Loopback(folder, rules) as federation:
        for kit in federation.kits.values():
            (kit.path / "own_models.py").write_text(OWN_MODELS)
            shutil.copy(own_samplers.__file__, kit.path)
        listed = '["own_samplers:ServerLangevin", "own_samplers:Unlisted"]'
        (federation.kits["server"].path / SERVER_FILE).write_text(f"own_samplers = {listed}")
        yield federation
    assert [process for kit in federation.kits.values() for process in find_processes(kit)] == []
