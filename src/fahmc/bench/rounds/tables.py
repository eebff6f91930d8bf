"""Public tables of one owner, dealt to unlike clients."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from fahmc.data import partition
from fahmc.errors import SettingsError
from fahmc.experiments.fetch import Source, obtain, read_content

_A9A = Source(
    "a9a",
    "a9a",
    "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/a9a",
    "f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906",
)
_A9A_COLUMNS = 123


def a9a(seed: int) -> dict[str, dict[str, np.ndarray]]:
    """Return the 32,561 rows of a9a (census income; 123 columns of 0 and 1) at ten clients.

    Labels are shared out by Dirichlet(0.3), so that some clients are tiny and some have one label.
    """

    def read(path: Path) -> dict[str, np.ndarray]:
        lines = [line.split() for line in read_content(path, _A9A.sha256).decode().splitlines()]
        x = np.zeros((len(lines), _A9A_COLUMNS))
        for row, line in zip(x, lines, strict=True):
            row[[int(cell.split(":")[0]) - 1 for cell in line[1:]]] = 1
        return {"x": x, "y": np.array([float(line[0]) > 0 for line in lines], dtype=float)}

    rows = obtain(_A9A, read)
    return partition.dirichlet(rows, rows["y"], 10, 0.3, seed=seed, min_rows=10)


def diabetes() -> dict[str, dict[str, np.ndarray]]:
    """Return disease progression and ten covariates of 442 patients, in their own units, cut along the progression."""
    x, y = _bundled("diabetes", scaled=False)
    return _cut_along(y, 5, x, y)


def breast_cancer() -> dict[str, dict[str, np.ndarray]]:
    """Return whether 569 tumours are benign and thirty measures of them, in their own units, cut along the radius."""
    x, y = _bundled("breast_cancer")
    return _cut_along(x[:, 0], 5, x, y)


def wine() -> dict[str, dict[str, np.ndarray]]:
    """Return three cultivars and thirteen measures of 178 wines, in their own units, cut along the alcohol."""
    x, y = _bundled("wine")
    return _cut_along(x[:, 0], 4, x, y)


def _bundled(name: str, **settings: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return covariates and outcomes of a table that comes with scikit-learn."""
    if find_spec("sklearn") is None:
        raise SettingsError(
            f'The table {name} comes with scikit-learn, which is not installed; run: pip install "fahmc[bench]", or '
            "leave it out."
        )
    from sklearn import datasets

    return getattr(datasets, f"load_{name}")(return_X_y=True, **settings)


def _cut_along(values: np.ndarray, num_clients: int, x: np.ndarray, y: np.ndarray) -> dict[str, dict[str, np.ndarray]]:
    """Cut clients of equal size from the rows in the order of ``values``: none is like another."""
    parts = np.array_split(np.argsort(values, kind="stable"), num_clients)
    return {f"client_{index}": {"x": x[part], "y": y[part]} for index, part in enumerate(parts)}
