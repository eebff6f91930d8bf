"""The public Python functions and classes, called with what nobody should give them; nearly all compile nothing."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

import fahmc
from fahmc.errors import FahmcError
from garbage import PYTHON, failing
from harness import part

ROWS = {"x": np.array([[0.0, 1.0], [1.0, 0.5], [2.0, -1.0], [1.5, 0.0]]), "y": np.array([0.0, 1.0, 1.0, 0.0])}
CLIENTS = {"north": ROWS, "south": ROWS}
FEDERATION = fahmc.Federation.from_clients(CLIENTS)
MODEL = fahmc.models.logistic_regression()


def loglikelihood(position, batch):
    """Return what a model of one number sees."""
    return -((batch["y"] - position) ** 2)


# What is called, and arguments with which it works.
CALLS: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (fahmc.FAHMC, {"step_size": 0.1, "num_leapfrog_steps": 3, "num_local_steps": 2, "momentum_correlation": 0.5,
                   "sync_unit": "leapfrog", "gradient": fahmc.Minibatch(3), "jitter": 0.1, "correction": None}),
    (fahmc.DebiasedFAHMC, {"step_size": 0.1, "first_anchor": "origin", "reuse_gradient": False}),
    (fahmc.FALD, {"step_size": 0.1, "with_gradients": True}),
    (fahmc.HMC, {"step_size": 0.1, "metropolis": True, "num_leapfrog_steps": 4, "inverse_mass_matrix": None}),
    (fahmc.SplitHMC, {"num_steps": 3, "step_size": 0.3, "center": None, "jitter": 0.1}),
    (fahmc.Auto, {"target_ess": 100, "max_rounds": 50, "budget_bytes": 1e6, "method": "split",
    "gradient": fahmc.FullGradient()}),
    (fahmc.Tuned, {"method": "FALD", "target_ess": 100, "max_rounds": 50, "max_bias": 0.1}),
    (fahmc.SurrogatePosterior, {"target_ess": 100, "max_rounds": 20}),
    (fahmc.SurrogateTransition, {"target_ess": 100, "max_rounds": 20}),
    (fahmc.Minibatch, {"size": 3}),
    (fahmc.GaussianNoise, {"scale": 0.5, "of": fahmc.Minibatch(2)}),
    (fahmc.schedules.Stages, {"step_size": 0.1, "first_stage": 3}),
    (fahmc.RHatBelow, {"threshold": 1.1, "every": 10, "method": "rank"}),
    (fahmc.EssAbove, {"size": 100.0, "r_hat": 1.1, "every": 10}),
    (fahmc.engines.InProcess, {"threads": 1, "row_space": False}),
    (fahmc.Sites, {"outcome": "y", "features": ["a", "b"], "categorical": ["b"], "missing": "drop", "standardize": True,
                   "weights": {"north": 0.5, "south": 0.5}, "outcome_positive": "yes"}),
    (fahmc.Model, {"loglikelihood_fn": loglikelihood, "logprior_fn": lambda p: 0.0, "init": 0.0, "temperature": 2.0,
                   "dims": {"a": ["b"]}, "coords": {"b": ["c"]}, "view_fn": None, "validate_fn": None}),
    (fahmc.Model.named, {"reference": "fahmc.models:logistic_regression"}),
    (fahmc.Linear, {"parameter": "a", "covariates": "x", "prior_scale": 1.0, "loglikelihood_fn": loglikelihood}),
    (fahmc.models.linear_regression, {"prior_scale": 1.0, "noise_scale": 0.5, "intercept": False,
    "feature_names": ["a", "b"]}),
    (fahmc.models.logistic_regression, {"prior_scale": None, "temperature": 2.0, "intercept_scale": 1.0}),
    (fahmc.models.poisson_regression, {"prior_scale": 1.0}),
    (fahmc.models.softmax_regression, {"num_classes": 3, "prior_scale": 1.0}),
    (fahmc.models.mlp, {"num_classes": 3, "hidden": (4, 5), "prior_scale": 1.0, "temperature": 0.5}),
    (fahmc.Federation.from_clients, {"clients": CLIENTS, "weights": [0.5, 0.5]}),
    (fahmc.Federation.from_clients, {"clients": [ROWS, ROWS], "weights": None}),
    (fahmc.partition.iid, {"rows": ROWS, "num_clients": 2, "seed": 1}),
    (fahmc.partition.equal, {"rows": ROWS, "num_clients": 2, "seed": 1}),
    (fahmc.partition.dirichlet, {"rows": ROWS, "labels": ROWS["y"], "num_clients": 2, "concentration": 5.0, "seed": 1}),
    (fahmc.partition.by_column, {"rows": ROWS, "column": "y"}),
    (fahmc.register, {"kind": "sampler", "name": "x"}),
]  # fmt: skip
# Only what is refused before the first round, as each run would compile anew; and one run that always does.
SAMPLE: dict[str, Any] = {
    "model": MODEL, "federation": FEDERATION, "sampler": fahmc.FAHMC(0.1, 2), "num_rounds": 4, "num_warmup_rounds": 1,
    "num_chains": 2, "seed": 1, "private_seed": 2, "init": None, "thin": 1, "dtype": "float32", "engine": None,
    "checkpoint_dir": None, "stop_when": None, "progress": False, "block_rounds": 2, "row_space": False,
}  # fmt: skip


DRAWS = fahmc.Draws(
    positions={"coefficients": np.zeros((2, 3, 2)), "intercept": np.zeros((2, 3))},
    stats={}, client_drift=None, client_names=("north",), settings={}, cost={}, model=MODEL,
)  # fmt: skip


@part("api")
def try_one(rng: random.Random, folder: Path) -> str:
    kind = rng.random()
    if kind < 0.15:
        return _sample(rng)
    if kind < 0.2:
        return _later(rng, folder)
    function, arguments = rng.choice(CALLS)
    arguments, changed = _changed(rng, function, dict(arguments))
    try:
        made = function(**arguments)
    except FahmcError as error:
        _names_something(error, changed)
        raise
    if isinstance(made, fahmc.Federation):
        _check_federation(made)
    elif hasattr(made, "exchange") and not getattr(made, "decides_rounds", False):
        made.exchange(3)
    elif isinstance(made, dict):
        assert sum(len(jax.tree.leaves(client)[0]) for client in made.values()) == len(
            jax.tree.leaves(arguments["rows"])[0]
        )
    return "accepted"


def _later(rng: random.Random, folder: Path) -> str:
    """Ask something of draws and rules."""
    odd = rng.choice(PYTHON)
    rule = rng.choice([fahmc.RHatBelow(1.1), fahmc.EssAbove(10)])
    batch = rng.choice([{"x": odd, "y": ROWS["y"]}, {"x": ROWS["x"], "y": odd}, odd])
    file = folder / "draws.nc"
    file.write_bytes(rng.randbytes(rng.choice([0, 10, 1000])))
    shape = (2, rng.choice([2, 8]), rng.choice([1, 2]))
    asked = rng.choice([
        lambda: DRAWS.predict(batch), lambda: DRAWS.predict({"x": ROWS["x"][:, :1]}), lambda: DRAWS.predict(ROWS,
        model=odd),
        lambda: fahmc.Draws.load(rng.choice([file, folder, folder / "none"])),
        lambda: rule(rng.choice([odd, {"a": odd}, np.ones(shape)])),
    ])  # fmt: skip
    asked()
    return "answered"


def _odd_model(rng: random.Random) -> fahmc.Model:
    """Return a model of one's own with something wrong about it, perhaps."""
    odd = rng.choice(PYTHON)
    settings: dict[str, Any] = {"loglikelihood_fn": loglikelihood, "init": 0.0}
    changes: list[dict[str, Any]] = [
        {}, {"init": odd}, {"init": {"a": odd}}, {"init": lambda key: odd}, {"init": failing},
        {"logprior_fn": lambda p: odd},
        {"loglikelihood_fn": lambda p, b: odd}, {"loglikelihood_fn": failing}, {"logprior_fn": failing},
        {"view_fn": failing},
        {"view_fn": lambda p: odd}, {"validate_fn": failing}, {"validate_fn": lambda b: odd},
        {"dims": {"position": ["a"]}},
    ]  # fmt: skip
    return fahmc.Model(**(settings | rng.choice(changes)))


