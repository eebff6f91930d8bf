"""Files of rows, read the same way whatever their format.

CSV, Parquet or npz becomes one `Table` per client; `fahmc.data.study` makes design matrices of them. A file is not
believed: what it claims to hold is checked before memory is taken for it.
"""

from __future__ import annotations

import csv
import logging
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fahmc.data.arrays import brief, check_memory, existing, read_arrays
from fahmc.errors import DataError, nearest, shown
from fahmc.names import unprintable

logger = logging.getLogger("fahmc")

MAX_COLUMNS = 50_000
"""Of one table: reading them takes half a minute, and a posterior of more parameters is another problem."""
MISSING_CELLS = ("", ".", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null")
_MISSING = frozenset(MISSING_CELLS)
# As pandas and R leave row numbers in a file, and as pandas calls them when it reads and writes it again.
_NAMELESS = re.compile(r"(Unnamed: \d+(\.\d+)*)?")
# A whole number written with a decimal point, as programs do whose column had a gap.
_WHOLE = re.compile(r"-?(0|[1-9]\d*)\.0*", re.ASCII)


class Table(NamedTuple):
    """Columns of equal length: floats with NaN, or text (object arrays) with None, where a value is missing."""

    columns: dict[str, np.ndarray]
    row_numbers: np.ndarray  # where the rows stand in the file, from 1; kept through every selection, for messages
    file: str

    @classmethod
    def from_columns(cls, columns: Iterable[tuple[object, Any]], num_rows: int, file: str = "the table") -> Table:
        """Take over columns of pandas or NumPy; text is stripped and empty cells become missing.

        Columns without a name are left out: pandas and R write row numbers so, and no feature could be called by it.
        """
        named = [(str(name), column) for name, column in columns]
        kept = [(name, column) for name, column in named if not _NAMELESS.fullmatch(name.strip())]
        if len(kept) < len(named):
            logger.warning("%s has %d column(s) without a name, which are left out.", file, len(named) - len(kept))
        _check_column_names([name for name, _ in kept], file)
        cells = {name: _cells(column, f"column {name!r} of {file}") for name, column in kept}
        return cls(cells, np.arange(1, num_rows + 1), file)

    @classmethod
    def from_frame(cls, frame: pd.DataFrame, file: str = "the table") -> Table:
        """Take over a pandas frame."""
        return cls.from_columns(frame.items(), len(frame), file)

    def keep(self, kept: np.ndarray) -> Table:
        """Keep some of the rows: those marked, or those numbered."""
        columns = {name: cells[kept] for name, cells in self.columns.items()}
        return Table(columns, self.row_numbers[kept], self.file)

    def first(self, is_bad: np.ndarray) -> str:
        """Name the first row of those marked."""
        return f"row {self.row_numbers[is_bad][0]} of {self.file}"


def read_clients(files: Mapping[str, str | os.PathLike[str]]) -> dict[str, Table]:
    """Read one file per client."""
    return {client: _read_client(client, file) for client, file in files.items()}


def _read_client(client: str, file: str | os.PathLike[str]) -> Table:
    try:
        return read_table(file)
    except DataError as error:
        error.client = client
        raise


def read_sites(
    file: str | os.PathLike[str], site_column: str, missing_values: Sequence[str | float] = ()
) -> dict[str, Table]:
    """Read one file and make each value of ``site_column`` a client, in alphabetical order."""
    table = read_table(file)
    require_columns([site_column], table.columns, table.file)
    sites = table.columns.pop(site_column)
    if not len(sites):
        raise DataError(f"{table.file} has a header, and no rows below it.")
    gaps = is_missing(sites, missing_values)
    if gaps.any():
        raise DataError(
            f"{gaps.sum()} rows have no site in column {site_column!r} (first: {table.first(gaps)}), so no "
            "client owns them. Fill in the site or take these rows out."
        )
    names, owners, counts = np.unique(as_text(sites), return_inverse=True, return_counts=True)
    # By owner, and within each in the order of the file: in one pass, however many sites there are.
    rows = np.split(np.argsort(owners, kind="stable"), np.cumsum(counts)[:-1])
    return {str(name): table.keep(own) for name, own in zip(names, rows, strict=True)}


def read_table(file: str | os.PathLike[str]) -> Table:
    """Read a CSV, Parquet or npz file.

    The arrays of an npz file are its columns, by name; column j of a two-dimensional array ``x`` is called ``x[j]``.
    """
    path = Path(file)
    readers = {".csv": _read_csv, ".parquet": _read_parquet, ".pq": _read_parquet, ".npz": _read_npz}
    if path.suffix.lower() not in readers:
        raise DataError(f"{path} does not end in {', '.join(readers)}. Save the table in one of these formats.")
    return readers[path.suffix.lower()](existing(path))


def _read_csv(path: Path) -> Table:
    # Cells stay text here: whether a column is numeric is decided over all clients, not by one client's file.
    try:
        _check_header(path)
        frame = pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8-sig")
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path.name} is not a comma-separated UTF-8 table: {brief(error)}.") from error
    except OSError as error:
        raise DataError(f"{path.name} cannot be read: {error.strerror}. Check the file and its permissions.") from error
    if not isinstance(frame.index, pd.RangeIndex):  # pandas took surplus cells at the left for row labels
        raise DataError(f"the rows of {path.name} have more cells than its header. Name every column.")
    return Table.from_frame(frame.rename(columns=str.strip), path.name)


