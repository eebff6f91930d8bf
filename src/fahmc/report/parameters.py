"""Scalar parameters by their human names, and the table of numbers about each."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from fahmc.certificate import certificate, source_of
from fahmc.errors import DataError, SettingsError
from fahmc.report import convergence

if TYPE_CHECKING:
    import pandas as pd

    from fahmc.draws import Draws

MAX_SHOWN = 16
"""How many parameters a figure shows unless they are named."""


@dataclass(frozen=True)
class Parameters:
    """Scalar parameters side by side, e.g. ``intercept`` and ``coefficients[age]``."""

    names: tuple[str, ...]
    values: Float[np.ndarray, "chain draw parameter"]

    @classmethod
    def from_draws(cls, draws: Draws) -> Parameters:
        """Take the variables of the group ``posterior`` apart; their coordinates give the names."""
        from fahmc._arviz import scalar_names

        names, columns = [], []
        for variable in draws.groups()["posterior"].data_vars.values():
            values = variable.transpose("chain", "draw", ...).values
            names += scalar_names(variable)
            columns.append(values.reshape(*values.shape[:2], -1).astype(np.float64))
        if not names:
            raise DataError("These draws have no parameters; there is nothing to report.")
        return cls(tuple(names), np.concatenate(columns, axis=-1))

    def __getitem__(self, name: str) -> Float[np.ndarray, "chain draw"]:
        return self.values[..., self.names.index(name)]

    def r_hat(self) -> Float[np.ndarray, " parameter"]:
        """Return the rank-normalised R-hat of each."""
        return convergence.r_hat(self.values)["position"]

    def find(self, names: str | Sequence[str]) -> list[str]:
        """Return the scalar names that are meant: each of ``names`` is one, or a variable, for all its entries."""
        found = []
        for name in [names] if isinstance(names, str) else names:
            matches = [own for own in self.names if own == name or own.startswith(f"{name}[")]
            if not matches:
                close = difflib.get_close_matches(name, self.names, n=1, cutoff=0.3) or self.names[:1]
                raise SettingsError(
                    f"There is no parameter {name!r} among the {len(self.names)} here; did you mean {close[0]!r}?"
                )
            found += matches
        return list(dict.fromkeys(found))

    def choose(self, names: str | Sequence[str] | None, first: Sequence[str] = ()) -> tuple[list[str], str]:
        """Return what a figure shows, and what to add to its title.

        Without ``names`` these are all parameters, or if they are many ``first`` and then those with the worst R-hat.
        """
        if names is not None:
            return self.find(names), ""
        if len(self.names) <= MAX_SHOWN:
            return list(self.names), ""
        # A parameter without R-hat is constant or not finite: worse than any that has one.
        badness = np.nan_to_num(self.r_hat(), nan=np.inf)
        named = set(first)
        others = [self.names[i] for i in np.argsort(-badness, kind="stable") if self.names[i] not in named]
        worst = set(others[: max(0, MAX_SHOWN - len(first))])
        remark = f" ({len(first) + len(worst)} of {len(self.names)} parameters, those with the worst R-hat)"
        return [*first, *(name for name in self.names if name in worst)], remark


def parameter_table(draws: Draws, *, reference: Draws | None = None) -> pd.DataFrame:
    """Return one row per scalar parameter: posterior, precision, and how it compares with a reference run.

    It is ``draws.summary()`` and ``draws.bias``; with a reference, another run of the same model, also its summary's
    columns, called ``reference_mean`` and so on, ``difference_mcse`` (as in `difference_in_mcse`) and ``difference_sd``
    (difference of the means over the reference's standard deviation). Where only an exact reference tells the bias,
    ``attrs["found_by"]`` is ``"reference"``.
    """
    own, table = Parameters.from_draws(draws), _summary(draws)
    bias = certificate(draws, table)
    if reference is None:
        return _joined(table, bias)
    other, other_table = Parameters.from_draws(reference), _summary(reference)
    if set(other.names) != set(own.names):
        differing = sorted(set(other.names) ^ set(own.names))
        raise DataError(f"Only one of the two runs has the parameter {differing[0]!r}; compare runs of one model.")
    # Matched by name: the two runs may list their variables in different orders.
    place = {name: index for index, name in enumerate(other.names)}
    places = [place[name] for name in own.names]
    table = table.join(other_table.add_prefix("reference_"))
    scores = convergence.difference_in_mcse(own.values, other.values[..., places])["position"]
    shifts = table["mean"] - table["reference_mean"]
    table = table.assign(difference_mcse=scores, difference_sd=shifts / table["reference_sd"])
    if bias.attrs["found_by"] == "nothing" and source_of(reference) in ("exactness", "weights"):
        _tell_by_reference(bias, table)
    return _joined(table, bias)


def _joined(table: pd.DataFrame, bias: pd.DataFrame) -> pd.DataFrame:
    table = table.join(bias)
    table.attrs = dict(bias.attrs)
    return table


def _tell_by_reference(bias: Any, table: Any) -> None:
    """Fill in the error as far as a run without bias shows it."""
    sd, other = table["sd"], table["reference_sd"]
    ratio = sd / other
    bias["mean_shift"], bias["sd_excess"] = table["difference_sd"], ratio - 1
    bias["mean_shift_error"] = np.hypot(table["mcse_mean"], table["reference_mcse_mean"]) / other
    bias["sd_excess_error"] = ratio * np.hypot(table["mcse_sd"] / sd, table["reference_mcse_sd"] / other)
    bias.attrs["found_by"] = "reference"


def _summary(draws: Draws) -> pd.DataFrame:
    """Return ``draws.summary()`` under this module's names, which are unique."""
    with np.errstate(
        divide="ignore", invalid="ignore", over="ignore"
    ):  # of a constant parameter, or of one beyond all bounds
        table = draws.summary()
    return table.set_axis(list(Parameters.from_draws(draws).names)).rename_axis("parameter")
