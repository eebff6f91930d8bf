"""What a reviewer asks next: the model and its priors, whose rows, the settings, and how to make the run again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fahmc.report.about import About
from fahmc.report.page import Section

if TYPE_CHECKING:
    from fahmc.draws import Draws


def model_section(draws: Draws, about: About) -> Section:
    """Return what was assumed."""
    model, priors = draws.settings.get("model", {}), draws.settings.get("prior")
    name = model.get("name", model.get("object"))
    sentences = [f"{_spoken(name)}." if "name" in model else f"The model is `{name}`."] if name else []
    if not sentences:
        sentences = ["The model was given as functions; what it assumes stands in its code."]
    if about.outcome:
        sentences.append(f"Outcome: {about.outcome}.")
    if about.spreads:
        features = ", ".join(f"{feature} ({spread:.4g})" for feature, spread in about.spreads.items())
        sentences.append(f"Coefficients of these features are per standard deviation: {features}.")
    if about.baselines:
        levels = ", ".join(f"{feature} ({level})" for feature, level in about.baselines.items())
        sentences.append(f"Levels of these features are compared with one of them: {levels}.")
    said = ("name", "object", "scale", *(("prior_scale", "intercept_scale") if priors else ()))
    options = {key: {("", "value"): _text(value)} for key, value in model.items() if key not in said}
    tables = {"setting of the model": options} if options else {}
    if priors is None:
        sentences.append("What the prior is was not said in words.")
    else:
        tables |= {"prior of": {name: {("", "law"): words} for name, words in priors.items()}}
    return Section("Model and priors", sentences, tables)


def data_section(draws: Draws, about: About) -> Section:
    """Return whose rows these were, and what was left out of them."""
    sizes: Mapping[str, int] = draws.settings.get("clients", {})
    total, lost = sum(sizes.values()), any(about.dropped.values())
    rows = {
        name: {("", "rows"): f"{size:,}", ("", "share"): f"{100 * size / total:.1f} %"}
        | ({("", "left out, a value missing"): f"{about.dropped.get(name, 0):,}"} if lost else {})
        for name, size in sizes.items()
    }
    remark = [] if lost or not sizes else ["No row was left out because a value was missing."]
    return Section("Data", [*about.notes, *remark], {"client": rows} if rows else {})


def settings_section(draws: Draws, about: About) -> Section:
    """Return everything that the draws depend on."""
    said = ("model", "prior", "clients", "sites", "versions")
    settings = {name: value for name, value in draws.settings.items() if name not in said}
    versions = draws.settings.get("versions", {})
    sentences = [f"`{about.again}` makes this run again."] if about.again else []
    elsewhere = ", at the same sites: private randomness is from their secrets" if "sites" in draws.settings else ""
    sentences.append(
        f"The same settings, rows and versions on the same kind of machine give the same draws{elsewhere}."
    )
    tables = {"setting": {name: {("", "value"): _text(value)} for name, value in _flat(settings)}}
    if versions:
        tables |= {"version of": {name: {("", "value"): value} for name, value in versions.items()}}
    return Section("Settings, and how to make it again", sentences, tables)


def _spoken(name: str) -> str:
    return name.replace("_", " ").capitalize()


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield nested settings as ``sampler.step_size`` and value."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
