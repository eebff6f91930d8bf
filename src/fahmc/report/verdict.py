"""The verdict on a run, in plain language: what is known of it, what is wrong, and the one setting to change.

"Good" is a promise: the chains agree and are long enough, and every mean is within `SHIFT_LIMIT` posterior standard
deviations of the posterior's and every standard deviation within the share `SD_LIMIT`, estimate and twice its error
together (`fahmc.Draws.bias`). Where that error is not known, the verdict is "unknown", however well chains agree.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from fahmc.certificate import COLUMNS, source_of
from fahmc.privacy import Budget
from fahmc.report import advice
from fahmc.report.convergence import ess, relative_drift

if TYPE_CHECKING:
    import pandas as pd

    from fahmc.draws import Draws

R_HAT_LIMIT = 1.01
"""Vehtari, Gelman, Simpson, Carpenter and Bürkner (2021) ask for R-hat below this."""
ESS_LIMIT = 400.0
"""And for at least this many effective draws, below which R-hat and ESS themselves are unreliable."""
SHIFT_LIMIT = 0.12
"""Posterior standard deviations that a mean may be off by."""
SD_LIMIT = 0.1
"""Share that a standard deviation may be off by."""
K_HAT_LIMIT = 0.7
"""Above it, averages over importance weights cannot be trusted (Vehtari, Simpson, Gelman, Yao and Gabry 2024)."""
DRIFT_LIMIT = 0.5
"""Clients that stray further, as a share of the posterior's width, go with a visible bias: a rule of thumb."""
# Chains this far apart tell nothing of the law that they would have in the end.
_APART = 1.05
# Draws that are wider or narrower than the posterior by more: the regression on gradients leads too far.
_WIDTHS = (0.8, 1.25)
# Effective draws of a chain by itself, from which on it has settled.
_SETTLED_ESS = 25.0
_SOURCES = {
    "gradients": "estimated from gradients",
    "exactness": "Monte Carlo error; the sampler is exact",
    "weights": "Monte Carlo error of the importance weights",
    "reference": "by comparison with the reference",
}
_PRIVATE = (
    "How far means and standard deviations are from those of the exact posterior is not known: this is a normal "
    "approximation (Laplace) that allows for the noise and takes rows for what public bounds make of them; and whether "
    "the model fits could only be seen by asking the rows more."
)


class Verdict(NamedTuple):
    """Whether draws may be used, and why."""

    status: Literal["good", "unknown", "bad"]
    headline: str
    faults: tuple[str, ...]
    """What is wrong, or not known; empty for a good run."""
    advice: str
    """The one setting to change next, in words; empty where there is none."""
    setting: dict[str, Any]
    """The same for programs: name -> value."""
    remarks: tuple[str, ...]
    """What to know beside it, and the comparison with the reference."""

    @property
    def is_good(self) -> bool:
        """Whether the draws may be used."""
        return self.status == "good"

    @property
    def words(self) -> tuple[str, ...]:
        """What is wrong and what to do about it."""
        return (*self.faults, *filter(None, [self.advice]))

    def as_values(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {"is_good": self.is_good} | self._asdict()


class _Fault(NamedTuple):
    words: str
    setting: dict[str, Any]
    is_known: bool = True
    """Whether it is wrong, not only unknown."""


def judge(draws: Draws, table: pd.DataFrame, *, reference_label: str = "pooled") -> Verdict:
    """Judge a run by the worst parameter of its `fahmc.report.parameter_table`, which may hold a reference."""
    numbers: Any = table
    worst = numbers["r_hat"].max()
    groups = [list(_meeting_faults(draws, numbers)), list(_bias_faults(draws, numbers))]
    if not worst > _APART:  # what the chains are biased by is told once they have about met
        groups.reverse()
    faults = [*_doubts(draws), *_first_faults(draws), *groups[0], *groups[1]]
    wrong, unknown = ([fault for fault in faults if fault.is_known == is_known] for is_known in (True, False))
    setting = next((fault.setting for fault in [*wrong, *unknown] if fault.setting), {})
    facts = ", ".join(_facts(draws, numbers))
    what = "The weights are good" if draws.account.get("weights") else "The chains agree"
    if private := draws.account.get("privacy"):
        what = f"The draws are ({Budget(private['epsilon'], private['delta'])}) differentially private"
    if wrong:
        status, headline = "bad", f"Do not use these draws yet: {facts}."
    elif unknown:
        status, headline = "unknown", f"{what}, but their error is not known to be small: {facts}."
    else:
        status, headline = "good", f"{what}: {facts}; {_promise(draws, numbers)}."
    words = tuple(fault.words for fault in [*wrong, *unknown])
    remarks = tuple(_remarks(draws, numbers, reference_label))
    return Verdict(status, headline, words, advice.in_words(setting), setting, remarks)


def _facts(draws: Draws, table: Any) -> Iterator[str]:
    sizes = table[["ess_bulk", "ess_tail"]].min(axis=1, skipna=False)
    if weights := draws.account.get("weights"):
        yield f"k-hat {weights['k_hat']:.2f}"
    yield _extreme("worst R-hat {:.3f}", table["r_hat"], table["r_hat"].max()) or "no R-hat"
    yield _extreme("smallest effective sample size {:,.0f}", sizes, sizes.min()) or "no effective sample size"
    if "diverging" in draws.stats:
        count = int(np.sum(draws.stats["diverging"]))
        yield f"{count or 'no'} divergence{'' if count == 1 else 's'}"
    if "acceptance_rate" in draws.stats:
        yield f"acceptance rate {draws.stats['acceptance_rate'].mean():.2f}"


def _promise(draws: Draws, table: Any) -> str:
    shift, excess = (_bounds(table, name).max() for name in ("mean_shift", "sd_excess"))
    how = _SOURCES[_source(draws, table)]
    return f"means within {shift:.2f} posterior sds, standard deviations within {100 * excess:.0f} % ({how})"


def _source(draws: Draws, table: Any) -> str:
    return table.attrs.get("found_by", source_of(draws))


def _bounds(table: Any, name: str) -> Any:
    """Return the size of an error with twice the error of its estimate."""
    return table[name].abs() + 2 * table[f"{name}_error"]


def _doubts(draws: Draws) -> Iterator[_Fault]:
    """Pass on what the sampler itself doubts."""
    for doubt in draws.account.get("doubts", ()):
        yield _Fault(doubt, {})
    k_hat = draws.account.get("weights", {}).get("k_hat", 0.0)
    if not k_hat < K_HAT_LIMIT:
        yield _Fault(f"The importance weights have k-hat {k_hat:.2f}, above {K_HAT_LIMIT}: a few draws decide.", {})


def _first_faults(draws: Draws) -> Iterator[_Fault]:
    if draws.num_chains < 2 and not draws.account.get("weights"):
        yield _Fault("One chain cannot be checked against another.", {"num_chains": 4})
    if lost := chains_lost(draws):
        chains = f"chain {lost[0]}" if len(lost) == 1 else f"{len(lost)} of {draws.num_chains} chains"
        yield _Fault(
            f"Every draw of {chains} comes from a round that diverged: the step size is too large for trajectories to "
            "be stable, and these numbers mean nothing.",
            advice.smaller_step(draws, 0.1),
        )
    elif count := int(np.sum(draws.stats.get("diverging", 0))):
        share = f"{count:,} of {draws.num_chains * draws.num_draws:,} draws"
        yield _Fault(f"{share} come from rounds that diverged.", advice.smaller_step(draws, 0.5))


def chains_lost(draws: Draws) -> list[int]:
    """Return the chains whose every draw comes from a round that diverged, though their numbers are finite."""
    return np.flatnonzero(np.all(draws.stats.get("diverging", np.zeros((1, 1))), axis=1)).tolist()


def _meeting_faults(draws: Draws, table: Any) -> Iterator[_Fault]:
    """Find what R-hat and ESS have to say."""
    r_hats, sizes = table["r_hat"], table[["ess_bulk", "ess_tail"]].min(axis=1, skipna=False)
    none = r_hats[r_hats.isna()]
    if len(none) and draws.num_chains > 1:
        yield _Fault(
            f"There is no R-hat for {_list(none)}, since the chains are too short or the value never moved: check that "
            "the log density depends on it.",
            advice.more_rounds(draws, 10.0) if draws.num_draws < 100 else {},
        )
    apart = r_hats[r_hats > R_HAT_LIMIT].sort_values(ascending=False, kind="stable")
    if len(apart):
        where = list(table.index).index(apart.index[0])
        if alone := _settled_elsewhere(draws.flat()[..., where]):
            chains = ", ".join(map(str, alone))
            yield _Fault(
                f"The chains have settled in different places: {apart.index[0]} of chain {chains} is far from that of "
                "the others and stays there. The posterior may have several modes, whose shares no chain can tell; "
                "more rounds do not help.",
                {},
            )
            return
        factor = max(2.0, (apart.max() ** 2 - 1) / (R_HAT_LIMIT**2 - 1), ESS_LIMIT / max(sizes.min(), 1.0))
        words = f"The chains have not met in {_list(apart)} (R-hat above {R_HAT_LIMIT})."
        yield _Fault(words, advice.more_rounds(draws, factor))
    if sizes.min() < ESS_LIMIT:
        yield _Fault(
            f"{sizes.min():.0f} effective draws are too few for a stable interval (at least {ESS_LIMIT:.0f}).",
            # A quarter more than it takes, as an effective size is itself an estimate.
            advice.more_rounds(draws, 1.25 * ESS_LIMIT / max(sizes.min(), 1.0)),
        )


def _settled_elsewhere(values: np.ndarray) -> list[int]:
    """Return the chains that stay away from the others, by three of a chain's standard deviations.

    A chain that moves within itself is meant: one that crawls is still on its way.
    """
    if min(float(ess(chain[None])["position"]) for chain in values) < _SETTLED_ESS:
        return []
    means = values.mean(axis=1)
    return np.flatnonzero(np.abs(means - np.median(means)) > 3 * np.median(values.std(axis=1))).tolist()


def _bias_faults(draws: Draws, table: Any) -> Iterator[_Fault]:
    """Find what is off by too much, and what is not known."""
    source = _source(draws, table)
    if "privacy" in draws.account:
        yield _Fault(_PRIVATE, {}, is_known=False)
        return
    if source == "nothing":
        yield _Fault(_nothing_known(draws), advice.to_know_the_bias(draws), is_known=False)
        return
    limits = (("mean_shift", SHIFT_LIMIT, "mcse_mean"), ("sd_excess", SD_LIMIT, "mcse_sd"))
    untold = table[table[list(COLUMNS)].isna().any(axis=1)]
    for name, limit, mcse in limits:
        bounds = _bounds(table, name)
        if not bounds.max() > limit:
            continue
        row = table.loc[bounds.idxmax()]
        is_sure = bool(abs(row[name]) > limit)
        chance = row[mcse] / row["sd"]
        if source == "reference":  # whose own chance comes on top
            chance = max(chance, row[f"{name}_error"])
        # Three standard errors: chance alone would rarely do it.
        is_biased = abs(row[name]) > 3 * chance
        setting = advice.less_bias(draws, bounds.max() / limit, is_biased)
        yield _Fault(_off_by(bounds.idxmax(), row, name, limit, is_sure), setting, is_sure)
    if len(untold) and source == "gradients":
        yield _untold(draws, untold)


def _off_by(parameter: Any, row: Any, name: str, limit: float, is_sure: bool) -> str:
    value, error = row[name], row[f"{name}_error"]
    verb = "is" if is_sure else "may be"
    if name == "mean_shift":
        return (
            f"The mean of {parameter} {verb} off by more than {limit} posterior standard deviations: {value:+.2f} ± "
            f"{error:.2f}."
        )
    return (
        f"The standard deviation of {parameter} {verb} off by more than {100 * limit:.0f} %: {100 * value:+.0f} ± "
        f"{100 * error:.0f} %."
    )


def _untold(draws: Draws, untold: Any) -> _Fault:
    """Say why gradients do not tell the error of some parameters."""
    moments = draws.posterior_moments
    width = moments.width if moments is not None else float("nan")
    if not _WIDTHS[0] < width < _WIDTHS[1]:
        words = (
            f"The draws are about {width:.2g} times as wide as the posterior, too far from it to tell the error of "
            f"{_list(untold)}."
        )
        return _Fault(words, advice.smaller_step(draws, 0.5))
    if moments is not None and np.isnan(moments.mean).all():
        factor = 20.0 * draws.flat_unconstrained().shape[-1] / (draws.num_chains * draws.num_draws)
        words = f"There are too few draws to tell the error of {_list(untold)} from gradients."
        return _Fault(words, advice.more_rounds(draws, 1.1 * max(factor, 1.0)), is_known=False)
    words = (
        f"Gradients leave more than half of the variation of {_list(untold)} unexplained, so its error is not known: "
        "the posterior is far from a Gaussian there."
    )
    return _Fault(words, {"sampler": "Auto"}, is_known=False)


def _nothing_known(draws: Draws) -> str:
    """Say that a bias is not known, and what hints at one."""
    words = (
        "How far means and standard deviations are from the posterior's is not known: this sampler has no "
        "accept/reject step, so the chains may share a bias that R-hat and ESS cannot see, and no gradients were kept "
        "to tell it."
    )
    drift = relative_drift(draws)
    # Clients with momentum of their own stray without it.
    if drift > DRIFT_LIMIT and draws.settings.get("sampler", {}).get("momentum_correlation", 1.0) == 1.0:
        words += (
            f" Clients stray by {100 * drift:.0f} % of the posterior's width before they are averaged, so it is "
            "probably large."
        )
    return words


def _remarks(draws: Draws, table: Any, reference_label: str) -> Iterator[str]:
    yield from draws.account.get("choices", ())
    if "difference_mcse" in table:
        yield comparison(table, reference_label)
        reference_r_hat = table["reference_r_hat"].max()
        if reference_r_hat > R_HAT_LIMIT:
            yield f"The {reference_label} run itself has an R-hat of {reference_r_hat:.3f}: a poor reference."
    sizes, count = table["ess_bulk"], draws.num_chains * draws.num_draws
    # A fifth: an effective size is itself an estimate.
    if sizes.max() > 1.2 * count:
        yield _alternating(draws, table, sizes, count)


def _alternating(draws: Draws, table: Any, sizes: Any, count: int) -> str:
    """Say what it means that draws are worth more than independent ones."""
    values = draws.flat()[..., list(table.index).index(sizes.idxmax())].astype(np.float64)
    steps = values - values.mean()
    correlation = float((steps[:, 1:] * steps[:, :-1]).mean() / max(steps.var(), np.finfo(float).tiny))
    words = (
        f"The effective sample size of {sizes.idxmax()} ({sizes.max():,.0f}) exceeds its {count:,} draws, since "
        f"neighbours lie on opposite sides of the mean (correlation {correlation:.2f}): the mean is precise, which "
        "tells nothing of the standard deviation."
    )
    length = _trajectory_length(draws)
    if correlation < -0.5 and length is not None:
        words += f" Trajectories of length {length:g} are near half a period of this direction, a resonance."
    return words


def _trajectory_length(draws: Draws) -> float | None:
    sampler = draws.settings.get("sampler", {})
    step_size, steps = sampler.get("step_size"), sampler.get("num_leapfrog_steps")
    return step_size * steps if isinstance(step_size, float) and isinstance(steps, int) else None


def false_alarm_limit(num_comparisons: int, rate: float = 0.01) -> float:
    """Return the standard errors that equal laws exceed in any comparison with this probability (Bonferroni)."""
    from scipy.stats import norm

    return float(norm.isf(rate / (2 * max(1, num_comparisons))))


def comparison(table: Any, label: str) -> str:
    """Say whether the means differ by more than Monte Carlo error, and whether that matters."""
    scores, shifts = table["difference_mcse"].abs(), table["difference_sd"].abs()
    limit = false_alarm_limit(len(scores))
    largest = _extreme("{:.1f} standard errors", scores, scores.max())
    if not largest:
        return f"The means cannot be compared with the {label} run: there are too few draws."
    size = _extreme("the largest shift is {:.2g} posterior standard deviations", shifts, shifts.max())
    claim = "No mean differs" if scores.max() <= limit else "Some means differ"
    return (
        f"{claim} from the {label} run by more than Monte Carlo error: at most {largest}, where chance alone stays "
        f"below {limit:.1f} in 99 of 100 such comparisons; {size}."
    )


def _extreme(words: str, values: Any, extreme: float) -> str:
    """Return the largest or smallest value and whose it is, or nothing if none is known."""
    return "" if math.isnan(extreme) else f"{words.format(extreme)} ({values.index[values == extreme][0]})"


def _list(values: Any, limit: int = 3) -> str:
    shown = ", ".join(map(str, values.index[:limit]))
    return shown if len(values) <= limit else f"{shown} and {len(values) - limit} more"
