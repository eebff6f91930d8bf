"""The one setting to change next, as a number.

A federated sampler's bias goes like (K η)² while clients differ, and like η² where they do not: to bring an error e
below a limit, η is multiplied by √(½ limit / e), the half for safety. A Monte Carlo error goes like 1/√rounds.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fahmc.draws import Draws

# More than this at a time, and the scaling that is relied on does not hold.
_MOST_ROUNDS, _SMALLEST_STEP = 100.0, 0.1


def in_words(setting: dict[str, Any]) -> str:
    """Say what to do."""
    return "".join(f"Set {name} = {json.dumps(value)}." for name, value in setting.items())


def more_rounds(draws: Draws, factor: float) -> dict[str, Any]:
    """Ask for ``factor`` times as many rounds; of a sampler that counts its own, for as many more effective draws."""
    factor = min(max(factor, 1.0), _MOST_ROUNDS)
    for place, name in ((_sampler(draws), "target_ess"), (draws.settings, "num_rounds")):
        if isinstance(place.get(name), int):
            return {name: _rounded_up(factor * place[name])}
    return {}


def smaller_step(draws: Draws, factor: float) -> dict[str, Any]:
    """Ask for ``factor`` times the step size; of HMC on one machine, for what makes it exact instead.

    A sampler that finds its own step size is told the bias it may have, which goes like the step size squared.
    """
    sampler = _sampler(draws)
    if sampler.get("metropolis") is False:
        return {"metropolis": True}
    if "max_bias" in sampler:
        return {"max_bias": float(f"{sampler['max_bias'] * min(factor, 1.0) ** 2:.2g}")}
    step_size = sampler.get("step_size")
    if isinstance(step_size, bool) or not isinstance(step_size, int | float):
        return {}
    return {"step_size": float(f"{step_size * min(max(factor, _SMALLEST_STEP), 1.0):.2g}")}


def less_bias(draws: Draws, excess: float, is_biased: bool) -> dict[str, Any]:
    """Bring an error of ``excess`` times its limit to half of it: by a smaller step; if it may be chance, by rounds."""
    if is_biased and (setting := smaller_step(draws, math.sqrt(1 / (2 * excess)))):
        return setting
    return more_rounds(draws, (2 * excess) ** 2)


def to_know_the_bias(draws: Draws) -> dict[str, Any]:
    """Ask for what tells the bias of a sampler without accept/reject step."""
    sampler = _sampler(draws)
    if sampler.get("metropolis") is False:
        return {"metropolis": True}
    knows_gradients = sampler.get("name") in ("FAHMC", "DebiasedFAHMC") or "with_gradients" in sampler
    return {"with_gradients": True} if knows_gradients else {}


def _sampler(draws: Draws) -> dict[str, Any]:
    return draws.settings.get("sampler", {})


def _rounded_up(number: float) -> int:
    """Return a whole number of two digits and noughts that is not smaller."""
    unit = 10 ** max(0, math.floor(math.log10(number)) - 1)
    return math.ceil(number / unit) * unit
