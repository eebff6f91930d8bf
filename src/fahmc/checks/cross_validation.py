"""`Draws.loo` and `fahmc.compare_models`: how well models predict rows that they have not seen, over all sites."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from fahmc import door
from fahmc.checks.ask import MAX_DRAWS, Asked, ask, check_untempered, efficiency, kept_draws, side_by_side
from fahmc.checks.loo import Loo, LooSums, PsisLoo
from fahmc.data.federation import Federation
from fahmc.density.model import Model
from fahmc.errors import DataError, ModelError, SettingsError, shown

if TYPE_CHECKING:
    import pandas

    from fahmc.draws import Draws

LOO = "Leave-one-out cross-validation"


def loo(draws: Draws, rows: Any, *, engine: Any = None, model: Any = None, max_draws: int = MAX_DRAWS) -> Loo:
    """Return what leave-one-out cross-validation says of a run: see `Draws.loo`."""
    (result,), _ = _loo_sums({"the model": draws}, {"the model": rows}, engine, {"the model": model}, max_draws)
    return result


@dataclass(frozen=True)
class Comparison:
    """Models side by side, the best first, as ``arviz.compare`` has them."""

    models: dict[str, Loo]
    """By name, from the highest elpd_loo down."""
    differences: dict[str, float]
    """elpd_loo of the best minus that of each."""
    errors: dict[str, float]
    """Standard errors of these, of the pairs: both models find the same rows hard."""

    @property
    def table(self) -> pandas.DataFrame:
        """One row a model: ``rank``, ``elpd_loo``, ``p_loo``, ``elpd_diff``, ``se``, ``dse``, ``warning``."""
        import pandas

        rows = {
            name: {
                "rank": rank,
                "elpd_loo": model.elpd_loo,
                "p_loo": model.p_loo,
                "elpd_diff": self.differences[name],
                "se": model.se,
                "dse": self.errors[name],
                "warning": model.warning,
            }
            for rank, (name, model) in enumerate(self.models.items())
        }
        return pandas.DataFrame.from_dict(rows, orient="index")

    @property
    def sentence(self) -> str:
        """What to make of it."""
        best, second, *_ = self.models
        difference, error = self.differences[second], self.errors[second]
        # Below 4 the normal approximation of the difference is bad; Sivula, Magnusson, Matamoros and Vehtari (2025).
        if difference < 4:
            return f"{best} and {second} predict about equally well: the difference in elpd is {difference:.1f}."
        clear = "clearly better" if difference > 2 * error else "perhaps better, but the difference is within its error"
        return f"{best} predicts {clear}: by {difference:.1f} ± {error:.1f} in elpd over {second}."

    def __str__(self) -> str:
        return f"{self.table.round(2).to_string()}\n{self.sentence}"


def compare_models(
    draws: Mapping[str, Draws],
    rows: Any,
    *,
    engine: Any = None,
    models: Mapping[str, Any] | None = None,
    max_draws: int = MAX_DRAWS,
) -> Comparison:
    """Compare models of the same rows by leave-one-out cross-validation.

    Parameters
    ----------
    draws
        Runs by the models' names.
    rows
        The `Federation` or, with an ``engine``, the `Sites` that the models were fitted to; or a dict of these by
        name, where models take different columns. The outcomes have to be the same, row by row, which is looked at
        where they are.
    models
        The models by name, for draws that were loaded from files.
    max_draws
        Draws of each run that are used, thinned evenly if there are more.
    """
    if not isinstance(draws, Mapping) or len(draws) < 2:
        raise SettingsError(f"draws is {shown(draws)}; give two runs or more by name: {{'a': draws_a, 'b': draws_b}}.")
    of_each = rows if isinstance(rows, Mapping) else dict.fromkeys(draws, rows)
    if set(of_each) != set(draws):
        raise SettingsError(f"rows are given of {sorted(map(str, of_each))}, but the runs are {sorted(draws)}.")
    results, sums = _loo_sums(draws, of_each, engine, models or {}, max_draws)
    order = np.argsort([-result.elpd_loo for result in results], kind="stable")
    names, best = list(draws), sums[order[0]]
    return Comparison(
        models={names[place]: results[place] for place in order},
        differences={names[place]: float(best.differences[place]) for place in order},
        errors={names[place]: float(best.difference_errors[place]) for place in order},
    )


def _loo_sums(
    draws: Mapping[str, Draws], rows: Mapping[str, Any], engine: Any, models: Mapping[str, Any], max_draws: int
) -> tuple[list[Loo], list[LooSums]]:
    asked, efficiencies = [], []
    for name, run in draws.items():
        one = asked_of(run, rows[name], models.get(name), kept_draws(run.parameters, max_draws))
        check_untempered(one.model, one.rows, LOO)
        asked.append(one)
        efficiencies.append(efficiency(kept_draws(run.positions, max_draws)))
    check = PsisLoo(efficiencies)
    answers = ask(check, asked, engine)
    sums = check.conclude(answers)
    by_site = {site: check.conclude({site: answer}) for site, answer in answers.items()}
    sizes = [len(jax.tree.leaves(one.positions)[0]) for one in asked]
    results = [
        Loo.of(sums[fit], size, {site: parts[fit] for site, parts in by_site.items()}) for fit, size in enumerate(sizes)
    ]
    return results, sums


def asked_of(draws: Draws, rows: Any, model: Any, positions: Any) -> Asked:
    """Put together what is asked about a run, or say what is missing or does not belong together."""
    found = draws.model if model is None else model
    if found is None:
        raise ModelError("These draws do not know their model, as they come from a file; give model=... as well.")
    found = door.admit("model", Model, found)
    if found.together:
        raise ModelError(
            "This model keeps the sites' own effects private: the rows of a site have one likelihood together, and "
            'none each, so that single rows cannot be checked. Fit it with site_effects="intercept" to have it checked.'
        )
    if isinstance(rows, Federation):
        sampled = sum(draws.settings.get("clients", {}).values())
        if sampled and sampled != rows.num_rows:
            raise DataError(
                f"The draws were made from {sampled:,} rows, but the federation has {rows.num_rows:,}; give the one "
                "that was sampled."
            )
    elif not hasattr(rows, "columns"):
        raise SettingsError(
            f"rows is {shown(rows)}; give the fahmc.Federation that was sampled, or with an engine fahmc.Sites."
        )
    return Asked(found, side_by_side(positions), rows, draws.settings)
