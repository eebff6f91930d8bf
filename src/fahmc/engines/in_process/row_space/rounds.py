"""A round of all clients and chains in row space; the equations are in the package's docstring.

Between two rounds β = base + X′ force + (outside noise), p likewise of their rates, and Xβ is there as ``predictor``;
``rest`` holds the other parameters, such as an intercept. Every part of a state has its rate beside it, and the chains
on its last axis, as matrix products are fastest with chains as columns.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from fahmc import keys
from fahmc.density.gradient import GaussianNoise
from fahmc.density.model import Linear
from fahmc.dynamics.fa_hmc import FAHMC
from fahmc.dynamics.sampler import Phase
from fahmc.engines.in_process.row_space.averaging import average_clients
from fahmc.engines.in_process.row_space.basis import RowBasis, build_basis
from fahmc.engines.in_process.row_space.layout import (
    Course,
    Pair,
    at_rest,
    bucket_shapes,
    by_client,
    columns,
    product,
    times,
)
from fahmc.engines.in_process.row_space.linear_target import LinearTarget, prior_flows
from fahmc.engines.record import Average
from fahmc.engines.run import Run
from fahmc.types import ChainKeys, Client, Key, Message, Numbers

_PARTS = ("base", "force", "noise", "predictor", "rest")


class _Kick(NamedTuple):
    """A change of momentum over a share of the step size."""

    share: float
    noise: float
    """Standard deviation of its gradient noise, in units of σ."""
    half: int
    """Which of the two noises of a step it names."""


# Between two moves the last half of a step and the first of the next are one kick, with the mean of their noises.
_FIRST_HALF, _WHOLE, _LAST_HALF = _Kick(0.5, 1.0, 0), _Kick(1.0, 0.5**0.5, 0), _Kick(0.5, 1.0, 1)


class RowSpace:
    """FA-HMC of all clients and chains together: a `Way` of the in-process engine; `is_possible` says where."""

    def __init__(self, run: Run, sampler: FAHMC, linear: Linear):
        self._run, self._target = run, LinearTarget(run.target, linear)
        self._sigma = sampler.gradient.scale if isinstance(sampler.gradient, GaussianNoise) else None
        self._counts_leapfrogs = sampler.counts_leapfrogs
        self.potential = self._target.potential
        self.exchange = sampler.exchange(run.dimension)
        self.chain_axes: dict[str, int | None] = dict.fromkeys([*_PARTS, *map(_rate, _PARTS)], -1)
        self._order = np.argsort(np.concatenate([bucket.indices for bucket in run.buckets]))

    def numbers(self, phase: Phase) -> Numbers:
        """Return the sampler's numbers, and what they do to a chain under the prior alone."""
        sampler: Any = phase.sampler
        longest = min(sampler.num_leapfrog_steps, sampler.steps_per_round)
        flows, noise_covs = prior_flows(sampler.step_size, self._target.precision, longest)
        dtype = self._run.dtype
        return self._run.numbers(phase) | {"flows": flows.astype(dtype), "noise_covs": noise_covs.astype(dtype)}

    def prepare(self, clients: list[Client]) -> RowBasis:
        """Compute what depends on the rows alone."""
        return build_basis(clients, self._target.linear.covariates, is_noisy=self._sigma is not None)

    def first_state(self, state: Message) -> Message:
        """Start all chains. The first round computes the predictors, as the first of every trajectory does."""
        if "base" in state:
            return state
        base, rest = jax.vmap(self._target.split, out_axes=-1)(jnp.asarray(state["position"]))
        num_rows = sum(bucket.clients.row_weights.size for bucket in self._run.buckets)
        rows = jnp.zeros((num_rows, *base.shape[1:]), base.dtype)
        zeros = jnp.zeros_like(base)
        noise = zeros if self._sigma is not None else zeros[:0]
        at = {"base": base, "force": rows, "noise": noise, "predictor": rows, "rest": rest}
        return at | {_rate(name): jnp.zeros_like(value) for name, value in at.items()}

    def message(self, rows: RowBasis, state: Message) -> Message:
        """Return the chains' positions."""
        return {"position": jax.vmap(self._target.join, in_axes=-1)(self._coefficients(rows, state), state["rest"])}

    def _coefficients(self, rows: RowBasis, state: Message) -> Float[Array, "dim output chain"]:
        coefficients = columns(state["base"]) + product(rows.transposed, columns(state["force"]))
        if self._sigma is not None:
            coefficients += product(rows.outside, columns(state["noise"]))
        return coefficients.reshape(state["base"].shape)

    def advance(
        self, rows: RowBasis, numbers: Numbers, chain_keys: ChainKeys, round_index: Int[Array, ""], state: Message
    ) -> Average:
        """Let all clients of all chains do a round, and average."""
        trajectory_steps, local_steps = numbers["num_leapfrog_steps"], numbers["num_local_steps"]
        # Of the run's trajectories, or its leapfrog steps: whichever T counts.
        first = round_index * local_steps
        round_steps, place = trajectory_steps * local_steps, (first, jnp.zeros_like(first))
        if self._counts_leapfrogs:
            round_steps, place = local_steps, jnp.divmod(first, trajectory_steps)
        state = lax.cond(place[1] == 0, lambda: self._rebase(rows, state), lambda: state)
        now = lax.while_loop(
            lambda now: now.step < round_steps,
            lambda now: self._segment(rows, numbers, chain_keys, round_steps, now),
            self._start(rows, *place, state),
        )
        parts, squares, is_finite = average_clients(rows, now)
        end = {name: pair.at for name, pair in parts.items()} | {_rate(name): pair.rate for name, pair in parts.items()}
        end = {name: value.reshape(state[name].shape) for name, value in end.items()}
        return Average(end, {}, squares[:, self._order], is_finite[:, self._order])

    def _rebase(self, rows: RowBasis, state: Message) -> Message:
        """Compute β and Xβ anew, so that rounding does not add up over trajectories; the momentum is drawn next."""
        base = self._coefficients(rows, state)
        predictor = product(rows.rows, columns(base)).reshape(state["predictor"].shape)
        nothing = {name: jnp.zeros_like(state[name]) for name in ("force", "force_rate", "noise", "noise_rate")}
        return state | nothing | {"base": base, "predictor": predictor}

    def _start(self, rows: RowBasis, trajectory: Int[Array, ""], k: Int[Array, ""], state: Message) -> Course:
        parts = {name: Pair(state[name], state[_rate(name)]) for name in _PARTS}
        rest = parts.pop("rest")
        common = {name: Pair(*map(columns, pair)) for name, pair in parts.items()}
        base, noise = common["base"], common["noise"]
        own, others = [], []
        for num_clients, num_rows in bucket_shapes(rows.clients):
            zeros = jnp.zeros((num_clients, base.at.shape[1], num_rows), base.at.dtype)
            own.append(Pair(zeros, zeros))
            others.append(Pair(*(jnp.broadcast_to(leaf.T, (num_clients, *leaf.T.shape)) for leaf in rest)))
        return Course(
            step=jnp.zeros_like(k),
            trajectory=trajectory,
            k=k,
            own=own,
            reached=[pair.at for pair in own],
            rest=others,
            outside=Pair(jnp.zeros_like(noise.at), jnp.zeros_like(noise.at)),
            outside_cov=jnp.zeros((2, 2), base.at.dtype),
            **common,
        )

    def _segment(
        self, rows: RowBasis, numbers: Numbers, chain_keys: ChainKeys, round_steps: Int[Array, ""], now: Course
    ) -> Course:
        """Run to the end of the trajectory or of the round, whichever comes first."""
        trajectory, k, trajectory_steps = now.trajectory, now.k, numbers["num_leapfrog_steps"]
        now = lax.cond(k == 0, lambda: self._refresh(rows, chain_keys, trajectory, now), lambda: now)
        num_steps = jnp.minimum(trajectory_steps - k, round_steps - now.step)
        seen = by_client(rows.clients, now.predictor)
        moved = []
        for place, (bucket, own, rest) in enumerate(zip(rows.clients, now.own, now.rest, strict=True)):
            draw_noise = self._noise_fn(bucket, chain_keys, trajectory, own.at, rest.at)
            kick = self._kick_fn(rows, place, numbers, seen[place], draw_noise)
            moved.append(_steps(kick, numbers["step_size"], own, rest, k, num_steps))
        flow = numbers["flows"][num_steps]
        outside, outside_cov = now.outside, now.outside_cov
        if self._sigma is not None:
            noise_cov = self._sigma**2 * numbers["noise_covs"][num_steps]
            outside = outside.flow(flow) + self._draw_outside(chain_keys, trajectory, k, noise_cov, outside.at)
            outside_cov = flow @ outside_cov @ flow.T + noise_cov
        return Course(
            step=now.step + num_steps,
            trajectory=trajectory + (k + num_steps) // trajectory_steps,
            k=(k + num_steps) % trajectory_steps,
            base=now.base.flow(flow),
            force=now.force.flow(flow),
            noise=now.noise.flow(flow),
            predictor=now.predictor.flow(flow),
            own=[own for own, _, _ in moved],
            reached=[reached for _, _, reached in moved],
            rest=[rest for _, rest, _ in moved],
            outside=outside,
            outside_cov=outside_cov,
        )

    def _refresh(self, rows: RowBasis, chain_keys: ChainKeys, trajectory: Int[Array, ""], now: Course) -> Course:
        """Draw the momentum that all clients have in common."""
        dtype = now.base.at.dtype

        def draw(chain_keys: ChainKeys) -> tuple[Array, Array]:
            shape = (self._run.dimension,)
            return self._target.split(jax.random.normal(keys.shared_momentum(chain_keys, trajectory), shape, dtype))

        momentum, rest_momentum = jax.vmap(draw, out_axes=(-1, 0))(chain_keys)
        momentum = columns(momentum)
        return now._replace(
            base=now.base._replace(rate=momentum),
            force=at_rest(now.force),
            noise=at_rest(now.noise),
            predictor=now.predictor._replace(rate=product(rows.rows, momentum)),
            own=[at_rest(own) for own in now.own],
            rest=[rest._replace(rate=jnp.broadcast_to(rest_momentum, rest.rate.shape)) for rest in now.rest],
            outside=at_rest(now.outside),
            outside_cov=now.outside_cov * jnp.array([[1, 0], [0, 0]], dtype),
        )

    def _kick_fn(self, rows: RowBasis, place: int, numbers: Numbers, seen: Pair, draw_noise):
        """Return the change of a bucket's momenta by the forces after j steps of a segment that began at step k."""
        flows = numbers["flows"][:, 0]

        def kick(own: Pair, rest: Pair, j: Int[Array, ""], k: Int[Array, ""], kind: _Kick) -> tuple[Pair, Pair, Array]:
            reached = times(own.at, rows.grams[place])
            predictor = flows[j, 0] * seen.at + flows[j, 1] * seen.rate + reached
            force, rest_force = self._target.forces(rows.clients[place], rows.factors[place], predictor, rest.at)
            force += self._target.precision * own.at
            if self._sigma is not None:
                noise, rest_noise = draw_noise(k + j, kind.half)
                deviation = kind.noise * self._sigma
                force, rest_force = force + deviation * noise, rest_force + deviation * rest_noise
            length = kind.share * numbers["step_size"]
            return (
                own._replace(rate=own.rate - length * force),
                rest._replace(rate=rest.rate - length * rest_force),
                reached,
            )

        return kick

    def _noise_fn(self, client: Client, chain_keys: ChainKeys, trajectory: Array, own: Array, rest: Array):
        """Return a function that draws standard normals for every client and chain, named by step and half."""
        num_clients, num_chains, num_rest = rest.shape
        num_outputs = self._target.num_outputs
        per_chain = num_outputs * own.shape[2]

        def trajectory_key(identity: Array, chain_keys: ChainKeys) -> Key:
            return keys.gradient(chain_keys, trajectory, identity)

        over_chains = jax.vmap(trajectory_key, in_axes=(None, 0))
        trajectory_keys = jax.vmap(over_chains, in_axes=(0, None))(client.identity, chain_keys)

        def draw(step: Array, half: int) -> tuple[Array, Array]:
            def one(key: Key) -> Array:
                return jax.random.normal(keys.gradient_at(key, step, half), (per_chain + num_rest,), own.dtype)

            noise = jax.vmap(jax.vmap(one))(trajectory_keys)
            by_output = noise[..., :per_chain].reshape(num_clients, num_chains, num_outputs, -1)
            return by_output.swapaxes(1, 2).reshape(own.shape), noise[..., per_chain:]

        return draw

    def _draw_outside(
        self, chain_keys: ChainKeys, trajectory: Int[Array, ""], k: Int[Array, ""], noise_cov: Array, like: Array
    ) -> Pair:
        """Draw the clients' average of what a segment's noise does outside the spans of their rows."""

        def draw(chain_keys: ChainKeys) -> Array:
            key = keys.outside_noise(chain_keys, trajectory, k)
            return jax.random.normal(key, (len(like), 2, self._target.num_outputs), like.dtype)

        normals = jax.vmap(draw, out_axes=-1)(chain_keys).reshape(len(like), 2 * like.shape[1])
        first, second = jnp.split(normals, 2, axis=1)
        (variance, covariance), (_, rate_variance) = noise_cov
        sd = jnp.sqrt(variance)
        slope = covariance / sd
        return Pair(sd * first, slope * first + jnp.sqrt(jnp.maximum(rate_variance - slope**2, 0)) * second)


def _rate(name: str) -> str:
    """Name what stands beside a part of the state."""
    return f"{name}_rate"


def _steps(kick, step_size: Array, own: Pair, rest: Pair, k: Int[Array, ""], num_steps: Int[Array, ""]):
    """Take leapfrog steps as kick, move, …, move, kick on γ and the other parameters of a bucket's clients."""

    def move(pair: Pair) -> Pair:
        return pair._replace(at=pair.at + step_size * pair.rate)

    def step(j: Int[Array, ""], pairs: tuple[Pair, Pair]) -> tuple[Pair, Pair]:
        return kick(*map(move, pairs), j, k, _WHOLE)[:2]

    pairs = kick(own, rest, jnp.int32(0), k, _FIRST_HALF)[:2]
    pairs = lax.fori_loop(1, num_steps, step, pairs)
    return kick(*map(move, pairs), num_steps, k, _LAST_HALF)
