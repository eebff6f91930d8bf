"""A fully connected network."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fahmc.density.model import Model
from fahmc.errors import SettingsError
from fahmc.models.family import family
from fahmc.models.generalized_linear import normal_prior
from fahmc.models.regressions import check_classes, class_loglikelihood
from fahmc.types import Batch, Key, Position


@family
def mlp(
    num_classes: int, hidden: Sequence[int] = (512, 512), prior_scale: float | None = 1.0, *, temperature: float = 1.0
) -> Model:
    """Classify with a fully connected ReLU network; weights and biases have N(0, prior_scale²) priors.

    Position: a list of ``{"weights": [in, out], "biases": [out]}``; chains start at He's random initialisation.
    `predict` gives [row, class].
    """
    validate_fn = check_classes(num_classes)
    if any(width < 1 for width in hidden):
        raise SettingsError(f"hidden is {tuple(hidden)}; every layer needs at least one unit.")

    def logits_fn(position: Position, batch: Batch) -> Array:
        *layers, last = position
        units = batch["x"].reshape(len(batch["x"]), -1).astype(last["weights"].dtype)
        for layer in layers:
            units = jax.nn.relu(units @ layer["weights"] + layer["biases"][None])
        return units @ last["weights"] + last["biases"][None]

    def init(key: Key, batch: Batch) -> Position:
        widths = [batch["x"][0].size, *hidden, num_classes]
        keys = jax.random.split(key, len(widths) - 1)
        # He et al. (2015): variance 2 / fan-in keeps the scale of ReLU units from layer to layer
        return [
            {"weights": jax.random.normal(key, (fan_in, fan_out)) * (2 / fan_in) ** 0.5, "biases": jnp.zeros(fan_out)}
            for key, fan_in, fan_out in zip(keys, widths[:-1], widths[1:], strict=True)
        ]

    return Model(
        loglikelihood_fn=lambda position, batch: class_loglikelihood(logits_fn(position, batch), batch["y"]),
        logprior_fn=lambda position: sum(normal_prior(leaf, prior_scale) for leaf in jax.tree.leaves(position)),
        init=init,
        predict_fn=lambda position, batch: jax.nn.softmax(logits_fn(position, batch)),
        validate_fn=validate_fn,
        temperature=temperature,
    )
