"""B-splines whose knots follow from what all rows tell together, and which go on as straight lines beyond them.

The basis of degree d with inner knots κ_1 < … < κ_m between the bounds a < b has d + m columns beside the intercept.
Beyond a bound it is continued by its tangent there:

    B(x) = B(b) + B'(b) (x − b)        for x > b, and likewise below a

so that bounds need not cover all rows, and no site has to tell its smallest or largest number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.interpolate import BSpline

_REACH = 2.0
"""Standard deviations from the mean to a bound that was not given: most rows lie within, wherever they come from."""
# Knots closer than this share of the bounds' distance could not be told apart by rounding.
_CLOSEST = 1e-9


@dataclass(frozen=True)
class Knots:
    """Where the pieces of a spline meet, and where the first begins and the last ends."""

    inner: tuple[float, ...]
    lower: float
    upper: float

    def complaint(self) -> str | None:
        """Say why there is no such spline, or nothing."""
        places = np.array([self.lower, *self.inner, self.upper])
        if np.isfinite(places).all() and (np.diff(places) > _CLOSEST * (self.upper - self.lower)).all():
            return None
        listed = ", ".join(f"{knot:g}" for knot in self.inner) or "none"
        return (
            f"the knots ({listed}) must lie one after the other between the bounds {self.lower:g} and {self.upper:g}, "
            "and not almost at the same place"
        )


def choose_knots(
    num_inner: int,
    inner: Sequence[float] | None,
    lower: float | None,
    upper: float | None,
    mean: float,
    sd: float,
) -> Knots:
    """Take what was given; put other bounds two sds from the mean of all rows, and other knots evenly between them."""
    lower = mean - _REACH * sd if lower is None else lower
    upper = mean + _REACH * sd if upper is None else upper
    if inner is None:
        inner = [lower + (upper - lower) * place / (num_inner + 1) for place in range(1, num_inner + 1)]
    return Knots(tuple(inner), lower, upper)


def spline_basis(x: Float[np.ndarray, " row"], knots: Knots, degree: int) -> Float[np.ndarray, "row column"]:
    """Return the basis without its first column, which the intercept makes superfluous."""
    ends = degree + 1
    places = np.array([knots.lower] * ends + list(knots.inner) + [knots.upper] * ends)
    basis = BSpline(places, np.eye(len(places) - ends), degree)
    within = np.clip(x, knots.lower, knots.upper)
    # The tangent is that of the bound that a row lies beyond, and counts for no other row.
    return (basis(within) + basis.derivative()(within) * (x - within)[:, None])[:, 1:]
