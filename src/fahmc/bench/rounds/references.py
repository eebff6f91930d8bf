"""The posterior given all rows in one place, by long chains of NUTS: what a federated one is held against.

Means and standard deviations of every parameter are kept with their Monte Carlo errors. A file also keeps −log density
at the mean, so that a reference of other rows or of another model is not taken for this one's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from fahmc.bench import peers
from fahmc.bench.cases import NUMPYRO
from fahmc.bench.rounds.problems import Coordinates, Problem
from fahmc.density.target import build_target
from fahmc.errors import DataError
from fahmc.experiments.fetch import cache_folder
from fahmc.report import convergence
from fahmc.types import Client, Vector

NUM_CHAINS = 4
_HIERARCHIES = ("hierarchical_centred", "hierarchical_noncentred")
# Draws a chain. Near a Gaussian in the right metric, the ESS of NUTS's mean exceeds the draws; that of the sd does not.
_NUM_DRAWS = {"a9a": 1_000, "opt_horseshoe": 10_000} | dict.fromkeys(_HIERARCHIES, 20_000)
# Where gradients are dear and the posterior nearly Gaussian: chains begin around the mode, in its metric, and keep it.
_AT_MODE = ("a9a",)
# What a reference must be to judge by: errors are then a fifth of what is allowed.
_MOST_ERROR, _MOST_R_HAT, _MOST_DIVERGENT = 0.02, 1.01, 0
_TARGET_ACCEPT = {"opt_horseshoe": 0.98} | dict.fromkeys(_HIERARCHIES, 0.99)


@dataclass(frozen=True)
class Reference:
    """Moments of a posterior, each [dim] in the order of the flat position."""

    mean: Float[np.ndarray, " dim"]
    sd: Float[np.ndarray, " dim"]
    mean_error: Float[np.ndarray, " dim"]
    """Monte Carlo standard error of the mean."""
    sd_error: Float[np.ndarray, " dim"]
    ess: float
    """The smallest of all parameters, of bulk and tail."""
    r_hat: float
    """The largest of all parameters."""
    num_divergent: int
    potential: float
    """−log density at the mean."""

    @property
    def error(self) -> float:
        """Monte Carlo error of means and standard deviations, in standard deviations, the worst of all parameters."""
        return float(np.max(np.maximum(self.mean_error, self.sd_error) / self.sd))

    @property
    def faults(self) -> tuple[str, ...]:
        """Why this is no posterior to hold others against."""
        wanted = {
            f"Monte Carlo error {self.error:.3f} sd": self.error <= _MOST_ERROR,
            f"R-hat {self.r_hat:.3f}": self.r_hat <= _MOST_R_HAT,
            f"{self.num_divergent} divergences": self.num_divergent <= _MOST_DIVERGENT,
        }
        return tuple(words for words, is_kept in wanted.items() if not is_kept)


def pooled_potential(
    problem: Problem, num_chains: int = NUM_CHAINS
) -> tuple[Callable[[Vector], Array], Float[Array, "chain dim"]]:
    """Return f of all rows, as a function of the flat position in double precision, and a start for each chain."""
    pooled = problem.federation.pooled()
    rows = jax.tree.map(jnp.asarray, pooled.rows[0])
    keys = jax.random.split(jax.random.key(0), num_chains)
    starts = [problem.model.initial_position(key, rows) for key in keys]
    num_rows = pooled.num_rows
    client = Client(rows, jnp.asarray(pooled.row_weights[0]), num_rows, weight=1.0, scale=1.0, identity=None)
    target = build_target(problem.model, starts[0], client, "pooled")
    return lambda position: target.value(position, client), jnp.stack([ravel_pytree(start)[0] for start in starts])


def whitening(potential_fn: Callable[[Vector], Array], start: Vector) -> Float[Array, "dim dim"]:
    """Return W with W′ |H| W = I for the curvature H at the start: a first metric, whatever the columns' units."""
    return whitening_of(jax.hessian(potential_fn)(start))


def whitening_of(curvature: Float[Array, "dim dim"]) -> Float[Array, "dim dim"]:
    """Return the same of a curvature that is at hand."""
    values, vectors = jnp.linalg.eigh(curvature)
    # Where curvature is as good as nothing, the scale stays what it is.
    sizes = jnp.where(jnp.abs(values) > 1e-8, jnp.abs(values), 1.0)
    return vectors / jnp.sqrt(sizes)[None]


