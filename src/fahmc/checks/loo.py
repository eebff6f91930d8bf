"""Leave-one-out cross-validation by Pareto-smoothed importance sampling, of one model or of several on the same rows.

For row i and draws θ_1, …, θ_S of the posterior

    elpd_i = log Σ_s w_is p(y_i | θ_s),    w_is ∝ 1 / p(y_i | θ_s), smoothed,

estimates log p(y_i | the other rows): w turns draws given all rows into draws given all but row i. A generalised
Pareto distribution is fitted to the largest of them, which are replaced by its quantiles; its shape k̂ says whether that
is enough (Vehtari, Gelman and Gabry 2017). It takes nothing but the row and the draws, so that a site can do it alone.
Then, with e_i = elpd_i and n rows of all sites,

    elpd_loo = Σ e_i,   se² = n Var(e) = Σ (e_i − ē)²,   p_loo = Σ log mean_s p(y_i | θ_s) − elpd_loo,

and of two models the difference Σ (a_i − b_i) with se² = Σ (a_i − b_i − mean)²: the pairs matter, since both models
find the same rows hard. All of these are sums over rows, and a site's part of each is one number. Sums of squares are
sent around the site's own mean and put together exactly (Chan, Golub and LeVeque 1983).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from fahmc import door
from fahmc.checks.check import Answer, Fit, OtherRows
from fahmc.checks.groups import common_edges, edges_told, gather, groups_of, limits_of
from fahmc.checks.pointwise import log_mean_exp, over_rows
from fahmc.errors import DataError, ModelError
from fahmc.hints import Positive
from fahmc.registry import register

# Above 0.7 smoothed weights need more draws than anybody has, above 1 they have no mean (Vehtari et al. 2024).
_GOOD_K, _WORST_K = 0.7, 1.0


def good_k(num_draws: int) -> float:
    """Return up to which k̂ so many draws are enough."""
    return min(1 - 1 / np.log10(num_draws), _GOOD_K)


@register("check")
@dataclass(frozen=True)
class PsisLoo:
    """Sums of pointwise elpd of every fit, and of their differences; all fits on the same rows."""

    efficiencies: Sequence[Positive]
    """Effective size of the draws over their number, of every fit: how much of the tail is smoothed depends on it."""

    def __post_init__(self):
        door.check(self)

    def shapes(self, num_draws: Sequence[int]) -> dict[str, tuple[int, ...]]:
        """Declare the answer; ``squares`` are around the site's own mean."""
        fits = len(num_draws)
        each = dict.fromkeys(("sums", "squares", "lppd"), (fits,))
        pairs = dict.fromkeys(("difference_sums", "difference_squares"), (fits, fits))
        return {"num_rows": (), **each, **pairs, "k_counts": (fits, 3), "k_edges": (fits, 2)}

    def answer(self, fits: Sequence[Fit], minimum: int) -> Answer:
        """Sum up elpd_i; too few rows of a high k̂ are counted with their neighbours."""
        _check_same_rows(fits)
        points = [_pointwise(fit, efficiency) for fit, efficiency in zip(fits, self.efficiencies, strict=True)]
        elpd = np.stack([point.elpd for point in points])
        differences = elpd[:, None] - elpd[None, :]
        counts = [_count(point.k, fit.num_draws) for point, fit in zip(points, fits, strict=True)]
        # Rows that are all of a low k̂ are no secret, but a site with too few rows in all tells nothing.
        edges = [edges_told(count[None], minimum) for count in counts]
        if any(edge is None for edge in edges):
            raise DataError(f"{fits[0].site or 'The site'} has fewer rows than it tells sums of.")
        return {
            "num_rows": np.array(elpd.shape[1]),
            "sums": elpd.sum(axis=1),
            "squares": elpd.shape[1] * elpd.var(axis=1),
            "lppd": np.array([point.lppd.sum() for point in points]),
            "difference_sums": differences.sum(axis=2),
            "difference_squares": elpd.shape[1] * differences.var(axis=2),
            "k_counts": np.stack(
                [gather(count, edge) for count, edge in zip(counts, edges, strict=True) if edge is not None]
            ),
            "k_edges": np.stack([edge for edge in edges if edge is not None]),
        }

    def conclude(self, answers: Mapping[str, Answer]) -> list[LooSums]:
        """Return the sums of every fit, over all sites."""
        rows = np.array([answer["num_rows"] for answer in answers.values()])

        def total(name: str) -> np.ndarray:
            return np.sum([answer[name] for answer in answers.values()], axis=0)

        def spread(sums: str, squares: str) -> np.ndarray:
            return pooled_squares(rows, *(np.stack([a[name] for a in answers.values()]) for name in (sums, squares)))

        squares, pair_squares = spread("sums", "squares"), spread("difference_sums", "difference_squares")
        return [
            LooSums(
                elpd=float(total("sums")[fit]),
                se=float(np.sqrt(squares[fit])),
                lppd=float(total("lppd")[fit]),
                num_rows=int(rows.sum()),
                k_counts=np.stack([answer["k_counts"][fit] for answer in answers.values()]),
                k_edges=np.stack([answer["k_edges"][fit] > 0 for answer in answers.values()]),
                differences=total("difference_sums")[fit],
                difference_errors=np.sqrt(pair_squares[fit]),
            )
            for fit in range(len(self.efficiencies))
        ]


