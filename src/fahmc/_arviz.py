"""ArviZ, of which 0.2x (the last for Python 3.11) and 1.x are one here.

Datasets are built by its conventions and not by its converters, which differ between the two, and warn of chains that
outnumber draws. 0.x announces 1.0 to whoever imports it, once a day, and our users did not import it.
"""

from __future__ import annotations

import importlib
import itertools
import warnings
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
import pandas
import xarray

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", r"\s*ArviZ is undergoing a major refactor", FutureWarning)
    import arviz

HAS_TREES = int(version("arviz").partition(".")[0]) >= 1
"""Whether groups are an `xarray.DataTree`; before 1.0 they are an ``arviz.InferenceData``."""

# ArviZ splits each chain in two and needs a variance of each half.
_MIN_DRAWS = 4
_SAMPLE_DIMS = ("chain", "draw")
_COLUMNS = {
    "mcse_mean": ("mcse", "mean"),
    "mcse_sd": ("mcse", "sd"),
    "ess_bulk": ("ess", "bulk"),
    "ess_tail": ("ess", "tail"),
    "r_hat": ("rhat", "rank"),
}


def dataset(
    variables: Mapping[str, np.ndarray],
    dims: Mapping[str, Sequence[str]] | None = None,
    coords: Mapping[str, Any] | None = None,
    sample_dims: Sequence[str] = _SAMPLE_DIMS,
    **attrs: Any,
) -> xarray.Dataset:
    """Return arrays [chain, draw, ...] as a dataset; an axis without a name is called ``x_dim_0``, as ArviZ does."""
    found: dict[str, Any] = {}
    labels: dict[str, Any] = {}
    for name, values in variables.items():
        own = (dims or {}).get(name) or [f"{name}_dim_{axis}" for axis in range(values.ndim - len(sample_dims))]
        found[name] = ((*sample_dims, *own), values)
        for dim, size in zip(found[name][0], values.shape, strict=True):
            labels.setdefault(dim, list((coords or {}).get(dim, range(size))))
    return xarray.Dataset(found, labels, attrs)


def inference_data(groups: Mapping[str, xarray.Dataset]) -> Any:
    """Return groups as ArviZ's functions take them, and as whoever uses this version expects them."""
    container: Any = xarray.DataTree.from_dict if HAS_TREES else lambda parts: arviz.InferenceData(**parts)
    return container(dict(groups))


def diagnose(function: str, data: xarray.Dataset, method: str) -> dict[str, np.ndarray]:
    """Return ArviZ's ``rhat``, ``ess`` or ``mcse`` of every variable; NaN where there are too few chains or draws."""
    # ArviZ answers NaN here too, but logs a warning for each scalar.
    if data.sizes["draw"] < _MIN_DRAWS or (function == "rhat" and data.sizes["chain"] < 2):
        return {str(name): np.full(values.shape[2:], np.nan) for name, values in data.data_vars.items()}
    # 1.x has other tails by default.
    settings = {"prob": (0.05, 0.95)} if (function, method) == ("ess", "tail") else {}
    # A constant parameter divides 0 by 0, and one that has left all bounds has no squares; NaN is the answer.
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        answer = getattr(arviz, function)(data, method=method, **settings)
    return {str(name): np.asarray(answer[name].values, dtype=np.float64) for name in data.data_vars}


def diagnostics(data: xarray.Dataset) -> pandas.DataFrame:
    """Tabulate Monte Carlo errors, ESS and R-hat of every scalar, under its label."""
    columns = {}
    for column, (function, method) in _COLUMNS.items():
        found = diagnose(function, data, method)
        columns[column] = np.concatenate([np.ravel(found[str(name)]) for name in data.data_vars])
    return pandas.DataFrame(columns, index=[name for one in data.data_vars.values() for name in scalar_names(one)])


def scalar_names(variable: xarray.DataArray) -> list[str]:
    """Return ``name[label, label]`` for each entry of a variable, or ``name`` for a scalar one."""
    dims = [dim for dim in variable.dims if dim not in _SAMPLE_DIMS]
    if not dims:
        return [str(variable.name)]
    labels = [[str(label) for label in variable[dim].values] for dim in dims]
    # Labels that repeat would make two parameters one; places do not repeat.
    labels = [axis if len(set(axis)) == len(axis) else [str(i) for i in range(len(axis))] for axis in labels]
    return [f"{variable.name}[{', '.join(entry)}]" for entry in itertools.product(*labels)]


def kde(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a grid and the density of the values on it."""
    return _arrays().kde(values)[:2] if HAS_TREES else arviz.kde(values)[:2]


def psislw(log_weights: np.ndarray, efficiency: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Return Pareto-smoothed logarithms of weights, which sum to 1 along the last axis, and Pareto's k."""
    if HAS_TREES:
        return _arrays().psislw(-log_weights, r_eff=efficiency)
    smoothed, k = arviz.psislw(log_weights, efficiency)
    return np.asarray(smoothed), np.asarray(k)


def _arrays() -> Any:
    """Return the functions of arrays of ArviZ 1.x."""
    return importlib.import_module("arviz_stats.base").array_stats
