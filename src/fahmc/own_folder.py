"""Folders of results are fahmc's own: made by it, or empty when it took them. Nothing is written into any other.

A file ``.fahmc`` marks such a folder; its first line names the command that made it. So no file of a user's is ever
replaced, however its name happens to be that of a result.
"""

from __future__ import annotations

import os
from pathlib import Path

from fahmc.durable import PART, write_atomically
from fahmc.errors import CheckpointError, SettingsError

MARKER = ".fahmc"
REPORT = "fahmc report"
"""May go into a folder of any other command: it stands beside the draws that it is about."""

_EXPLANATION = "made this folder, and replaces its own results in it. Keep files of yours elsewhere."


def own_folder(path: str | os.PathLike[str], command: str) -> Path:
    """Make a folder for a command's results, or take one that is empty or the command's own; refuse every other."""
    folder, marker = Path(path), Path(path) / MARKER
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if marker.is_file():
            _check_owner(folder, marker.read_text(encoding="utf-8", errors="replace"), command)
        elif any(not file.name.endswith(PART) for file in folder.iterdir()):
            raise CheckpointError(
                f"{folder} holds files that are not fahmc's, and results could replace them, so nothing is written "
                "there. Choose a new or an empty folder; if an older fahmc made this one, put an empty file "
                f"{MARKER} into it."
            )
        else:
            mark(folder, command)
    except (OSError, ValueError) as error:
        is_taken = isinstance(error, FileExistsError)
        reason = "it is there, and is no folder" if is_taken else getattr(error, "strerror", None) or error
        raise SettingsError(f"{folder} cannot be a folder of results: {reason}. Choose another.") from error
    return folder


def mark(folder: Path, command: str) -> None:
    """Mark a folder as a command's own."""
    try:
        write_atomically(folder / MARKER, f"{command}\n\n{command} {_EXPLANATION}\n".encode())
    except OSError as error:
        if isinstance(error, FileNotFoundError) and (folder / MARKER).is_file():
            return  # somebody who marks it at this very moment was faster
        raise CheckpointError(
            f"{folder} cannot be written to ({error}). Check free space and permissions, then run the command again."
        ) from error


def _check_owner(folder: Path, text: str, command: str) -> None:
    """Refuse the folder of another command; a marker without words is whoever's."""
    owner = text.partition("\n")[0].strip()
    if command != REPORT and owner not in ("", command):
        raise CheckpointError(f"{folder} holds results of `{owner}`; choose another folder for those of `{command}`.")