class LooSums(NamedTuple):
    """What one fit came to."""

    elpd: float
    se: float
    lppd: float
    num_rows: int
    k_counts: Float[np.ndarray, "site bin"]
    k_edges: Float[np.ndarray, "site edge"]
    differences: Float[np.ndarray, " fit"]
    difference_errors: Float[np.ndarray, " fit"]


@dataclass(frozen=True)
class SiteLoo:
    """The part of one site."""

    elpd_loo: float
    se: float
    p_loo: float
    num_rows: int
    k_counts: dict[str, int]


@dataclass(frozen=True)
class Loo:
    """What leave-one-out cross-validation says of a model; printed as ArviZ does.

    ``elpd_loo`` estimates Σ log p(y_i | all other rows), ``se`` is its standard error over rows, ``p_loo`` the
    effective number of parameters. ``warning`` is set if the Pareto k̂ of any row is above ``good_k``.
    """

    elpd_loo: float
    se: float
    p_loo: float
    num_draws: int
    num_rows: int
    good_k: float
    warning: bool
    k_counts: dict[str, int]
    """Interval of k̂ -> rows, in the intervals that all sites tell."""
    sites: dict[str, SiteLoo] = field(default_factory=dict)
    silent: list[str] = field(default_factory=list)
    """Sites where too few rows have a high k̂ to tell how many."""

    @classmethod
    def of(cls, sums: LooSums, num_draws: int, sites: Mapping[str, LooSums] | None = None) -> Loo:
        """Write sums as numbers for people."""
        names, edges = list(sites or {}), sums.k_edges
        counts, limit = _counts_in_words(sums, num_draws), good_k(num_draws)
        is_high = [not told[0] or bool(count[1:].sum()) for told, count in zip(edges, sums.k_counts, strict=True)]
        return cls(
            elpd_loo=sums.elpd,
            se=sums.se,
            p_loo=sums.lppd - sums.elpd,
            num_draws=num_draws,
            num_rows=sums.num_rows,
            good_k=limit,
            warning=any(is_high),
            k_counts=counts,
            sites={
                name: SiteLoo(
                    site.elpd, site.se, site.lppd - site.elpd, site.num_rows, _counts_in_words(site, num_draws)
                )
                for name, site in (sites or {}).items()
            },
            silent=[name for name, told in zip(names, edges, strict=False) if not told.all()],
        )

    def __str__(self) -> str:
        width = max(len(f"{self.elpd_loo:.2f}"), len(f"{self.p_loo:.2f}"), 8)
        lines = [
            f"Computed from {self.num_draws} posterior samples and {self.num_rows} observations log-likelihood matrix.",
            "",
            f"         {'Estimate':>{width}}       SE",
            f"elpd_loo {self.elpd_loo:>{width}.2f} {self.se:>8.2f}",
            f"p_loo    {self.p_loo:>{width}.2f}        -",
            "------",
            "Pareto k diagnostic values:",
            *(
                f"{interval:>14} {count:>8} {100 * count / self.num_rows:6.1f} %"
                for interval, count in self.k_counts.items()
            ),
        ]
        if self.sites:
            place = max(len(name) for name in self.sites)
            lines += ["------", f"{'by site':<{place}} {'elpd_loo':>10} {'SE':>8} {'p_loo':>7} {'rows':>7}"]
            lines += [
                f"{name:<{place}} {site.elpd_loo:>10.2f} {site.se:>8.2f} {site.p_loo:>7.2f} {site.num_rows:>7}"
                for name, site in self.sites.items()
            ]
        return "\n".join([*lines, *self.remarks])

    @property
    def remarks(self) -> list[str]:
        """What to know of these numbers, as sentences."""
        said = []
        if self.silent:
            said.append(
                f"Not told how many rows have a k above {self.good_k:.2f}, only that there are some, fewer than the "
                f"site's minimum: {', '.join(self.silent)}."
            )
        if self.warning:
            said.append(
                f"Some rows have a Pareto k above {self.good_k:.2f}: the posterior without such a row is too different "
                "from the one with it, and elpd_loo may be too high. Look for outliers, or use a more robust model."
            )
        return said


