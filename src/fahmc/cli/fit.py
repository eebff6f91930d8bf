"""`fahmc loo` and `fahmc check`: which model predicts better, and whether a model fits, asked where the rows are."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

from rich.text import Text

from fahmc.checks.ask import kept_draws
from fahmc.checks.cross_validation import compare_models
from fahmc.cli.compare import load_run
from fahmc.cli.config import Job, build
from fahmc.cli.exits import NOT_GOOD
from fahmc.cli.folder import ResultFolder, find_run
from fahmc.cli.output import Output, parameter_rows
from fahmc.data.federation import Federation
from fahmc.draws import Draws
from fahmc.errors import DataError, ModelError, SettingsError
from fahmc.report.fit import FitReport

_Result = TypeVar("_Result")
# Of rows × draws, in the report of every run: a second or two.
_CHEAP, _CHEAP_DRAWS = 2_000_000, 1000


def cross_validate(folders: list[Path], output: Output) -> None:
    """Print the cross-validation of one run, or of several side by side."""
    runs = {name: _find(folder) for name, folder in _names(folders).items()}
    kits = {str(kit) for _, _, kit in runs.values()}
    if len(kits) > 1:
        raise SettingsError(
            "The runs were made where rows lie in different places: here, or with the sites of different kits. Models "
            "are compared on the same rows."
        )
    jobs = {name: job for name, (_, job, _) in runs.items()}
    draws = {name: drawn for name, (drawn, *_) in runs.items()}
    with _reached(next(iter(jobs.values()))) as engine, output.working("Cross-validating"):
        if len(jobs) == 1:
            (job,), (run,) = jobs.values(), draws.values()
            result: Any = run.loo(job.federation, engine=engine, model=job.model)
            values = asdict(result)
        else:
            rows, models = (
                {name: getattr(job, part) for name, job in jobs.items()} for part in ("federation", "model")
            )
            result = compare_models(draws, rows, engine=engine, models=models)
            values = {"table": parameter_rows(result.table), "sentence": result.sentence}
            values["models"] = {name: asdict(loo) for name, loo in result.models.items()}
    output.show(Text(str(result)))
    output.result(**values)


def check_run(folder: Path, is_strict: bool, output: Output) -> None:
    """Print whether a run's model fits, and put it into the run's report."""
    results = find_run(folder)
    draws, job, _ = _find(folder)
    with _reached(job) as engine, output.working("Asking the rows"):
        fit = fit_of(draws, job, engine)
    if fit.loo is fit.predictive is fit.calibration is None:
        raise ModelError(" ".join(fit.remarks))
    with results.writing(), results.locked():
        results.write_fit(fit, draws)
        with output.working("Writing the report"):
            results.write_report(draws, None)
    parts = [part for part in (fit.predictive, fit.calibration, fit.loo) if part is not None]
    texts = [text for part in parts for text in (Text(str(part)), Text())]
    output.show(*texts, *map(Text, fit.remarks), Text(f"In the report: {results.path}/report.html"))
    exit_code = NOT_GOOD if is_strict and not fit.fits else 0
    output.result(exit_code=exit_code, fits=fit.fits, output=results.path, files=results.files(), **asdict(fit))
    output.end(exit_code)


def check_cheaply(draws: Draws, job: Job, results: ResultFolder, output: Output) -> None:
    """Keep for the report whether the model fits, if the rows are here and few enough for this to take no time."""
    federation = job.federation
    results.forget_fit()
    if "privacy" in draws.account:
        return  # an exact answer about the rows would undo it
    if not isinstance(federation, Federation):
        return  # sites are asked by `fahmc check` alone
    if federation.num_rows * min(draws.num_chains * draws.num_draws, _CHEAP_DRAWS) > _CHEAP:
        return
    with output.working("Checking the fit"):
        fit = fit_of(_thinned(draws), job)
    results.write_fit(fit, draws)


def fit_of(draws: Draws, job: Job, engine: Any = None) -> FitReport:
    """Ask everything there is to ask; what has no answer is a remark."""
    model, rows, remarks = job.model, job.federation, []

    def tried(what: str, ask: Callable[[], _Result]) -> _Result | None:
        try:
            return ask()
        except (DataError, ModelError, SettingsError) as error:
            remarks.append(f"{what} was not computed. {error}")
            return None

    where = {"engine": engine, "model": model}
    predictive = tried("The predictive check", lambda: draws.predictive_check(rows, **where))
    calibration = None
    if predictive is not None and predictive.is_binary and model.predict_fn is not None:
        calibration = tried("Calibration", lambda: draws.calibration(rows, **where))
    loo = tried("Cross-validation", lambda: draws.loo(rows, **where))
    return FitReport(loo, predictive, calibration, list(dict.fromkeys(remarks)))


def _find(folder: Path) -> tuple[Draws, Job, Path | None]:
    """Return a run's draws, with what its configuration names, and the kit that reaches its sites."""
    results = find_run(folder)
    config, kit = results.load_run()
    return load_run(results.path), build(config, kit), kit


def _names(folders: list[Path]) -> Mapping[str, Path]:
    """Name runs by their folders: by the last part of the path, where these differ."""
    short = {folder.resolve().name: folder for folder in folders}
    names = short if len(short) == len(folders) else {str(folder): folder for folder in folders}
    if len(names) < len(folders):
        raise SettingsError("The same run is named twice; compare different ones.")
    return names


@contextlib.contextmanager
def _reached(job: Job) -> Iterator[Any]:
    """Have an engine that reaches the sites, which stay warm for several questions; None where rows are here."""
    engine = job.run_kwargs.get("engine")
    if engine is None:
        yield None
        return
    with engine:
        yield engine


def _thinned(draws: Draws) -> Draws:
    """Return few draws, which is enough for a first look."""
    if draws.num_chains * draws.num_draws <= _CHEAP_DRAWS:
        return draws
    kept = kept_draws(draws.positions, _CHEAP_DRAWS)
    return replace(draws, positions=kept, stats={}, gradients=None, sampled=None)
