"""Who may take part: one start-up kit for the server, each site and the analyst, made together by FLARE's provisioning.

A kit holds its owner's certificate and key, signed by an authority made for this study alone, and the study's policy:

- only the four classes of the study's job (`fahmc.engines.flare.job`) can run, and no code can come with a job;
- only the analyst may submit, and may do nothing else to a site: no shell, no reading of files or logs;
- logs stay where they are written.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fahmc.engines.flare.job import SAMPLING, Job
from fahmc.engines.flare.rules import RULES_FILE
from fahmc.errors import SettingsError

_KIT_FILE = "fahmc.json"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?")
_VALID_DAYS = 360


class Kit(NamedTuple):
    """One participant's start-up kit, and what it says of the study."""

    path: Path
    role: Literal["server", "site", "analyst"]
    name: str
    study: str
    server: str
    """host:port"""
    sites: tuple[str, ...]
    """In the order in which their replies are summed."""
    job: Job
    """What the study's policy allows to run."""

    @classmethod
    def load(cls, path: str | Path) -> Kit:
        """Open a kit's folder."""
        folder = Path(path).expanduser().resolve()
        try:
            entries = json.loads((folder / _KIT_FILE).read_text())
            entries |= {"sites": tuple(entries["sites"]), "job": Job(**entries["job"])}
            return cls(path=folder, **entries)
        except FileNotFoundError:
            what = "does not exist" if not folder.exists() else "holds no start-up kit"
            raise SettingsError(f"{path} {what}; give a folder that `fahmc federation init` made.") from None
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise SettingsError(f"{folder / _KIT_FILE} cannot be read: {error}. Get the kit anew.") from error

    @property
    def local(self) -> Path:
        """The part of the kit that its owner may change."""
        return self.path / "local"


def require_flare() -> None:
    """Refuse to go on without the packages of the extra ``flare``."""
    if importlib.util.find_spec("nvflare") is None:
        raise SettingsError('A real federation needs NVIDIA FLARE on this machine; run: pip install "fahmc[flare]"')


def make_kits(
    folder: Path,
    *,
    study: str,
    server: str,
    sites: Sequence[str],
    analyst: str,
    columns: Sequence[str] | None = None,
    job: Job = SAMPLING,
) -> dict[str, Kit]:
    """Make the kits of a study in a new folder, one folder each; ``columns`` are proposed to the sites."""
    host, port = _checked_names(study, server, sites, analyst)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SettingsError(
            f"{folder} is not an empty folder; kits made anew would not fit what is in it. Choose another."
        )
    with tempfile.TemporaryDirectory() as workplace:
        made = _provision(Path(workplace), study, host, port, sites, analyst)
        folder.mkdir(parents=True, exist_ok=True)
        roles: dict[str, Any] = {"server": "server", "analyst": "analyst"} | {site: "site" for site in sites}
        for name, role in roles.items():
            source = made / {"server": host, "analyst": analyst}.get(role, name)
            shutil.copytree(source, folder / name)
            _restrict(folder / name, role, columns, job)
            entries = {"role": role, "name": analyst if role == "analyst" else name, "study": study}
            entries |= {"server": f"{host}:{port}", "sites": list(sites), "job": job._asdict()}
            (folder / name / _KIT_FILE).write_text(json.dumps(entries, indent=1))
    return {name: Kit.load(folder / name) for name in roles}


def _checked_names(study: str, server: str, sites: Sequence[str], analyst: str) -> tuple[str, int]:
    host, _, port = server.rpartition(":")
    if not _HOST.fullmatch(host) or not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) < 65536:
        raise SettingsError(
            f"server is {server!r}; it should read host:port, with the host name that the sites will connect to."
        )
    if len(sites) < 1 or len(set(sites)) < len(sites):
        raise SettingsError(f"sites is {list(sites)}; name at least one, each once.")
    for name in [study, *sites]:
        if not _NAME.fullmatch(name) or name in ("server", "analyst", host):
            raise SettingsError(
                f"{name!r} cannot name a study or site: use letters, digits, - and _, beginning with a letter, and not "
                "'server', 'analyst' or the server's host name."
            )
    if not re.fullmatch(r"[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,}", analyst):
        raise SettingsError(f"analyst is {analyst!r}; it should read like an e-mail address, name@example.org.")
    return host, int(port)


