"""`fahmc demo`: a real multi-site trial, sampled where its rows lie, next to the same trial with all rows in one place.

Where they lie it is sampled twice: by `Auto`, in some five rounds, and by FA-HMC as in the paper, which finds its
settings itself. Neither is given one.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.markup import escape
from rich.table import Table

from fahmc.adaptive.auto import Auto
from fahmc.adaptive.tuned import Tuned
from fahmc.cli.exits import NOT_GOOD
from fahmc.cli.folder import DEMO, ResultFolder
from fahmc.cli.output import Output, in_count, in_r_hat, interval, parameter_rows, verdict_lines
from fahmc.data.federation import Federation
from fahmc.data.sites import Sites
from fahmc.data.study import Study
from fahmc.data.trial import clinic_tables, load_opt_trial
from fahmc.draws import Draws
from fahmc.dynamics.hmc import HMC
from fahmc.engines.flare.engine import Flare
from fahmc.engines.flare.loopback import Loopback
from fahmc.engines.flare.rules import Rules
from fahmc.models import logistic_regression
from fahmc.report import Verdict, judge, parameter_table
from fahmc.report.about import About
from fahmc.report.quantities import in_bytes, in_time, rounded
from fahmc.report.render import answer_of
from fahmc.sample import sample

TREATMENT = "coefficients[treatment]"
_QUESTION = "Does treating gum disease prevent preterm birth?"
# Gelman et al. (2008) propose this scale for coefficients of logistic regressions.
_PRIOR_SCALE = 2.5
_NUM_CHAINS = 8
_AUTO, _PAPER, _POOLED = "federated: Auto", "federated: FA-HMC", "pooled: MHMC"
_SAMPLERS = {
    _AUTO: Auto(),
    _PAPER: Tuned(),
    # Nine in ten trajectories are accepted.
    _POOLED: HMC(step_size=0.075, num_leapfrog_steps=5, metropolis=True),
}
_NUM_POOLED_ROUNDS, _NUM_POOLED_WARMUP = 2000, 125


def run_demo(folder: Path, seed: int, is_federated: bool, is_strict: bool, output: Output) -> None:
    """Sample the trial three times, compare, and write the report."""
    began = time.perf_counter()
    results = ResultFolder(folder)
    results.take(DEMO)
    study = load_opt_trial()
    runs: dict[str, Draws] = {}
    with results.writing():
        with clinics(study, is_federated, output) as (federation, engine):
            where = "as four sites, over mutual TLS" if is_federated else "in one process"
            output.log(f"Four clinics, {where}; no row leaves its clinic. Auto: a posterior in few rounds")
            runs[_AUTO] = _sample(study, federation, _AUTO, results.draws, output, seed=seed, engine=engine)
            output.log("The same by FA-HMC, which tunes itself")
            file = results.path / "fa-hmc.nc"
            runs[_PAPER] = _sample(study, federation, _PAPER, file, output, seed=seed, engine=engine)
        output.log("All rows in one place (MHMC)")
        runs[_POOLED] = _sample_pooled(study, results.pooled, output, seed)
        about = describe_trial(study, is_federated)
        results.write_about(about)
        with output.working("Writing the report"):
            results.write_report(runs[_AUTO], runs[_POOLED])
            tables = {name: parameter_table(runs[name], reference=runs[_POOLED]) for name in (_AUTO, _PAPER)}
    verdicts = {name: judge(runs[name], tables[name]) for name in tables}
    output.show(
        effect_table(runs, tables, study),
        difference_table(tables),
        *(sentence for name in tables for sentence in _findings(name, runs[name], tables[name], verdicts[name])),
        "",
        *(f"[bold]{escape(sentence)}[/bold]" for sentence in answer_of({"": runs[_AUTO]}, about, verdicts[_AUTO])),
        f"Done in {in_time(time.perf_counter() - began)}. Draws, figures and report: {folder}/ (open report.html).",
        *_next_steps(folder),
    )
    exit_code = NOT_GOOD if is_strict and not verdicts[_AUTO].is_good else 0
    output.result(
        output=folder,
        files=results.files(),
        verdict=verdicts[_AUTO].as_values(),
        seconds=time.perf_counter() - began,
        exit_code=exit_code,
        **_as_values(runs, tables[_AUTO]),
    )
    output.end(exit_code)


@contextmanager
def clinics(study: Study, is_federated: bool, output: Output) -> Iterator[tuple[Federation | Sites, Any]]:
    """Have the clinics' rows in this process; or processes of their own that have them, and an engine to reach them."""
    if not is_federated:
        yield Federation.from_clients(study.clients), None
        return
    # A temporary folder, and a session that ends before the processes do, however this is left.
    with tempfile.TemporaryDirectory(prefix="fahmc-demo-") as folder:
        rules = {}
        for clinic, table in clinic_tables().items():
            file = Path(folder, clinic, "women.csv")
            file.parent.mkdir()
            pd.DataFrame(table.columns).to_csv(file, index=False)
            # The trial is published, so that one woman with hypertension at a clinic need not keep the column back.
            rules[clinic] = Rules(file=str(file), columns="all", minimum_rows_per_level=1)
        output.log(f"Starting a server and {len(rules)} sites on this machine, with certificates made for them")
        with Loopback(Path(folder, "kits"), rules, study="demo") as federation:
            with Flare(federation.kits["analyst"].path) as engine:
                yield Sites(outcome="outcome", outcome_positive="preterm", missing="drop"), engine


