"""What a posterior predictive check came to, in numbers and in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pandas

FALSE_ALARM = 0.01
"""How often, at most about, a right model is said to fail one statistic over all sites; and one in any of the sites."""

NAMES = {
    "mean": "mean of the outcomes",
    "sd": "standard deviation of the outcomes",
    "zeros": "share of outcomes that are 0",
    "residuals": "mean square of the residuals, over what is predicted",
    "ranks": "unevenness of the outcomes' ranks among predicted ones",
    "inside_50": "share of outcomes inside their 50 % predictive intervals",
}
# Large is uneven; nothing can be too even.
_ONE_SIDED = {"ranks"}


class Statistic(NamedTuple):
    """T(y), and T(y_rep): its median and central 90 % interval; ``p_value`` = P(T(y_rep) ≥ T(y)), ties halved."""

    observed: float
    predicted: float
    lower: float
    upper: float
    p_value: float

    def chance(self, name: str) -> float:
        """Return how often a right model would be this far off, or further."""
        return self.p_value if name in _ONE_SIDED else 2 * min(self.p_value, 1 - self.p_value)


class RankBin(NamedTuple):
    """Rows whose outcome has a rank from ``start`` to ``end``, as shares, among those that the model makes of the row.

    ``predicted``, ``lower`` and ``upper`` are the median and the 90 % interval of that count if the model is right.
    """

    start: float
    end: float
    observed: int
    predicted: float
    lower: float
    upper: float


@dataclass(frozen=True)
class SiteFit:
    """The part of one site, in the bins that it tells."""

    num_rows: int
    statistics: dict[str, Statistic]
    bins: list[RankBin]


@dataclass(frozen=True)
class PredictiveCheck:
    """Whether the model makes outcomes like those there are; see `fahmc.checks.predictive`."""

    num_draws: int
    num_rows: int
    """Of the sites that tell."""
    is_binary: bool
    """Whether the model makes no outcomes but 0 and 1."""
    statistics: dict[str, Statistic]
    bins: list[RankBin]
    """In the intervals that all sites tell."""
    sites: dict[str, SiteFit]
    silent: list[str] = field(default_factory=list)
    """Sites that may not tell anything of their outcomes, as too few rows differ; they are left out of all numbers."""
    without_zeros: list[str] = field(default_factory=list)
    """Sites that tell, but not their zeros; they are left out of that share alone."""

    is_censored: bool = False
    """Whether outcomes are times some of which may be censored, so that there are no means and the like to compare."""

    @property
    def table(self) -> pandas.DataFrame:
        """One row a statistic: ``observed``, ``predicted``, ``5%``, ``95%``, ``p_value``."""
        return _as_table(self.statistics)

    @property
    def site_table(self) -> pandas.DataFrame:
        """The same by site and statistic."""
        import pandas

        return pandas.concat({site: _as_table(part.statistics) for site, part in self.sites.items()}, names=["site"])

    @property
    def binned(self) -> pandas.DataFrame:
        """One row a bin of ranks: ``start``, ``end``, ``observed``, ``predicted``, ``lower``, ``upper``."""
        import pandas

        return pandas.DataFrame(self.bins, columns=list(RankBin._fields))

    @property
    def fits(self) -> bool:
        """Whether no statistic, over all sites or of one, is further off than chance explains."""
        return not any(self._misfits())

    def _misfits(self) -> Iterator[tuple[str, str, Statistic]]:
        """Yield (site, statistic's name, statistic); no site's name for all together."""
        yield from (("", *item) for item in self.statistics.items() if item[1].chance(item[0]) < FALSE_ALARM)
        if len(self.sites) < 2:
            return
        for site, part in self.sites.items():
            for name, statistic in part.statistics.items():
                if statistic.chance(name) < FALSE_ALARM / len(self.sites):
                    yield site, name, statistic

    @property
    def remarks(self) -> list[str]:
        """What to make of it, as sentences."""
        said = [_in_words(*misfit) for misfit in self._misfits()]
        if not said:
            said.append(
                "The model makes outcomes like those there are, as far as these statistics see. They look at rows that "
                "it was fitted to, so they find gross misfit, not all."
            )
        if self.is_censored:
            said.append(
                "Times may be censored, so that means and spreads do not compare with predicted ones; ranks do."
            )
        if self.silent:
            left_out = ", ".join(self.silent)
            said.append(f"Left out, since too few of their outcomes differ from the others to tell sums: {left_out}.")
        if self.without_zeros and "zeros" in self.statistics:
            said.append(f"The share of zeros is without {', '.join(self.without_zeros)}, which do not tell theirs.")
        return said

    def __str__(self) -> str:
        width = max(map(len, NAMES))
        lines = [
            f"Posterior predictive check: {self.num_rows} outcomes against {self.num_draws} sets drawn from the model.",
            "",
            f"{'':<{width}} {'observed':>10} {'predicted':>10}  {'90 % interval':<22} {'p':>6}",
            *(_line(name, statistic, width) for name, statistic in self.statistics.items()),
            "------",
            "ranks of the outcomes among predicted ones: rows observed, and predicted with 90 % interval",
            *(
                f"{f'{bin.start:.4g} to {bin.end:.4g}':>{width + 11}} {bin.observed:>10}  "
                f"{bin.predicted:g} [{bin.lower:g}, {bin.upper:g}]"
                for bin in self.bins
            ),
        ]
        if len(self.sites) > 1:
            place = max(len("by site"), *map(len, self.sites))
            lines += [
                "------",
                f"{'by site':<{place}} {'rows':>7}" + "".join(f"{f'p of {name}':>15}" for name in NAMES),
            ]
            for site, part in self.sites.items():
                values = (part.statistics.get(name) for name in NAMES)
                cells = "".join(f"{'not told' if value is None else f'{value.p_value:.3f}':>15}" for value in values)
                lines.append(f"{site:<{place}} {part.num_rows:>7}{cells}")
        return "\n".join([*lines, *self.remarks])


def _line(name: str, statistic: Statistic, width: int) -> str:
    interval = f"[{statistic.lower:.4g}, {statistic.upper:.4g}]"
    numbers = f"{statistic.observed:>10.4g} {statistic.predicted:>10.4g}  {interval:<22} {statistic.p_value:>6.3f}"
    return f"{name:<{width}} {numbers}"


def _in_words(site: str, name: str, statistic: Statistic) -> str:
    where = f" at {site}" if site else ""
    interval = f"{statistic.lower:.4g} to {statistic.upper:.4g}"
    return (
        f"The {NAMES[name]}{where} is {statistic.observed:.4g}, where the model makes {interval} (p = "
        f"{statistic.p_value:.3f}): it does not fit there."
    )


def _as_table(statistics: dict[str, Statistic]) -> pandas.DataFrame:
    import pandas

    columns = ["observed", "predicted", "5%", "95%", "p_value"]
    return pandas.DataFrame.from_dict(statistics, orient="index", columns=columns)