class _Stop(Exception):
    """What ends a run that was accepted."""


class _Engine:
    """An engine that does not run: everything was checked when it starts."""

    path = "none"

    def start(self, run: Any) -> Any:
        assert np.isfinite(run.start).all() and run.start.shape == (run.num_chains, run.dimension)
        raise _Stop


def _sample(rng: random.Random) -> str:
    arguments, changed = _changed(rng, fahmc.sample, dict(SAMPLE))
    if not changed & {"engine", "row_space"}:
        arguments |= {"engine": _Engine(), "row_space": None}
    elif arguments["engine"] is None and "engine" in changed:
        return "left out"  # it would run
    elif "engine" not in changed:
        arguments["num_rounds"] = 0  # row space alone was changed, and would run
    try:
        fahmc.sample(**arguments)
    except _Stop:
        return "a run"
    except FahmcError as error:
        _names_something(error, changed)
        raise
    raise AssertionError(f"it ran with {sorted(changed)}")


def _changed(rng: random.Random, function: Any, arguments: dict[str, Any]) -> tuple[dict[str, Any], set[str]]:
    """Replace some arguments, or give some that are not usually given."""
    names = [name for name in inspect.signature(function).parameters if name not in ("args", "kwargs", "settings")]
    chosen = rng.sample(names, min(len(names), rng.choice([0, 1, 1, 1, 2])))
    for name in chosen:
        arguments[name] = rng.choice(PYTHON)
        if name == "clients" and rng.random() < 0.8:
            odd = rng.choice([{"x": rng.choice(PYTHON), "y": ROWS["y"]}, rng.choice(PYTHON)])
            arguments[name] = rng.choice([{"north": ROWS, "south": odd}, {rng.choice(["", "a", 3]): ROWS}, [odd]])
        if name == "model":
            arguments[name] = _odd_model(rng)
        if name == "sampler" and rng.random() < 0.5:
            arguments[name] = fahmc.FAHMC(rng.choice([failing, lambda t: "a", lambda t: t, lambda t: np.ones(2)]))
        if name == "init" and "federation" in arguments:
            arguments[name] = {"coefficients": rng.choice(PYTHON), "intercept": 0.0}
    return arguments, set(chosen)


def _names_something(error: FahmcError, changed: set[str]) -> None:
    """See to it that what was not changed is not blamed."""
    assert changed, f"valid arguments are refused: {error}"


def _check_federation(federation: fahmc.Federation) -> None:
    assert federation.num_clients >= 1 and np.isclose(federation.weights.sum(), 1) and (federation.weights >= 0).all()
    for leaf in jax.tree.leaves(federation.rows):
        assert leaf.dtype.kind in "fiub" and np.isfinite(leaf).all()
