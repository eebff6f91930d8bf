"""`fahmc demo`: a real multi-site trial, sampled where its rows lie, next to the same trial with all rows in one place.

The settings below were measured. Clinics differ, so the longer a client travels on its own potential before positions
are averaged (K η), the larger the bias, which goes like (K η)²; the shorter, the more rounds. At K η = 0.12 the means
of the coefficients are off by some hundredths of a posterior standard deviation, as the demo prints; at 0.4 one is
off by more than half of one (tests/engines/test_warning_signs.py).
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.markup import escape
from rich.table import Table

from fahmc.cli.exits import NOT_GOOD
from fahmc.cli.folder import ResultFolder, Words
from fahmc.cli.output import Output, in_count, in_r_hat, interval, parameter_rows, verdict_lines
from fahmc.data.federation import Federation
from fahmc.data.sites import Sites
from fahmc.data.study import Study
from fahmc.data.trial import clinic_tables, load_opt_trial
from fahmc.draws import Draws
from fahmc.dynamics.fa_hmc import FAHMC
from fahmc.dynamics.hmc import HMC
from fahmc.engines.flare.engine import Flare
from fahmc.engines.flare.loopback import Loopback
from fahmc.engines.flare.rules import Rules
from fahmc.errors import SettingsError
from fahmc.models import logistic_regression
from fahmc.report import judge, parameter_table
from fahmc.report.quantities import in_bytes, in_time, rounded
from fahmc.sample import sample

TREATMENT = "coefficients[treatment]"
# Gelman et al. (2008) propose this scale for coefficients of logistic regressions.
_PRIOR_SCALE = 2.5
_NUM_CHAINS = 8
_FEDERATED = FAHMC(step_size=0.03, num_leapfrog_steps=4)
# Longer trajectories are free of bias here, as each is accepted or rejected (nine in ten are accepted).
_POOLED = HMC(step_size=0.075, num_leapfrog_steps=5, metropolis=True)
# Neighbouring rounds hardly differ; every fourth keeps the files small and loses nothing.
_THIN = 4
# How many federated rounds go to one pooled round, and to one round of warm-up.
_ROUNDS_PER_POOLED_ROUND, _ROUNDS_PER_WARMUP_ROUND = 8, 16
# In one process, and at sites, where a round takes a network's time.
_NUM_ROUNDS = {False: 16_000, True: 10_000}


def run_demo(
    folder: Path, seed: int, num_rounds: int | None, is_federated: bool, is_strict: bool, output: Output
) -> None:
    """Sample the trial twice, compare, and write the report."""
    began = time.perf_counter()
    num_rounds = num_rounds if num_rounds is not None else _NUM_ROUNDS[is_federated]
    if num_rounds < (least := _NUM_CHAINS * _ROUNDS_PER_POOLED_ROUND):
        raise SettingsError(f"--rounds is {num_rounds}; at least {least} are needed for a comparison.")
    results = ResultFolder(folder)
    results.create()
    if results.has_job():
        raise SettingsError(f"{folder} holds a run of `fahmc sample`; choose another folder with --output.")
    study = load_opt_trial()
    with results.writing():
        with clinics(study, is_federated, output) as (federation, engine):
            draws = sample_clinics(study, federation, engine, results.draws, seed, num_rounds, output)
        pooled = sample_pooled(study, results.pooled, seed, num_rounds // _ROUNDS_PER_POOLED_ROUND, output)
        results.write_words(describe_trial(study, is_federated))
        with output.working("Writing the report"):
            results.write_report(draws, pooled)
            table = parameter_table(draws, reference=pooled)
    verdict = judge(draws, table)
    output.show(
        effect_table(draws, pooled, table, study),
        difference_table(table),
        bias_sentence(table),
        *verdict_lines(verdict._replace(remarks=())),
        f"Done in {in_time(time.perf_counter() - began)}. Draws, figures and report: {folder}/ (open report.html).",
    )
    values = _as_values({"federated": draws, "pooled": pooled}, table)
    seconds = time.perf_counter() - began
    values |= {"exit_code": NOT_GOOD if is_strict and not verdict.is_good else 0}
    output.result(output=folder, files=results.files(), verdict=verdict.as_values(), seconds=seconds, **values)
    output.end(values["exit_code"])


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
            rules[clinic] = Rules(file=str(file), columns="all")
        output.log(f"Starting a server and {len(rules)} sites on this machine, with certificates made for them")
        with Loopback(Path(folder, "kits"), rules, study="demo") as federation:
            with Flare(federation.kits["analyst"].path) as engine:
                yield Sites(outcome="outcome", outcome_positive="preterm", missing="drop"), engine


def sample_clinics(
    study: Study, federation: Federation | Sites, engine: Any, file: Path, seed: int, rounds: int, output: Output
) -> Draws:
    """Sample the trial by clinic."""
    where = "at four sites, over mutual TLS" if engine is not None else "FA-HMC"
    output.log(f"Four clinics, no row leaves its clinic ({where}): {rounds:,} rounds, {_NUM_CHAINS} chains")
    return _sample(study, federation, _FEDERATED, file, rounds, output, seed=seed, thin=_THIN, engine=engine)


def sample_pooled(study: Study, file: Path, seed: int, rounds: int, output: Output) -> Draws:
    """Sample the trial as if all rows lay in one place."""
    output.log(f"All rows in one place (MHMC): {rounds:,} rounds, {_NUM_CHAINS} chains")
    # Another seed: with one, both runs would draw the same momenta, and their difference not be that of two runs.
    return _sample(study, Federation.from_clients(study.clients), _POOLED, file, rounds, output, seed=seed + 1)


def _sample(
    study: Study, federation: Any, sampler: Any, file: Path, rounds: int, output: Output, **settings: Any
) -> Draws:
    """Sample and keep the draws; those of a run that was interrupted too."""
    model = logistic_regression(_PRIOR_SCALE, feature_names=study.feature_names)
    settings |= {"num_warmup_rounds": rounds // _ROUNDS_PER_WARMUP_ROUND, "num_chains": _NUM_CHAINS}
    settings |= {"progress": output.progress, "dtype": "float32"}  # in which bytes are counted, whatever JAX is set to
    draws = sample(model, federation, sampler, rounds, **settings)
    draws.save(file)
    if draws.settings["ended"] == "interrupted":
        raise KeyboardInterrupt(f"the {draws.num_draws} draws a chain so far are in {file}")
    return draws


def effect_table(draws: Draws, pooled: Draws, table: Any, study: Study) -> Table:
    """Build the table that answers the trial's question twice."""
    num_rows = sum(len(rows["y"]) for rows in study.clients.values())
    question = f"Does treating gum disease prevent preterm birth? {num_rows} women, {len(study.clients)} clinics"
    printed = Table(title=question, title_justify="left")
    printed.add_column("effect of treatment, 95 % interval", no_wrap=True)
    for heading in ("federated: FA-HMC", "pooled: MHMC"):
        printed.add_column(heading, justify="right", no_wrap=True)
    row = table.loc[TREATMENT]
    ratios = [_odds_ratio(run) for run in (draws, pooled)]
    crossing = [draws.cost["bytes_to_clients"], draws.cost["bytes_to_server"]]
    both = (f"{rounded(row[f'{run}mean'], row[f'{run}sd'])} {interval(row, run)}" for run in ("", "reference_"))
    printed.add_row("log odds ratio", *both)
    printed.add_row("odds ratio (median)", *(rf"{r[0]:.2f} \[{r[1]:.2f}, {r[2]:.2f}]" for r in ratios))
    printed.add_row("R-hat", in_r_hat(row["r_hat"]), in_r_hat(row["reference_r_hat"]))
    printed.add_row("effective sample size", in_count(row["ess_bulk"]), in_count(row["reference_ess_bulk"]))
    printed.add_row("rows that leave a clinic", "0", f"{num_rows}")
    # Of the rows themselves, which pooling would move, in the precision of the draws: four bytes a number.
    table_bytes = sum(4 * (rows["x"].size + rows["y"].size) for rows in study.clients.values())
    is_real = "sites" in draws.settings
    left, reached = ("left", "reached") if is_real else ("would leave", "would reach")
    printed.add_row(f"bytes that {left} the clinics", in_bytes(crossing[1]), in_bytes(table_bytes))
    printed.add_row(f"bytes that {reached} the clinics", in_bytes(crossing[0]), "0 B")
    if is_real:
        rounds, seconds = draws.cost["rounds"], draws.cost["seconds"]
        there, back = (in_bytes(size / rounds / len(study.clients)) for size in crossing)
        printed.add_row("a round and clinic, there and back", f"{there}, {back}", "")
        printed.add_row("seconds a round", f"{seconds / rounds:.3f}", "")
    printed.add_row("time", in_time(draws.cost["seconds"]), in_time(pooled.cost["seconds"]))
    return printed


