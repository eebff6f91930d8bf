"""Files of rows, read the same way whatever their format.

CSV, Parquet or npz becomes one `Table` per client; `fahmc.data.study` makes design matrices of them.
"""

from __future__ import annotations

import csv
import os
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from fahmc.errors import DataError, nearest

MISSING_CELLS = ("", ".", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null")
# A whole number written with a decimal point, as programs do whose column had a gap.
_WHOLE = re.compile(r"-?(0|[1-9]\d*)\.0*", re.ASCII)


class Table(NamedTuple):
    """Columns of equal length: floats with NaN, or text (object arrays) with None, where a value is missing."""

    columns: dict[str, np.ndarray]
    row_numbers: np.ndarray  # where the rows stand in the file, from 1; kept through every selection, for messages
    file: str

    @classmethod
    def from_frame(cls, frame: pd.DataFrame, file: str = "the table") -> Table:
        """Take over a pandas frame; text is stripped and empty cells become missing."""
        _refuse_repeated([str(name) for name in frame.columns], file)
        columns: dict[str, np.ndarray] = {}
        for name, column in frame.items():
            if pd.api.types.is_numeric_dtype(column):
                columns[str(name)] = column.to_numpy(dtype=float, na_value=np.nan)
            elif column.dtype.kind == "O":  # text and categories, in every version of pandas
                try:
                    cells = [None if pd.isna(cell) else _decoded(cell).strip() for cell in column]
                except UnicodeDecodeError as error:
                    raise DataError(
                        f"column {name!r} of {file} holds bytes that are not UTF-8 text: {error}."
                    ) from error
                columns[str(name)] = np.array([None if c in MISSING_CELLS else c for c in cells], dtype=object)
            else:
                raise DataError(f"column {name!r} of {file} is of type {column.dtype}; make it numbers or text.")
        return cls(columns, np.arange(1, len(frame) + 1), file)

    def keep(self, is_kept: np.ndarray) -> Table:
        """Keep some of the rows."""
        columns = {name: cells[is_kept] for name, cells in self.columns.items()}
        return Table(columns, self.row_numbers[is_kept], self.file)

    def first(self, is_bad: np.ndarray) -> str:
        """Name the first row of those marked."""
        return f"row {self.row_numbers[is_bad][0]} of {self.file}"


def read_clients(files: Mapping[str, str | os.PathLike[str]]) -> dict[str, Table]:
    """Read one file per client."""
    return {client: read_table(file) for client, file in files.items()}


def read_sites(file: str | os.PathLike[str], site_column: str) -> dict[str, Table]:
    """Read one file and make each value of ``site_column`` a client, in alphabetical order."""
    table = read_table(file)
    require_columns([site_column], table.columns, table.file)
    sites = table.columns.pop(site_column)
    is_missing = pd.isna(sites)
    if is_missing.any():
        raise DataError(
            f"{is_missing.sum()} rows have no site in column {site_column!r} (first: {table.first(is_missing)}), so no "
            "client owns them. Fill in the site or take these rows out."
        )
    names = as_text(sites)
    return {str(name): table.keep(names == name) for name in np.unique(names)}


def read_table(file: str | os.PathLike[str]) -> Table:
    """Read a CSV, Parquet or npz file.

    The arrays of an npz file are its columns, by name; column j of a two-dimensional array ``x`` is called ``x[j]``.
    """
    path = Path(file)
    readers = {".csv": _read_csv, ".parquet": _read_parquet, ".pq": _read_parquet, ".npz": _read_npz}
    if path.suffix.lower() not in readers:
        raise DataError(f"{path} does not end in {', '.join(readers)}. Save the table in one of these formats.")
    return Table.from_frame(readers[path.suffix.lower()](_existing(path)), path.name)


def read_arrays(file: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Read the arrays of an npz file as they are, without unpickling anything."""
    path = _existing(Path(file))
    try:
        # Opened here, since NumPy leaves a file open that is no archive.
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (ValueError, OSError, TypeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(
            f"{path.name} cannot be read as npz arrays ({error}). Write it with numpy.savez from arrays of numbers or "
            "fixed-width text; object arrays need pickle, which is refused because it can run code."
        ) from error


def _existing(path: Path) -> Path:
    if not path.is_file():
        siblings = [sibling.name for sibling in path.parent.iterdir()] if path.parent.is_dir() else []
        raise DataError(f"there is no file {path}{nearest(path.name, siblings)} Check the path.")
    return path


def _read_csv(path: Path) -> pd.DataFrame:
    # Cells stay text here: whether a column is numeric is decided over all clients, not by one client's file.
    try:
        _check_header(path)
        frame = pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8-sig")
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path.name} is not a comma-separated UTF-8 table: {str(error).strip()}.") from error
    except OSError as error:
        raise DataError(f"{path.name} cannot be read: {error.strerror}. Check the file and its permissions.") from error
    if not isinstance(frame.index, pd.RangeIndex):  # pandas took surplus cells at the left for row labels
        raise DataError(f"the rows of {path.name} have more cells than its header. Name every column.")
    return frame.rename(columns=str.strip)


def _check_header(path: Path) -> None:
    """Refuse what pandas would take without a word: other separators, and names that it would make different."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        header = next((cells for cells in csv.reader(file) if "".join(cells).strip()), [])
    separators = [name for mark, name in ((";", "';'"), ("\t", "a tab")) if mark in "".join(header)]
    if len(header) == 1 and separators:
        raise DataError(
            f"the header of {path.name} is one cell with {separators[0]} in it: {header[0]!r}. fahmc reads "
            "comma-separated files; export the table again with commas, or convert it."
        )
    _refuse_repeated([name.strip() for name in header if name.strip()], path.name)


def _refuse_repeated(names: Iterable[str], file: str) -> None:
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        words = ", ".join(map(repr, repeated))
        raise DataError(f"{file} has more than one column {words}. Rename or remove all but one: names must be unique.")


def _decoded(cell: object) -> str:
    return cell.decode() if isinstance(cell, bytes) else str(cell)


def _read_parquet(path: Path) -> pd.DataFrame:
    try:
        return pd.read_parquet(path)
    except ImportError as error:
        raise DataError(f'reading {path.name} needs pyarrow; run: pip install "fahmc[parquet]"') from error
    except (ValueError, OSError) as error:
        raise DataError(f"{path.name} cannot be read as Parquet: {error}.") from error


def _read_npz(path: Path) -> pd.DataFrame:
    arrays = read_arrays(path)
    shapes = {name: array.shape for name, array in arrays.items()}
    if any(len(shape) not in (1, 2) for shape in shapes.values()) or len({shape[0] for shape in shapes.values()}) != 1:
        raise DataError(f"{path.name} holds arrays of shapes {shapes}; each needs the same rows, and at most 2 axes.")
    columns: list[tuple[str, np.ndarray]] = []
    for name, array in arrays.items():
        columns += [(name, array)] if array.ndim == 1 else [(f"{name}[{j}]", part) for j, part in enumerate(array.T)]
    _refuse_repeated([name for name, _ in columns], path.name)
    return pd.DataFrame(dict(columns))


def require_columns(wanted: Iterable[str], present: Iterable[str], where: str) -> None:
    """Refuse a name that is not among the columns, and say which was probably meant."""
    present = list(present)
    for name in wanted:
        if name not in present:
            held = ", ".join(present[:20]) + (", ..." if len(present) > 20 else "")
            raise DataError(f"there is no column {name!r} in {where}{nearest(name, present)} It has: {held}.")


def as_text(cells: np.ndarray) -> np.ndarray:
    """Write codes as text, whole numbers without a decimal point, so that 1, 1.0 and the text "1.0" are one level.

    Other text stays as it is: "01" and "1e3" may well be names.
    """
    return np.array([_code(cell) for cell in cells.tolist()])


def _code(cell: object) -> str:
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    text = _decoded(cell)
    return str(int(text.partition(".")[0])) if _WHOLE.fullmatch(text) else text