def reference(
    problem: Problem, seed: int = 0, folder: Path | None = None, *, num_draws: int | None = None
) -> Reference:
    """Return the reference of a problem, made now if the folder (the cache by default) does not hold it.

    Parameters
    ----------
    seed
        With which the problem was made: it names the file.
    num_draws
        As in `make_reference`.
    """
    path = (folder or cache_folder("rounds-references")) / f"{problem.name}-{seed}.npz"
    with jax.enable_x64(True):
        if path.exists():
            with np.load(path) as file:
                found = Reference(**{name: file[name][()] for name in file.files})
            potential = float(pooled_potential(problem)[0](jnp.asarray(found.mean)))
            if not np.isclose(potential, found.potential, rtol=1e-9, atol=1e-6):
                raise DataError(
                    f"{path} is the reference of another posterior (−log density at its mean is {found.potential:.6g}, "
                    f"here {potential:.6g}); delete it and run again."
                )
            return found
        made = make_reference(problem, num_draws)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **asdict(made))
    return made


def make_reference(problem: Problem, num_draws: int | None = None) -> Reference:
    """Run the long chains, in double precision; fewer draws than a reference needs show that everything works."""
    peers.require([NUMPYRO])
    from fahmc.bench.peers.numpyro_nuts import sample_nuts

    num_draws = num_draws or _NUM_DRAWS.get(problem.name, 5_000)
    sampled = problem if problem.easier is None else replace(problem, model=problem.easier.model)
    with jax.enable_x64(True):
        potential_fn, starts = pooled_potential(sampled)
        is_at_mode = problem.name in _AT_MODE
        center = jnp.asarray(newton(potential_fn, np.asarray(starts[0]))[0]) if is_at_mode else starts[0]
        scale = jax.jit(whitening, static_argnums=0)(potential_fn, center)
        # Wider than the posterior, so that R-hat can tell whether chains have met.
        wide = 2 * np.random.default_rng(0).normal(size=starts.shape)
        run = sample_nuts(
            lambda u: potential_fn(center + scale @ u),
            jnp.asarray(wide) if is_at_mode else jnp.linalg.solve(scale, (starts - center[None]).T).T,
            num_warmup=300 if is_at_mode else min(1_500, num_draws),
            num_draws=num_draws,
            target_accept=_TARGET_ACCEPT.get(problem.name, 0.8),
            seed=0,
            adapt_metric=not is_at_mode,
        )
        draws = np.asarray(center) + run.draws @ np.asarray(scale).T
        if problem.easier is not None:
            draws = _moved(draws, sampled, problem.easier)
        potential = pooled_potential(problem)[0]
        return reference_of(draws, run.num_divergent, lambda mean: float(potential(jnp.asarray(mean))))


def reference_of(
    draws: Float[np.ndarray, "chain draw dim"],
    num_divergent: int,
    potential_fn: Callable[[Float[np.ndarray, " dim"]], float] = lambda mean: np.nan,
) -> Reference:
    """Return moments of long chains, with their Monte Carlo errors."""
    least_ess = [float(convergence.ess(draws, method=method)["position"].min()) for method in ("bulk", "tail")]
    mean = draws.mean(axis=(0, 1))
    return Reference(
        mean=mean,
        sd=draws.std(axis=(0, 1)),
        mean_error=convergence.mcse(draws)["position"],
        sd_error=convergence.mcse(draws, method="sd")["position"],
        ess=min(least_ess),
        r_hat=convergence.max_r_hat(draws),
        num_divergent=num_divergent,
        potential=potential_fn(mean),
    )


def newton(
    potential_fn: Callable[[jax.Array], jax.Array], start: np.ndarray, most: int = 200
) -> tuple[np.ndarray, np.ndarray, int]:
    """Return the mode, the curvature there, and at how many points these were asked for.

    A step is halved until the potential falls, each try being a round; the end is a step of a hundredth of a standard
    deviation. Directions of negative curvature are turned around.
    """
    expand = jax.jit(lambda at: (potential_fn(at), jax.grad(potential_fn)(at), jax.hessian(potential_fn)(at)))

    def ask(at: np.ndarray) -> list[np.ndarray]:
        return [np.asarray(part) for part in expand(jnp.asarray(at))]

    place, (value, gradient, curvature), num_asked = start, ask(start), 1
    while num_asked < most:
        values, vectors = np.linalg.eigh(curvature)
        sizes = np.maximum(np.abs(values), 1e-8)
        step = -(vectors / sizes) @ (vectors.T @ gradient)
        if -(step @ gradient) < 1e-4 and values[0] > 0:
            break
        for halvings in range(30):
            there = place + step / 2**halvings
            new, num_asked = ask(there), num_asked + 1
            if new[0] < value:
                break
        else:
            break
        place, (value, gradient, curvature) = there, new
    return place, curvature, num_asked


def _moved(draws: np.ndarray, sampled: Problem, easier: Coordinates) -> np.ndarray:
    """Return draws in the problem's own coordinates."""
    rows = jax.tree.map(jnp.asarray, sampled.federation.pooled().rows[0])
    unravel = ravel_pytree(sampled.model.initial_position(jax.random.key(0), rows))[1]
    move = jax.vmap(lambda flat: ravel_pytree(easier.back(unravel(flat)))[0])
    return np.asarray(jax.jit(move)(draws.reshape(-1, draws.shape[-1]))).reshape(draws.shape)
