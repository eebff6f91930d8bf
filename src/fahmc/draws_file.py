"""A file of draws: netCDF that ArviZ and others read, with a checksum at its end.

HDF5, which netCDF is made of, checks little of what it stores, and a damaged or half-written file may crash it. So a
file is made in memory, written in one go, and its checksum compared before HDF5 sees a byte of it. Readers of HDF5 do
not look behind its own end, where the checksum stands.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fahmc.durable import read_whole
from fahmc.errors import CheckpointError, shown

if TYPE_CHECKING:
    import xarray

_MARK = b"\nfahmc draws, sha256 "
_END = len(_MARK) + 2 * hashlib.sha256().digest_size
# No compression of HDF5's makes a file smaller than this share of what it holds (deflate: 1032 to 1).
_LARGEST_EXPANSION = 1100


def may_replace(path: Path) -> bool:
    """Whether what is there was written as draws, damaged or not, or is an empty file."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        size = file.seek(0, io.SEEK_END)
        file.seek(max(0, size - _END))
        return not size or file.read().startswith(_MARK)


def encode(groups: Mapping[str, xarray.Dataset], about: Mapping[str, Any]) -> tuple[memoryview, bytes]:
    """Return the parts of a file: ``groups`` as ArviZ has them and JSON values beside them, and the checksum."""
    import xarray

    root = xarray.Dataset(attrs={"fahmc": json.dumps(about)})
    encoding = {f"/{name}": {variable: {"zlib": True} for variable in _numbers(data)} for name, data in groups.items()}
    netcdf = xarray.DataTree.from_dict({"/": root, **groups}).to_netcdf(engine="h5netcdf", encoding=encoding)
    return netcdf, _MARK + hashlib.sha256(netcdf).hexdigest().encode()


def _numbers(data: xarray.Dataset) -> list[Any]:
    return [name for name, values in data.variables.items() if values.dtype.kind in "biuf"]


def decode(path: Path) -> tuple[dict[str, xarray.Dataset], dict[str, Any]]:
    """Return the groups and the values of a file that `encode` made, or raise `CheckpointError`."""
    import xarray

    try:
        content = read_whole(path)
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist; Draws.load needs a file of Draws.save.") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); Draws.load needs a file of Draws.save.") from error
    netcdf, end = content[:-_END], content[-_END:]
    if not end.startswith(_MARK):
        raise CheckpointError(f"{path} is not a file written by Draws.save, or its end is missing.")
    if end[len(_MARK) :] != hashlib.sha256(netcdf).hexdigest().encode():
        raise CheckpointError(f"{path} was written by Draws.save, but is damaged: its checksum does not hold.")
    try:
        groups = xarray.open_groups(io.BytesIO(netcdf), engine="h5netcdf")
        size = sum(data.nbytes for data in groups.values())
        if size > _LARGEST_EXPANSION * len(netcdf):
            raise ValueError(f"{size:,} bytes of numbers cannot be in {len(netcdf):,}")
        return {name.lstrip("/"): data.load() for name, data in groups.items()}, json.loads(groups["/"].attrs["fahmc"])
    except Exception as error:  # whatever the libraries make of a forgery
        raise CheckpointError(f"{path} is not a file written by Draws.save ({shown(error)}).") from error
