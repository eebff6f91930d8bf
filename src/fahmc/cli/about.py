"""What a study's report is about: from its file, from its tables, and from what its sites told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fahmc.cli.config import Job
from fahmc.cli.sections import Config
from fahmc.data.federation import Federation
from fahmc.draws import Draws
from fahmc.errors import SettingsError
from fahmc.report.about import About
from fahmc.report.effect import check_effect, effects_of
from fahmc.report.parameters import Parameters


def about_study(config: Config, job: Job) -> About:
    """Say what is known before the first round; an effect that no feature can have is refused."""
    said, study = config.report, job.study
    effect = [said.effect] if isinstance(said.effect, str) else said.effect or []
    about = About(
        title=said.title or config._source.path.stem,
        question=said.question or "",
        outcome=said.outcome or _outcome(config),
        effect=effect,
        scale=said.scale,
        again=f"fahmc sample {config._source.path.name}",
    )
    if study is not None:
        try:
            check_effect(effect, study.feature_names)
        except SettingsError as error:
            raise config._source.refusal(("report", "effect"), str(error)) from error
        return _with_rows(about, study.about)
    return about if isinstance(job.federation, Federation) else replace(about, again=f"{about.again} --federation KIT")


def about_sites(about: About, draws: Draws) -> About:
    """Add what the sites of a real federation told; an effect that is none of the parameters becomes a remark."""
    told = draws.settings["sites"]
    about = _with_rows(about, told)
    try:
        effects_of(Parameters.from_draws(draws), about.effect, about.scale)
    except SettingsError as error:  # by now there are draws, which a name must not keep from being reported
        return replace(about, effect=(), notes=[*about.notes, f"Of [report], {error}"])
    return about


def _with_rows(about: About, told: Mapping[str, Any]) -> About:
    scales, notes = told.get("standardization", {}), list(told.get("remarks", ()))
    spreads = {feature: float(sd) for feature, (_, sd) in scales.items()}
    if "bounds" in told:
        units = ", ".join(f"{feature} in units of {spread:.4g}" for feature, spread in spreads.items())
        notes += [f"By their public bounds: {units}."] if units else []
        spreads = {}
    dropped, baselines = dict(told.get("dropped", {})), dict(told.get("baselines", {}))
    return replace(about, dropped=dropped, spreads=spreads, baselines=baselines, notes=notes)


def _outcome(config: Config) -> str:
    columns = config.data.columns
    if columns.outcome is None or columns.outcome_positive is None:
        return columns.outcome or ""
    return f"{columns.outcome} = {columns.outcome_positive}"
