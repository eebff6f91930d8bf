"""Configuration files: settings left out, doubled, of the wrong kind, huge or odd; tables nested in others; torn bytes.

What is accepted gives a model, a sampler, rows and settings that fit `fahmc.sample`, and the line of each key, which
a refusal would name, is the line where it stands.
"""

from __future__ import annotations

import copy
import json
import math
import random
from pathlib import Path
from typing import Any

import fahmc
from fahmc.cli.config import build, build_model, build_sites, load_config, read_text
from fahmc.cli.toml_lines import locate_keys
from fahmc.registry import require
from harness import part
from odd_formulas import odd_formula
from odd_values import ODD_NUMBERS, ODD_TEXTS, flip_bytes

_ROWS = "site,age,group,ill\nnorth,50,a,no\nnorth,61,b,yes\nsouth,47,a,yes\nsouth,55,b,no\n"
_MODELS = (
    "logistic_regression", "linear_regression", "poisson_regression", "softmax_regression", "mlp",
    "negative_binomial_regression", "student_t_regression", "weibull_survival", "piecewise_exponential",
)  # fmt: skip
_SAMPLERS = (
    {"name": "FAHMC", "step_size": 0.2, "num_leapfrog_steps": 3, "momentum_correlation": 0.5},
    {"name": "FAHMC", "step_size": {"name": "stages", "step_size": 0.1, "first_stage": 10}, "sync_unit": "leapfrog",
     "num_leapfrog_steps": 4, "num_local_steps": 2},
    {"name": "FALD", "step_size": 0.01, "gradient": {"name": "minibatch", "size": 2}},
    {"name": "DebiasedFAHMC", "step_size": 0.1, "num_leapfrog_steps": 2},
    {"name": "HMC", "step_size": 0.1, "num_leapfrog_steps": 2, "metropolis": True},
    {"name": "FAHMC", "step_size": 0.1, "num_leapfrog_steps": 2, "inverse_mass_matrix": [1.0, 2.0, 0.5],
     "gradient": {"name": "gaussian_noise", "scale": 1.0, "of": {"name": "minibatch", "size": 1}}},
    {"name": "Auto"}, {"name": "Auto", "target_ess": 100}, {"name": "SplitHMC"}, {"name": "Tuned", "max_bias": 0.1},
    {"name": "SurrogatePosterior"},
)  # fmt: skip
_HUGE = (2**31, 2**40, 2**63 - 1, 2**63, 2**64, 10**30, -(2**70), 1e308, math.inf, -math.inf, math.nan, 5e-324, 0, -1)


@part("config")
def try_one(rng: random.Random, folder: Path) -> str:
    """Write a configuration, mutate it, and build what it asks for."""
    (folder / "rows.csv").write_text(_ROWS)
    table = _base(rng)
    for _ in range(rng.choice((0, 0, 1, 1, 1, 2, 3))):
        _mutate(rng, table)
    text = "\n".join(_lines(rng, table)) + "\n"
    content = text.encode("utf-8", errors="replace")
    if rng.random() < 0.15:
        content = flip_bytes(rng, content)
    if rng.random() < 0.01:
        many = 10**4
        content += rng.choice((b"a = " + b"[" * many, b"a = " + b"9" * many, b"a = 0x" + b"f" * many,
                               b"a." * many + b"b = 1", b"[" + b"a." * many + b"b]", b"a = {b = " * many))  # fmt: skip
    file = folder / "study.toml"
    file.write_bytes(content)
    config = load_config(file)
    _check_lines(config._source.lines, read_text(file).split("\n"))
    if config.federation is not None:  # reached with a kit, which is another part's
        assert isinstance(build_sites(config), fahmc.Sites) and isinstance(build_model(config), fahmc.Model)
        return "accepted"
    job = build(config)
    assert isinstance(job.model, fahmc.Model) and job.run_kwargs["num_chains"] >= 1
    require("sampler", job.sampler)
    assert job.federation.num_rows == 4 and sorted(job.federation.names) == ["north", "south"]
    return "accepted"


