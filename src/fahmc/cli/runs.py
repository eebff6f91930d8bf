"""`fahmc sample`, `fahmc resume` and `fahmc report`: a run from a configuration, its continuation, its report."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

from rich.markup import escape

from fahmc.cli.about import about_sites, about_study
from fahmc.cli.config import Job, build, parse_config, read_text
from fahmc.cli.exits import DIVERGED, NOT_GOOD
from fahmc.cli.fit import check_cheaply
from fahmc.cli.folder import SAMPLE, ResultFolder, find_run
from fahmc.cli.output import Output, cost_line, parameter_rows, summary_table, verdict_lines
from fahmc.cli.sections import Config
from fahmc.cli.watch import watching
from fahmc.draws import Draws
from fahmc.errors import CheckpointError, DivergenceError, FederationError
from fahmc.own_folder import REPORT
from fahmc.report import judge, parameter_table
from fahmc.report.about import About
from fahmc.report.render import answer_of
from fahmc.report.verdict import chains_lost
from fahmc.sample import sample


def run_config(
    file: Path,
    folder: Path | None,
    kit: Path | None,
    is_watched: bool,
    is_opening: bool,
    is_strict: bool,
    output: Output,
) -> None:
    """Sample what a configuration file asks for, durably, and report on it; ``kit`` reaches a real federation."""
    text = read_text(file)
    config = parse_config(text, file)
    job = build(config, kit)
    about = about_study(config, job)
    results = ResultFolder(folder or job.output)
    _check_apart(config, results.path)
    results.take(SAMPLE)
    page = watching(results, is_opening) if is_watched or is_opening else nullcontext()
    with results.writing(), results.locked(), results.claimed(text, config, kit), page:
        results.write_about(about)
        draws = _sample_durably(job, results, output)
        check_cheaply(draws, job, results, output)
        exit_code = _conclude(draws, results, is_strict, output)
    output.end(exit_code)


def resume_run(folder: Path, is_strict: bool, output: Output) -> None:
    """Continue a run of `fahmc sample` that did not reach its end."""
    results = find_run(folder)
    with results.writing(), results.locked():
        config, kit = results.load_run()
        finished = _load_finished(results, config.run.num_rounds)
        if finished is not None and results.report.exists():
            output.log(f"{results.path} is complete; there is nothing to resume.")
            values = _as_values(finished, results, parameter_table(finished), is_strict)
            output.result(**values)
            exit_code = values["exit_code"]
        else:
            job = build(config, kit)
            draws = finished or _sample_durably(job, results, output)
            check_cheaply(draws, job, results, output)
            exit_code = _conclude(draws, results, is_strict, output)
    output.end(exit_code)


def remake_report(target: Path, folder: Path | None, is_strict: bool, output: Output) -> None:
    """Make the report again from the draws in a folder, or from one file of draws."""
    source = ResultFolder(target)
    if target.is_dir():
        if not source.draws.exists():
            hint = "; `fahmc resume` finishes its run first" if source.has_job() else ""
            raise CheckpointError(f"{target} holds no draws.nc, so there is nothing to report{hint}.")
        draws, results = Draws.load(source.draws), ResultFolder(folder or target)
        reference = Draws.load(source.pooled) if source.pooled.exists() else None
        about = source.read_about()
    else:
        draws, reference, about = Draws.load(target), None, About(title=target.stem)
        results = ResultFolder(folder or target.with_name(f"{target.stem}-report"))
    results.take(REPORT)
    with results.writing():
        results.write_about(about)
        if target.is_dir() and (fit := source.read_fit(draws)) is not None:
            results.write_fit(fit, draws)
        exit_code = _conclude(draws, results, is_strict, output, reference)
    output.end(exit_code)


def _check_apart(config: Config, folder: Path) -> None:
    """Refuse rows that lie where the results shall go."""
    data, source = config.data, config._source
    files = list((data.clients or {}).values()) + ([] if data.file is None else [data.file])
    for file in files:
        if folder.resolve() in (source.path.parent / file).resolve().parents:
            raise source.refusal(
                ("run", "output"),
                f"the results shall go to {folder}, but {file} with rows of this study lies there, and could be "
                "replaced. Give them a folder of their own: run.output, or --output.",
            )


def _sample_durably(job: Job, results: ResultFolder, output: Output) -> Draws:
    """Sample with a checkpoint; whatever ends the run early, the draws before it are in draws.nc."""
    try:
        durably = {"checkpoint_dir": results.checkpoint, "progress": output.progress}
        draws = sample(job.model, job.federation, job.sampler, **job.run_kwargs, **durably)
    except (DivergenceError, FederationError) as error:
        hint = f" `fahmc resume {results.path}` goes on." if isinstance(error, FederationError) else ""
        if error.draws is None:
            raise type(error)(f"{error}{hint}") from error
        error.draws.save(results.draws)
        raise type(error)(f"{error} As one file: {results.draws}.{hint}", error.draws) from error
    except KeyboardInterrupt as error:
        reason = f"{error}; " if str(error) else ""
        raise KeyboardInterrupt(f"{reason}`fahmc resume {results.path}` goes on from the last checkpoint") from error
    draws.save(results.draws)
    if "sites" in draws.settings:  # only the sites could tell how many rows they have
        results.write_about(about_sites(results.read_about(), draws))
    if draws.settings["ended"] == "interrupted":
        raise KeyboardInterrupt(
            f"the {draws.num_draws} draws a chain so far are in {results.draws}; `fahmc resume {results.path}` goes on"
        )
    return draws


def _conclude(
    draws: Draws, results: ResultFolder, is_strict: bool, output: Output, reference: Draws | None = None
) -> int:
    """Write the report, print the numbers, and return the exit code."""
    with output.working("Writing the report"):
        results.write_report(draws, reference)
        table = parameter_table(draws, reference=reference)
    verdict, about = judge(draws, table), results.read_about()
    output.show(
        summary_table(table, f"{draws.num_chains} chains x {draws.num_draws:,} draws"),
        *(escape(sentence) for sentence in answer_of({"": draws}, about, verdict)),
        *verdict_lines(verdict),
        cost_line(draws),
        f"Draws and report: {results.path}/ (open report.html).",
    )
    values = _as_values(draws, results, table, is_strict)
    output.result(**values)
    return values["exit_code"]


def _as_values(draws: Draws, results: ResultFolder, table: Any, is_strict: bool) -> dict[str, Any]:
    """Say for programs what was drawn and where it lies."""
    verdict = judge(draws, table)
    return {
        # Finite numbers that mean nothing are no success, asked for or not.
        "exit_code": DIVERGED if chains_lost(draws) else NOT_GOOD if is_strict and not verdict.is_good else 0,
        "status": draws.settings.get("ended", "complete"),
        "output": results.path,
        "files": results.files(),
        "num_chains": draws.num_chains,
        "num_draws": draws.num_draws,
        "verdict": verdict.as_values(),
        "bias_found_by": table.attrs["found_by"],
        "choices": draws.account.get("choices", []),
        "parameters": parameter_rows(table),
        "cost": draws.cost,
        "settings": draws.settings,
    }


def _load_finished(results: ResultFolder, num_rounds: int | None) -> Draws | None:
    """Return the draws if the run reached its end, and no more rounds have been asked for since."""
    if not results.draws.exists():
        return None
    draws = Draws.load(results.draws)
    is_long_enough = num_rounds in (None, draws.settings["num_rounds"])
    return draws if draws.settings["ended"] in ("complete", "stop_when") and is_long_enough else None