def pooled_squares(
    rows: Float[np.ndarray, " site"], sums: Float[np.ndarray, "site ..."], squares: Float[np.ndarray, "site ..."]
) -> np.ndarray:
    """Return Σ (e_i − ē)² over all rows, from each site's Σ e_i and Σ (e_i − its own mean)²."""
    size = rows.reshape(-1, *[1] * (sums.ndim - 1))
    shifts = sums / size - sums.sum(axis=0) / rows.sum()
    return (squares + size * shifts**2).sum(axis=0)


class _Points(NamedTuple):
    elpd: Float[np.ndarray, " row"]
    lppd: Float[np.ndarray, " row"]
    k: Float[np.ndarray, " row"]


def _pointwise(fit: Fit, efficiency: float) -> _Points:
    """Return the pointwise numbers of all rows; they do not leave this file."""
    from fahmc._arviz import psislw

    elpd, lppd, shapes = [], [], []
    for _, logs in over_rows(fit.model.row_loglikelihoods, "loglikelihood_fn", fit):
        if not np.isfinite(logs).all():
            raise ModelError("The log likelihood of some rows is not finite at some draws, so LOO is not defined.")
        weights, k = psislw(-logs, efficiency)
        elpd.append(np.log(logs.shape[1]) + log_mean_exp(np.asarray(weights) + logs))
        lppd.append(log_mean_exp(logs))
        shapes.append(np.atleast_1d(k))
    return _Points(*map(np.concatenate, (elpd, lppd, shapes)))


def _count(k: Float[np.ndarray, " row"], num_draws: int) -> Float[np.ndarray, " bin"]:
    limit = good_k(num_draws)
    is_good, is_worst = k <= limit, k > max(_WORST_K, limit)
    return np.array([is_good.sum(), (~is_good & ~is_worst).sum(), is_worst.sum()], float)


def _counts_in_words(sums: LooSums, num_draws: int) -> dict[str, int]:
    edges = common_edges(list(sums.k_edges))
    counts = groups_of(list(sums.k_counts), edges)
    intervals = limits_of([-np.inf, good_k(num_draws), _WORST_K, np.inf], edges)
    return {_interval(*ends): int(count) for ends, count in zip(intervals, counts, strict=True)}


def _interval(lower: float, upper: float) -> str:
    if np.isinf(lower) and np.isinf(upper):
        return "any k"
    return (
        f"k > {lower:.2f}"
        if np.isinf(upper)
        else f"k ≤ {upper:.2f}"
        if np.isinf(lower)
        else f"{lower:.2f} < k ≤ {upper:.2f}"
    )


def _check_same_rows(fits: Sequence[Fit]) -> None:
    first, *others = fits
    for fit in others:
        if fit.num_rows != first.num_rows or not np.array_equal(fit.outcome, first.outcome):
            raise OtherRows(
                f"The models were not fitted to the same rows at {first.site or 'a site'}: number or outcomes of rows "
                "differ. Leave out rows with missing values in the same way, and keep the outcome as it is."
            )
