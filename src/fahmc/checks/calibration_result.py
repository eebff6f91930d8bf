"""How well chances of a 1 are predicted, in numbers and in words."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pandas

# Of a normal distribution: 95 % lie within so many standard deviations.
_Z = 1.959963984540054


class Group(NamedTuple):
    """Rows with predictions from ``start`` to ``end``."""

    start: float
    end: float
    num_rows: int
    num_ones: int
    mean_chance: float

    @property
    def share(self) -> float:
        """Share of ones."""
        return self.num_ones / self.num_rows

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of the share."""
        rows, weight = self.num_rows, _Z**2 / self.num_rows
        middle = (self.share + weight / 2) / (1 + weight)
        half = _Z * (self.share * (1 - self.share) / rows + weight / (4 * rows)) ** 0.5 / (1 + weight)
        return max(0.0, middle - half), min(1.0, middle + half)


@dataclass(frozen=True)
class SiteScores:
    """The part of one site; its ``auc`` is exact."""

    num_rows: int
    num_ones: int
    mean_chance: float
    brier: float
    log_score: float
    auc: float


@dataclass(frozen=True)
class Calibration:
    """How well a model predicts P(y = 1) on the rows that it was fitted to; see `fahmc.checks.calibration`."""

    num_rows: int
    """Of the sites that tell."""
    num_ones: int
    brier: float
    """Mean of (p − y)²: half of `fahmc.report.predictive.brier_score`, which counts both classes."""
    log_score: float
    """Mean of log p(y); 0 is perfect."""
    auc: float
    """The middle of ``auc_bounds``."""
    auc_bounds: tuple[float, float]
    """Between these lies the AUC that all rows in one place would have."""
    groups: list[Group]
    """From low predictions to high; about deciles, or wider where sites tell no more."""
    false_positives: list[float]
    """Shares of zeros predicted above a threshold, as that falls from 1 to 0: the ROC's abscissa."""
    true_positives: list[float]
    """Shares of ones above the same threshold."""
    sites: dict[str, SiteScores]
    silent: list[str] = field(default_factory=list)
    """Sites with fewer ones or zeros than their minimum; they are left out of all numbers."""

    @property
    def ece(self) -> float:
        """Expected calibration error over ``groups``."""
        return sum(abs(group.num_ones - group.num_rows * group.mean_chance) for group in self.groups) / self.num_rows

    @property
    def brier_of_share(self) -> float:
        """The Brier score of predicting the share of ones for every row: what a useful model is below."""
        share = self.num_ones / self.num_rows
        return share * (1 - share)

    @property
    def table(self) -> pandas.DataFrame:
        """One row a group: limits, rows, ones, the mean prediction, the share of ones and its 95 % interval."""
        import pandas

        rows = [(*group, group.share, *group.interval) for group in self.groups]
        return pandas.DataFrame(rows, columns=[*Group._fields, "share", "2.5%", "97.5%"])

    @property
    def remarks(self) -> list[str]:
        """What to know of these numbers, as sentences."""
        said = ["The model was fitted to these rows, so it looks a little better here than it would on new ones."]
        if self.auc_bounds[1] - self.auc_bounds[0] > 0.01:
            said.append(
                "AUC lies between its bounds: rows of different sites are compared by the groups that they are in."
            )
        if self.silent:
            said.append(f"Left out, since they have too few ones or zeros to tell of them: {', '.join(self.silent)}.")
        return said

    def __str__(self) -> str:
        lines = [
            f"Predicted chances of {self.num_rows} rows, {self.num_ones} of them ones.",
            "",
            f"Brier score  {self.brier:.4f}  ({self.brier_of_share:.4f} if all were given the share of ones)",
            f"log score    {self.log_score:.4f}",
            f"ECE          {self.ece:.4f}  (over {len(self.groups)} groups)",
            f"AUC          {self.auc:.4f}  (between {self.auc_bounds[0]:.4f} and {self.auc_bounds[1]:.4f})",
            "------",
            f"{'predicted':>16} {'rows':>7} {'ones':>7} {'mean':>7} {'share':>7}  95 % interval",
            *(
                f"{f'{group.start:.3f} to {group.end:.3f}':>16} {group.num_rows:>7} {group.num_ones:>7} "
                f"{group.mean_chance:>7.3f} {group.share:>7.3f}  [{group.interval[0]:.3f}, {group.interval[1]:.3f}]"
                for group in self.groups
            ),
        ]
        if len(self.sites) > 1:
            place = max(len("by site"), *map(len, self.sites))
            heads = ("rows", "ones", "mean", "share", "Brier", "AUC")
            lines += ["------", f"{'by site':<{place}}" + "".join(f"{head:>8}" for head in heads)]
            for name, site in self.sites.items():
                shares = (site.mean_chance, site.num_ones / site.num_rows, site.brier, site.auc)
                cells = f"{site.num_rows:>8}{site.num_ones:>8}" + "".join(f"{share:>8.3f}" for share in shares)
                lines.append(f"{name:<{place}}{cells}")
        return "\n".join([*lines, *self.remarks])
