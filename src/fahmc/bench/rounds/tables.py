"""Public tables of one owner, dealt to unlike clients."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fahmc.data import partition
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
