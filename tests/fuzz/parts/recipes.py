"""What a federation's messages hold: orders, and recipes of samplers and models, as plain values."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import jax

from fahmc import registry
from fahmc.engines.order import Order
from fahmc.models.recipes import build_model, model_recipe
from garbage import mutated
from harness import part

SAMPLERS: list[Any] = [
    {"name": "FAHMC", "step_size": 0.1, "num_leapfrog_steps": 3, "gradient": {"name": "minibatch", "size": 3}},
    {"name": "FAHMC", "step_size": {"name": "stages", "step_size": 0.1, "first_stage": 5}, "sync_unit": "leapfrog"},
    {"name": "FAHMC", "step_size": 0.1, "inverse_mass_matrix": {"array": [1.0, 2.0], "dtype": "float64"}},
    {"name": "FAHMC", "step_size": 0.1, "inverse_mass_matrix": {"dict": {"a": {"array": [1.0], "dtype": "float32"}}}},
    {"name": "DebiasedFAHMC", "step_size": 0.1, "gradient": {"name": "gaussian_noise", "scale": 1.0, "of": "full"}},
    {"name": "HMC", "step_size": 0.1, "metropolis": True, "jitter": 0.5},
    {"name": "FALD", "step_size": 0.1, "momentum_correlation": 0.5},
    {"name": "SplitHMC", "num_steps": 3, "center": [0.0, 1.0]},
    {"name": "Auto", "target_ess": 100, "method": "split"},
    {"name": "Tuned", "method": "FALD", "max_bias": 0.2, "budget_bytes": 1000.0},
]
MODELS: list[Any] = [
    {"name": "linear_regression", "prior_scale": 2.0, "noise_scale": 0.5, "feature_names": ["a", "b"]},
    {"name": "logistic_regression", "prior_scale": None, "intercept": True, "temperature": 1.0},
    {"name": "poisson_regression", "intercept_scale": 2.0, "feature_names": {"tuple": ["a", "b"]}},
    {"name": "softmax_regression", "num_classes": 3},
    {"name": "mlp", "num_classes": 2, "hidden": [3, 4], "prior_scale": 0.5},
    {"name": "piecewise_exponential", "cuts": [1.0, 2.5], "horizon": 3.0},
    {"name": "student_t_regression", "degrees": None, "noise_prior_scale": 2.0},
]
ORDER: Any = {
    "model": MODELS[0],
    "sampler": SAMPLERS[0],
    "leader": SAMPLERS[0],
    "phase": "sampling",
    "stream": "",
    "seed": 3,
    "num_chains": 2,
    "dtype": "float64",
    "template": {"dict": [["a", "a"], ["b", {"list": ["b.0"]}]]},
    "leaf_shapes": {"a": [2, 3], "b.0": []},
    "weights": {"north": 0.5, "south": 0.5},
    "num_rows": 20,
}


@part("recipes")
def try_one(rng: random.Random, folder: Path) -> str:
    kind = rng.choice([_sampler, _model, _order])
    came_to = kind(rng)
    assert "this" not in sys.modules, "something was imported that nobody listed"
    return came_to


def _changed(rng: random.Random, value: Any) -> Any:
    for _ in range(rng.choice([0, 1, 1, 1, 2])):
        value = mutated(rng, value)
    return value


def _sampler(rng: random.Random) -> str:
    sampler = registry.decode("sampler", _changed(rng, rng.choice(SAMPLERS)), ("sampler",), rng.choice([(), ["x:y"]]))
    registry.describe(sampler)
    written = registry.encode(sampler)
    again = registry.decode("sampler", _sent(written))
    assert type(again) is type(sampler)
    assert _sent(registry.encode(again)) == _sent(written), "a sampler came back as another"
    return "a sampler"


def _model(rng: random.Random) -> str:
    model = build_model(_changed(rng, rng.choice(MODELS)))
    written = _sent(model_recipe(model))
    assert _sent(model_recipe(build_model(written))) == written, "a model came back as another"
    return "a model"


def _order(rng: random.Random) -> str:
    table = _changed(rng, ORDER)
    order = Order.read(_text(table))
    assert Order.read(order.text) == order, "an order came back as another"
    if order.dimension < 10_000 and order.num_chains < 100:
        assert len(jax.tree.leaves(order.position)) == len(order.leaf_shapes)
        sampler, _ = order.build_sampler(), build_model(order.model)
        order.exchange(sampler)
        order.numbers(sampler)
    return "an order"


def _sent(recipe: Any) -> Any:
    return json.loads(_text(recipe))


def _text(table: Any) -> str:
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        return json.dumps(table)
    finally:
        sys.set_int_max_str_digits(limit)