def _sample_pooled(study: Study, file: Path, output: Output, seed: int) -> Draws:
    """Sample the trial as if all rows lay in one place."""
    # Another seed: with one, two runs could draw the same momenta, and their difference not be that of two runs.
    options = {"num_rounds": _NUM_POOLED_ROUNDS, "num_warmup_rounds": _NUM_POOLED_WARMUP, "seed": seed + 1}
    return _sample(study, Federation.from_clients(study.clients), _POOLED, file, output, **options)


def _sample(study: Study, federation: Any, name: str, file: Path, output: Output, **settings: Any) -> Draws:
    """Sample and keep the draws; those of a run that was interrupted too."""
    model = logistic_regression(_PRIOR_SCALE, feature_names=study.feature_names)
    settings |= {"num_chains": _NUM_CHAINS, "progress": output.progress}
    settings |= {"dtype": "float32"}  # in which bytes are counted, whatever JAX is set to
    draws = sample(model, federation, _SAMPLERS[name], **settings)
    draws.save(file)
    if draws.settings["ended"] == "interrupted":
        raise KeyboardInterrupt(f"the {draws.num_draws} draws a chain so far are in {file}")
    return draws


def effect_table(runs: Mapping[str, Draws], tables: Mapping[str, Any], study: Study) -> Table:
    """Build the table that answers the trial's question three times."""
    num_rows = sum(len(rows["y"]) for rows in study.clients.values())
    question = f"{_QUESTION} {num_rows} women, {len(study.clients)} clinics"
    printed = Table(title=question, title_justify="left")
    printed.add_column("effect of treatment, 95 % interval", no_wrap=True)
    rows = {name: table.loc[TREATMENT] for name, table in tables.items()}
    # The pooled run is the others' reference.
    rows[_POOLED] = rows[_AUTO].filter(like="reference_").rename(lambda name: name.removeprefix("reference_"))
    for name in runs:
        printed.add_column(name, justify="right", no_wrap=True)

    def add(words: str, cell: Callable[[str], str]) -> None:
        printed.add_row(words, *(cell(name) for name in runs))

    def odds_ratio(name: str) -> str:
        median, lower, upper = _odds_ratio(runs[name])
        return rf"{median:.2f} \[{lower:.2f}, {upper:.2f}]"

    is_real = "sites" in runs[_AUTO].settings
    left, reached = ("left", "reached") if is_real else ("would leave", "would reach")
    # Of the rows themselves, which pooling would move, in the precision of the draws: four bytes a number.
    pooled = {"rounds": 1, "bytes_to_server": sum(4 * (r["x"].size + r["y"].size) for r in study.clients.values())}
    costs = {name: draws.cost for name, draws in runs.items()} | {_POOLED: {"bytes_to_clients": 0, **pooled}}
    add("log odds ratio", lambda name: f"{rounded(rows[name]['mean'], rows[name]['sd'])} {interval(rows[name], '')}")
    add("odds ratio (median)", odds_ratio)
    add("R-hat", lambda name: in_r_hat(rows[name]["r_hat"]))
    add("effective sample size", lambda name: in_count(rows[name]["ess_bulk"]))
    add("rounds of communication", lambda name: f"{costs[name]['rounds']:,}")
    add("rows that leave a clinic", lambda name: f"{num_rows}" if name == _POOLED else "0")
    add(f"bytes that {left} the clinics", lambda name: in_bytes(costs[name]["bytes_to_server"]))
    add(f"bytes that {reached} the clinics", lambda name: in_bytes(costs[name]["bytes_to_clients"]))
    add("time", lambda name: in_time(runs[name].cost["seconds"]))
    return printed


