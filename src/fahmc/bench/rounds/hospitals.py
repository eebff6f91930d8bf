"""Patients of several hospitals, each of which is a client."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from fahmc.experiments.fetch import Source, obtain, read_content

Clients = dict[str, dict[str, np.ndarray]]

# The columns that all four hospitals mostly have; of the other three, two hospitals have next to nothing.
_HEART_COLUMNS = 10
_HEART = {
    "cleveland": "a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8",
    "hungarian": "d1ad108f785768cd3d7e82dc522e6f5a61eea93cccfb3a46ee8076f73fc3d796",
    "switzerland": "834a405ccf5b66ab4056bb77794adc8df0b7125186454c0a1d002d33c6c3b314",
    "va": "e7c93d8d0d2acdadfa4c5e8de768e2191e7f618b952e29623f1f0d5949ff6b8f",
}
_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease"
_TRAUMA = Source(
    "trauma",
    "trauma.csv",
    "https://cran.r-project.org/package=BFI",
    "f3951c741a8a3d5b921a7c5ac1365c17e932bf92e2af566df7abaf501dd8533c",
)


def heart_disease() -> Clients:
    """Return heart disease (of any degree) and ten covariates of 920 patients of four hospitals.

    Age, sex, chest pain, blood pressure, cholesterol, blood sugar, ECG at rest, heart rate, angina and ST depression. A
    missing value becomes the mean of those that are there; columns are standardised over all hospitals.

    References
    ----------
    Janosi, Steinbrunn, Pfisterer and Detrano (1989), "Heart disease", UCI Machine Learning Repository.
    """
    tables = {}
    for hospital, sha256 in _HEART.items():
        file = f"processed.{hospital}.data"
        lines = _lines(Source("heart-disease", file, f"{_UCI}/{file}", sha256))
        tables[hospital] = np.array([[np.nan if cell == "?" else float(cell) for cell in line] for line in lines])
    x = {hospital: table[:, :_HEART_COLUMNS] for hospital, table in tables.items()}
    return _clients(x, {hospital: table[:, -1] > 0 for hospital, table in tables.items()})


def trauma() -> Clients:
    """Return death, and sex, age, injury severity and Glasgow coma score, of 371 patients of three hospitals.

    References
    ----------
    Jonker, Pazira and Coolen (2024), Statistics in Medicine 43(12), and the R package BFI, which holds the table.
    """
    header, *lines = _lines(_TRAUMA, download=False)
    rows = dict(zip(header, np.array(lines, dtype=float).T, strict=True))
    x, hospital = np.stack([rows[name] for name in ("sex", "age", "ISS", "GCS")], axis=1), rows["hospital"]
    where = {f"hospital_{number:g}": hospital == number for number in np.unique(hospital)}
    return _clients(
        {name: x[here] for name, here in where.items()}, {name: rows["mortality"][here] for name, here in where.items()}
    )


def _clients(x: dict[str, np.ndarray], y: dict[str, np.ndarray]) -> Clients:
    """Impute and standardise by the moments of all clients' rows."""
    pooled = np.concatenate(list(x.values()))
    mean = np.nanmean(pooled, axis=0)
    sd = np.where(np.isnan(pooled), mean, pooled).std(axis=0)
    return {
        name: {"x": (np.where(np.isnan(x[name]), mean, x[name]) - mean) / sd, "y": y[name].astype(float)} for name in x
    }


def _lines(source: Source, *, download: bool = True) -> list[list[str]]:
    def read(path: Path) -> list[list[str]]:
        return list(csv.reader(read_content(path, source.sha256).decode().splitlines()))

    return obtain(source, read, download=download)
