"""Calibration and ROC of a model whose prediction is P(y = 1), from counts and sums of each site.

With p_i the prediction of row i, averaged over draws, and n rows of all sites:

    Brier score    Σ (p_i − y_i)² / n
    log score      Σ log p(y_i) / n
    reliability    in groups of neighbouring p: mean p against the share of ones; ECE = Σ_g (n_g / n) |share_g − mean_g|
    ROC            shares of ones and of zeros above a threshold
    AUC            P(p_i > p_j | y_i = 1, y_j = 0), ties halved

Sites count their ones and zeros in 1,024 bins of p, neighbours put together until no group is about too few of either
(`fahmc.checks.groups`). Scores are sums and so exact; so are the groups' counts and means. A pair (i, j) within a site
is compared there, exactly; one of two sites by the groups that they are in, and where these overlap AUC has bounds.

These are the rows that the model was fitted to, so it looks a little better than it would on others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from fahmc import door
from fahmc.checks.calibration_result import Calibration, Group, SiteScores
from fahmc.checks.check import Answer, Fit, only_fit
from fahmc.checks.groups import common_edges, edges_told, gather, groups_of, limits_of
from fahmc.checks.pointwise import over_rows
from fahmc.errors import DataError, ModelError
from fahmc.registry import register

# A power of two, as edges are kept halving; so many that rows which are here are told apart.
NUM_BINS = 1024
# Groups of the reliability table, about deciles, and steps of the ROC have at least this share of all rows, and so
# many: neither shows a single row, wherever the rows are.
_GROUP, _STEP, _FEWEST = 0.1, 0.02, 10
# Means of many numbers in single precision may leave [0, 1] by a few of their last digits.
_ROUNDING = 1e-5


@register("check")
@dataclass(frozen=True)
class BinnedChances:
    """Counts of ones and zeros by what the model predicts, and sums of its scores."""

    def __post_init__(self):
        door.check(self)

    def shapes(self, num_draws: Sequence[int]) -> dict[str, tuple[int, ...]]:
        """Declare the answer; all is 0 where ``is_told`` is, but the number of rows."""
        only_fit(num_draws, "BinnedChances")
        numbers = dict.fromkeys(("num_rows", "is_told", "brier", "log_score", "concordant"), ())
        return numbers | {"counts": (2, NUM_BINS), "chances": (NUM_BINS,), "edges": (NUM_BINS - 1,)}

    def answer(self, fits: Sequence[Fit], minimum: int) -> Answer:
        """Sum up; a site with fewer ones or zeros than ``minimum`` says so, and no more."""
        fit: Fit = only_fit(fits, "BinnedChances")
        is_one, chances = _ones(fit), _chances(fit)
        bins = np.clip(np.ceil(chances * NUM_BINS).astype(int) - 1, 0, NUM_BINS - 1)
        counts = np.stack([np.bincount(bins[is_one == kind], minlength=NUM_BINS) for kind in (False, True)]).astype(
            float
        )
        edges = edges_told(counts, minimum)
        if edges is None:
            nothing = {name: np.zeros(shape) for name, shape in self.shapes([fit.num_draws]).items()}
            return nothing | {"num_rows": np.array(len(is_one))}
        with np.errstate(divide="ignore"):  # a one that was given no chance at all
            logs = np.log(np.where(is_one, chances, 1 - chances))
        return {
            "num_rows": np.array(len(is_one)),
            "is_told": np.array(1),
            "brier": ((chances - is_one) ** 2).sum(),
            "log_score": logs.sum(),
            "concordant": np.array(_pairs_in_order(chances, is_one)),
            "counts": gather(counts, edges),
            "chances": gather(np.bincount(bins, chances, minlength=NUM_BINS), edges),
            "edges": edges,
        }

    def conclude(self, answers: Mapping[str, Answer]) -> Calibration:
        """Put the sites' counts and sums together."""
        told = {site: answer for site, answer in answers.items() if answer["is_told"]}
        if not told:
            raise DataError(
                f"None of the sites ({', '.join(answers)}) has as many ones and as many zeros as its minimum, so none "
                "tells how they are predicted."
            )
        whole = _Binned.of(told)
        roc = _roc(whole)
        lower, upper = _auc_bounds(list(told.values()))
        return Calibration(
            num_rows=whole.num_rows,
            num_ones=whole.num_ones,
            brier=sum(float(answer["brier"]) for answer in told.values()) / whole.num_rows,
            log_score=sum(float(answer["log_score"]) for answer in told.values()) / whole.num_rows,
            auc=(lower + upper) / 2,
            auc_bounds=(lower, upper),
            groups=_about_deciles(whole),
            false_positives=roc[0],
            true_positives=roc[1],
            sites={site: _site_scores(answer) for site, answer in told.items()},
            silent=[site for site in answers if site not in told],
        )


def _ones(fit: Fit) -> Bool[np.ndarray, " row"]:
    outcome = fit.outcome
    if outcome.ndim != 1 or not np.isin(outcome, (0, 1)).all():
        raise DataError(f"The outcomes{_at(fit)} are not all 0 or 1, so there is no chance of a 1 to check.")
    return outcome == 1


def _chances(fit: Fit) -> Float[np.ndarray, " row"]:
    """Return P(y = 1) of every row, averaged over draws."""

    def chance(position: Any, rows: Any) -> Any:
        predicted = fit.model.predict(position, rows)
        return predicted[:, 1] if jnp.ndim(predicted) == 2 and predicted.shape[1] == 2 else predicted

    chances = np.concatenate([values.mean(axis=1) for _, values in over_rows(chance, "predict_fn", fit)])
    if not ((chances >= -_ROUNDING) & (chances <= 1 + _ROUNDING)).all():
        raise ModelError(f"The model's predictions{_at(fit)} are not all between 0 and 1, so they are not P(y = 1).")
    return np.clip(chances, 0.0, 1.0)