def difference_table(tables: Mapping[str, Any]) -> Table:
    """Build the table of all coefficients: where the runs put them, and how far they are from the pooled one."""
    printed = Table(title="All coefficients, and how far from pooled in its standard deviations", title_justify="left")
    printed.add_column("log odds ratio of", no_wrap=True)
    for heading in ("pooled", "sd"):
        printed.add_column(heading, justify="right")
    for name in tables:
        for heading in (name.removeprefix("federated: "), "off by", "sd off by"):
            printed.add_column(heading, justify="right")
    for parameter in tables[_AUTO].index:
        row = tables[_AUTO].loc[parameter]
        cells = [rounded(row[f"reference_{key}"], row["reference_sd"]) for key in ("mean", "sd")]
        for table in tables.values():
            row = table.loc[parameter]
            spread = row["sd"] / row["reference_sd"] - 1
            cells += [rounded(row["mean"], row["sd"]), f"{row['difference_sd']:+.3f}", f"{100 * spread:+.1f} %"]
        printed.add_row(_feature(parameter), *cells)
    return printed


def _findings(name: str, draws: Draws, table: Any, verdict: Verdict) -> Iterator[str]:
    """Say what a federated run decided, how far it is from the pooled one, and what is made of it."""
    shifts, spreads = table["difference_sd"].abs(), (table["sd"] / table["reference_sd"] - 1).abs()
    yield f"[bold]{name}[/bold]"
    yield from (escape(choice) for choice in draws.account["choices"])
    yield (
        f"Its means differ from the pooled ones by at most {shifts.max():.3f} posterior standard deviations "
        f"({_feature(shifts.idxmax())}), its standard deviations by at most {100 * spreads.max():.1f} %."
    )
    yield from verdict_lines(verdict._replace(remarks=()))


def _next_steps(folder: Path) -> list[str]:
    """Tell what to type next, by the name under which this command can be run here."""
    command = _own_name()
    steps = {
        f"{command} sample study.toml": "your own tables: docs/command-line.md has a study.toml to begin with",
        f"{command} demo --federated": "the same trial at four sites, each a process of its own",
        f"{command} report {folder}": "this report again, from its draws",
    }
    width = max(map(len, steps))
    shorter = f"(`. {Path(command).parent}/activate` lets you type fahmc alone.)"
    lines = (escape(f"  {step:<{width}}  {words}") for step, words in steps.items())
    return ["", "Next:", *lines, *([] if command == "fahmc" else [shorter])]


def _own_name() -> str:
    """Return how the shell finds this command: without its folder only if the search path has it."""
    own = Path(sys.argv[0])
    found = shutil.which(own.name)
    if own.name != "fahmc" or (found is not None and Path(found).resolve() == own.resolve()):
        return "fahmc"
    return os.path.relpath(own)


def describe_trial(study: Study, is_federated: bool) -> About:
    """Say in the report what was sampled."""
    return About(
        title="Obstetrics and Periodontal Therapy trial",
        question=_QUESTION,
        outcome="preterm birth",
        effect=["treatment"],
        dropped=study.dropped,
        spreads={feature: scale.sd for feature, scale in study.standardization.items()},
        notes=(
            "Logistic regression of birth before 37 weeks on treatment and baseline covariates; women whose outcome is "
            "unknown are left out.",
            "Federated: Auto, one client per clinic. Pooled: HMC with Metropolis correction on all rows.",
            "The clinics ran as processes of their own on one machine; bytes are those of their messages."
            if is_federated
            else "Both ran on one machine: bytes are those that would cross a network.",
        ),
        again=f"fahmc demo{' --federated' if is_federated else ''}",
    )


def _odds_ratio(draws: Draws) -> np.ndarray:
    """Return median and 95 % interval of the treatment's odds ratio."""
    place = list(draws.coords["feature"]).index("treatment")
    return np.quantile(np.exp(draws.named()["coefficients"][..., place]), [0.5, 0.025, 0.975])


def _feature(name: Any) -> str:
    return escape(str(name).removeprefix("coefficients[").removesuffix("]"))


def _as_values(runs: dict[str, Draws], table: Any) -> dict[str, Any]:
    """Say for programs what came out."""
    runs = dict(zip(("federated", "fa_hmc", "pooled"), runs.values(), strict=True))
    names, rows = ("median", "2.5%", "97.5%"), parameter_rows(table)
    ratios = {label: dict(zip(names, _odds_ratio(run), strict=True)) for label, run in runs.items()}
    shifts = table[["difference_mcse", "difference_sd"]].abs().max()
    return {
        "treatment": {"log_odds_ratio": rows[TREATMENT], "odds_ratio": ratios},
        "largest_difference": dict(zip(("in_mcse", "in_posterior_sd"), shifts, strict=True)),
        "parameters": rows,
        "cost": {label: run.cost for label, run in runs.items()},
        "settings": {label: run.settings for label, run in runs.items()},
    }