def _check_header(path: Path) -> None:
    """Refuse what pandas would take without a word: other separators, and names that it would make different."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        header = next((cells for cells in csv.reader(file) if "".join(cells).strip()), [])
    separators = [name for mark, name in ((";", "';'"), ("\t", "a tab")) if mark in "".join(header)]
    if len(header) == 1 and separators:
        raise DataError(
            f"the header of {path.name} is one cell with {separators[0]} in it: {shown(header[0])}. fahmc reads "
            "comma-separated files; export the table again with commas, or convert it."
        )
    _check_column_names([name.strip() for name in header if name.strip()], path.name)


def _check_column_names(names: Sequence[str], file: str) -> None:
    """Refuse names that repeat, that no figure or file could show, or that are too many."""
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        words = _listed(repeated)
        raise DataError(f"{file} has more than one column {words}. Rename or remove all but one: names must be unique.")
    if len(names) > MAX_COLUMNS:
        raise DataError(f"{file} has {len(names):,} columns; at most {MAX_COLUMNS:,} are read. Leave some out.")
    for name in names:
        if complaint := unprintable(name):
            raise DataError(f"a column of {file} is called {name[:60]!r}, which {complaint}. Rename it.")


def _cells(column: Any, what: str) -> np.ndarray:
    """Return a column of pandas or NumPy as numbers, or as text."""
    if pd.api.types.is_numeric_dtype(column.dtype) and column.dtype.kind != "c":
        if isinstance(column, np.ndarray):
            return column.astype(float)
        return column.to_numpy(dtype=float, na_value=np.nan)
    if column.dtype.kind not in "OUS":
        raise DataError(f"{what} is of type {column.dtype}; make it numbers or text.")
    cells = [_text(cell, what) for cell in column]  # categories too, in every version of pandas
    return np.array([None if cell in _MISSING else cell for cell in cells], dtype=object)


def _text(cell: Any, what: str) -> str | None:
    if isinstance(cell, str):
        return cell.strip()
    if not pd.api.types.is_scalar(cell):
        raise DataError(f"{what} holds lists or tables ({type(cell).__name__}); make it numbers or text.")
    try:
        return None if pd.isna(cell) else _decoded(cell).strip()
    except UnicodeDecodeError as error:
        raise DataError(f"{what} holds bytes that are not UTF-8 text: {error}.") from error


def _decoded(cell: object) -> str:
    return cell.decode() if isinstance(cell, bytes) else str(cell)


def _read_parquet(path: Path) -> Table:
    try:
        import pyarrow.parquet

        about = pyarrow.parquet.read_metadata(path)
        # Of each cell, a pointer or a number.
        check_memory(8 * about.num_rows * about.num_columns, path.name)
        frame = pd.read_parquet(path)
    except ImportError as error:
        raise DataError(f'reading {path.name} needs pyarrow; run: pip install "fahmc[parquet]".') from error
    except DataError:
        raise
    except Exception as error:  # Arrow has a dozen kinds for a file that is damaged
        raise DataError(f"{path.name} cannot be read as Parquet: {brief(error)}.") from error
    return Table.from_frame(frame, path.name)


def _read_npz(path: Path) -> Table:
    arrays = read_arrays(path)
    shapes = {name: array.shape for name, array in arrays.items()}
    if any(len(shape) not in (1, 2) for shape in shapes.values()) or len({shape[0] for shape in shapes.values()}) != 1:
        words = ", ".join(f"{name} {shape}" for name, shape in list(shapes.items())[:10]) or "none"
        raise DataError(f"{path.name} holds arrays of shapes {words}; each needs the same rows, and at most 2 axes.")
    columns: list[tuple[str, np.ndarray]] = []
    for name, array in arrays.items():
        if array.ndim == 2 and array.shape[1] > MAX_COLUMNS:
            raise DataError(f"{name} of {path.name} has {array.shape[1]:,} columns; at most {MAX_COLUMNS:,} are read.")
        columns += [(name, array)] if array.ndim == 1 else [(f"{name}[{j}]", part) for j, part in enumerate(array.T)]
    return Table.from_columns(columns, next(iter(shapes.values()))[0], path.name)


def is_missing(cells: np.ndarray, missing_values: Sequence[str | float] = ()) -> np.ndarray:
    """Say which cells lack a value: those that are empty, and those that hold one of these instead."""
    gaps = np.asarray(pd.isna(cells))
    if missing_values:
        words = np.array([str(value) for value in missing_values], dtype=object)
        numbers = numbers_or_nan(words)
        gaps |= np.asarray(pd.Series(cells).isin(words))
        gaps |= np.isin(numbers_or_nan(cells), numbers[~np.isnan(numbers)])
    return gaps


def numbers_or_nan(cells: np.ndarray) -> np.ndarray:
    """Read cells as numbers; text that is none, and what is missing, is NaN."""
    return np.asarray(pd.to_numeric(cells, errors="coerce"), dtype=float)


def _listed(names: Sequence[str], limit: int = 10) -> str:
    return ", ".join(repr(name[:60]) for name in names[:limit]) + (", ..." if len(names) > limit else "")


def require_columns(wanted: Iterable[str], present: Iterable[str], where: str) -> None:
    """Refuse a name that is not among the columns, and say which was probably meant."""
    names = dict.fromkeys(present)
    for name in wanted:
        if name not in names:
            held = ", ".join(known[:40] for known in list(names)[:20]) + (", ..." if len(names) > 20 else "")
            message = f"there is no column {shown(name)} in {where}{nearest(name, names)} It has: {held}."
            raise DataError(message, columns=[name])


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
