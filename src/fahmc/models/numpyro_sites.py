"""Sites of a NumPyro model, looked at one by one: which a federation has no place for, supports, plates, names.

A model is run twice, with other numbers of rows and of clients, and its parameters elsewhere: what of a site is not the
same depends on one of these.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import biject_to, constraints
from numpyro.primitives import Messenger

from fahmc.errors import ModelError
from fahmc.models.numpyro_program import is_latent

NUM_ROWS, NUM_SITES = (3, 1), (2, 4)
"""Rows and clients of the two runs: no size changes like both."""


class Inspection(Messenger):
    """Looks at every site before it gets a value."""

    def process_message(self, msg: Any) -> None:
        """Refuse what is none of a federation's."""
        _check_kind(msg.get("name", ""), msg)


def _check_kind(name: str, site: dict[str, Any]) -> None:
    """Refuse sites that a product over rows and a density of continuous parameters have no place for."""
    if site["type"] == "param":
        raise ModelError(
            f"{name!r} is a numpyro.param, which is optimised, not sampled; give it a prior: numpyro.sample."
        )
    if site["type"] == "plate" and site["args"][1] not in (None, site["args"][0]):
        raise ModelError(
            f"The plate {name!r} takes a subsample of {site['args'][1]} from {site['args'][0]}; leave subsample_size "
            "out: fahmc draws minibatches itself, fahmc.Minibatch(size)."
        )
    if not is_latent(site):
        return
    if site["fn"].support.is_discrete:
        raise ModelError(
            f"The site {name!r} is discrete, and chains move on continuous ones; sum over its values in the likelihood "
            "(numpyro.distributions.Mixture)."
        )
    try:
        biject_to(site["fn"].support)
    except NotImplementedError as error:
        raise ModelError(
            f"NumPyro knows no way from the whole line to the support of {name!r}, {site['fn'].support}; choose "
            "another prior."
        ) from error


def check_latent(name: str, large: dict[str, Any], small: dict[str, Any], plate: str) -> None:
    """Refuse parameters that owners of other rows would have others of."""
    if plate in plates_of(large):
        raise ModelError(
            f"The site {name!r} is drawn anew for every row, in the plate {plate!r}. Rows stay with their owners, "
            'and so would it: integrate it out. If it belongs to clients, write `with numpyro.plate("sites", '
            f"num_sites)` about it, and {name}[site] where rows need it."
        )
    if not is_same(large["fn"].support, small["fn"].support):
        raise ModelError(
            f"The support of {name!r}, {large['fn'].support}, depends on rows or on other parameters; sample it "
            "between fixed ends, and scale it afterwards."
        )
    if any(sizes != NUM_SITES for sizes in changes(large, small).values()):
        shapes = [list(jnp.shape(site["value"])) for site in (large, small)]
        raise ModelError(
            f"The shape of {name!r} depends on the number of rows, {shapes[0]} for {NUM_ROWS[0]} rows and {shapes[1]} "
            "for one; a federation's parameters have one shape for all owners."
        )


def changes(large: dict[str, Any], small: dict[str, Any]) -> dict[int, tuple[int, int]]:
    """Return the sizes of the axes along which a site is of another size; -1 stands for an axis that is not there."""
    pairs = zip_longest(jnp.shape(large["value"]), jnp.shape(small["value"]), fillvalue=-1)
    return {axis: pair for axis, pair in enumerate(pairs) if pair[0] != pair[1]}


def is_same(one: Any, other: Any) -> bool:
    """Return whether two supports are one."""
    return type(one) is type(other) and bool(np.all(np.asarray(one == other)))


def plain(support: Any) -> Any:
    """Return a support with NumPy's numbers, which serve in any precision."""
    return jax.tree.map(np.asarray, support)


def is_free(support: Any) -> bool:
    """Return whether a support is the whole line."""
    while isinstance(support, constraints.independent):  # type: ignore[arg-type]
        support = support.base_constraint
    return support is constraints.real


def innermost(distribution: Any) -> Any:
    """Return what a distribution is, without the plates and masks about it."""
    while hasattr(distribution, "base_dist") and type(distribution).__name__ in _WRAPPERS:
        distribution = distribution.base_dist
    return distribution


_WRAPPERS = ("ExpandedDistribution", "Independent", "MaskedDistribution")


def plates_of(site: dict[str, Any]) -> list[str]:
    """Name the plates about a site."""
    return [frame.name for frame in site["cond_indep_stack"]]


def dims_of(name: str, site: dict[str, Any]) -> list[str]:
    """Name the axes of a latent site after its plates, and the others as ArviZ would."""
    num_axes, event_dim = np.ndim(site["value"]), site["fn"].event_dim
    plates = {num_axes - event_dim + frame.dim: frame.name for frame in site["cond_indep_stack"]}
    return [plates.get(axis, f"{name}_dim_{axis}") for axis in range(num_axes)]
