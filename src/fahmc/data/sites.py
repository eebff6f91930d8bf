"""Rows that lie with the sites of a real federation: what is asked of them, and what is known of them here.

`Sites` says which columns of the sites' tables to sample. `RemoteFederation` is what the sites answered: how many rows
each has and what they look like, without any of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import jax
import numpy as np

from fahmc.data.columns import Columns
from fahmc.data.federation import Federation, checked_weights
from fahmc.errors import DataError
from fahmc.fitting import introduce
from fahmc.types import Batch


@dataclass(frozen=True)
class Sites(Columns):
    """What `fahmc.sample` takes instead of a `Federation` when the rows lie with the sites of a real federation.

    Which columns to take from every site's table, and how, is said as in `fahmc.data.columns.Columns`.

    Examples
    --------
    >>> Sites(outcome="preterm", features=["treatment", "age"]).columns.features
    ('treatment', 'age')
    """

    weights: Mapping[str, float] | None = None
    """w_c by site, with sum 1; by default n_c / n."""

    @property
    def columns(self) -> Columns | None:
        """The columns to encode, or None where arrays go as they are."""
        if self.outcome is None:
            return None
        return Columns(**{column.name: getattr(self, column.name) for column in fields(Columns)})


introduce(Sites, "fahmc.Sites(...)", error=DataError)


@dataclass(frozen=True, eq=False, repr=False)
class RemoteFederation(Federation):
    """Clients whose rows are elsewhere. ``rows`` holds one made-up row each: its shapes and dtypes count."""

    reported_sizes: np.ndarray = field(kw_only=True)
    marks: tuple[str, ...] = field(kw_only=True)
    """A checksum of each site's rows, keyed with a secret of the site: shows that rows changed, and nothing else."""
    secure_sum: str = field(default="off", kw_only=True)
    """Whether replies are hidden in sums, as all sites settled it: ``"required"``, ``"allowed"`` or ``"off"``."""
    about: dict[str, Any] = field(kw_only=True)
    """What the sites agreed on, as JSON values: names of features, levels, scales, dropped rows."""

    @classmethod
    def from_reports(
        cls,
        sizes: Mapping[str, int],
        example: Batch,
        marks: Mapping[str, str],
        weights: Mapping[str, float] | None,
        about: dict[str, Any],
        secure_sum: str = "off",
    ) -> RemoteFederation:
        """Put together what the sites reported; ``example`` is a made-up row, the same for all."""
        names = tuple(sizes)
        return cls(
            names=names,
            rows=tuple(example for _ in names),
            weights=checked_weights(sizes, weights),
            row_weights=tuple(np.ones(1) for _ in names),
            reported_sizes=np.array(list(sizes.values())),
            marks=tuple(marks[name] for name in names),
            about=about,
            secure_sum=secure_sum,
        )

    @property
    def sizes(self) -> np.ndarray:
        """n_c as the sites reported it."""
        return self.reported_sizes

    def pooled(self) -> Federation:
        """Refuse: these rows cannot be put together."""
        raise DataError(
            "The rows lie with the sites, so they cannot be pooled; use FAHMC, FALD or DebiasedFAHMC, not HMC."
        )


def made_up_client(federation: Federation) -> Federation:
    """Return a federation of the first client alone whose rows may be looked at: to try shapes and dtypes on."""
    if not isinstance(federation, RemoteFederation):
        return federation
    example = jax.tree.map(np.asarray, federation.rows[0])
    return Federation(federation.names[:1], (example,), np.ones(1), (np.ones(1),))