def _base(rng: random.Random) -> dict[str, Any]:
    table: dict[str, Any] = {
        "model": {"name": "logistic_regression", "prior_scale": 2.5},
        "data": {"file": "rows.csv", "site_column": "site", "outcome": "ill", "outcome_positive": "yes"},
        "sampler": copy.deepcopy(rng.choice(_SAMPLERS)),
        "run": {"num_chains": 2, "seed": 5, "output": "out"},
    }
    if "step_size" in table["sampler"]:
        table["run"] |= {"num_rounds": 60, "num_warmup_rounds": 20, "thin": 1}
    if rng.random() < 0.3:
        table["model"] = {"name": rng.choice(_MODELS)}
    if rng.random() < 0.2:
        table["data"] |= {
            "features": ["age", "group"],
            "categorical": ["group"],
            "missing": "drop",
            "standardize": True,
        }
    if rng.random() < 0.15:
        for setting in ("outcome", "features", "categorical"):
            table["data"].pop(setting, None)
        table["data"]["formula"] = odd_formula(rng, "ill", ("age", "group"))
    if rng.random() < 0.1:
        table["data"]["weights"] = {"north": 0.5, "south": 0.5}
    if rng.random() < 0.2:
        table["run"]["stop_when"] = {"r_hat": 1.01, "every": 20}
    if rng.random() < 0.1:
        table["data"] = {"outcome": "ill"}
        table["federation"] = {"server": "localhost:8002", "sites": ["north", "south"], "patience": 5.0}
    return table


def _mutate(rng: random.Random, table: dict[str, Any]) -> None:
    """Change one thing somewhere."""
    place: Any = table
    while rng.random() < 0.75 and (inner := [value for value in place.values() if isinstance(value, dict) and value]):
        place = rng.choice(inner)
    key, kind = rng.choice(list(place)), rng.randrange(6)
    if kind == 0:
        del place[key]
    elif kind == 1:
        place[rng.choice((key + "s", key[:-1], key.upper(), "object", "name", "seed", *ODD_TEXTS))] = place[key]
    elif kind == 2:
        place[key] = rng.choice(_HUGE)
    else:
        place[key] = _odd_value(rng, place[key])


def _odd_value(rng: random.Random, value: Any) -> Any:
    choices = (
        lambda: rng.choice(ODD_TEXTS), lambda: rng.choice(ODD_NUMBERS), lambda: [value], lambda: {"name": value},
        lambda: _many(rng, value), lambda: {"a": {"b": [{"c": value}]}}, lambda: str(value),
        lambda: [[1.0, 0.5], [0.5, 1.0]], lambda: rng.choice((True, False)), lambda: "none", lambda: {},
        lambda: value * 2 if isinstance(value, int | float) else value, lambda: rng.choice(_MODELS),
        lambda: copy.deepcopy(rng.choice(_SAMPLERS)), lambda: "own:thing", lambda: {"object": "own:thing"},
    )  # fmt: skip
    return rng.choice(choices)()


def _many(rng: random.Random, value: Any) -> list[Any]:
    # Thousands of lists of thousands would take the writer of the file longer than its reader.
    return [value] * rng.choice((0, 2, 2 if isinstance(value, list) else 3000))


def _lines(rng: random.Random, table: dict[str, Any]) -> list[str]:
    """Write TOML: sections as tables or inline, lists on one line or many."""
    lines = []
    for name, section in sorted(table.items(), key=lambda entry: isinstance(entry[1], dict)):
        if isinstance(section, dict) and rng.random() < 0.9:
            lines += ["", f"[{_key(name)}]  # section"]
            lines += [f"{_key(key)} = {_value(rng, value)}" for key, value in section.items()]
        else:
            lines.append(f"{_key(name)} = {_value(rng, section)}")
        if rng.random() < 0.02:
            lines.append(rng.choice(lines))
    return lines


def _key(name: str) -> str:
    return name if name.isidentifier() and name.isascii() else _text(name)


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=True).replace("\x7f", "\\u007f")


def _value(rng: random.Random, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)} = {_value(rng, part)}" for key, part in value.items()) + "}"
    if isinstance(value, list):
        between = ",\n  " if rng.random() < 0.3 else ", "
        return "[" + between.join(_value(rng, part) for part in value) + "]"
    return _text(str(value))


def _check_lines(lines: dict[tuple[str, ...], int], text: list[str]) -> None:
    """Hold the lines of keys against the text: what a refusal names must be there."""
    assert lines == locate_keys("\n".join(text))
    for path, number in lines.items():
        if path[-1].isidentifier() and path[-1].isascii():
            assert path[-1] in text[number - 1], (path, number)
