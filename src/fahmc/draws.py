"""What came out of a run: positions, statistics of the sampler, and what it cost."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from fahmc import door, draws_file, durable, stein, tree
from fahmc.certificate import certificate
from fahmc.checks import cross_validation, fitted
from fahmc.density.model import Model, try_shape
from fahmc.errors import CheckpointError, DataError, ModelError, shown
from fahmc.hints import Count, Seed, WarmupRounds
from fahmc.types import Batch, Position

if TYPE_CHECKING:
    import pandas
    import xarray

    from fahmc.checks.calibration_result import Calibration
    from fahmc.checks.loo import Loo
    from fahmc.checks.predictive_result import PredictiveCheck

# Draws that a model looks at in one call: enough to hide the call, few enough to hold their predictions.
_CHUNK = 256


@dataclass(frozen=True, eq=False)
class Draws:
    """Draws of all chains. One draw is the average of the clients after a round, or as the sampler says."""

    positions: Position
    """Pytree of arrays [chain, draw, ...]: the parameters as the model's functions see them, and what derives from them
    (``Model.derived_fn``)."""
    stats: dict[str, np.ndarray]
    """Each [chain, draw]: ``diverging``, and if the sampler has them ``client_drift`` = (Σ_c w_c |θ_c − θ|²)^½ at the
    round's end, ``step_size``, ``n_steps``, and with Metropolis correction ``acceptance_rate``."""
    client_names: tuple[str, ...]
    client_drift: Any
    """[chain, client]: root mean square of |θ_c − θ| over the rounds after warm-up; None if a sampler has no θ_c, or a
    secure sum hid them: how far all clients stray together stands in ``stats``."""
    settings: dict[str, Any]
    """Everything the draws depend on, as JSON values."""
    cost: dict[str, float]
    """``rounds`` (warm-up included), ``seconds``, ``row_gradients``, ``bytes_to_clients``, ``bytes_to_server``."""
    dims: Mapping[str, Any] = field(default_factory=dict)
    coords: Mapping[str, Any] = field(default_factory=dict)
    account: dict[str, Any] = field(default_factory=dict)
    """What the sampler decided and knew, as JSON values. ``choices``: sentences, what was chosen and why. ``doubts``:
    sentences, what may be wrong. ``weights``, of draws resampled by importance: ``k_hat``, ``num_points``, and ``ess``,
    ``mcse`` and ``mcse_sd`` (in the parameter's unit), a list of one number per coordinate of `flat` each."""
    gradients: np.ndarray | None = field(default=None, repr=False)
    """[chain, draw, dim]: ∇f at each draw, f = −log posterior / temperature, along the flattened `unconstrained`; None
    where the sampler does not know it (``FAHMC(with_gradients=True)`` and `SplitHMC` do)."""
    sampled: Position | None = field(default=None, repr=False)
    """What `unconstrained` returns where it is not the same as ``positions``."""
    derived: tuple[str, ...] = ()
    """The entries of ``positions`` that are no parameters but derive from them."""
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

    @property
    def unconstrained(self) -> Position:
        """The free numbers that the sampler moved, [chain, draw, ...] each (`fahmc.density.supports`)."""
        return self.positions if self.sampled is None else self.sampled

    @property
    def parameters(self) -> Position:
        """The positions without what derives from them: what the model's functions take."""
        if not self.derived:
            return self.positions
        return {name: values for name, values in self.positions.items() if name not in self.derived}

    def named(self) -> dict[str, np.ndarray]:
        """Return the leaves of the positions by name, each [chain, draw, ...]."""
        return tree.named_leaves(self.positions)

    def flat(self) -> np.ndarray:
        """Return the positions as one array [chain, draw, dim], in the order of `summary`."""
        return tree.flatten_draws(self.positions)

    def flat_unconstrained(self) -> np.ndarray:
        """Return `unconstrained` as one array [chain, draw, dim]: the coordinates of ``gradients``."""
        return tree.flatten_draws(self.unconstrained)

    def summary(self, interval: float = 0.95) -> pandas.DataFrame:
        """Tabulate mean, sd, central interval, Monte Carlo errors, ESS and R-hat of every parameter, by ArviZ.

        R-hat needs at least two chains and four draws, and is NaN otherwise. Draws that were resampled from weighted
        ones tell no more than these: ESS is at most, and the errors of mean and sd at least, those of the weights.

        Where the draws know their gradients, ``mean_cv`` is the posterior mean with these as control variates and
        ``mcse_cv`` its Monte Carlo error: usually a far smaller one, and without most of the bias that `bias` tells of
        ``mean``, which is always that of the draws.
        """
        import pandas

        from fahmc import _arviz

        table = _arviz.diagnostics(self.groups()["posterior"])
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
        with np.errstate(
            divide="ignore", invalid="ignore", over="ignore"
        ):  # of a constant parameter, or of one beyond all bounds
            return certificate(self, self.summary())

    @cached_property
    def posterior_moments(self) -> stein.Moments | None:
        """Means and sds of the posterior, along `flat`, as the gradients tell them; None without gradients."""
        if self.gradients is None:
            return None
        values = None if self.sampled is None else self.flat()
        return stein.posterior_moments(self.flat_unconstrained(), self.gradients, values)

    def groups(self) -> dict[str, xarray.Dataset]:
        """Return the draws as xarray's datasets, in the groups that ArviZ has for them (`fahmc.arviz_groups`)."""
        from fahmc import arviz_groups

        return arviz_groups.groups_of(self)

    def to_arviz(self, rows: Any = None, *, warmup: WarmupRounds = 0) -> Any:
        """Convert to ArviZ: an ``InferenceData`` with ArviZ 0.x, an ``xarray.DataTree`` with 1.x.

        Groups are ``posterior`` and ``sample_stats``, dims (chain, draw); where the sampler moved other numbers than
        the parameters, these are ``unconstrained_posterior`` (`fahmc.arviz_groups`).

        Parameters
        ----------
        rows
            A `Federation` in this process (or a batch of rows): adds ``log_likelihood``, for `arviz.loo`,
            ``observed_data`` and ``constant_data`` of its rows, in the clients' order. Needs the model, which draws
            loaded from a file do not have.
        warmup
            How many draws at the beginning of every chain are warm-up, of a run that kept it
            (``num_warmup_rounds=0``): they go into ``warmup_posterior`` and ``warmup_sample_stats``.
        """
        from fahmc import _arviz, arviz_groups

        groups, warmup = self.groups(), door.admit("warmup", WarmupRounds, warmup)
        if rows is not None:
            model = self._need_model()
            batch, owners = arviz_groups.rows_here(rows, model)
            values = np.concatenate(self._map(model.row_loglikelihoods, batch, "loglikelihood_fn"))
            values = values.reshape(self.num_chains, self.num_draws, -1)
            groups |= arviz_groups.groups_of_rows(model, batch, owners, values)
        if warmup:
            groups = arviz_groups.split_off_warmup(groups, warmup, self.num_draws)
        return _arviz.inference_data(groups)

    def save(self, path: str | os.PathLike) -> None:
        """Write a netCDF file that ArviZ can read, and `Draws.load` too; only such a file is ever replaced."""
        path = Path(path)
        about = {
            "positions": tree.skeleton(self.positions),
            "sampled": None if self.sampled is None else tree.skeleton(self.sampled),
            "derived": list(self.derived),
            "settings": self.settings,
            "cost": self.cost,
            "account": self.account,
            "dims": {name: list(dims) for name, dims in self.dims.items()},
            "coords": {name: [str(entry) for entry in entries] for name, entries in self.coords.items()},
        }
        try:
            if os.path.lexists(path) and not draws_file.may_replace(path):
                raise CheckpointError(
                    f"{path} is there already, and Draws.save did not write it; choose another name, or remove it."
                )
            durable.write_atomically(path, *draws_file.encode(self.groups(), about))
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"The draws cannot be saved as {path} ({error}). Does its folder exist, may you write there, and is "
                "there space?"
            ) from error

    @classmethod
    def load(cls, path: str | os.PathLike) -> Draws:
        """Read what `save` wrote. Positions come back as dicts, lists and tuples of NumPy arrays."""
        from fahmc.arviz_groups import FREE, GRADIENTS

        groups, about = draws_file.decode(Path(path))
        try:
            arrays, stats = (
                {str(name): values.values for name, values in groups[group].data_vars.items()}
                for group in ("posterior", "sample_stats")
            )
            free = {str(name): values.values for name, values in groups.get(FREE, {}).items()}
            draws = cls(
                positions=tree.fill(about["positions"], arrays),
                sampled=tree.fill(about["sampled"], free),
                derived=tuple(about["derived"]),
                client_drift=stats.pop("client_drift_rms", None),
                gradients=stats.pop(GRADIENTS, None),
                client_names=tuple(str(name) for name in dict(groups["sample_stats"].coords)["client"].values),
                stats=stats,
                settings=dict(about["settings"]),
                cost=dict(about["cost"]),
                account=dict(about["account"]),
                dims=dict(about["dims"]),
                coords=dict(about["coords"]),
            )
            draws._check(about)
        except Exception as error:  # of a file with a sound checksum, so a forgery, or another version's
            raise CheckpointError(f"{path} does not hold what Draws.save writes ({shown(error)}).") from error
        return draws

    def _check(self, about: Mapping[str, Any]) -> None:
        """Refuse what does not go together."""
        are_alike = all(tree.skeleton(getattr(self, kind)) == about[kind] for kind in ("positions", "sampled"))
        if not are_alike or not all(isinstance(x, int | float) for x in self.cost.values()):
            raise ValueError("positions or cost are of another kind")
        if not set(self.derived) <= set(self.positions if self.derived else ()):
            raise ValueError(f"{self.derived} derive from the parameters, but are not there")
        axes, free = (self.num_chains, self.num_draws), tree.named_leaves(self.unconstrained)
        for name, values in [*self.named().items(), *free.items(), *self.stats.items()]:
            if values.shape[:2] != axes or values.dtype.kind not in "biuf":
                raise ValueError(f"{name} of shape {values.shape} and dtype {values.dtype} for chains x draws = {axes}")
        flat = self.flat_unconstrained()
        if self.gradients is not None and self.gradients.shape != flat.shape:
            raise ValueError(f"gradients of shape {self.gradients.shape} for draws of shape {flat.shape}")

    def predict(self, batch: Batch, *, model: Any = None, average: bool = True) -> np.ndarray:
        """Return the model's prediction for each row, averaged over all draws: the posterior predictive mean.

        Parameters
        ----------
        model
            The model, for draws that were loaded from a file.
        average
            False gives the prediction of every draw, [chain, draw, row, ...].
        """
        predict = door.admit("model", Model, self._need_model() if model is None else model).predict
        batch = tree.as_numbers(batch, "batch", DataError)
        if not average:
            values = np.concatenate(self._map(predict, batch, "predict_fn"))
            return values.reshape(self.num_chains, self.num_draws, *values.shape[1:])
        # Summed in double precision: in single, the sum over a million draws would lose its last digits.
        sums = self._map(predict, batch, "predict_fn", lambda chunk: chunk.sum(axis=0, dtype=np.float64))
        return np.sum(sums, axis=0) / (self.num_chains * self.num_draws)

    def loo(self, rows: Any, *, engine: Any = None, model: Any = None, max_draws: Count = 4000) -> Loo:
        """Estimate how well the model predicts rows that it has not seen: PSIS-LOO, summed over the rows' owners.

        It equals ``arviz.loo(draws.to_arviz(federation))`` to rounding, but no owner tells more than sums over its rows
        (`fahmc.checks.loo`).

        Parameters
        ----------
        rows
            The `Federation` that was sampled; or `Sites`, with the ``engine`` that reaches them.
        model
            The model, for draws that were loaded from a file.
        max_draws
            Draws that are used, thinned evenly if there are more.
        """
        return cross_validation.loo(self, rows, engine=engine, model=model, max_draws=max_draws)

    def predictive_check(
        self, rows: Any, *, engine: Any = None, model: Any = None, max_draws: Count = 1000, seed: Seed = 0
    ) -> PredictiveCheck:
        """Set the outcomes against those that the model makes of the same rows: a posterior predictive check.

        Where the rows are, the model's ``sample_fn`` draws every row's outcome again at each draw; only sums and counts
        are told (`fahmc.checks.predictive`). ``rows``, ``engine``, ``model`` and ``max_draws`` are as in `loo`.

        Parameters
        ----------
        seed
            Of the outcomes that are drawn; sites of a real federation mix in a secret of their own.
        """
        return fitted.predictive_check(self, rows, engine, model, max_draws, seed)

    def calibration(self, rows: Any, *, engine: Any = None, model: Any = None, max_draws: Count = 4000) -> Calibration:
        """Hold P(y = 1), as the model predicts it, against the ones there are: reliability, scores, ROC.

        For models whose ``predict_fn`` gives P(y = 1), or the chances of two classes. Where the rows are, they are
        counted by what is predicted (`fahmc.checks.calibration`); the arguments are as in `loo`.
        """
        return fitted.calibration(self, rows, engine, model, max_draws)

    def _map(self, function: Any, rows: Batch, name: str, reduce: Any = np.asarray) -> list[np.ndarray]:
        """Apply a function of (position, rows) to the draws, chunk by chunk, and keep what ``reduce`` makes of each."""
        flat = jax.tree.map(lambda leaf: np.reshape(leaf, (-1, *leaf.shape[2:])), self.parameters)
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
