"""A fully connected network."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fahmc.density.model import Model
from fahmc.hints import Classes, Layers, Positive
from fahmc.models.family import family
from fahmc.models.generalized_linear import weighted
from fahmc.models.regressions import check_classes, class_loglikelihood
from fahmc.models.rows import check_columns, check_extras
from fahmc.priors.normal import flat_draw, normal_prior, normal_words
from fahmc.types import Batch, Key, Position


@family
def mlp(
    num_classes: Classes,
    hidden: Layers = (512, 512),
    prior_scale: Positive | None = 1.0,
    *,
    temperature: Positive = 1.0,
) -> Model:
    """Classify with a fully connected ReLU network; weights and biases have N(0, prior_scale²) priors.

    Position: a list of ``{"weights": [in, out], "biases": [out]}``; chains start at He's random initialisation.
    `predict` gives [row, class].
    """

    def validate(batch: Batch) -> str | None:
        return check_columns(batch) or check_extras(batch, has_classes=True) or check_classes(num_classes)(batch)

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

    def sample(key: Key, position: Position, batch: Batch) -> Array:
        logits = logits_fn(position, batch)
        return jax.random.categorical(key, logits).astype(logits.dtype)

    def draw_prior(key: Key, batch: Batch) -> Position:
        if prior_scale is None:
            raise flat_draw("weights and biases")
        leaves, structure = jax.tree.flatten(jax.eval_shape(init, key, batch))
        keys = jax.random.split(key, len(leaves))
        drawn = [prior_scale * jax.random.normal(key, leaf.shape) for key, leaf in zip(keys, leaves, strict=True)]
        return jax.tree.unflatten(structure, drawn)

    return Model(
        loglikelihood_fn=lambda position, batch: weighted(
            class_loglikelihood(logits_fn(position, batch), batch["y"]), batch
        ),
        logprior_fn=lambda position: sum(normal_prior(leaf, prior_scale) for leaf in jax.tree.leaves(position)),
        init=init,
        prior_fn=draw_prior,
        prior_words={"weights and biases": normal_words(prior_scale)},
        predict_fn=lambda position, batch: jax.nn.softmax(logits_fn(position, batch)),
        validate_fn=validate,
        temperature=temperature,
        sample_fn=sample,
        outcome="y",
    )
