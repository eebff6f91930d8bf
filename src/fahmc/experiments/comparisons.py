"""Which setting of a sweep scores best and worst: what the paper's claims of figures 3 to 7 are made of."""

from __future__ import annotations

import math

from fahmc.experiments.image_runs import SCORES
from fahmc.experiments.outcome import Claim, Table, judge


class Comparisons:
    """The last scores of all settings, and the comparisons that claims are made of."""

    def __init__(self, shown: Table):
        self._last = shown.sort_values("round").groupby(["target", "varied", "K", "T", "score"], as_index=False).last()

    def last(self, target: str, varied: str, score: str) -> Table:
        """Return value, mean and sd of each setting of a sweep, in order of the value."""
        rows = self._last
        rows = rows[(rows["target"] == target) & (rows["varied"] == varied) & (rows["score"] == score)]
        return rows.assign(value=rows[varied]).set_index("value").sort_index()

    def targets(self) -> list[str]:
        """Return the targets, in order of their names."""
        return sorted(self._last["target"].unique())

    def order(self, target: str, varied: str, score: str) -> list[int]:
        """Return the values from best to worst."""
        rows = self.last(target, varied, score)
        return list((SCORES[score].sign * rows["mean"]).sort_values(ascending=False, na_position="last").index)

    def words(self, target: str, varied: str, score: str) -> str:
        """Write the scores from best to worst."""
        rows = self.last(target, varied, score)
        parts = [
            f"{varied} = {value}: {_in_score(rows.loc[value, 'mean'], rows.loc[value, 'sd'])}"
            for value in self.order(target, varied, score)
        ]
        return "best to worst: " + ", ".join(parts)

    def best_is(self, target: str, varied: str, score: str, value: int, prefix: str = "") -> Claim:
        """Judge whether a value does best."""
        statement = f"{prefix}{varied} = {value} has the best {SCORES[score].label}"
        return judge(statement, self.words(target, varied, score), self.order(target, varied, score)[0] == value)

    def worst_is(self, target: str, varied: str, score: str, value: int, prefix: str = "") -> Claim:
        """Judge whether a value does worst."""
        statement = f"{prefix}{varied} = {value} has the worst {SCORES[score].label}"
        return judge(statement, self.words(target, varied, score), self.order(target, varied, score)[-1] == value)

    def best_is_not(self, target: str, varied: str, score: str, value: int, prefix: str = "") -> Claim:
        """Judge whether some other value does better."""
        statement = f"{prefix}{varied} = {value} does not have the best {SCORES[score].label}"
        return judge(statement, self.words(target, varied, score), self.order(target, varied, score)[0] != value)

    def gain_over(self, target: str, varied: str, score: str, value: int) -> float:
        """Return by which share the best score is below that of a value."""
        rows = self.last(target, varied, score)
        return 1 - rows["mean"].min() / rows.loc[value, "mean"]


def _in_score(mean: float, sd: float) -> str:
    return f"{mean:.4f}" if math.isnan(sd) else f"{mean:.4f} ± {sd:.4f}"
