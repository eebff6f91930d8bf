"""The folder of a command's results, which is that command's own (`fahmc.own_folder`).

config.toml     the configuration, as it was                      ┐
job.json        where it lay, so that its relative paths hold     ├ only of `fahmc sample`
checkpoint/     the run itself, durable                           ┘
draws.nc        the draws; ArviZ reads them too
pooled.nc       draws from the pooled rows to compare with, if there are any
report.json     what the report says that draws do not know: title, question, effect of interest, notes
fit.json        whether the model fits, in sums and counts, and of which draws
report.html     the report, and its parts: summary.md, summary.csv, *.png
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pydantic
from filelock import AcquireReturnProxy

from fahmc import tree
from fahmc.durable import write_atomically
from fahmc.errors import CheckpointError, DataError, DivergenceError, ModelError, SettingsError, first_line
from fahmc.own_folder import MARKER, mark, own_folder
from fahmc.report.about import About
from fahmc.runs.checkpoint import lock_folder

if TYPE_CHECKING:
    from fahmc.cli.sections import Config
    from fahmc.draws import Draws
    from fahmc.report.fit import FitReport

_FORMAT = 1
SAMPLE, DEMO = "fahmc sample", "fahmc demo"


class ResultFolder:
    """Paths of the results in one folder."""

    def __init__(self, path: Path):
        self.path, self.checkpoint = path, path / "checkpoint"
        self.draws, self.pooled, self.report = path / "draws.nc", path / "pooled.nc", path / "report.html"

    def take(self, command: str) -> None:
        """Make the folder, or refuse one that is not this command's own."""
        if command == SAMPLE and self.has_job() and not (self.path / MARKER).exists():
            self.load_run()  # which refuses what is no run; an older fahmc left no mark on its own
            mark(self.path, command)
        own_folder(self.path, command)

    def has_job(self) -> bool:
        """Whether `fahmc sample` made this folder."""
        return (self.path / "job.json").is_file()

    def has_rounds(self) -> bool:
        """Whether any round of a run is kept here: before the first, a folder is bound to no settings."""
        return any(self.checkpoint.glob("block-*.npz"))

    @contextmanager
    def claimed(self, text: str, config: Config, kit: Path | None = None) -> Iterator[None]:
        """Take the folder for a configuration, unless it holds the run of another; more rounds extend a run.

        A run that is refused, or diverges before its first draw, leaves no claim behind: the settings have to change.
        """
        if self.has_job() and self.has_rounds():
            _check_same_run(self.path, self.load_run()[0], config)
        self._write_job(text, config, kit)
        try:
            yield
        except (SettingsError, ModelError, DataError):
            if not self.has_rounds():
                self._give_up()
            raise
        except DivergenceError as error:
            if error.draws is None:
                self._give_up()
            raise

    def _write_job(self, text: str, config: Config, kit: Path | None) -> None:
        source = config._source.path.resolve()
        job = {"format": _FORMAT, "config_folder": str(source.parent), "config_name": source.name}
        job |= {} if kit is None else {"kit": str(kit.resolve())}
        write_atomically(self.path / "config.toml", text.encode())
        write_atomically(self.path / "job.json", json.dumps(job, indent=1).encode())

    def _give_up(self) -> None:
        """Leave the folder as if it were new."""
        shutil.rmtree(self.checkpoint, ignore_errors=True)
        for name in ("config.toml", "job.json", "report.json"):
            (self.path / name).unlink(missing_ok=True)

    def load_run(self) -> tuple[Config, Path | None]:
        """Read the run's configuration, whose paths start where it lay at first, and the kit that reaches its sites."""
        from fahmc.cli.config import parse_config

        try:
            text = (self.path / "config.toml").read_text(encoding="utf-8")
            job = json.loads((self.path / "job.json").read_text(encoding="utf-8"))
            source, kit = Path(job["config_folder"]) / job["config_name"], job.get("kit")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{self.path} cannot be read as a run of `fahmc sample` ({error}).") from error
        return parse_config(text, source), None if kit is None else Path(kit)

    def locked(self) -> AbstractContextManager:
        """Keep a second process from sampling into this folder."""
        return AcquireReturnProxy(lock_folder(self.path))

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Say where a file could not be written, and what is left: a full disk does not name its file."""
        try:
            yield
        except BrokenPipeError:  # of standard output, not of this folder
            raise
        except OSError as error:
            what = f"a file in {self.path} cannot be read or written: {error}. Check the free space and permissions"
            kept = "; draws up to the last checkpoint are kept, and `fahmc resume` goes on from there"
            hint = kept if os.path.isdir(self.checkpoint) else ", then run the command again"
            raise CheckpointError(f"{what}{hint}.") from error

    def write_about(self, about: About) -> None:
        """Keep what the report says that draws do not know, so that it can be made again."""
        write_atomically(self.path / "report.json", json.dumps(asdict(about), indent=1).encode())

    def read_about(self) -> About:
        """Return what the report says that draws do not know."""
        file = self.path / "report.json"
        if not file.exists():
            return About(title=self.path.resolve().name)
        try:
            return pydantic.TypeAdapter(About).validate_json(file.read_bytes())
        except ValueError as error:
            raise CheckpointError(f"{file} cannot be read ({first_line(error)}); delete it to go without.") from error

    def write_fit(self, fit: FitReport, draws: Draws) -> None:
        """Keep what was found about the fit of these draws."""
        text = json.dumps({"format": _FORMAT, "draws": _mark_of(draws), "fit": json.loads(fit.as_text())}, indent=1)
        write_atomically(self.path / "fit.json", text.encode())

    def forget_fit(self) -> None:
        """Remove what was found about other draws."""
        for name in ("fit.json", "predictive.png", "calibration.png"):
            (self.path / name).unlink(missing_ok=True)

    def read_fit(self, draws: Draws) -> FitReport | None:
        """Return what was found about the fit of these draws, if anything was."""
        from fahmc.report.fit import FitReport

        file = self.path / "fit.json"
        if not file.exists():
            return None
        try:
            kept = json.loads(file.read_text(encoding="utf-8"))
            return FitReport.from_text(json.dumps(kept["fit"])) if kept["draws"] == _mark_of(draws) else None
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{file} cannot be read ({first_line(error)}); delete it to go without.") from error

    def write_report(self, draws: Draws, reference: Draws | None, fit: FitReport | None = None) -> Path:
        """Make the report and its figures, with what was found about the fit of these draws before."""
        from fahmc.report import write_report

        fit = self.read_fit(draws) if fit is None else fit
        return write_report(draws, self.path, reference=reference, fit=fit, about=self.read_about())

    def files(self) -> dict[str, str]:
        """Name the results that are there, for programs."""
        found = sorted(file for file in self.path.iterdir() if file.suffix in (".nc", ".html", ".md", ".csv", ".png"))
        return {file.name: str(file) for file in found}


def find_run(folder: Path) -> ResultFolder:
    """Return the folder of a run of `fahmc sample`, or say why this is none."""
    for candidate in (folder, folder.parent):
        results = ResultFolder(candidate)
        # The second case: somebody named the checkpoint inside the folder.
        if results.has_job() and (candidate == folder or folder.name == results.checkpoint.name):
            return results
    if (folder / "run.json").exists():
        raise CheckpointError(
            f"{folder} is the checkpoint of a Python call; the same fahmc.sample(...) call with the same "
            "checkpoint_dir continues it."
        )
    what = "does not exist" if not folder.exists() else "holds no run of `fahmc sample`"
    raise CheckpointError(f"{folder} {what}; give the folder that `fahmc sample` wrote to.")


def _mark_of(draws: Draws) -> str:
    return tree.digest(draws.flat())


def _check_same_run(path: Path, saved: Config, config: Config) -> None:
    """Refuse a configuration that differs in what draws depend on; only the length may grow."""
    old, new = _settings(saved), _settings(config)
    if name := next((name for name in [*old, *new] if old.get(name) != new.get(name)), None):
        raise CheckpointError(
            f"{path} holds a run with {name} = {old.get(name)!r}, but now it is {new.get(name)!r}. Choose another "
            "folder with --output, or delete this one."
        )
    now, before = config.run.num_rounds, saved.run.num_rounds
    if now is not None and before is not None and now < before:
        raise CheckpointError(
            f"{path} holds a run of num_rounds = {before}; {now} would shorten it. Ask "
            "for at least as many, or choose another folder with --output."
        )


def _settings(config: Config) -> dict[str, Any]:
    """Flatten the settings that may not change in a folder."""
    patience = {"round_timeout", "patience", "setup_timeout"}
    loose: Any = {"run": {"num_rounds", "output", "stop_when"}, "federation": patience, "report": True}
    dumped = config.model_dump(exclude=loose)
    return {f"{section}.{key}": value for section, table in dumped.items() for key, value in (table or {}).items()}
