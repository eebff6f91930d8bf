"""The figures by name."""

from __future__ import annotations

from fahmc.errors import SettingsError
from fahmc.experiments import figure_1_local_steps, figure_2, figures_3_to_7
from fahmc.experiments.figure_1_step_size import StepSizes
from fahmc.experiments.outcome import Figure, Scale

_SIMULATED = "simulated logistic regression"
_TAKES: dict[str, dict[Scale, str]] = {"1x": {"smoke": "?", "laptop": "?", "paper": "?"}}

FIGURES: dict[str, Figure] = {
    figure.name: figure
    for figure in (
        Figure(
            "1a",
            "ME against step size, d = 1000, exact gradients",
            _SIMULATED,
            _TAKES["1x"],
            StepSizes("1a", False).make,
        ),
        Figure(
            "1b",
            "ME against step size, d = 1000, noisy gradients",
            _SIMULATED,
            _TAKES["1x"],
            StepSizes("1b", True).make,
        ),
        Figure("1c", "rounds to reach ME = ε against T", _SIMULATED, _TAKES["1x"], figure_1_local_steps.make),
        Figure(
            "1d",
            "ME against step size, d = 10, noisy gradients",
            _SIMULATED,
            _TAKES["1x"],
            StepSizes("1d", True, True).make,
        ),
        Figure("2", "rounds to reach W₂² < 0.1 against dimension", "nothing", _TAKES["1x"], figure_2.make),
        *figures_3_to_7.FIGURES,
    )
}


def choose(names: list[str]) -> list[Figure]:
    """Return the figures of these names, in the paper's order; "all" is every one."""
    known = ", ".join(FIGURES)
    for name in names:
        if name != "all" and name not in FIGURES:
            raise SettingsError(f"There is no figure {name!r}; the figures are {known}, or all.")
    return [figure for name, figure in FIGURES.items() if name in names or "all" in names]