def difference_table(table: Any) -> Table:
    """Build the table of all coefficients: where the two runs put them, and how far apart."""
    printed = Table(title="All coefficients: difference of the means, federated - pooled", title_justify="left")
    printed.add_column("log odds ratio of", no_wrap=True)
    for heading in ("federated", "sd", "pooled", "sd", "in MCSE", "in posterior sd"):
        printed.add_column(heading, justify="right")
    for name, row in parameter_rows(table).items():
        runs = (rounded(row[run + key], row[f"{run}sd"]) for run in ("", "reference_") for key in ("mean", "sd"))
        shifts = f"{row['difference_mcse']:+.1f}", f"{row['difference_sd']:+.3f}"
        printed.add_row(_feature(name), *runs, *shifts)
    return printed


def bias_sentence(table: Any) -> str:
    """Say how large the federated sampler's bias is here."""
    scores, shifts = table["difference_mcse"].abs(), table["difference_sd"].abs()
    spreads = (table["sd"] / table["reference_sd"] - 1).abs()
    return (
        f"The means differ by at most {scores.max():.1f} Monte Carlo standard errors "
        f"({_feature(scores.idxmax())}) and at most {shifts.max():.3f} posterior standard deviations "
        f"({_feature(shifts.idxmax())}); the standard deviations by at most {100 * spreads.max():.1f} %. "
        "FA-HMC has no accept/reject step, so beside Monte Carlo error a bias remains, of the order of "
        "(num_leapfrog_steps x step_size)² while clinics differ: a smaller step_size, at the price of more rounds, "
        "lowers it."
    )


