"""How the workers of a job are started: forked from a process that has done their imports.

A worker imports JAX, FLARE and fahmc, seconds of work that are the same for every worker. So one process a participant
does it once, when the participant starts, and every job's worker begins as a copy of it. Nothing of a job is in that
process: no thread, no connection, no compiled program.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import shlex
import sys
import threading
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.job_launcher_spec import JobHandleSpec, JobLauncherSpec, add_launcher
from nvflare.app_common.job_launcher.process_launcher import ProcessHandle
from nvflare.fuel.f3.mpm import MainProcessMonitor
from nvflare.utils.job_launcher_utils import generate_client_command, generate_server_command, get_credential_env

_SERVER, _SITE = "nvflare.private.fed.app.server.runner_process", "nvflare.private.fed.app.client.worker_process"
# What a worker imports: this module and FLARE's program, fahmc's part, and what FLARE finds by name.
_IMPORTS = {
    "server": [__name__, _SERVER, "nvflare.collab.runtime.controller", "fahmc.engines.flare.server"],
    "site": [__name__, _SITE, "nvflare.collab.runtime.executor", "fahmc.engines.flare.site"],
}


def import_ahead(role: str) -> None:
    """Start the process that this participant's workers will be copies of."""
    multiprocessing.set_forkserver_preload(_IMPORTS[role])
    forkserver.ensure_running()


class _Launcher(JobLauncherSpec):
    """Starts a job's worker when FLARE asks for it."""

    module: str

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        """Offer to start the worker."""
        if event_type == EventType.BEFORE_JOB_LAUNCH:
            add_launcher(self, fl_ctx)

    def command(self, fl_ctx: Any) -> str:
        """Return the command that FLARE would start."""
        raise NotImplementedError

    def launch_job(self, job_meta: dict[str, Any], fl_ctx: Any) -> JobHandleSpec:
        """Start the worker of one job."""
        command = shlex.split(self.command(fl_ctx))
        arguments = command[command.index(self.module) + 1 :]
        credentials = get_credential_env(fl_ctx.get_prop(FLContextKey.JOB_PROCESS_ARGS))
        context = multiprocessing.get_context("forkserver")
        process = context.Process(target=_work, args=(self.module, arguments, credentials), daemon=True)
        process.start()
        adapter: Any = _Watched(process)
        return ProcessHandle(process_adapter=adapter)


class ServerLauncher(_Launcher):
    """Starts the server's workers."""

    module = _SERVER

    def command(self, fl_ctx: Any) -> str:
        """Return the command that FLARE would start."""
        return generate_server_command(fl_ctx)


class SiteLauncher(_Launcher):
    """Starts a site's workers."""

    module = _SITE

    def command(self, fl_ctx: Any) -> str:
        """Return the command that FLARE would start."""
        return generate_client_command(fl_ctx)


class _Watched:
    """A process in FLARE's terms. Python must not be asked on two threads how a process ended: here one does."""

    def __init__(self, process: BaseProcess):
        self._process, self._code = process, None
        self._waiter = threading.Thread(target=self._await_end, daemon=True)
        self._waiter.start()

    def _await_end(self) -> None:
        self._process.join()
        self._code = self._process.exitcode

    def terminate(self) -> None:
        """End it: it holds nothing that is not elsewhere."""
        self._process.kill()

    def poll(self) -> int | None:
        """Return the process's code if it has ended."""
        return self._code

    def wait(self) -> None:
        """Wait until it has ended."""
        self._waiter.join()


def _work(module: str, arguments: list[str], credentials: dict[str, str]) -> None:
    """Be a worker, as FLARE's program would."""
    os.setsid()  # FLARE ends a worker's whole group with it, which must not be everybody's
    os.environ.update(credentials)
    sys.argv = [module, *arguments]
    program: Any = importlib.import_module(module)
    told = program.parse_arguments()
    run_folder = os.path.join(told.workspace, told.job_id)
    code: Any = MainProcessMonitor.run(main_func=program.main, run_dir=run_folder, args=told)
    sys.exit(code)
