"""The job that an analyst submits: JSON files that name classes of the installed packages, and carry no code.

A kit's policy allows the four classes of its study's job and no others (`fahmc.engines.flare.kits`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

CONTROLLER = "nvflare.collab.runtime.controller.CollabController"
EXECUTOR = "nvflare.collab.runtime.executor.CollabExecutor"
# The topic of the analyst's commands to a running job.
COMMAND = "fahmc"


class Job(NamedTuple):
    """Who works in a job: names of classes."""

    server: str
    site: str

    @property
    def classes(self) -> tuple[str, ...]:
        """All classes that the job's files name."""
        return CONTROLLER, EXECUTOR, self.server, self.site


SAMPLING = Job(server="fahmc.engines.flare.server.Server", site="fahmc.engines.flare.site.Site")


def write_job(folder: Path, study: str, sites: Sequence[str], job: Job = SAMPLING) -> Path:
    """Write the job's files into a folder."""
    config = folder / "app" / "config"
    config.mkdir(parents=True)
    _write(
        folder / "meta.json",
        {
            "name": study,
            "resource_spec": {},
            "min_clients": len(sites),
            "mandatory_clients": list(sites),
            "deploy_map": {"app": ["server", *sites]},
        },
    )
    _write(
        config / "config_fed_server.json",
        {
            "format_version": 2,
            "server": {"task_request_interval": 0.5},
            "workflows": [{"id": "controller", "path": CONTROLLER, "args": {"server_obj_id": "server_worker"}}],
            "components": [{"id": "server_worker", "path": job.server, "args": {}}],
        },
    )
    executor = {"id": "executor", "path": EXECUTOR, "args": {"client_obj_id": "site_worker"}}
    _write(
        config / "config_fed_client.json",
        {
            "format_version": 2,
            "executors": [{"tasks": ["*"], "executor": executor}],
            "components": [{"id": "site_worker", "path": job.site, "args": {}}],
        },
    )
    return folder


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1))
