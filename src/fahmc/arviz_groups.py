"""Draws in ArviZ's groups.

======================= =================================================================================
posterior               the parameters, and what derives from them
unconstrained_posterior the numbers that the sampler moved, where these are others
sample_stats            what the sampler tells of each draw, and each client's drift
warmup_posterior, ...   the same of the first draws, if they are said to be warm-up
log_likelihood          of each row at each draw, where the rows are here
observed_data           the outcomes of these rows
constant_data           all else that the rows hold
======================= =================================================================================

Rows of a real federation are not here, and have none of the last three.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING

import numpy as np

from fahmc import tree
from fahmc._arviz import dataset
from fahmc.data.federation import Federation
from fahmc.data.places import with_places
from fahmc.data.sites import RemoteFederation, Sites
from fahmc.density.model import Model
from fahmc.errors import DataError, SettingsError
from fahmc.types import Batch

if TYPE_CHECKING:
    import xarray

    from fahmc.draws import Draws

GRADIENTS = "potential_gradient"
"""How ∇f at the draws is called among the statistics."""
FREE = "unconstrained_posterior"


def groups_of(draws: Draws) -> dict[str, xarray.Dataset]:
    """Return what draws hold by themselves."""
    attrs = {
        "inference_library": "fahmc",
        "inference_library_version": version("fahmc"),
        "sampling_time": draws.cost.get("seconds", float("nan")),
    }
    stats, dims = dict(draws.stats), {GRADIENTS: ["coordinate"]}
    if draws.gradients is not None:
        stats[GRADIENTS] = draws.gradients
    groups = {"posterior": dataset(draws.named(), draws.dims, draws.coords, **attrs)}
    if draws.sampled is not None:
        # Axes without labels: those of the parameters may be longer, as those of shares are.
        groups[FREE] = dataset(tree.named_leaves(draws.sampled))
    sample_stats = dataset(stats, dims, **attrs).assign_coords(client=list(draws.client_names))
    if draws.client_drift is not None:
        sample_stats["client_drift_rms"] = (("chain", "client"), draws.client_drift)
    return groups | {"sample_stats": sample_stats}


def rows_here(rows: Federation | Batch, model: Model) -> tuple[Batch, list[str] | None]:
    """Return rows of all clients in their order, and whose each is; refuse rows that are elsewhere."""
    if isinstance(rows, RemoteFederation | Sites):
        raise DataError(
            "The rows lie with the sites of a federation, so neither they nor their log likelihoods can come here; "
            "draws.loo(rows, engine=...) asks the sites, which answer in sums."
        )
    if not isinstance(rows, Federation):
        return tree.as_numbers(rows, "rows", DataError), None
    owners = np.repeat(rows.names, rows.sizes).tolist()
    return (with_places(rows) if model.is_by_site else rows).pooled().rows[0], owners


def groups_of_rows(
    model: Model, batch: Batch, owners: list[str] | None, log_likelihoods: np.ndarray
) -> dict[str, xarray.Dataset]:
    """Return what there is about rows; ``log_likelihoods`` is [chain, draw, row]."""
    outcome = model.outcome or "y"
    variables = {name: np.asarray(leaf) for name, leaf in tree.named_leaves(batch, "rows").items()}
    features = [str(name) for name in model.coords.get("feature", ())]
    dims = {
        name: ["feature"] for name, values in variables.items() if features and values.shape[1:] == (len(features),)
    }
    labels = {"row": range(log_likelihoods.shape[-1]), "feature": features}

    def of_rows(names: Mapping[str, np.ndarray]) -> xarray.Dataset:
        return dataset(names, dims, labels, ("row",))

    groups = {"log_likelihood": dataset({outcome: log_likelihoods}, {outcome: ["row"]}, labels)}
    if observed := {name: values for name, values in variables.items() if name == outcome}:
        groups["observed_data"] = of_rows(observed)
    if constant := {name: values for name, values in variables.items() if name != outcome}:
        groups["constant_data"] = of_rows(constant)
    if owners is None:
        return groups
    return {name: data.assign_coords(client=("row", owners)) for name, data in groups.items()}


def split_off_warmup(groups: Mapping[str, xarray.Dataset], warmup: int, num_draws: int) -> dict[str, xarray.Dataset]:
    """Move the first draws of every chain into groups of their own."""
    if not warmup < num_draws:
        raise SettingsError(f"warmup is {warmup:,}, but a chain has {num_draws:,} draws; count fewer as warm-up.")
    parts: dict[str, xarray.Dataset] = {}
    for name, data in groups.items():
        if "draw" in data.dims:
            parts[name] = data.isel(draw=slice(warmup, None))
            if name != "log_likelihood":
                parts[f"warmup_{name}"] = data.isel(draw=slice(warmup))
        else:
            parts[name] = data
    return parts
