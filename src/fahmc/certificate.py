"""How far the means and standard deviations of draws are from the posterior's, as far as the draws can tell.

=============  ======================================================================================================
gradients      the posterior's moments μ, σ from ∇f at every draw (`stein`): (mean − μ) / σ and sd / σ − 1 of the run as
               it is, bias and Monte Carlo error together
exactness      a sampler that accepts or rejects has no bias: 0, with the Monte Carlo error of mean and sd
weights        draws resampled by importance: the same, with the weights' Monte Carlo error
nothing        a sampler without accept/reject step, and no gradients: NaN
=============  ======================================================================================================

What a regression on gradients leaves unexplained may hide a difference too. Where the share r of a variance is left,
the stated error has the further part √r · (the largest error seen): as far as the draws are off where we see, they may
be off where we do not. Where more than half is left nothing is stated.

No row of this table sees a mode that no chain has visited.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    import pandas

COLUMNS = ("mean_shift", "mean_shift_error", "sd_excess", "sd_excess_error")
_MOST_UNEXPLAINED = 0.5

Source = Literal["gradients", "exactness", "weights", "nothing"]


def source_of(draws: Any) -> Source:
    """Say what tells the error of a `fahmc.Draws`, which is built on this module."""
    if draws.account.get("weights"):
        return "weights"
    if "acceptance_rate" in draws.stats:
        return "exactness"
    return "nothing" if draws.gradients is None else "gradients"


def certificate(draws: Any, summary: Any) -> pandas.DataFrame:
    """Return the table of `fahmc.Draws.bias`, given that of `fahmc.Draws.summary`."""
    source = source_of(draws)
    table = summary[["mean", "sd"]].assign(**dict.fromkeys(COLUMNS, np.nan))[list(COLUMNS)]
    table.attrs = {"found_by": source, "width": float("nan")}
    if source == "gradients":
        _from_gradients(draws, table)
    elif source != "nothing":
        for estimate, error in (("mean_shift", "mcse_mean"), ("sd_excess", "mcse_sd")):
            table[f"{estimate}_error"] = summary[error] / summary["sd"]
            # 0 where there is an error to go with it: a parameter that never moved has none.
            table[estimate] = 0.0 * table[f"{estimate}_error"]
    return table


def _from_gradients(draws: Any, table: Any) -> None:
    moments, flat = draws.posterior_moments, draws.flat().astype(np.float64)
    assert moments is not None
    shift = (flat.mean(axis=(0, 1)) - moments.mean) / moments.sd
    excess = flat.std(axis=(0, 1)) / moments.sd - 1
    seen = np.nan_to_num(np.abs([shift, excess])).max()
    estimates = {"mean_shift": (shift, moments.mean_error, moments.mean_rest)}
    estimates["sd_excess"] = (excess, (1 + excess) * moments.sd_error, moments.sd_rest)
    for name, (value, error, rest) in estimates.items():
        is_told = rest <= _MOST_UNEXPLAINED
        total = np.hypot(error / moments.sd, np.sqrt(rest) * seen)
        table[name], table[f"{name}_error"] = np.where(is_told, value, np.nan), np.where(is_told, total, np.nan)
    table.attrs["width"] = moments.width
