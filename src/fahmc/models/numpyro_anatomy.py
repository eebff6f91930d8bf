"""What a NumPyro model consists of, found by running it on a few rows, and why some models are none for a federation.

A federation's likelihood is a product over rows, each of which knows its own columns and the parameters alone:

    p(θ) Π_i p(y_i | x_i, θ)

so that any owner can work out the factors of its rows. The model is run on three rows and on one (with two clients and
with four, if it takes their number); what changes its size is of rows (or of clients). Then every row's likelihood is
worked out together with the others and alone, which must be the same, as must be all that is said to be the prior's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.ops.provenance import eval_provenance

from fahmc.data.places import SITE
from fahmc.errors import FahmcError, ModelError, first_line
from fahmc.models.numpyro_program import Program, Trace, about, is_latent, log_density, prior_terms, row_sums
from fahmc.models.numpyro_sites import (
    NUM_ROWS,
    NUM_SITES,
    Inspection,
    changes,
    check_latent,
    dims_of,
    is_free,
    is_same,
    plain,
    plates_of,
)
from fahmc.models.numpyro_tries import first_row_for, possible_outcomes, unlike_rows

# Double precision, in another order of sums.
_ROUNDING = 1e-8


@dataclass(frozen=True)
class Anatomy:
    """The sites of a model, by what they are."""

    rows: str
    """The plate of rows."""
    latents: tuple[str, ...]
    prior: tuple[str, ...]
    """The latents, and what is observed outside of the plate of rows, whatever the rows: soft constraints, factors."""
    observed: tuple[str, ...]
    """In the plate of rows."""
    derived: tuple[str, ...]
    """Deterministic sites that do not depend on rows."""
    supports: Mapping[str, Any]
    """Of latents that are not free."""
    dims: Mapping[str, list[str]]
    site_axes: Mapping[str, int]
    """Along which axis a latent or derived site has an entry for each client."""
    site_dim: str
    """What this axis is called."""
    columns: Mapping[str, str]
    """Which column of the rows an observed site is of, where it is one as it stands."""
    outcomes: Mapping[str, Any]
    """Where this column must lie, if that does not depend on parameters or rows."""

    def num_sites(self, values: Mapping[str, Any]) -> int:
        """Return how many clients values at sites are for; 1 if they do not tell, as then it does not matter."""
        axes = ((name, self.site_axes[name]) for name in values if name in self.site_axes)
        return next((jnp.shape(values[name])[axis] for name, axis in axes), 1)


class Look:
    """Both runs of a model, and what they are asked."""

    def __init__(self, program: Program, rows: str | None):
        self.program = program
        with jax.enable_x64(True):
            places = {SITE: np.arange(NUM_ROWS[0]) % NUM_SITES[0]} if program.is_by_site else {}
            tries = unlike_rows(program.example) | places
            self.tries = {name: jnp.asarray(values) for name, values in tries.items()}
            large = _attempt(self._run, self.tries, NUM_SITES[0], 0.3)
            small = _attempt(self._run, {name: values[:1] for name, values in self.tries.items()}, NUM_SITES[1], -0.5)
            self.anatomy = _dissect(program, large, small, rows, self.tries)
            outcomes = {column: large[name] for name, column in self.anatomy.columns.items()}
            self.tries |= possible_outcomes(outcomes, self.tries)
            self.values = {name: large[name]["value"] for name in self.anatomy.latents}
            self._check_rows_alone()

    def _run(self, rows: Mapping[str, Any], num_sites: int, place: float) -> Trace:
        function = Inspection(self.program.function)
        return replace(self.program, function=function).run({}, rows, num_sites=num_sites, fill=about(place))

    def _check_rows_alone(self) -> None:
        """Refuse a model in which rows know of each other, and drop derived sites that know of rows."""
        anatomy, tries = self.anatomy, self.tries

        @jax.jit
        def parts(rows: Any) -> Any:
            trace = self.program.run(self.values, rows, num_sites=NUM_SITES[0])
            fits = {name: row_sums(log_density(trace[name]), trace[name], anatomy.rows) for name in anatomy.observed}
            derived = {name: jnp.asarray(trace[name]["value"]) for name in anatomy.derived}
            return fits, prior_terms(trace, anatomy.prior), derived

        fits, prior, derived = _attempt(parts, tries)
        if not (can_occur := np.isfinite(sum(map(np.asarray, fits.values())))).all() and can_occur[0]:
            self.tries = tries = first_row_for(~can_occur, tries)
            fits, prior, derived = _attempt(parts, tries)
        alone = [
            _attempt(parts, {name: values[i : i + 1] for name, values in tries.items()}) for i in range(NUM_ROWS[0])
        ]
        for name, together in fits.items():
            if not np.isfinite(together[0]):
                raise ModelError(
                    f"The log likelihood {name!r} of the example's first row is {together[0]}; give rows in the "
                    "example that can occur."
                )
            if not _close(together, np.concatenate([own[0][name] for own in alone])):
                raise ModelError(
                    f"The likelihood {name!r} of a row changes when other rows come or go, so that it is not a product "
                    "over rows. What rows share (means, scales, counts of rows) must come as constants or as columns."
                )
        for name, together in prior.items():
            if all(_close(together, own[1][name]) for own in alone):
                continue
            if name not in anatomy.latents:
                raise ModelError(
                    f"The observed site {name!r} depends on rows, but it is not in their plate, {anatomy.rows!r}; put "
                    "it there, so that each of its terms is a row's."
                )
            raise ModelError(
                f"The prior of {name!r} depends on the rows, which no single owner has all of. Write it without "
                "them, or give what it needs as constants."
            )
        kept = [name for name in anatomy.derived if all(_close(derived[name], own[2][name]) for own in alone)]
        self.anatomy = replace(anatomy, derived=tuple(kept))

    def needed(self, fits: Callable[..., Any]) -> tuple[str, ...]:
        """Return the latent sites that row log likelihoods are computed from."""
        with jax.enable_x64(True):
            found = eval_provenance(lambda **values: fits(values, self.tries), **self.values)
        return tuple(name for name in self.anatomy.latents if name in found)

    def same_fits(self, one: Callable[..., Any], other: Callable[..., Any]) -> bool:
        """Return whether two functions of values at sites and rows give the same log likelihoods."""
        with jax.enable_x64(True):
            found = _attempt(jax.jit(lambda values: (one(values, self.tries), other(values, self.tries))), self.values)
            return _close(*found)


def _attempt(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except FahmcError:
        raise
    except Exception as error:
        raise ModelError(
            f"The NumPyro model failed on the example's rows (three of them, and one): {type(error).__name__}: "
            f"{first_line(error)}."
        ) from error


def _dissect(program: Program, large: Trace, small: Trace, plate: str | None, rows: Mapping[str, Any]) -> Anatomy:
    if odd := sorted(set(large) ^ set(small)):
        raise ModelError(
            f"The site {odd[0]!r} comes and goes with the number of rows, of which owners have any number."
        )
    samples = [name for name, site in large.items() if site["type"] == "sample"]
    latents = tuple(name for name in samples if is_latent(large[name]))
    derived = tuple(name for name, site in large.items() if site["type"] == "deterministic")
    plate = _plate_of_rows(large, small, [name for name in samples if name not in latents], plate)
    observed = tuple(name for name in samples if name not in latents and plate in plates_of(large[name]))
    site_axes = {}
    for name in (*latents, *derived):
        if name in latents:
            check_latent(name, large[name], small[name], plate)
        if of_sites := [axis for axis, sizes in changes(large[name], small[name]).items() if sizes == NUM_SITES]:
            site_axes[name] = of_sites[0]
    if program.is_by_site and not any(name in site_axes for name in latents):
        raise ModelError(
            "The NumPyro model takes site and num_sites, but no parameter has an entry for each client; put what "
            'belongs to clients into numpyro.plate("sites", num_sites), or leave both out.'
        )
    site_dim = _site_dim(large, small)
    dims = {name: dims_of(name, large[name]) for name in latents if plates_of(large[name])}
    for name in derived:
        if name in site_axes:
            axes = range(np.ndim(large[name]["value"]))
            dims[name] = [site_dim if axis == site_axes[name] else f"{name}_dim_{axis}" for axis in axes]
    supports = {name: large[name]["fn"].support for name in samples}
    columns = {name: column for name in observed for column in rows if large[name]["value"] is rows[column]}
    fixed = [name for name in columns if is_same(supports[name], small[name]["fn"].support)]
    return Anatomy(
        rows=plate,
        latents=latents,
        prior=tuple(name for name in samples if name not in observed),
        observed=observed,
        derived=derived,
        supports={name: plain(supports[name]) for name in latents if not is_free(supports[name])},
        dims=dims,
        site_axes=site_axes,
        site_dim=site_dim,
        columns=columns,
        outcomes={name: plain(supports[name]) for name in fixed},
    )


def _plate_of_rows(large: Trace, small: Trace, observed: Sequence[str], named: str | None) -> str:
    sizes = {name: (site["args"][0], small[name]["args"][0]) for name, site in large.items() if site["type"] == "plate"}
    found = [name for name, pair in sizes.items() if pair == NUM_ROWS]
    if named is not None and named not in found:
        raise ModelError(
            f"rows = {named!r}, but no plate of this name has the number of rows as its size; the plates are "
            f"{', '.join(sizes) or 'none'}."
        )
    if not observed:
        raise ModelError(
            "The NumPyro model observes nothing: no site has obs=... with these arguments. Give the outcome in the "
            "example, under the name of the function's argument."
        )
    if not found:
        raise ModelError(
            f"No plate has the number of rows as its size; put {', '.join(map(repr, observed))} under "
            '`with numpyro.plate("rows", x.shape[0]):`, so that each of its terms is a row\'s.'
        )
    about = [name for name in found if any(name in plates_of(large[site]) for site in observed)]
    if named is None and len(about) > 1:
        raise ModelError(f"The plates {', '.join(about)} all have a size that follows the rows; name theirs: rows=....")
    if not about or (named is not None and named not in about):
        raise ModelError(
            f"No observed site is in the plate of rows, {named or found[0]!r}; put {', '.join(map(repr, observed))} "
            "there, so that each of its terms is a row's."
        )
    return named or about[0]


def _site_dim(large: Trace, small: Trace) -> str:
    for name, site in large.items():
        if site["type"] == "plate" and (site["args"][0], small[name]["args"][0]) == NUM_SITES:
            return name
    return SITE


def _close(one: Any, other: Any) -> bool:
    one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
    return one.shape == other.shape and np.allclose(one, other, rtol=_ROUNDING, atol=_ROUNDING, equal_nan=True)
