"""Find a file of a public data set: in a folder of the user's, in the cache, or at its public address.

The order is ``$FAHMC_DATA/<folder>/<file>``, then ``<cache>/<folder>/<file>``, where the cache is
``$XDG_CACHE_HOME/fahmc`` or ``~/.cache/fahmc``, then a download into the cache. Wherever a file was found, its content
is checked before it is used.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from fahmc.errors import DataError

# Seconds without a byte after which a download is given up. It bounds silence, not the length of a slow download.
_TIMEOUT = 30.0

Content = TypeVar("Content")


class ContentError(Exception):
    """A file does not hold what it should. The message continues a sentence that starts with the file."""


class MissingFileError(DataError):
    """A file is in none of the places where it is looked for, and could not be downloaded."""


@dataclass(frozen=True)
class Source:
    """One file of a public data set: its name on a disk, where it comes from and what it holds."""

    folder: str
    file: str
    address: str
    sha256: str | None = None
    """Of the decompressed content, because distributors compress anew; None where only the reader can judge."""
    other_names: tuple[str, ...] = ()
    """Files or folders in the same folder that may hold the same content in another form."""

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that is accepted, the first choice first."""
        return (*self.other_names, self.file, *([self.file[:-3]] if self.file.endswith(".gz") else []))


def locate(source: Source) -> Path | None:
    """Return where the file lies on this machine, or None."""
    paths = (folder / name for folder in _folders(source) for name in source.names)
    # Unlike Path.exists, this takes a folder that may not be read for one without the file.
    return next((path for path in paths if os.path.exists(path)), None)


def obtain(source: Source, read_fn: Callable[[Path], Content], *, download: bool = True) -> Content:
    """Return what ``read_fn`` makes of the file, wherever it is found.

    Parameters
    ----------
    read_fn
        Takes the path; raises `ContentError` for content that must not be used.
    download
        Whether the network may be tried where the file is not on this machine.
    """
    path = locate(source)
    if path is None:
        if not download:
            raise MissingFileError(_missing(source, "no download was tried"))
        return _download(source, read_fn)
    try:
        return read_fn(path)
    except ContentError as error:
        raise DataError(f"{path} {error}; delete it and run again.") from error


def read_content(path: Path, sha256: str | None) -> bytes:
    """Return a file's content, decompressed where it is gzipped; refuse content of another SHA-256."""
    try:
        content = path.read_bytes()
        # The first bytes decide, not the name: some programs unpack what they download and keep its name.
        if content.startswith(b"\x1f\x8b"):
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise ContentError(f"cannot be read ({error})") from error
    came = hashlib.sha256(content).hexdigest()
    if sha256 is not None and came != sha256:
        raise ContentError(f"is not the published file: its content should have SHA-256 {sha256} but has {came}")
    return content


def _download(source: Source, read_fn: Callable[[Path], Content]) -> Content:
    """Store the file in the cache once ``read_fn`` has accepted it; a failure at any moment leaves no file behind."""
    folder = cache_folder(source.folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # On the cache's own file system, so that the last step is a rename: no reader meets half a file.
        with TemporaryDirectory(prefix=".download-", dir=folder) as temporary:
            partial = Path(temporary) / source.file
            with urlopen(source.address, timeout=_TIMEOUT) as reply, partial.open("wb") as file:
                shutil.copyfileobj(reply, file)
            content = read_fn(partial)
            os.replace(partial, folder / source.file)
            return content
    except ContentError as error:
        raise MissingFileError(_missing(source, f"what was sent {error}")) from error
    except (OSError, HTTPException) as error:
        if isinstance(error, HTTPError):
            error.close()  # it holds the open connection
        reason = error.reason if isinstance(error, URLError) and not isinstance(error, HTTPError) else error
        raise MissingFileError(_missing(source, f"the download failed: {reason}")) from error


def _missing(source: Source, reason: str) -> str:
    data = os.environ.get("FAHMC_DATA")
    searched = " or ".join(map(str, _folders(source))) + ("" if data else " (FAHMC_DATA is not set)")
    other = f" (or {' or '.join(source.other_names)})" if source.other_names else ""
    return (
        f"{source.file}{other} of the data set {source.folder} was not found in {searched}, and did not come from "
        f"{source.address} ({reason}); put it into {cache_folder(source.folder)}, or set FAHMC_DATA to a folder that "
        f"holds {source.folder}/{source.file}."
    )


def _folders(source: Source) -> list[Path]:
    data = os.environ.get("FAHMC_DATA")
    return [*([Path(data).expanduser() / source.folder] if data else []), cache_folder(source.folder)]


def cache_folder(name: str) -> Path:
    """Return the folder of this name in the cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "fahmc" / name
