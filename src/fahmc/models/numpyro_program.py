"""A NumPyro model run on rows, with values put in at its sites.

Arguments of the model's function are found by name: columns of the rows, constants, and ``site`` and ``num_sites``, a
row's client by its place and how many clients there are.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpyro import handlers
from numpyro.distributions import biject_to
from numpyro.primitives import Messenger

from fahmc.data.places import SITE
from fahmc.errors import ModelError, nearest
from fahmc.types import Key

NUM_SITES = "num_sites"
Trace = Mapping[str, dict[str, Any]]
"""What NumPyro tells of a run: its sites by name."""

# Of which a start is the median, as in NumPyro's init_to_median.
_NUM_PRIOR_DRAWS = 15


@dataclass(frozen=True, eq=False)
class Program:
    """A model's function with all that is known of its arguments."""

    function: Callable[..., Any]
    example: Mapping[str, np.ndarray]
    """A few rows, for what does not depend on rows."""
    constants: Mapping[str, Any]
    is_by_site: bool
    """Whether the function takes ``site`` and ``num_sites``."""

    @classmethod
    def of(cls, function: Callable[..., Any], example: Mapping[str, np.ndarray], constants: Mapping[str, Any]):
        """Find every argument, or say which is missing."""
        taken = _parameters_of(function)
        columns = {name: values for name, values in example.items() if name in taken}
        is_by_site = SITE in taken and SITE not in {*example, *constants}
        if NUM_SITES in constants and is_by_site:
            raise ModelError("constants has num_sites, the number of clients, which comes by itself; leave it out.")
        if is_by_site and NUM_SITES not in taken:
            raise ModelError(
                "The NumPyro model takes site, the place of a row's client, but not num_sites, the number of clients; "
                'take both, and put what belongs to clients into numpyro.plate("sites", num_sites).'
            )
        for name in constants:
            if name not in taken:
                raise ModelError(f"constants has {name!r}, which the NumPyro model does not take{nearest(name, taken)}")
        known = {*columns, *constants, *((SITE, NUM_SITES) if is_by_site else ())}
        for name, is_required in taken.items():
            if is_required and name not in known:
                raise ModelError(
                    f"The NumPyro model takes {name!r}, which is neither a column of the example's rows "
                    f"({', '.join(example)}) nor in constants{nearest(name, example)}"
                )
        if not columns:
            raise ModelError(
                f"The NumPyro model takes none of the example's columns ({', '.join(example)}): its arguments are "
                "found by name, so it must name them."
            )
        return cls(function, columns, dict(constants), is_by_site)

    def run(
        self,
        values: Mapping[str, Any],
        rows: Mapping[str, Any] | None = None,
        *,
        num_sites: int = 1,
        key: Key | None = None,
        fill: Callable[[dict[str, Any]], Any] | None = None,
    ) -> Trace:
        """Run the model on rows, the example's by default, with values at its sites.

        Latent sites without a value get what ``fill`` makes of them, or are drawn with ``key``.
        """

        def value_of(site: dict[str, Any]) -> Any:
            if site["name"] in values:
                return values[site["name"]]
            return fill(site) if fill is not None and is_latent(site) else None

        function = self.function if key is None else handlers.seed(self.function, key)
        model = handlers.substitute(function, substitute_fn=value_of)
        return handlers.trace(model).get_trace(**self._arguments(rows, num_sites))

    def _arguments(self, rows: Mapping[str, Any] | None, num_sites: int) -> dict[str, Any]:
        places = {SITE: np.arange(len(next(iter(self.example.values())))) % num_sites}
        rows = {**self.example, **places} if rows is None else rows
        columns = {name: jnp.asarray(rows[name]) for name in self.example if name in rows}
        if not self.is_by_site:
            return {**columns, **self.constants}
        if SITE not in rows:
            raise ModelError(
                f"the rows do not say of which client they are; add {SITE!r}, [row], each row's place among clients."
            )
        return {**columns, **self.constants, SITE: jnp.asarray(rows[SITE]), NUM_SITES: num_sites}


def is_latent(site: dict[str, Any]) -> bool:
    """Return whether a site is drawn from the prior."""
    return site["type"] == "sample" and not site["is_observed"]


def near_median(site: dict[str, Any]) -> Array:
    """Return the median of a few draws from a site's prior, on the whole line; 0 and noise if it cannot be drawn."""
    transform, shape = biject_to(site["fn"].support), site["kwargs"].get("sample_shape", ())
    key = site["kwargs"]["rng_key"]
    try:
        free = jnp.median(transform.inv(site["fn"].sample(key, (_NUM_PRIOR_DRAWS, *shape))), axis=0)
    except NotImplementedError:  # an improper prior
        free = 0.1 * jax.random.normal(key, transform.inverse_shape((*shape, *site["fn"].shape())))
    return transform(free)


def about(place: float) -> Callable[[dict[str, Any]], Array]:
    """Return what gives a site a value without drawing: about a place on the whole line, every entry another."""

    def value(site: dict[str, Any]) -> Array:
        transform, shape = biject_to(site["fn"].support), site["kwargs"].get("sample_shape", ())
        shape = transform.inverse_shape((*shape, *site["fn"].shape()))
        return transform(place + 0.1 * jnp.arange(np.prod(shape, dtype=int), dtype=float).reshape(shape))

    return value


def log_density(site: dict[str, Any]) -> Array:
    """Return a site's log density, [*plates]."""
    fits = site["fn"].log_prob(site["value"])
    return fits if site["scale"] is None else site["scale"] * fits


def by_row(values: Array, site: dict[str, Any], plate: str, event_dim: int = 0) -> Array:
    """Return a site's values, [*plates, *event], with the plate of rows as first axis."""
    (dim,) = [frame.dim for frame in site["cond_indep_stack"] if frame.name == plate]
    return jnp.moveaxis(values, dim - event_dim, 0)


def row_sums(values: Array, site: dict[str, Any], plate: str) -> Float[Array, " row"]:
    """Return a site's values, [*plates], summed for each row."""
    rows = by_row(values, site, plate)
    return jnp.sum(rows.reshape(len(rows), -1), axis=1)


def prior_terms(trace: Trace, sites: Iterable[str]) -> dict[str, Array]:
    """Return the log prior by site."""
    return {name: jnp.sum(log_density(trace[name])) for name in sites}


def _parameters_of(function: Any) -> dict[str, bool]:
    """Name a model's arguments, and whether they have no default."""
    while isinstance(function, Messenger):  # handlers.reparam(model, ...) and its like
        function = function.fn
    return {
        parameter.name: parameter.default is parameter.empty
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }
