"""The verdict on a run, in plain language: what the diagnostics say, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fahmc.report.convergence import relative_drift

if TYPE_CHECKING:
    import pandas as pd

    from fahmc.draws import Draws

R_HAT_LIMIT = 1.01
"""Vehtari, Gelman, Simpson, Carpenter and Bürkner (2021) ask for R-hat below this."""
ESS_LIMIT = 400.0
"""And for at least this many effective draws, below which R-hat and ESS themselves are unreliable."""
DRIFT_LIMIT = 0.5
"""Clients that stray further, as a share of the posterior's width, go with a visible bias: a rule of thumb."""


class Verdict(NamedTuple):
    """Whether the chains may be used, and why."""

    is_good: bool
    """R-hat, ESS, divergences and the clients' drift are all as they should be."""
    headline: str
    advice: tuple[str, ...]
    """What to do about each fault; empty for a good run."""
    remarks: tuple[str, ...]
    """What these diagnostics cannot see, and the comparison with the reference."""


def judge(draws: Draws, table: pd.DataFrame, *, reference_label: str = "pooled") -> Verdict:
    """Judge a run by its worst parameter.

    Parameters
    ----------
    draws : Draws
        The run, for the number of chains and the divergences.
    table : pandas.DataFrame
        Its `fahmc.report.parameter_table`.
    reference_label : str
        What to call the reference, if the table has one.
    """
    num_diverging = int(np.sum(draws.stats.get("diverging", 0)))
    r_hats, sizes = _by_name(table, "r_hat"), _smaller_ess(table)
    advice = [
        *_r_hat_advice(draws, r_hats),
        *_ess_advice(sizes),
        *_divergence_advice(draws, num_diverging),
        *_drift_advice(draws),
    ]
    facts = [
        _extreme("worst R-hat {:.3f}", r_hats, max) or "no R-hat",
        _extreme("smallest effective sample size {:,.0f}", sizes, min) or "no effective sample size",
        f"{num_diverging or 'no'} divergence{'' if num_diverging == 1 else 's'}",
    ]
    headline = f"{'Do not use these draws yet' if advice else 'The chains agree'}: {', '.join(facts)}."
    return Verdict(not advice, headline, tuple(advice), tuple(_remarks(draws, table, reference_label)))


def _by_name(table: pd.DataFrame, column: str) -> dict[str, float]:
    return {str(name): float(value) for name, value in zip(table.index, table[column].to_numpy(), strict=True)}


def _smaller_ess(table: pd.DataFrame) -> dict[str, float]:
    """Return the smaller of bulk and tail ESS of each parameter, NaN if either is."""
    tail = _by_name(table, "ess_tail")
    return {name: float(np.minimum(bulk, tail[name])) for name, bulk in _by_name(table, "ess_bulk").items()}


def _extreme(words: str, values: dict[str, float], pick: Callable) -> str:
    """Return the largest or smallest value and whose it is, or nothing if none is known."""
    known = {name: value for name, value in values.items() if not np.isnan(value)}
    if not known:
        return ""
    name = pick(known, key=known.__getitem__)
    return f"{words.format(known[name])} ({name})"


def _r_hat_advice(draws: Draws, r_hats: dict[str, float]) -> list[str]:
    if draws.num_chains < 2:
        return ["One chain cannot be checked against another: set num_chains to 4."]
    advice = []
    stuck = [name for name, value in r_hats.items() if np.isnan(value)]
    if stuck:
        advice.append(
            f"There is no R-hat for {_list(stuck)}, since the chains are too short or the value never moved: run more "
            "rounds, and check that the log density depends on it."
        )
    apart = sorted(
        (name for name, value in r_hats.items() if value > R_HAT_LIMIT), key=r_hats.__getitem__, reverse=True
    )
    if apart:
        crawl = "; if the traces crawl, make the trajectories longer (num_leapfrog_steps or step_size)"
        advice.append(
            f"The chains have not met in {_list(apart)} (R-hat above {R_HAT_LIMIT}): run more rounds with a longer "
            f"warmup{crawl if 'step_size' in draws.stats else ''}."
        )
    return advice


def _ess_advice(sizes: dict[str, float]) -> list[str]:
    smallest = min((size for size in sizes.values() if not np.isnan(size)), default=ESS_LIMIT)
    if smallest >= ESS_LIMIT:
        return []
    return [
        f"{smallest:.0f} effective draws are too few for a stable interval (at least {ESS_LIMIT:.0f}): "
        f"run about {np.ceil(ESS_LIMIT / max(smallest, 1.0)):.0f} times as many rounds, or more chains."
    ]


def _divergence_advice(draws: Draws, num_diverging: int) -> list[str]:
    if not num_diverging:
        return []
    num_draws = draws.num_chains * draws.num_draws
    return [
        f"{num_diverging:,} of {num_draws:,} draws come from rounds that diverged: make step_size "
        "smaller, or the warm-up longer if they are the first ones."
    ]


def _drift_advice(draws: Draws) -> list[str]:
    """Look for the bias that R-hat cannot see. Clients with momentum of their own drift apart without it."""
    has_common_momentum = draws.settings.get("sampler", {}).get("momentum_correlation", 1.0) == 1.0
    share = relative_drift(draws)
    if not has_common_momentum or not share > DRIFT_LIMIT:
        return []
    return [
        f"Clients stray by {100 * share:.0f} % of the posterior's width before they are averaged, so the draws are "
        f"probably biased: bring it below {100 * DRIFT_LIMIT:.0f} % with a smaller step_size, fewer "
        "num_leapfrog_steps or num_local_steps, or try DebiasedFAHMC."
    ]


def _remarks(draws: Draws, table: pd.DataFrame, reference_label: str) -> list[str]:
    remarks = []
    if "difference_mcse" in table:
        remarks.append(_comparison(table, reference_label))
        reference_r_hat = np.nanmax([1.0, *_by_name(table, "reference_r_hat").values()])
        if reference_r_hat > R_HAT_LIMIT:
            remarks.append(f"The {reference_label} run itself has an R-hat of {reference_r_hat:.3f}: a poor reference.")
    if "acceptance_rate" not in draws.stats:
        has_step_size = "step_size" in draws.stats
        remarks.append(
            "R-hat and ESS compare the chains with each other. This sampler has no accept/reject step, so the chains "
            f"may share a bias that neither can see{'; it falls with step_size and num_local_steps' * has_step_size}. "
            f"To measure it, {'halve step_size, or ' * has_step_size}compare with a run on pooled data where that is "
            "allowed."
        )
    return remarks


def _comparison(table: pd.DataFrame, label: str) -> str:
    """Say whether the means differ by more than Monte Carlo error, and whether that matters."""
    from scipy.stats import norm

    scores = {name: abs(value) for name, value in _by_name(table, "difference_mcse").items()}
    shifts = {name: abs(value) for name, value in _by_name(table, "difference_sd").items()}
    # Bonferroni: equal laws exceed this in any of the parameters with probability 1 %.
    limit = float(norm.isf(0.01 / (2 * len(scores))))
    largest = _extreme("{:.1f} standard errors", scores, max)
    if not largest:
        return f"The means cannot be compared with the {label} run: there are too few draws."
    size = _extreme("the largest shift is {:.2g} posterior standard deviations", shifts, max)
    if np.nanmax(list(scores.values())) <= limit:
        claim = f"No mean differs from the {label} run by more than Monte Carlo error"
    else:
        claim = f"Some means differ from the {label} run by more than Monte Carlo error"
    return f"{claim}: at most {largest}, where chance alone stays below {limit:.1f}; {size}."


def _list(names: list[str], limit: int = 3) -> str:
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"
