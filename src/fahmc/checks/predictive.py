"""Posterior predictive checks: whether the model would make outcomes like those there are.

At every draw θ_s the model makes an outcome for every row again, y_rep[·, s] (`fahmc.checks.replicates`), and a
statistic T of what was seen is set against those of what was made:

    p = P(T(y_rep) ≥ T(y) | all rows),        near 0 or 1 where the model does not make such outcomes.

Every T is a function of sums over rows, so that T over all sites follows exactly from what the sites sum up:

    mean, sd      Σ y and Σ (y − ȳ)² of each site, put together as in `fahmc.checks.loo`
    zeros         the share of outcomes that are 0
    ranks         u_i, the rank of y_i among y_rep[i, ·] over their number, falls into each of 16 bins equally often if
                  the model is right: T = Σ_b (c_b − n w_b)² / (n w_b), c_b rows in bin b of width w_b
    residuals     Σ_i (y_i − m_i)² / s_i² / n, with m_i and s_i mean and sd of y_i and y_rep[i, ·]: what a row varies by
                  beyond what its own covariates explain. Only where single rows may be told: whoever chose draws with
                  a small s_i for one row would read its outcome from the sum
    inside_50     the share of rows with 1/4 ≤ u_i < 3/4: too few, and the model is too sure; too many, too unsure

Ranks need no edges that the outcomes' range would tell, and sites have their bins in common without agreeing on any.
Ranks of y_rep[·, s] among the same numbers say how much of the unevenness is chance.

Times of which some are censored (rows with an ``event``) have ranks alone: the model makes a censored row's time up to
its own, but when a row with an event would have been censored is not known.

The rows that are checked are those that the model was fitted to: it has seen them, so p leans to 1/2, and a model that
fails fails indeed. What is fitted freely, as the mean is by an intercept, can hardly fail.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from fahmc import door
from fahmc.checks.check import Answer, Fit, only_fit
from fahmc.checks.groups import common_edges, edges_told, gather, groups_of, limits_of
from fahmc.checks.loo import pooled_squares
from fahmc.checks.predictive_result import PredictiveCheck, RankBin, SiteFit, Statistic
from fahmc.checks.replicates import outcomes_of, ranks_among, replicated_outcomes, replicates_key
from fahmc.errors import DataError
from fahmc.hints import Seed
from fahmc.registry import register

# Edges are kept from the middle outwards, halving, so a power of two: 1/2 first, then 1/4 and 3/4.
NUM_BINS = 16
# n, Σ y, Σ y² and the zeros among n would give away how many rows have each of so many values.
_FEW_VALUES = 4
_LEVELS = (0.5, 0.05, 0.95)


@register("check")
@dataclass(frozen=True)
class PosteriorPredictive:
    """Sums over rows of outcomes, and of those that the model makes at every draw."""

    seed: Seed = 0

    def __post_init__(self):
        door.check(self)

    def shapes(self, num_draws: Sequence[int]) -> dict[str, tuple[int, ...]]:
        """Declare the answer; all is 0 where ``is_told`` is, but the number of rows."""
        draws = only_fit(num_draws, "PosteriorPredictive")
        flags = dict.fromkeys(("num_rows", "is_told", "has_moments", "tells_zeros", "is_binary"), ())
        seen = {"sum": (), "squares": (), "zeros": (), "bins": (NUM_BINS,), "edges": (NUM_BINS - 1,)}
        both = {"residuals": (1 + draws,)}
        made = {"made_sum": (draws,), "made_squares": (draws,), "made_zeros": (draws,), "made_bins": (draws, NUM_BINS)}
        return flags | seen | made | both

    def answer(self, fits: Sequence[Fit], minimum: int) -> Answer:
        """Sum up what was seen and what the model makes; a site that may not tell its outcomes says so, and no more."""
        fit: Fit = only_fit(fits, "PosteriorPredictive")
        seen, key = outcomes_of(fit), replicates_key(fit, self.seed)
        centre, num_rows = seen.mean(), len(seen)
        sums, squares, zeros = np.zeros((3, fit.num_draws))
        bins, is_binary = np.zeros((1 + fit.num_draws, NUM_BINS)), True
        residuals = np.zeros(1 + fit.num_draws)
        for places, made in replicated_outcomes(fit, key):
            sums += made.sum(axis=0)
            squares += ((made - centre) ** 2).sum(axis=0)
            zeros += (made == 0).sum(axis=0)
            is_binary &= bool(np.isin(made, (0, 1)).all())
            bins += _count(ranks_among(seen[places], made, key, places))
            residuals += _squared_residuals(np.column_stack([seen[places], made])).sum(axis=0)
        edges = edges_told(bins[:1], minimum)
        if edges is None or not may_tell(seen, minimum):
            nothing = {name: np.zeros(shape) for name, shape in self.shapes([fit.num_draws]).items()}
            return nothing | {"num_rows": np.array(num_rows)}
        has_moments = not (isinstance(fit.rows, Mapping) and "event" in fit.rows)
        num_zeros = int((seen == 0).sum())
        tells_zeros = has_moments and (minimum <= 1 or min(num_zeros, num_rows - num_zeros) >= minimum)
        return {
            "num_rows": np.array(num_rows),
            "is_told": np.array(1),
            "has_moments": np.array(has_moments),
            "tells_zeros": np.array(tells_zeros),
            "is_binary": np.array(is_binary),
            "sum": seen.sum() * has_moments,
            "squares": ((seen - centre) ** 2).sum() * has_moments,
            "zeros": np.array(num_zeros * tells_zeros),
            "bins": gather(bins[0], edges),
            "edges": edges,
            "made_sum": sums * has_moments,
            # Around each draw's own mean.
            "made_squares": np.maximum(squares - (sums - num_rows * centre) ** 2 / num_rows, 0.0) * has_moments,
            "made_zeros": zeros * tells_zeros,
            "made_bins": gather(bins[1:], edges),
            "residuals": residuals * (has_moments and minimum <= 1),
        }

    def conclude(self, answers: Mapping[str, Answer]) -> PredictiveCheck:
        """Set statistics of all sites together, and of each, against those of what the model makes."""
        told = {site: answer for site, answer in answers.items() if answer["is_told"]}
        if not told:
            raise DataError(
                f"None of the sites ({', '.join(answers)}) may tell anything of its outcomes: fewer rows than its "
                "minimum differ from the others. The fit cannot be checked."
            )
        whole = _Sums.of(told)
        return PredictiveCheck(
            num_draws=len(whole.bins) - 1,
            num_rows=whole.num_rows,
            is_binary=all(bool(answer["is_binary"]) for answer in told.values()),
            statistics=_statistics(whole),
            bins=_rank_bins(whole),
            sites={site: _site_fit(_Sums.of({site: answer})) for site, answer in told.items()},
            silent=[site for site in answers if site not in told],
            without_zeros=[site for site, answer in told.items() if not answer["tells_zeros"]],
            is_censored=not all(answer["has_moments"] for answer in told.values()),
        )


def may_tell(outcomes: Float[np.ndarray, " row"], minimum: int) -> bool:
    """Whether sums of these outcomes are about at least ``minimum`` rows, whatever is subtracted from them.

    Of few different values each must be that many rows', and there must be two; of more, as many must differ from the
    commonest. So a site with a few ones among zeros tells nothing of them.
    """
    if minimum <= 1:
        return True
    _, counts = np.unique(outcomes, return_counts=True)
    if len(counts) <= _FEW_VALUES:
        return len(counts) > 1 and int(counts.min()) >= minimum
    return len(outcomes) - int(counts.max()) >= minimum


class _Sums(NamedTuple):
    """What some sites' sums come to."""

    num_rows: int
    seen: dict[str, float]
    made: dict[str, Float[np.ndarray, " draw"]]
    bins: Float[np.ndarray, "1+draw group"]
    """Rows by the group of bins that their outcome's rank is in: of those seen first, then those made."""
    edges: Bool[np.ndarray, " edge"]

    @classmethod
    def of(cls, answers: Mapping[str, Answer]) -> _Sums:
        parts = list(answers.values())
        rows = np.array([part["num_rows"] for part in parts])

        def stacked(name: str) -> np.ndarray:
            return np.stack([part[name] for part in parts])

        seen, made = {}, {}
        for into, prefix in ((seen, ""), (made, "made_")) if all(part["has_moments"] for part in parts) else ():
            sums, squares = stacked(f"{prefix}sum"), stacked(f"{prefix}squares")
            into["mean"] = sums.sum(axis=0) / rows.sum()
            into["sd"] = np.sqrt(pooled_squares(rows, sums, squares) / rows.sum())
        if (residuals := stacked("residuals")).any(axis=1).all():
            seen["residuals"], *made_residuals = residuals.sum(axis=0) / rows.sum()
            made["residuals"] = np.array(made_residuals)
        tells = stacked("tells_zeros") > 0
        if tells.any():
            seen["zeros"] = stacked("zeros").sum() / rows[tells].sum()
            made["zeros"] = stacked("made_zeros").sum(axis=0) / rows[tells].sum()
        edges = common_edges([part["edges"] for part in parts])
        both = [np.vstack([part["bins"], part["made_bins"]]) for part in parts]
        return cls(int(rows.sum()), seen, made, groups_of(both, edges), edges)

    @property
    def limits(self) -> list[tuple[float, float]]:
        """Where groups of bins begin and end, as shares of all ranks."""
        return limits_of([place / NUM_BINS for place in range(NUM_BINS + 1)], self.edges)


