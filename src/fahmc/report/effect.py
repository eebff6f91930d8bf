"""The answer of a study: an effect on the scale that people speak of, its interval, and the chance of its direction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fahmc.errors import SettingsError, nearest
from fahmc.report.about import About
from fahmc.report.parameters import Parameters
from fahmc.report.quantities import rounded

_COEFFICIENTS = "coefficients"
# Of those that speak clearly, when no effect is named.
_MOST_NAMED = 6


class Effect(NamedTuple):
    """One parameter on its natural scale."""

    parameter: str
    label: str
    scale: str
    drawn: np.ndarray
    """All draws of the parameter, [draw]: of a ratio its logarithm."""

    @property
    def is_ratio(self) -> bool:
        """Whether no effect is 1 and not 0."""
        return self.scale != "difference"

    @property
    def none(self) -> float:
        """The value that stands for no effect."""
        return 1.0 if self.is_ratio else 0.0

    @property
    def summary(self) -> tuple[float, float, float]:
        """Median and the ends of the equal-tailed 95 % interval."""
        found = np.quantile(self.drawn, [0.5, 0.025, 0.975])
        with np.errstate(over="ignore"):  # beyond what a number can hold it is infinite, and said to be so
            median, lower, upper = np.exp(found) if self.is_ratio else found
        return float(median), float(lower), float(upper)

    @property
    def chance_above(self) -> float:
        """The posterior probability that it is above no effect."""
        return float(np.mean(self.drawn > 0))

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves no effect out."""
        _, lower, upper = self.summary
        return not lower <= self.none <= upper

    @property
    def numbers(self) -> str:
        """Median and interval in words, with the digits that mean something."""
        median, lower, upper = self._rounded()
        return f"{median}, 95 % interval {lower} to {upper}"

    @property
    def in_brackets(self) -> str:
        """Median and interval for tables."""
        median, lower, upper = self._rounded()
        return f"{median} [{lower}, {upper}]"

    def _rounded(self) -> list[str]:
        _, lower, upper = self.summary
        # A tenth of a standard deviation is as much as a reader wants.
        return [rounded(value, 2.5 * (upper - lower)) for value in self.summary]


def effects_of(parameters: Parameters, names: Sequence[str], scale: str | None) -> list[Effect]:
    """Return the effects that are named, or all coefficients if none is and it is known what they are called."""
    if names:
        found = dict.fromkeys(parameter for name in names for parameter in _find(parameters.names, name))
        return [_effect(parameters, parameter, scale or "difference") for parameter in found]
    coefficients = [name for name in parameters.names if name.startswith(f"{_COEFFICIENTS}[")]
    return [_effect(parameters, name, scale) for name in coefficients] if scale else []


def check_effect(names: Sequence[str], features: Sequence[str]) -> None:
    """Refuse what cannot be the effect of a model with these features, before it is sampled."""
    coefficients = [f"{_COEFFICIENTS}[{feature}]" for feature in features]
    known = list(dict.fromkeys([feature.partition("[")[0] for feature in features] + list(features)))
    for name in names:
        # What is no feature may be a parameter of another kind, which is known later.
        if "[" not in name and not _matches(coefficients, name):
            raise SettingsError(
                f"effect is {name!r}, and no feature is called so{nearest(name, known)} Features are "
                f"{', '.join(features)}."
            )


def _find(known: Sequence[str], name: str) -> list[str]:
    if found := _matches(known, name):
        return found
    features = [own.removeprefix(f"{_COEFFICIENTS}[")[:-1] for own in known if own.startswith(f"{_COEFFICIENTS}[")]
    raise SettingsError(f"effect is {name!r}, and no parameter or feature is called so{nearest(name, features)}")


def _matches(known: Sequence[str], name: str) -> list[str]:
    feature = f"{_COEFFICIENTS}[{name}"
    if name in known or f"{feature}]" in known:
        return [name if name in known else f"{feature}]"]
    return [own for own in known if own.startswith((f"{name}[", f"{feature}[", f"{feature}, "))]


def _effect(parameters: Parameters, parameter: str, scale: str) -> Effect:
    return Effect(parameter, short_name(parameter), scale, parameters[parameter].ravel())


def short_name(parameter: str) -> str:
    """Return what people call a parameter: of a coefficient its feature."""
    inside = parameter.removeprefix(f"{_COEFFICIENTS}[")
    return parameter if inside == parameter else inside.removesuffix("]")


def answer(effect: Effect, about: About, others: Mapping[str, Effect]) -> list[str]:
    """Say what an effect is; ``others`` are the same by other runs, by label."""
    of = f" of {about.outcome}" if about.outcome else ""
    what = f"{effect.scale.capitalize()}{of} for {effect.label}{_unit(effect.label, about)}"
    compared = "".join(f" ({label}: {other.numbers})" for label, other in others.items())
    chance = max(effect.chance_above, 1 - effect.chance_above)
    percent = "more than 99.9" if chance > 0.9995 else f"{100 * chance:.{1 if chance > 0.99 else 0}f}"
    side = "above" if effect.chance_above >= 0.5 else "below"
    none = f"{effect.none:g}, which stands for no {'difference' if effect.is_ratio else 'effect'}"
    settled = (
        f"The whole interval lies {side} {none}."
        if effect.is_clear
        else f"The interval holds {none}: these rows do not settle its direction."
    )
    chance_words = f"With a probability of {percent} % it is {side} {effect.none:g}."
    return [f"{what}: {effect.numbers}{compared}. {chance_words}", settled]


def _unit(label: str, about: About) -> str:
    """Say by what a feature differs where the effect is seen: a standard deviation, or from another level."""
    if label in about.spreads:
        return f" (per standard deviation, {about.spreads[label]:.4g})"
    baseline = about.baselines.get(label.partition("[")[0]) if label.endswith("]") and ":" not in label else None
    return "" if baseline is None else f" (against {baseline})"


def overview(effects: Sequence[Effect]) -> list[str]:
    """Say which coefficients speak clearly, where no effect of interest is named."""
    clear = sorted((effect for effect in effects if effect.is_clear), key=_clearness, reverse=True)
    scale, none = effects[0].scale, f"{effects[0].none:g}"
    if not clear:
        said = f"None of the {len(effects)} coefficients has a 95 % interval without {none} ({scale})."
    else:
        named = "; ".join(f"{effect.label} {effect.numbers}" for effect in clear[:_MOST_NAMED])
        more = f"; and {len(clear) - _MOST_NAMED} more" if len(clear) > _MOST_NAMED else ""
        verb = "has" if len(clear) == 1 else "have"
        said = f"{len(clear)} of {len(effects)} coefficients {verb} a 95 % interval without {none} ({scale}): "
        said += f"{named}{more}."
    return [said, "Which of them the study is about, and was before the rows were seen, is not said: name the effect."]


def _clearness(effect: Effect) -> float:
    return float(abs(effect.drawn.mean()) / max(effect.drawn.std(), 1e-300))
