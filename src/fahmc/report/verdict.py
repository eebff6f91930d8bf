"""The verdict on a run, in plain language: what the diagnostics say, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

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
    """Judge a run by the worst parameter of its `fahmc.report.parameter_table`, which may hold a reference."""
    num_diverging = int(np.sum(draws.stats.get("diverging", 0)))
    r_hats: Any = table["r_hat"]
    sizes: Any = table[["ess_bulk", "ess_tail"]].min(axis=1, skipna=False)
    advice = [*_r_hat_advice(draws, r_hats), *_other_advice(draws, sizes.min(), num_diverging, relative_drift(draws))]
    facts = [
        _extreme("worst R-hat {:.3f}", r_hats, r_hats.max()) or "no R-hat",
        _extreme("smallest effective sample size {:,.0f}", sizes, sizes.min()) or "no effective sample size",
        f"{num_diverging or 'no'} divergence{'' if num_diverging == 1 else 's'}"
        if "diverging" in draws.stats
        else "divergences are not told by this sampler",
    ]
    headline = f"{'Do not use these draws yet' if advice else 'The chains agree'}: {', '.join(facts)}."
    return Verdict(not advice, headline, tuple(advice), tuple(_remarks(draws, table, reference_label)))


def _extreme(words: str, values: Any, extreme: float) -> str:
    """Return the largest or smallest value and whose it is, or nothing if none is known."""
    return "" if np.isnan(extreme) else f"{words.format(extreme)} ({values.index[values == extreme][0]})"


def _r_hat_advice(draws: Draws, r_hats: Any) -> Iterator[str]:
    if draws.num_chains < 2:
        yield "One chain cannot be checked against another: set num_chains to 4."
        return
    if r_hats.isna().any():
        yield (
            f"There is no R-hat for {_list(r_hats[r_hats.isna()])}, since the chains are too short or the value never "
            "moved: run more rounds, and check that the log density depends on it."
        )
    apart = r_hats[r_hats > R_HAT_LIMIT].sort_values(ascending=False, kind="stable")
    if len(apart):
        crawl = "; if the traces crawl, make the trajectories longer (num_leapfrog_steps or step_size)"
        yield (
            f"The chains have not met in {_list(apart)} (R-hat above {R_HAT_LIMIT}): run more rounds with a longer "
            f"warmup{crawl if 'step_size' in draws.stats else ''}."
        )


def _other_advice(draws: Draws, smallest_ess: float, num_diverging: int, drift: float) -> Iterator[str]:
    if smallest_ess < ESS_LIMIT:
        yield (
            f"{smallest_ess:.0f} effective draws are too few for a stable interval (at least {ESS_LIMIT:.0f}): "
            f"run about {np.ceil(ESS_LIMIT / max(smallest_ess, 1.0)):.0f} times as many rounds, or more chains."
        )
    if num_diverging:
        yield (
            f"{num_diverging:,} of {draws.num_chains * draws.num_draws:,} draws come from rounds that diverged: make "
            "step_size smaller, or the warm-up longer if they are the first ones."
        )
    # The bias that R-hat cannot see. Clients with momentum of their own drift apart without it.
    sampler = draws.settings.get("sampler", {})
    if drift > DRIFT_LIMIT and sampler.get("momentum_correlation", 1.0) == 1.0:
        is_corrected = sampler.get("correction") is not None or sampler.get("name") == "DebiasedFAHMC"
        yield (
            f"Clients stray by {100 * drift:.0f} % of the posterior's width before they are averaged, so the draws are "
            f"probably biased: bring it below {100 * DRIFT_LIMIT:.0f} % with a smaller step_size, fewer "
            f"num_leapfrog_steps or num_local_steps{'' if is_corrected else ', or try a correction'}."
        )


def _remarks(draws: Draws, table: Any, reference_label: str) -> Iterator[str]:
    if "difference_mcse" in table:
        yield _comparison(table, reference_label)
        reference_r_hat = table["reference_r_hat"].max()
        if reference_r_hat > R_HAT_LIMIT:
            yield f"The {reference_label} run itself has an R-hat of {reference_r_hat:.3f}: a poor reference."
    if "acceptance_rate" not in draws.stats:
        has_step_size = "step_size" in draws.stats
        yield (
            "R-hat and ESS compare the chains with each other. This sampler has no accept/reject step, so the chains "
            f"may share a bias that neither can see{'; it falls with step_size and num_local_steps' * has_step_size}. "
            f"To measure it, {'halve step_size, or ' * has_step_size}compare with a run on pooled data where that is "
            "allowed."
        )


def _comparison(table: Any, label: str) -> str:
    """Say whether the means differ by more than Monte Carlo error, and whether that matters."""
    from scipy.stats import norm

    scores, shifts = table["difference_mcse"].abs(), table["difference_sd"].abs()
    # Bonferroni: equal laws exceed this in any of the parameters with probability 1 %.
    limit = float(norm.isf(0.01 / (2 * len(scores))))
    largest = _extreme("{:.1f} standard errors", scores, scores.max())
    if not largest:
        return f"The means cannot be compared with the {label} run: there are too few draws."
    size = _extreme("the largest shift is {:.2g} posterior standard deviations", shifts, shifts.max())
    claim = "No mean differs" if scores.max() <= limit else "Some means differ"
    return (
        f"{claim} from the {label} run by more than Monte Carlo error: at most {largest}, where chance alone stays "
        f"below {limit:.1f}; {size}."
    )


def _list(values: Any, limit: int = 3) -> str:
    shown = ", ".join(map(str, values.index[:limit]))
    return shown if len(values) <= limit else f"{shown} and {len(values) - limit} more"
