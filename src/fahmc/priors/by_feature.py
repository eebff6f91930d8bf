"""Each feature's coefficient its own prior."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fahmc import door
from fahmc.errors import SettingsError
from fahmc.hints import Name
from fahmc.priors.normal import Normal
from fahmc.priors.prior import COEFFICIENTS, Prior, is_of_coefficients
from fahmc.registry import register, unknown_key
from fahmc.types import Key

_UNIT = Normal(1.0)


@register("prior", "by_feature")
@dataclass(frozen=True)
class ByFeature(Prior):
    """Priors by the names of features, and one for all others.

    A name stands for the feature of that name, or for all levels of a text: ``"education"`` for ``education[…]``. What
    is named nearer counts: ``"education[MT 12 yrs]"`` before ``"education"``.

    Examples
    --------
    >>> ByFeature({"age": Normal(0.5)}, other=Normal(2.5)).words()
    'age: N(0, 0.5²); others: N(0, 2.5²)'
    """

    priors: Mapping[Name, Prior]
    other: Prior = _UNIT
    _names: tuple[str, ...] | None = field(default=None, init=False, repr=False)

    def __post_init__(self):
        door.check(self)
        for name, prior in {**self.priors, "other": self.other}.items():
            if not is_of_coefficients(prior) or isinstance(prior, ByFeature):
                raise SettingsError(
                    f"prior of {name!r} is {prior!r}, which is one of several coefficients together. Give each "
                    "feature a prior of its own, such as Normal or StudentT."
                )

    def for_features(self, names: Sequence[str] | None) -> ByFeature:
        """Return it with its priors in the places of the features, or refuse a name that no feature has."""
        if names is None:
            return self
        for name in self.priors:
            if not any(_stands_for(name, feature) for feature in names):
                raise SettingsError(unknown_key(f"prior: the feature {name!r}", name, names))
        placed = replace(self)
        object.__setattr__(placed, "_names", tuple(names))
        return placed

    def log_density(self, sampled: Mapping[str, Array]) -> Any:
        """Sum up the features' log densities."""
        beta = sampled[COEFFICIENTS]
        return sum(prior.log_density({COEFFICIENTS: beta[places]}) for prior, places in self._groups(len(beta)))

    def draw(self, key: Key, shape: tuple[int, ...]) -> dict[str, Array]:
        """Draw each feature's coefficients from its prior."""
        beta, groups = jnp.zeros(shape), self._groups(shape[0])
        for key_group, (prior, places) in zip(jax.random.split(key, len(groups)), groups, strict=True):
            beta = beta.at[places].set(prior.draw(key_group, (len(places), *shape[1:]))[COEFFICIENTS])
        return {COEFFICIENTS: beta}

    def words(self) -> str:
        """Name the features and their priors."""
        each = [f"{name}: {prior.words()}" for name, prior in self.priors.items()]
        return "; ".join([*each, f"others: {self.other.words()}"])

    def _groups(self, num_features: int) -> list[tuple[Prior, np.ndarray]]:
        """Return each prior with the places of its features."""
        if self._names is None:
            raise SettingsError(
                f"prior names the features {', '.join(self.priors)}, but what the features are called is not known "
                "here. Give the model feature_names=[...]."
            )
        if len(self._names) != num_features:
            raise SettingsError(f"feature_names has {len(self._names)} names, but there are {num_features} features.")
        nearest = [
            next((name for name in sorted(self.priors, key=len, reverse=True) if _stands_for(name, feature)), None)
            for feature in self._names
        ]
        return [
            (self.other if name is None else self.priors[name], np.flatnonzero([found == name for found in nearest]))
            for name in dict.fromkeys(nearest)
        ]


def _stands_for(name: str, feature: str) -> bool:
    return feature == name or feature.startswith(f"{name}[")