def _provision(folder: Path, study: str, host: str, port: int, sites: Sequence[str], analyst: str) -> Path:
    """Let FLARE make an authority, certificates and the kits' files; return the folder with the kits."""
    require_flare()
    from nvflare.lighter.constants import CtxKey
    from nvflare.lighter.entity import Project
    from nvflare.lighter.impl.cert import CertBuilder
    from nvflare.lighter.impl.static_file import StaticFileBuilder
    from nvflare.lighter.impl.workspace import WorkspaceBuilder
    from nvflare.lighter.provisioner import Provisioner

    # Without a host name in it, an organisation's name is only a label in certificates.
    organisation = "study"
    project = Project(name=study, description=f"fahmc study {study}")
    project.set_server(host, organisation, {"fed_learn_port": port, "admin_port": port, "default_host": host})
    for site in sites:
        project.add_client(site, organisation, {})
    project.add_admin(analyst, organisation, {"role": "lead"})
    builders = [
        WorkspaceBuilder(),
        StaticFileBuilder(config_folder="config", scheme="grpc"),
        CertBuilder(root_valid_days=_VALID_DAYS),
    ]
    context = Provisioner(str(folder), builders).provision(project, logger=_Silent())
    if context.get(CtxKey.BUILD_ERROR):
        raise SettingsError(f"The kits could not be made: {'; '.join(context.get(CtxKey.ERRORS, []))}.")
    return folder / study / "prod_00"


class _Silent:
    """A logger that FLARE's provisioning accepts, and that says nothing."""

    def debug(self, message: str) -> None:
        """Drop it."""

    info = warning = error = debug


def _restrict(kit: Path, role: str, columns: Sequence[str] | None, job: Job) -> None:
    """Write the study's policy into a kit, and take out what only FLARE's own commands use."""
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
    if role == "server":
        _schedule_often(resources)
    else:
        (kit / RULES_FILE).write_text(_rules_text(kit.name, columns))
    _write(local / "resources.json", resources)
    _write(local / "authorization.json", _authorization())
    _write(local / "comm_config.json", _communication())
    _write(local / "log_config.json", _log_config())
    for file in local.glob("*.default"):
        file.unlink()


def _schedule_often(resources: dict[str, Any]) -> None:
    """Have a job that cannot start because a site is late tried again at once and without end."""
    scheduler = next(part for part in resources["components"] if part["id"] == "job_scheduler")
    scheduler["args"] |= {"min_schedule_interval": 0.5, "max_schedule_interval": 2.0, "max_schedule_count": 10**6}


def clear_workplace(kit: Kit) -> None:
    """Remove what earlier jobs left in a kit, and have a server store new ones there instead of in /tmp.

    An analyst goes on from a checkpoint of his own, so a job has no use for what another left.
    """
    for folder in [*kit.path.glob(f"{'?' * 8}-{'?' * 4}-{'?' * 4}-{'?' * 4}-{'?' * 12}"), kit.path / "jobs"]:
        shutil.rmtree(folder, ignore_errors=True)
    if kit.role == "server":
        (kit.path / "jobs").mkdir()
        resources = json.loads((kit.local / "resources.json").read_text())
        manager = next(part for part in resources["components"] if part["id"] == "job_manager")
        manager["args"]["uri_root"] = str(kit.path / "jobs")
        resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(kit.path / "jobs" / "snapshots")
        _write(kit.local / "resources.json", resources)


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


def _rules_text(site: str, columns: Sequence[str] | None) -> str:
    proposed = '"all"' if columns is None else json.dumps(list(columns))
    return (
        f"# What site {site} lets others compute. Nobody but this site can change it; read it before you start.\n"
        f'file = "{site}.csv"\n'
        f"columns = {proposed}\n"
        "minimum_rows = 10\n"
        '# models = ["logistic_regression"]   # ready-made models that may run here; all by default\n'
        '# own_models = ["module:attribute"]  # models of Python code that is installed here; none by default\n'
        '# own_samplers = ["module:Class"]    # samplers of Python code that is installed here; none by default\n'
    )


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1))