def _squared_residuals(outcomes: Float[np.ndarray, "row member"]) -> Float[np.ndarray, "row member"]:
    """Return (y − mean)² / variance of each row's outcomes; 0 in rows whose outcomes are all the same."""
    centred = outcomes - outcomes.mean(axis=1, keepdims=True)
    variance = (centred**2).mean(axis=1, keepdims=True)
    return centred**2 / np.where(variance > 0, variance, 1.0)


def _count(ranks: np.ndarray) -> Float[np.ndarray, "member bin"]:
    bins = ranks * NUM_BINS // ranks.shape[1]
    return np.stack([(bins == place).sum(axis=0) for place in range(NUM_BINS)], axis=1).astype(float)


def _widths(sums: _Sums) -> Float[np.ndarray, " group"]:
    """Return the share of ranks in each group: not quite that of bins, as ranks are whole numbers."""
    ranks = len(sums.bins)
    shares = np.bincount(np.arange(ranks) * NUM_BINS // ranks, minlength=NUM_BINS) / ranks
    return groups_of([shares], sums.edges)


def _statistics(sums: _Sums) -> dict[str, Statistic]:
    pairs = {name: (sums.seen[name], sums.made[name]) for name in sums.seen}
    if "zeros" in pairs and not (pairs["zeros"][0] or pairs["zeros"][1].any()):
        del pairs["zeros"]  # no outcome is ever 0
    if len(sums.limits) > 1:
        expected = sums.num_rows * _widths(sums)
        used = expected > 0
        unevenness = ((sums.bins - expected)[:, used] ** 2 / expected[used]).sum(axis=1)
        pairs["ranks"] = unevenness[0], unevenness[1:]
    lower, upper = NUM_BINS // 4, 3 * NUM_BINS // 4
    if sums.edges[lower - 1] and sums.edges[upper - 1]:
        is_inside = np.array([lower / NUM_BINS <= start and end <= upper / NUM_BINS for start, end in sums.limits])
        inside = sums.bins[:, is_inside].sum(axis=1) / sums.num_rows
        pairs["inside_50"] = inside[0], inside[1:]
    return {name: _statistic(*pair) for name, pair in pairs.items()}


def _statistic(seen: float, made: Float[np.ndarray, " draw"]) -> Statistic:
    """Return where T(y) is among T(y_rep); it is one of them itself, and equal ones count half."""
    is_equal = np.isclose(made, seen, rtol=1e-9, atol=1e-12)
    above = (made > seen) & ~is_equal
    p_value = (above.sum() + (is_equal.sum() + 1) / 2) / (len(made) + 1)
    median, lower, upper = np.quantile(made, _LEVELS)
    return Statistic(float(seen), float(median), float(lower), float(upper), float(p_value))


def _rank_bins(sums: _Sums) -> list[RankBin]:
    medians, lowers, uppers = np.quantile(sums.bins[1:], _LEVELS, axis=0)
    return [
        RankBin(*limits, int(count), *map(float, made))
        for limits, count, *made in zip(sums.limits, sums.bins[0], medians, lowers, uppers, strict=True)
    ]


def _site_fit(sums: _Sums) -> SiteFit:
    return SiteFit(sums.num_rows, _statistics(sums), _rank_bins(sums))
