"""Who may take part: one start-up kit for the server, each site and the analyst, made together by FLARE's provisioning.

A kit holds its owner's certificate and key, signed by an authority made for this study alone, and the study's policy.
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

import pydantic
from pydantic import ConfigDict

from fahmc.engines.flare.job import SAMPLING, Job
from fahmc.engines.flare.ledger import begin_ledger
from fahmc.engines.flare.policy import write_json, write_policy
from fahmc.engines.flare.proposed_rules import proposed_rules
from fahmc.errors import SettingsError, shown

_KIT_FILE = "fahmc.json"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?")
_VALID_DAYS = 360


class _KitFile(pydantic.BaseModel):
    """What a kit says of itself; it went from hand to hand, so nothing in it is taken for granted."""

    model_config = ConfigDict(extra="forbid", strict=True)

    role: Literal["server", "site", "analyst"]
    name: str
    study: str
    server: str
    sites: list[str]
    job: dict[Literal["server", "site"], str]


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
            entries = _KitFile.model_validate(json.loads((folder / _KIT_FILE).read_text(encoding="utf-8")))
            names = {"server": ["server"], "site": entries.sites, "analyst": [entries.name]}[entries.role]
            analyst = entries.name if entries.role == "analyst" else None
            _checked_names(entries.study, entries.server, entries.sites, analyst)
            if entries.name not in names:
                raise ValueError(f"name is {shown(entries.name)}, which does not fit its role {entries.role!r}")
            settled = {"path": folder, "sites": tuple(entries.sites), "job": Job(**entries.job)}
            return cls(**entries.model_dump() | settled)
        except FileNotFoundError:
            what = "does not exist" if not folder.exists() else "holds no start-up kit"
            raise SettingsError(f"{path} {what}; give a folder that `fahmc federation init` made.") from None
        except pydantic.ValidationError as error:
            entry = error.errors()[0]
            words = f"{'.'.join(map(str, entry['loc'])) or 'it'}: {entry['msg'][0].lower()}{entry['msg'][1:]}"
            raise SettingsError(f"{folder / _KIT_FILE} cannot be read: {words}. Get the kit anew.") from error
        except (OSError, ValueError, TypeError, RecursionError, SettingsError) as error:
            words = str(error).removesuffix(".")
            raise SettingsError(f"{folder / _KIT_FILE} cannot be read: {words}. Get the kit anew.") from error

    @property
    def local(self) -> Path:
        """The part of the kit that its owner may change."""
        return self.path / "local"

    @property
    def startup(self) -> Path:
        """The part of the kit that nobody changes: certificate, key, and where the server is."""
        return self.path / "startup"

    @property
    def address(self) -> tuple[str, int]:
        """The server's host and port."""
        host, _, port = self.server.rpartition(":")
        return host, int(port)

    def require_analyst(self) -> None:
        """Refuse the kit of anybody but the analyst."""
        if self.role != "analyst":
            raise SettingsError(f"{self.path} is the kit of {self.name!r}; sampling takes the analyst's kit.")

    def disagreements(self, *, study: str, server: str, sites: Sequence[str], analyst: str) -> dict[str, str]:
        """Say in which settings a study's file and this kit, which is the analyst's, differ, with both values.

        The order of the sites counts: it is the order of summation, and so part of the draws.
        """
        named = {"study": study, "server": server, "sites": list(sites), "analyst": analyst}
        own = {"study": self.study, "server": self.server, "sites": list(self.sites), "analyst": self.name}
        advice = dict.fromkeys(named, "Correct the file, or take the kit that was made from it.")
        advice["study"] = f'If this file belongs to that study too, set study = "{self.study}"; else take its own kit.'
        return {
            key: f"federation.{key} is {named[key]!r}, but the kit {self.path} was made for {own[key]!r}. {advice[key]}"
            for key in named
            if named[key] != own[key]
        }


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
    missing_values: Sequence[str | float] = (),
    job: Job = SAMPLING,
) -> dict[str, Kit]:
    """Make the kits of a study in a new folder, one folder each; the sites may change what is proposed to them.

    Proposed are the ``columns`` that others may use, and the ``missing_values`` that they may leave out.
    """
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
            rules = proposed_rules(name, len(sites), columns, missing_values)
            write_policy(folder / name, role, rules, job)
            entries = {"role": role, "name": analyst if role == "analyst" else name, "study": study}
            entries |= {"server": f"{host}:{port}", "sites": list(sites), "job": job._asdict()}
            if role == "site":
                begin_ledger(folder / name, site=name, study=study)
            (folder / name / _KIT_FILE).write_text(json.dumps(entries, indent=1))
    return {name: Kit.load(folder / name) for name in roles}


def _checked_names(study: str, server: str, sites: Sequence[str], analyst: str | None) -> tuple[str, int]:
    host, _, port = server.rpartition(":")
    if not _HOST.fullmatch(host) or not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) < 65536:
        raise SettingsError(
            f"server is {shown(server)}; it should read host:port, with the host name that the sites will connect to."
        )
    if len(sites) < 1 or len(set(sites)) < len(sites):
        raise SettingsError(f"sites is {shown(list(sites))}; name at least one, each once.")
    for name in [study, *sites]:
        if not _NAME.fullmatch(name) or name in ("server", "analyst", host):
            raise SettingsError(
                f"{shown(name)} cannot name a study or site: use letters, digits, - and _, beginning with a letter, "
                "and not 'server', 'analyst' or the server's host name."
            )
    if analyst is not None and not re.fullmatch(r"[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,}", analyst):
        raise SettingsError(f"analyst is {shown(analyst)}; it should read like an e-mail address, name@example.org.")
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
        write_json(kit.local / "resources.json", resources)
