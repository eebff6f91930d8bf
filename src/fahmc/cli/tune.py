"""`fahmc tune`: from a study to the [sampler] and [run] of its configuration file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from fahmc import registry
from fahmc.cli.config import build, load_config
from fahmc.cli.output import Output
from fahmc.tune import tuning_run

# Effective draws from which settings are judged.
_TARGET_ESS = 100


def tune_config(file: Path, max_rounds: int, max_bias: float, kit: Path | None, output: Output) -> None:
    """Tune FA-HMC, or FA-LD if [sampler] names it, on what a configuration file describes."""
    config = load_config(file)
    job, run = build(config, kit), config.run
    others = {"dtype": run.dtype, "progress": output.progress}
    if "engine" in job.run_kwargs:
        others["engine"] = job.run_kwargs["engine"]
    draws = tuning_run(
        job.model,
        job.federation,
        "FALD" if config.sampler.get("name") == "FALD" else "FAHMC",
        max_rounds,
        _TARGET_ESS,
        max_bias,
        max(8, run.num_chains),
        run.seed,
        **others,
    )
    account = draws.account
    found = {"sampler": _settings(account["sampler"]), "run": {**account["run"], "seed": run.seed}}
    output.show(*(f"# {words}" for words in [*account["choices"], *account["doubts"]]))
    if not (output.as_json or output.is_quiet):
        print("\n\n".join(_section(name, table) for name, table in found.items()))
    notes = {name: account[name] for name in ("choices", "doubts", "shift", "shift_error")}
    output.result(**found, **notes, rounds=draws.cost["rounds"], cost=draws.cost)


def _settings(sampler: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that are not the default, as a file takes them."""
    made = registry.decode("sampler", sampler)
    values = {field.name: getattr(made, field.name) for field in fields(made) if field.init}
    defaults = {field.name: field.default for field in fields(made)}
    kept = {name: value for name, value in values.items() if value is not None and not _same(value, defaults[name])}
    plain = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in kept.items()}
    return {
        "name": sampler["name"],
        "step_size": made.step_size,
        "num_leapfrog_steps": made.num_leapfrog_steps,
        **plain,
    }


def _same(value: Any, default: Any) -> bool:
    return not isinstance(value, np.ndarray) and value == default


def _section(name: str, table: Mapping[str, Any]) -> str:
    """Write a table as TOML; numbers and lists of numbers read alike in Python, text and truth do not."""
    return "\n".join([f"[{name}]", *(f"{key} = {_value(value)}" for key, value in table.items())])


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else repr(value)
