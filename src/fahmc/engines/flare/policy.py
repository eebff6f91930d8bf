"""A study's policy, written into its kits: what may run, who may ask for it, what is logged.

- only the four classes of the study's job (`fahmc.engines.flare.job`) can run, and no code can come with a job;
- only the analyst may submit, and may do nothing else to a site: no shell, no reading of files or logs;
- logs stay where they are written.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fahmc.engines.flare.job import Job
from fahmc.engines.flare.rules import RULES_FILE


def write_policy(kit: Path, role: str, rules: str, job: Job) -> None:
    """Write the study's policy into a kit, and a site's ``rules``; take out what only FLARE's own commands use."""
    for file in [*kit.glob("*.txt"), *kit.glob("startup/*.sh"), *kit.glob("local/*.sample")]:
        file.unlink()
    for file in kit.glob("startup/*.key"):
        file.chmod(0o600)
    if role == "analyst":
        return
    local = kit / "local"
    resources = json.loads((local / "resources.json.default").read_text())
    resources["class_allow_list"] = list(job.classes)
    resources["allow_log_streaming"] = False
    streamers = ("site_log_streamer", "log_receiver")
    resources["components"] = [part for part in resources["components"] if part["id"] not in streamers]
    launcher = next(part for part in resources["components"] if part["id"] == "process_launcher")
    launcher["path"] = f"fahmc.engines.flare.launcher.{role.capitalize()}Launcher"
    if role == "server":
        _schedule_often(resources)
    else:
        (kit / RULES_FILE).write_text(rules)
    write_json(local / "resources.json", resources)
    write_json(local / "authorization.json", _authorization())
    write_json(local / "comm_config.json", _communication())
    write_json(local / "log_config.json", _log_config())
    for file in local.glob("*.default"):
        file.unlink()


def _schedule_often(resources: dict[str, Any]) -> None:
    """Have a job that cannot start because a site is late tried again at once and without end."""
    scheduler = next(part for part in resources["components"] if part["id"] == "job_scheduler")
    scheduler["args"] |= {"min_schedule_interval": 0.5, "max_schedule_interval": 2.0, "max_schedule_count": 10**6}


def _authorization() -> dict[str, Any]:
    """Let the analyst (in FLARE's words: lead) submit jobs, speak to them and end them; nobody else, nothing else."""
    allowed = {
        "submit_job": "any",
        "manage_job": "n:submitter",
        "app_command": "n:submitter",
        "view": "any",
    }
    # What is not named is denied; these are parts of what is named above.
    denied = ("configure_job_log", "delete_job", "show_errors", "reset_errors", "byoc", "shell_commands", "operate")
    return {"format_version": "1.0", "permissions": {"lead": allowed | dict.fromkeys(denied, "none")}}


def _communication() -> dict[str, Any]:
    """Let a message that has arrived be forgotten soon: FLARE holds it, and a thread, in case it is asked for again.

    With its usual minute, the faster the rounds, the larger the server gets.
    """
    return {"allow_adhoc_conns": False, "streaming_retry_timeout": 5.0, "streaming_retry_wait": 1.0}


def _log_config() -> dict[str, Any]:
    """Log warnings to one file that cannot grow without end: FLARE's usual level writes a page a round."""
    file = {"class": "logging.handlers.RotatingFileHandler", "level": "DEBUG", "formatter": "baseFormatter"}
    file |= {"filename": "log.txt", "mode": "a", "maxBytes": 20 * 2**20, "backupCount": 2}
    layout = "%(asctime)s - %(name)s - %(levelname)s - %(fl_ctx)s - %(message)s"
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"baseFormatter": {"()": "nvflare.fuel.utils.log_utils.BaseFormatter", "fmt": layout}},
        "handlers": {"logFileHandler": file},
        "loggers": {"root": {"level": "WARNING", "handlers": ["logFileHandler"]}},
    }


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a file of FLARE's."""
    path.write_text(json.dumps(content, indent=1))
