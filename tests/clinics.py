"""Three clinics with files of their own, and models that break a site's replies, for tests of real federations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

SIZES = {"north": 60, "south": 90, "east": 40}
COLUMNS: dict[str, Any] = {"outcome": "ill", "outcome_positive": "yes", "features": ["age", "group"], "missing": "drop"}
# A module that sites lay beside their kits. `steady` is an honest model of their own. The others are honest too, except
# that at the site called south they break its reply in round 3; after `late`, it also says that it has an old JAX.
OWN_MODELS = """
import numpy as np
import fahmc
from fahmc.engines.flare import work
from fahmc.engines.flare.versions import own_versions

steady = fahmc.models.logistic_regression()
honest = work.Work.local_round

def broken(how):
    def local_round(self, run, round_index, *call):
        is_due = self.name == "south" and round_index == 3
        return (how if is_due else honest)(self, run, round_index, *call)
    def build():
        work.Work.local_round = local_round
        return steady
    return build

def with_nan(self, *call):
    compute = self._program.reply
    def spoiled(*arguments):
        reply = compute(*arguments)
        position = reply["position"].copy()
        position[-1, -1] = np.nan
        return reply | {"position": position}
    self._program.reply = spoiled
    try:
        return honest(self, *call)
    finally:
        del self._program.reply

def hello(self):
    return {"versions": own_versions() | ({"jax": "0.1.9"} if self.name == "south" else {})}

def late():
    work.Work.hello = hello
    return broken(lambda self, *call: honest(self, *call) | {"round": 2})()

nan = broken(with_nan)
"""
BREAKS = ("nan", "late")


def write_tables(folder: Path) -> dict[str, Path]:
    """Write one CSV file a clinic; some cells are empty, and levels are not the same everywhere."""
    rng = np.random.default_rng(7)
    files = {}
    for name, size in SIZES.items():
        age = rng.normal(50, 12, size).round(1)
        group = rng.choice(["A", "B", "C"] if name != "east" else ["A", "B"], size)
        is_ill = rng.random(size) < 1 / (1 + np.exp(-(age - 50) / 12 - (group == "B")))
        table = pd.DataFrame({"age": age, "group": group, "income": rng.normal(size=size)})
        table["ill"] = np.where(is_ill, "yes", "no")
        table.loc[3, "age"] = np.nan
        files[name] = folder / f"{name}.csv"
        table.to_csv(files[name], index=False)
    return files