def describe_trial(study: Study, is_federated: bool) -> Words:
    """Say in the report what was sampled."""
    clinics = ", ".join(f"{name} {len(rows['y'])}" for name, rows in study.clients.items())
    return Words(
        title="Obstetrics and Periodontal Therapy trial",
        notes=(
            f"Logistic regression of preterm birth (before 37 weeks) on treatment and baseline covariates. Women by "
            f"clinic: {clinics}; {sum(study.dropped.values())} whose outcome is unknown are left out.",
            "Coefficients are log odds ratios; age, pocket depth and bleeding are per standard deviation. Their prior "
            f"is N(0, {_PRIOR_SCALE}²).",
            "Federated: FA-HMC, one client per clinic. Pooled: HMC with Metropolis correction on all rows.",
            "The clinics ran as processes of their own on one machine; bytes are those of their messages."
            if is_federated
            else "Both ran on one machine: bytes are those that would cross a network.",
        ),
        highlight=(TREATMENT,),
    )


def _odds_ratio(draws: Draws) -> np.ndarray:
    """Return median and 95 % interval of the treatment's odds ratio."""
    place = list(draws.coords["feature"]).index("treatment")
    return np.quantile(np.exp(draws.named()["coefficients"][..., place]), [0.5, 0.025, 0.975])


def _feature(name: Any) -> str:
    return escape(str(name).removeprefix("coefficients[").removesuffix("]"))


def _as_values(runs: dict[str, Draws], table: Any) -> dict[str, Any]:
    """Say for programs what came out."""
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