def _at(fit: Fit) -> str:
    return f" at {fit.site}" if fit.site else ""


def _pairs_in_order(chances: Float[np.ndarray, " row"], is_one: Bool[np.ndarray, " row"]) -> float:
    """Return how many pairs of a one and a zero have the one predicted higher, ties halved (Mann and Whitney)."""
    zeros = np.sort(chances[~is_one])
    below, below_or_tied = (np.searchsorted(zeros, chances[is_one], side) for side in ("left", "right"))
    return float((below + below_or_tied).sum() / 2)


class _Binned(NamedTuple):
    """What some sites' counts come to, in the groups that all of them tell."""

    zeros: Float[np.ndarray, " group"]
    ones: Float[np.ndarray, " group"]
    chances: Float[np.ndarray, " group"]
    limits: list[tuple[float, float]]

    @classmethod
    def of(cls, answers: Mapping[str, Answer]) -> _Binned:
        parts = list(answers.values())
        edges = common_edges([part["edges"] for part in parts])
        zeros, ones = groups_of([part["counts"] for part in parts], edges)
        chances = groups_of([part["chances"] for part in parts], edges)
        return cls(zeros, ones, chances, limits_of([place / NUM_BINS for place in range(NUM_BINS + 1)], edges))

    @property
    def num_rows(self) -> int:
        return int(self.zeros.sum() + self.ones.sum())

    @property
    def num_ones(self) -> int:
        return int(self.ones.sum())


def _starts(rows: Float[np.ndarray, " group"], share: float) -> list[int]:
    """Return where to begin anew, so that neighbouring groups together have this share of the rows."""
    fewest = max(share * rows.sum(), _FEWEST)
    starts, size = [0], 0.0
    for place, count in enumerate(rows):
        if size >= fewest and rows[place:].sum() >= fewest:
            starts.append(place)
            size = 0.0
        size += count
    return starts


def _about_deciles(binned: _Binned) -> list[Group]:
    rows = binned.zeros + binned.ones
    starts = _starts(rows, _GROUP)
    ends = [*(start - 1 for start in starts[1:]), len(rows) - 1]
    sums = [np.add.reduceat(part, starts) for part in (rows, binned.ones, binned.chances)]
    return [
        Group(binned.limits[start][0], binned.limits[end][1], int(count), int(ones), float(chances / count))
        for start, end, count, ones, chances in zip(starts, ends, *sums, strict=True)
    ]


def _roc(binned: _Binned) -> tuple[list[float], list[float]]:
    """Return shares of zeros and of ones above each edge, from the highest edge down."""
    starts = _starts(binned.zeros + binned.ones, _STEP)
    parts = (np.add.reduceat(part, starts) for part in (binned.zeros, binned.ones))
    above = [np.concatenate([[0.0], np.cumsum(part[::-1])]) / part.sum() for part in parts]
    return above[0].tolist(), above[1].tolist()


def _auc_bounds(answers: Sequence[Answer]) -> tuple[float, float]:
    """Return what AUC is at least and at most.

    Pairs of two sites are in order if the one's group begins where the zero's ends or above, and are not if it ends
    where the zero's begins or below; of others it is not known.
    """
    zeros_by_end, zeros_by_start, ones = [], [], []
    for answer in answers:
        starts, ends = _limits_by_bin(answer["edges"] > 0)
        zeros_by_end.append(np.cumsum(np.bincount(ends, answer["counts"][0], minlength=NUM_BINS + 1)))
        zeros_by_start.append(np.cumsum(np.bincount(starts, answer["counts"][0], minlength=NUM_BINS + 1)))
        ones.append((answer["counts"][1], starts, ends))
    lower = upper = float(sum(answer["concordant"] for answer in answers))
    all_by_end, all_by_start = sum(zeros_by_end), sum(zeros_by_start)
    for own_by_end, own_by_start, (counts, starts, ends) in zip(zeros_by_end, zeros_by_start, ones, strict=True):
        lower += float(counts @ (all_by_end - own_by_end)[starts])
        # A zero whose group begins below the one's end may lie below it.
        upper += float(counts @ (all_by_start - own_by_start)[ends - 1])
    pairs = float(sum(counts.sum() for counts, *_ in ones)) * float(sum(part[-1] for part in zeros_by_end))
    return lower / pairs, upper / pairs


def _limits_by_bin(edges: Bool[np.ndarray, " edge"]) -> tuple[np.ndarray, np.ndarray]:
    """Return the places where the group of each bin begins and ends."""
    starts = np.flatnonzero(np.concatenate([[True], edges]))
    ends = np.append(starts[1:], NUM_BINS)
    group = np.cumsum(np.concatenate([[0], edges.astype(int)]))
    return starts[group], ends[group]


def _site_scores(answer: Answer) -> SiteScores:
    zeros, ones = answer["counts"].sum(axis=1)
    rows = zeros + ones
    return SiteScores(
        num_rows=int(rows),
        num_ones=int(ones),
        mean_chance=float(answer["chances"].sum() / rows),
        brier=float(answer["brier"] / rows),
        log_score=float(answer["log_score"] / rows),
        auc=float(answer["concordant"] / (zeros * ones)) if zeros and ones else float("nan"),
    )
