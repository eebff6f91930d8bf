"""The figures by name, and how long they take."""

from __future__ import annotations

from fahmc.errors import SettingsError
from fahmc.experiments import figure_1_local_steps, figure_2, figures_3_to_7
from fahmc.experiments.figure_1_step_size import StepSizes
from fahmc.experiments.outcome import SCALES, Figure, Scale

_SIMULATED = "simulated logistic regression"

FIGURES: dict[str, Figure] = {
    figure.name: figure
    for figure in (
        Figure("1a", "ME against step size, d = 1000, exact gradients", _SIMULATED, StepSizes("1a", False).make),
        Figure("1b", "ME against step size, d = 1000, noisy gradients", _SIMULATED, StepSizes("1b", True).make),
        Figure("1c", "rounds to reach ME = ε against T", _SIMULATED, figure_1_local_steps.make),
        Figure("1d", "ME against step size, d = 10, noisy gradients", _SIMULATED, StepSizes("1d", True, True).make),
        Figure("2", "rounds to reach W₂² < 0.1 against dimension", "nothing", figure_2.make),
        *figures_3_to_7.FIGURES,
    )
}

# On two shared x86 cores, 2026-11-16. Laptop scale was measured (docs/figures has the seconds), paper scale follows
# from its rates by the number of steps.
_TAKES = {
    "1a": ("under 1 min", "10 min", "1.5 days"),
    "1b": ("under 1 min", "15 min", "3 days"),
    "1c": ("under 1 min", "15 min", "2 h"),
    "1d": ("under 1 min", "15 min", "1 day"),
    "2": ("under 1 min", "5 min", "14 h"),
    "3": ("under 1 min", "25 min", "1.5 days"),
    "4": ("under 1 min", "20 min", "1.5 days"),
    "5": ("under 1 min", "15 min", "10 days"),
    "6": ("under 1 min", "10 min", "2 days"),
    "7": ("under 1 min", "5 min", "half a day"),
}


def takes(name: str) -> dict[Scale, str]:
    """Say how long a figure takes at each scale."""
    return dict(zip(SCALES, _TAKES[name], strict=True))


def choose(names: list[str]) -> list[Figure]:
    """Return the figures of these names, in the paper's order; "all" is every one."""
    known = ", ".join(FIGURES)
    for name in names:
        if name != "all" and name not in FIGURES:
            raise SettingsError(f"There is no figure {name!r}; the figures are {known}, or all.")
    return [figure for name, figure in FIGURES.items() if name in names or "all" in names]
