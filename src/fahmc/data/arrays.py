"""Files from outside, and npz archives of arrays: what they claim is checked before memory is taken for it."""

from __future__ import annotations

import math
import os
import zipfile
from pathlib import Path

import numpy as np

from fahmc.errors import DataError, nearest


def read_arrays(file: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Read the arrays of an npz file as they are, without unpickling anything."""
    path = existing(Path(file))
    try:
        with zipfile.ZipFile(path) as archive:
            members = [_checked_member(archive, info) for info in archive.infolist()]
        check_memory(sum(info.file_size for info in members), path.name)
        # Opened here, since NumPy leaves a file open that is no archive.
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except DataError:
        raise
    except Exception as error:  # zip, zlib and NumPy each have their own for a file that is damaged
        raise DataError(
            f"{path.name} cannot be read as npz arrays ({brief(error)}). Write it with numpy.savez from arrays of "
            "numbers or fixed-width text; object arrays need pickle, which is refused because it can run code."
        ) from error


def _checked_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> zipfile.ZipInfo:
    """Return a member if it is an array and as large as its header says: space is taken before it is read."""
    with archive.open(info) as member:
        version = np.lib.format.read_magic(member)
        read_header = {1: np.lib.format.read_array_header_1_0}.get(version[0], np.lib.format.read_array_header_2_0)
        shape, _, dtype = read_header(member)
        claimed, held = math.prod(shape) * dtype.itemsize, info.file_size - member.tell()
    if claimed != held and not dtype.hasobject:
        raise ValueError(f"{info.filename} says that it holds {claimed:,} bytes, but there are {held:,}")
    return info


def check_memory(num_bytes: int, file: str) -> None:
    """Refuse what cannot be held: a small file may claim, or unpack to, any size."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if num_bytes > memory:
        raise DataError(
            f"{file} would take {num_bytes / 1e9:,.1f} GB of memory, more than the {memory / 1e9:,.1f} GB of this "
            "machine. Give it fewer rows or columns."
        )


def existing(path: Path) -> Path:
    """Return the path of a file that is there, or refuse it."""
    try:
        if path.is_file():
            return path
        what = "is not a file but a folder, or something else" if path.exists() else "does not exist"
        siblings = [sibling.name for sibling in path.parent.iterdir()] if path.parent.is_dir() else []
    except (OSError, ValueError):  # a name that is too long, or that no file can have
        what, siblings = "cannot be looked up", []
    raise DataError(f"{str(path)!r} {what}{nearest(path.name, siblings)} Check the path.")


def brief(error: Exception) -> str:
    """Return the first words of what another library says."""
    text = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    return text if len(text) <= 200 else f"{text[:200]}…"
