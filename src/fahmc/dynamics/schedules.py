"""Step sizes as functions of the trajectory's index t. Any function of t that JAX can trace will do as well."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from fahmc import door, registry
from fahmc.errors import SettingsError, first_line
from fahmc.hints import Count, Positive
from fahmc.types import Schedule

registry.takes("schedule", Schedule, callable, "a function of t")


@registry.register("schedule", "stages")
@dataclass(frozen=True)
class Stages:
    """Proposition 4.5: a first stage of ``first_stage`` trajectories at ``step_size``, each next twice as long at η/√2.

    `fahmc.theory.stage_schedule` computes both numbers from the constants of the problem.

    Examples
    --------
    >>> schedule = Stages(step_size=0.1, first_stage=10)
    >>> [round(float(schedule(t)), 4) for t in (0, 9, 10, 29, 30)]
    [0.1, 0.1, 0.0707, 0.0707, 0.05]
    """

    step_size: Positive
    first_stage: Count

    def __post_init__(self):
        door.check(self)

    def __call__(self, trajectory: Int[Array, ""] | int, /) -> Float[Array, ""] | float:
        """Return η(t)."""
        # Stage s covers t_1 (2^s − 1) ≤ t < t_1 (2^(s+1) − 1), so s is the place of the highest bit of t div t_1 + 1.
        if isinstance(trajectory, int):  # as the theory counts, outside of JAX
            return self.step_size / 2 ** (((trajectory // self.first_stage + 1).bit_length() - 1) / 2)
        stage = 31 - lax.clz(jnp.asarray(trajectory, jnp.int32) // self.first_stage + 1)
        return self.step_size / 2 ** (jnp.asarray(stage, float) / 2)

    def end_of_stage(self, num_stages: int) -> int:
        """Return how many trajectories the first stages take together."""
        return self.first_stage * (2**num_stages - 1)


def as_schedule(step_size: Any) -> Schedule:
    """Make a constant schedule of a number; leave a function as it is."""
    return step_size if callable(step_size) else lambda trajectory: step_size


def check_schedule(schedule: float | Schedule) -> None:
    """Try a schedule the way a run will call it, so that a mistake in it is a sentence before anything is compiled."""
    if not callable(schedule):
        return
    try:
        shape = jax.eval_shape(schedule, jax.ShapeDtypeStruct((), jnp.int32)).shape
        first = float(schedule(jnp.int32(0)))
    except Exception as error:
        raise SettingsError(
            f"step_size, as a function of t, failed: {type(error).__name__}: {first_line(error)}. JAX traces it: use "
            "jax.numpy instead of numpy or math, and jnp.where instead of if."
        ) from error
    if shape != () or not 0 < first < float("inf"):
        raise SettingsError(f"step_size(0) is {first} of shape {shape}; it must be one positive number for every t.")
