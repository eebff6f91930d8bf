"""What came out of a run: positions, statistics of the sampler, and what it cost."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from fahmc import stein, tree
from fahmc.certificate import certificate
from fahmc.density.model import try_shape
from fahmc.errors import CheckpointError, ModelError
from fahmc.types import Batch, Position

if TYPE_CHECKING:
    import arviz
    import pandas

# Draws that a model looks at in one call: enough to hide the call, few enough to hold their predictions.
_CHUNK = 256
# How ∇f at the draws is called among the statistics in ArviZ and in files.
_GRADIENTS = "potential_gradient"


@dataclass(frozen=True, eq=False)
class Draws:
    """Draws of all chains. One draw is the average of the clients after a round, or as the sampler says."""

    positions: Position
    """Pytree of arrays [chain, draw, ...]."""
    stats: dict[str, np.ndarray]
    """Each [chain, draw]: ``diverging``, and if the sampler has them ``client_drift`` = (Σ_c w_c |θ_c − θ|²)^½ at the
    round's end, ``step_size``, ``n_steps``, and with Metropolis correction ``acceptance_rate``."""
    client_names: tuple[str, ...]
    client_drift: Any
    """[chain, client]: root mean square of |θ_c − θ| over the rounds after warm-up; None if the sampler has no θ_c."""
    settings: dict[str, Any]
    """Everything the draws depend on, as JSON values."""
    cost: dict[str, float]
    """``rounds`` (warm-up included), ``seconds``, ``row_gradients``, ``bytes_to_clients``, ``bytes_to_server``."""
    dims: Mapping[str, Any] = field(default_factory=dict)
    coords: Mapping[str, Any] = field(default_factory=dict)
    account: dict[str, Any] = field(default_factory=dict)
    """What the sampler decided and knew, as JSON values. ``choices``: sentences, what was chosen and why. ``doubts``:
    sentences, what may be wrong. ``weights``, of draws resampled by importance: ``k_hat``, ``num_points``, and ``ess``,
    ``mcse`` and ``mcse_sd`` (in the parameter's unit), a list of one number per flat coordinate each."""
    gradients: np.ndarray | None = field(default=None, repr=False)
    """[chain, draw, dim]: ∇f at each draw, f = −log posterior / temperature, along the flattened position; None where
    the sampler does not know it (``FAHMC(with_gradients=True)`` and `SplitHMC` do)."""
    model: Any = field(default=None, repr=False)
    """The model that was sampled; not stored in files."""

    @property
    def num_chains(self) -> int:
        """Number of chains."""
        return jax.tree.leaves(self.positions)[0].shape[0]

    @property
    def num_draws(self) -> int:
        """Draws kept in each chain."""
        return jax.tree.leaves(self.positions)[0].shape[1]

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name} {list(value.shape[2:])}" for name, value in self.named().items())
        return f"Draws({self.num_chains} chains x {self.num_draws} draws: {shapes})"

    def named(self) -> dict[str, np.ndarray]:
        """Return the leaves of the positions by name, each [chain, draw, ...]."""
        return dict(zip(tree.leaf_names(self.positions), jax.tree.leaves(self.positions), strict=True))

    def flat(self) -> np.ndarray:
        """Return the positions as one array [chain, draw, dim]."""
        return tree.flatten_draws(self.positions)

    def summary(self, interval: float = 0.95) -> pandas.DataFrame:
        """Tabulate mean, sd, central interval, Monte Carlo errors, ESS and R-hat of every parameter, by ArviZ.

        R-hat needs at least two chains and four draws, and is NaN otherwise. Draws that were resampled from weighted
        ones tell no more than these: ESS is at most, and the errors of mean and sd at least, those of the weights.

        Where the draws know their gradients, ``mean_cv`` is the posterior mean with these as control variates and
        ``mcse_cv`` its Monte Carlo error: usually a far smaller one, and without most of the bias that `bias` tells of
        ``mean``, which is always that of the draws.
        """
        import pandas

        from fahmc._arviz import arviz as az

        table: Any = az.summary(self.to_arviz(), group="posterior", kind="diagnostics", round_to="none")
        table = table.filter(regex="^(ess|mcse|r_hat)")
        values = pandas.DataFrame(self.flat().reshape(-1, len(table)), columns=table.index, dtype=np.float64)
        table.insert(0, "mean", values.mean())
        table.insert(1, "sd", values.std())
        for place, level in enumerate(((1 - interval) / 2, (1 + interval) / 2), start=2):
            table.insert(place, f"{100 * level:g}%", values.quantile(level))
        if weights := self.account.get("weights"):
            for column in ("ess_bulk", "ess_tail"):
                table[column] = np.minimum(table[column], weights["ess"])
            table["mcse_mean"] = np.maximum(table["mcse_mean"], weights["mcse"])
            table["mcse_sd"] = np.maximum(table["mcse_sd"], weights["mcse_sd"])
        if (moments := self.posterior_moments) is not None:
            table["mean_cv"], table["mcse_cv"] = moments.mean, moments.mean_error
        return table

    @cached_property
    def bias(self) -> pandas.DataFrame:
        """Tabulate how far the mean and sd of every parameter are from the posterior's, each with its standard error.

        ``mean_shift`` is in posterior standard deviations, ``sd_excess`` a share of the sd (0.1: a tenth too wide).
        They are those of the run as it is, bias and Monte Carlo error together. ``attrs["found_by"]`` says what tells
        them: ``"gradients"`` at the draws, the ``"exactness"`` of a sampler that accepts or rejects, importance
        ``"weights"``, or ``"nothing"``, and then they are NaN (`fahmc.certificate`).
        """
        with np.errstate(divide="ignore", invalid="ignore"):  # a constant parameter's R-hat
            return certificate(self, self.summary())

    @cached_property
    def posterior_moments(self) -> stein.Moments | None:
        """The posterior's means and sds as the gradients tell them; None without gradients."""
        return None if self.gradients is None else stein.posterior_moments(self.flat(), self.gradients)

    def to_arviz(self, log_likelihood: Any = None) -> arviz.InferenceData:
        """Convert to ArviZ: groups ``posterior`` and ``sample_stats``, dims (chain, draw).

        Parameters
        ----------
        log_likelihood
            A `Federation` (or a batch of rows): adds the group ``log_likelihood`` of its rows, in the clients' order,
            for LOO and WAIC. Needs the model, which draws loaded from a file do not have.
        """
        from fahmc._arviz import arviz as az

        groups: dict[str, Any] = {"posterior": self.named(), "sample_stats": dict(self.stats)}
        dims = {name: list(self.dims[name]) for name in self.named() if name in self.dims}
        if self.gradients is not None:
            groups["sample_stats"][_GRADIENTS], dims[_GRADIENTS] = self.gradients, ["coordinate"]
        if log_likelihood is not None:
            rows = log_likelihood.pooled().rows[0] if hasattr(log_likelihood, "pooled") else log_likelihood
            values = np.concatenate(self._map(self._need_model().row_loglikelihoods, rows, "loglikelihood_fn"))
            groups["log_likelihood"] = {"rows": values.reshape(self.num_chains, self.num_draws, -1)}
            dims["rows"] = ["row"]
        attrs = {
            "inference_library": "fahmc",
            "inference_library_version": version("fahmc"),
            "sampling_time": self.cost.get("seconds", float("nan")),
        }
        with warnings.catch_warnings():
            # ArviZ suspects swapped axes when chains outnumber draws; ours are in order.
            warnings.filterwarnings("ignore", "More chains")
            data: Any = az.from_dict(
                **groups, coords=dict(self.coords), dims=dims, posterior_attrs=attrs, sample_stats_attrs=attrs
            )
        data.sample_stats = data.sample_stats.assign_coords(client=list(self.client_names))
        if self.client_drift is not None:
            data.sample_stats["client_drift_rms"] = (("chain", "client"), self.client_drift)
        return data

    def save(self, path: str | os.PathLike) -> None:
        """Write a netCDF file that ArviZ can read, and `Draws.load` too."""
        data = self.to_arviz()
        data.attrs["fahmc"] = json.dumps(
            {
                "positions": tree.skeleton(self.positions),
                "settings": self.settings,
                "cost": self.cost,
                "account": self.account,
                "dims": {name: list(dims) for name, dims in self.dims.items()},
                "coords": {name: [str(entry) for entry in entries] for name, entries in self.coords.items()},
            }
        )
        # Written beside its place and renamed: an interrupted save never replaces a good file with half of one.
        temporary = f"{os.fspath(path)}.tmp"
        try:
            data.to_netcdf(temporary, engine="h5netcdf")
            os.replace(temporary, path)
        except OSError as error:
            raise CheckpointError(f"The draws cannot be saved as {path}: {error}. Does its folder exist?") from error

    @classmethod
    def load(cls, path: str | os.PathLike) -> Draws:
        """Read what `save` wrote. Positions come back as dicts, lists and tuples of NumPy arrays."""
        from fahmc._arviz import arviz as az

        if not Path(path).exists():
            raise CheckpointError(f"{path} does not exist; Draws.load needs a file written by Draws.save.")
        try:
            data: Any = az.from_netcdf(os.fspath(path), engine="h5netcdf")
            about = json.loads(data.attrs.get("fahmc", ""))
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path} is not a file written by Draws.save.") from error
        arrays = {str(name): values.values for name, values in data.posterior.data_vars.items()}
        stats = {str(name): values.values for name, values in data.sample_stats.data_vars.items()}
        return cls(
            positions=tree.fill(about["positions"], arrays),
            client_drift=stats.pop("client_drift_rms", None),
            gradients=stats.pop(_GRADIENTS, None),
            client_names=tuple(str(name) for name in data.sample_stats.client.values),
            stats=stats,
            settings=about["settings"],
            cost=about["cost"],
            account=about.get("account", {}),
            dims=about["dims"],
            coords=about["coords"],
        )

    def predict(self, batch: Batch, *, model: Any = None, average: bool = True) -> np.ndarray:
        """Return the model's prediction for each row, averaged over all draws: the posterior predictive mean.

        Parameters
        ----------
        model
            The model, for draws that were loaded from a file.
        average
            False gives the prediction of every draw, [chain, draw, row, ...].
        """
        predict = (model or self._need_model()).predict
        if not average:
            values = np.concatenate(self._map(predict, batch, "predict_fn"))
            return values.reshape(self.num_chains, self.num_draws, *values.shape[1:])
        # Summed in double precision: in single, the sum over a million draws would lose its last digits.
        sums = self._map(predict, batch, "predict_fn", lambda chunk: chunk.sum(axis=0, dtype=np.float64))
        return np.sum(sums, axis=0) / (self.num_chains * self.num_draws)

    def _map(self, function: Any, rows: Batch, name: str, reduce: Any = np.asarray) -> list[np.ndarray]:
        """Apply a function of (position, rows) to the draws, chunk by chunk, and keep what ``reduce`` makes of each."""
        flat = jax.tree.map(lambda leaf: np.reshape(leaf, (-1, *leaf.shape[2:])), self.positions)
        starts = range(0, self.num_chains * self.num_draws, _CHUNK)
        chunks = [jax.tree.map(lambda leaf, start=start: leaf[start : start + _CHUNK], flat) for start in starts]
        with jax.enable_x64(jax.tree.leaves(flat)[0].dtype == np.float64):
            rows = jax.tree.map(jnp.asarray, rows)
            try_shape(name, "", function, jax.tree.map(lambda leaf: leaf[0], flat), rows)
            compiled = jax.jit(
                lambda positions, rows: jax.lax.map(lambda position: function(position, rows), positions)
            )
            return [reduce(np.asarray(compiled(chunk, rows))) for chunk in chunks]

    def _need_model(self) -> Any:
        if self.model is None:
            raise ModelError("These draws do not know their model, as they come from a file; give model=... as well.")
        return self.model
