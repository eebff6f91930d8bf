"""Which setting of a sweep scores best and worst: what the paper's claims of figures 3 to 7 are made of.

Two settings differ if their means over runs are three standard errors apart; a claim that turns on less is out of
reach. Where there is one run, as in the paper's figure 5, its noise is not known and the order alone decides.
"""

from __future__ import annotations

import math

from fahmc.experiments.image_runs import SCORES
from fahmc.experiments.outcome import Claim, Table, judge, out_of_reach

# 1 in 700 by chance, if the runs' means are normal.
MIN_Z = 3.0


class Comparisons:
    """The last scores of all settings."""

    def __init__(self, shown: Table):
        keys = ["target", "varied", "K", "T", "score"]
        self._last = shown.sort_values("round").groupby(keys, as_index=False).tail(1)

    def targets(self) -> list[str]:
        """Return the targets, in order of their names."""
        return sorted(self._last["target"].unique())

    def last(self, target: str, varied: str, score: str) -> Table:
        """Return mean, sd and number of runs of each setting of a sweep, by the value that varies."""
        rows = self._last
        rows = rows[(rows["target"] == target) & (rows["varied"] == varied) & (rows["score"] == score)]
        return rows.assign(value=rows[varied]).set_index("value").sort_index()

    def order(self, target: str, varied: str, score: str) -> list[int]:
        """Return the values from best to worst; those without a score come last."""
        rows = self.last(target, varied, score)
        return list((SCORES[score].sign * rows["mean"]).sort_values(ascending=False, na_position="last").index)

    def words(self, target: str, varied: str, score: str) -> str:
        """Write the scores from best to worst."""
        rows = self.last(target, varied, score)
        order = self.order(target, varied, score)
        return "best to worst: " + ", ".join(f"{varied} = {v}: {_in_score(rows.loc[v])}" for v in order)

    def best_is(self, target: str, varied: str, score: str, value: int, prefix: str = "") -> Claim:
        """Judge whether a value does better than all others."""
        statement = f"{prefix}{varied} = {value} has the best {SCORES[score].label}"
        rivals = [other for other in self.order(target, varied, score) if other != value]
        return self._judge(statement, target, varied, score, value, rivals[0] if rivals else value)

    def worst_is(self, target: str, varied: str, score: str, value: int, prefix: str = "") -> Claim:
        """Judge whether a value does worse than all others."""
        statement = f"{prefix}{varied} = {value} has the worst {SCORES[score].label}"
        rivals = [other for other in self.order(target, varied, score) if other != value]
        return self._judge(statement, target, varied, score, rivals[-1] if rivals else value, value)

    def beaten_by_some(self, target: str, varied: str, score: str, value: int, prefix: str = "") -> Claim:
        """Judge whether at least one other value does better."""
        statement = f"{prefix}some {varied} > {value} has a better {SCORES[score].label} than {varied} = {value}"
        rivals = [other for other in self.order(target, varied, score) if other != value]
        return self._judge(statement, target, varied, score, rivals[0] if rivals else value, value)

    def better(self, target: str, varied: str, score: str, value: int, other: int) -> Claim:
        """Judge whether one value does better than another."""
        statement = f"{varied} = {value} has a better {SCORES[score].label} than {varied} = {other}"
        return self._judge(statement, target, varied, score, value, other)

    def gain(self, target: str, varied: str, score: str, value: int, paper: float) -> Claim:
        """Judge whether the best setting improves a score over a value's by about as much as the paper says."""
        statement = f"{SCORES[score].label} improves over {varied} = {value} by up to {paper:g} %"
        rows, order = self.last(target, varied, score), self.order(target, varied, score)
        gain = 100 * (1 - rows.loc[order[0], "mean"] / rows.loc[value, "mean"])
        if not math.isfinite(gain):
            return out_of_reach(statement, f"a score is missing; {self.words(target, varied, score)}")
        found = f"{gain:.1f} % with {varied} = {order[0]} (about as much: from half to twice)"
        return judge(statement, found, paper / 2 <= gain <= 2 * paper)

    def z(self, target: str, varied: str, score: str, better: int, worse: int) -> float:
        """Return by how many standard errors one value does better than another; infinite with one run each."""
        rows = self.last(target, varied, score)
        gap = SCORES[score].sign * (rows.loc[better, "mean"] - rows.loc[worse, "mean"])
        if rows["runs"].max() == 1:
            return math.copysign(math.inf, gap) if gap and not math.isnan(gap) else math.nan
        error = math.hypot(*(rows.loc[value, "sd"] / rows.loc[value, "runs"] ** 0.5 for value in (better, worse)))
        return gap / error if error > 0 else math.nan

    def _judge(self, statement: str, target: str, varied: str, score: str, better: int, worse: int) -> Claim:
        words = self.words(target, varied, score)
        if not {better, worse} <= set(self.last(target, varied, score).index):
            return out_of_reach(statement, f"{varied} = {better} and {varied} = {worse} were not both run; {words}")
        z = self.z(target, varied, score, better, worse)
        if math.isinf(z):
            return judge(statement, f"{words} (one chain each)", z > 0)
        if not abs(z) > MIN_Z:
            apart = "with a score missing" if math.isnan(z) else f"{abs(z):.1f} standard errors apart"
            return out_of_reach(statement, f"{words}; {varied} = {better} and {varied} = {worse} are {apart}")
        return judge(statement, words, z > 0)


def _in_score(row: Table) -> str:
    if math.isnan(row["mean"]):
        return "diverged"
    return f"{row['mean']:.4f}" if math.isnan(row["sd"]) else f"{row['mean']:.4f} ± {row['sd']:.4f}"
