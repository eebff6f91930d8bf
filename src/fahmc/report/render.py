"""The report of a run: one HTML page that holds everything, and its parts as files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fahmc.durable import write_atomically
from fahmc.errors import SettingsError
from fahmc.own_folder import REPORT, own_folder
from fahmc.report import panels, plots, tables
from fahmc.report.about import About
from fahmc.report.background import data_section, model_section, settings_section
from fahmc.report.canvas import as_image
from fahmc.report.crossing import crossing_section
from fahmc.report.effect import Effect, answer, effects_of, overview
from fahmc.report.fit import FitReport, fit_section
from fahmc.report.page import Content, Section, as_html, as_markdown
from fahmc.report.parameters import MAX_SHOWN, Parameters, parameter_table
from fahmc.report.verdict import Verdict, judge

if TYPE_CHECKING:
    from fahmc.draws import Draws

# Panels of one kind on the page: more would make it heavy.
_MAX_PANELS = 12
_CAUTION = {
    "good": (),
    "unknown": ("How far these numbers are off is not known to be little: see below.",),
    "bad": ("Do not rely on these numbers yet: below is why, and what to change.",),
}
_MISFIT = (
    "This is about the draws. Their model does not fit all of the rows: what speaks against it stands under “Does it "
    "fit?”"
)


class _Told:
    """Everything that the parts of a report are made of."""

    def __init__(self, runs: Mapping[str, Draws], about: About):
        self.runs, self.about = runs, about
        self.label, *others = runs
        self.draws = runs[self.label]
        self.parameters = {label: Parameters.from_draws(run) for label, run in runs.items()}
        self.own = self.parameters[self.label]
        self.scale = about.scale or _scale_of(self.draws)
        self.effects = {label: effects_of(own, about.effect, self.scale) for label, own in self.parameters.items()}
        self.marked = [effect.parameter for effect in self.effects[self.label]] if about.effect else []
        reference = runs[others[0]] if others else None
        self.table = parameter_table(self.draws, reference=reference)
        self.verdict = judge(self.draws, self.table, reference_label=others[0] if others else "pooled")
        every = tables.rows_of(self.table)
        shown, self.remark = tables.rows_shown(every, self.marked)
        self.rows = {name: every[name] for name in shown}


def write_report(
    draws: Draws,
    folder: str | Path,
    *,
    reference: Draws | None = None,
    label: str = "federated",
    reference_label: str = "pooled",
    about: About | None = None,
    fit: FitReport | None = None,
) -> Path:
    """Write the report of a run into a folder, and return the path of its page.

    The folder gets ``report.html`` (self-contained: figures are inside), ``summary.csv``, ``summary.md``,
    ``trace.png``, ``marginals.png``, ``forest.png`` and, if clients drift, ``drift.png``. Nothing is written before all
    is computed.

    Parameters
    ----------
    folder
        Made if it does not exist; files of an earlier report there are replaced. A folder that holds files which are
        not fahmc's is refused (`fahmc.own_folder`).
    reference
        Another run of the same model to set beside it, e.g. HMC on the pooled rows.
    label, reference_label
        What to call the two runs.
    about
        What was asked, of whom, and which number answers it.
    fit
        Whether the model fits, if that was asked: a section with figures of its own.
    """
    if reference is not None and label == reference_label:
        raise SettingsError(f"Both runs are called {label!r}; give them different labels.")
    told = _Told({label: draws} if reference is None else {label: draws, reference_label: reference}, about or About())
    content = Content(
        title=told.about.title,
        question=told.about.question,
        answer=_answer(told.effects, told.about, told.verdict),
        picture=_picture(told),
        verdict=told.verdict,
        caution=() if fit is None or fit.fits else (_MISFIT,),
        error_words=tables.error_words(told.table.attrs["found_by"]),
        sections=[
            _posterior_section(told),
            *([] if fit is None else [fit_section(fit)]),
            model_section(draws, told.about),
            data_section(draws, told.about),
            _chains_section(told),
            crossing_section(told.runs),
            settings_section(draws, told.about),
        ],
        marked=told.marked,
    )
    images = _images(told) | {name: png for section in content.sections for name, png in section.images.items()}
    texts = {"summary.csv": told.table.to_csv(), "summary.md": as_markdown(content), "report.html": as_html(content)}
    files = {f"{name}.png": png for name, png in images.items()} | {name: text.encode() for name, text in texts.items()}
    folder = own_folder(folder, REPORT)
    for name, data in files.items():
        write_atomically(folder / name, data)
    return folder / "report.html"


def answer_of(runs: Mapping[str, Draws], about: About, verdict: Verdict) -> list[str]:
    """Return the answer in sentences, from one run, or from two by label, with the caution that the verdict asks."""
    scale = about.scale or _scale_of(next(iter(runs.values())))
    effects = {label: effects_of(Parameters.from_draws(draws), about.effect, scale) for label, draws in runs.items()}
    return _answer(effects, about, verdict)


def _answer(effects: Mapping[str, Sequence[Effect]], about: About, verdict: Verdict) -> list[str]:
    (_, own), *others = effects.items()
    if not own:
        return list(_CAUTION[verdict.status])
    if not about.effect:
        return [*overview(own), *_CAUTION[verdict.status]]
    compared = ({label: other[place] for label, other in others} for place in range(len(own)))
    sentences = [answer(effect, about, same) for effect, same in zip(own, compared, strict=True)]
    return [*(sentence for part in sentences for sentence in part), *_CAUTION[verdict.status]]


def _scale_of(draws: Draws) -> str | None:
    return draws.settings.get("model", {}).get("scale")


def _picture(told: _Told) -> panels.Group:
    effects = told.effects
    if not effects[told.label]:
        return panels.forest_group(told.parameters, told.own.choose(None)[0])
    if len(effects[told.label]) == 1:
        return panels.effect_group({label: own[0] for label, own in effects.items()})
    return panels.effects_group({label: own[:MAX_SHOWN] for label, own in effects.items()})


def _posterior_section(told: _Told) -> Section:
    names, _ = told.own.choose(None, first=told.marked)
    natural = [*effects_of(told.own, (), told.scale), *told.effects[told.label]]
    chances = {name: float(np.mean(told.own[name] > 0)) for name in told.rows}
    by_name = {effect.parameter: effect for effect in natural}
    table = tables.posterior_table(told.rows, by_name, chances, list(told.runs))
    groups = [panels.marginal_group(told.parameters, names[:_MAX_PANELS])]
    if told.effects[told.label]:  # otherwise it is the picture at the top
        groups.insert(0, panels.forest_group(told.parameters, names))
    return Section("All parameters", [], {"parameter": table}, groups, remarks=[told.remark] if told.remark else [])


def _chains_section(told: _Told) -> Section:
    groups = [panels.trace_group(told.draws, told.own, told.own.choose(None, first=told.marked)[0][:_MAX_PANELS])]
    if has_drift(told.draws):
        groups.append(panels.drift_group(told.draws))
    table = tables.chains_table(told.rows, told.table.attrs["found_by"] != "nothing")
    return Section("Chains", [], {"parameter": table}, groups)


def has_drift(draws: Draws) -> bool:
    """Whether clients strayed from their average, and it is known how far."""
    return "client_drift" in draws.stats


def _images(told: _Told) -> dict[str, bytes]:
    """Draw the figures that are files of their own."""
    names, remark = told.own.choose(None, first=told.marked)
    figures: dict[str, Any] = {
        "forest": plots.plot_forest(told.runs, names, title=f"Medians, 50 % and 95 % intervals{remark}"),
        "marginals": plots.plot_marginals(told.runs, names, title=f"Marginal posteriors{remark}"),
        "trace": plots.plot_trace(told.draws, names, title=f"Traces{remark}"),
    }
    if has_drift(told.draws):
        figures["drift"] = plots.plot_client_drift(told.draws)
    return {name: as_image(figure, format="png") for name, figure in figures.items()}
