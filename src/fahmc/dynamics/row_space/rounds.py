"""A round of all clients and chains in row space; the equations are in the package's docstring."""

from __future__ import annotations

from itertools import chain
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int

from fahmc import keys
from fahmc.density.gradient import GaussianNoise
from fahmc.density.potential import Model, Potentials
from fahmc.dynamics.fa_hmc import FAHMC
from fahmc.dynamics.row_space.choice import round_steps
from fahmc.dynamics.row_space.layout import (
    Pair,
    across_clients,
    at_rest,
    bucket_shapes,
    by_client,
    columns,
    halves,
    mean_rest,
    product,
    times,
)
from fahmc.dynamics.row_space.rows import Rows, prepare_rows
from fahmc.types import ChainKeys, Client, Key, Vector


class RowSpaceState(NamedTuple):
    """All chains between two rounds: β = base + X′ force + (outside noise), and p likewise of their rates."""

    base: Float[Array, "dim output chain"]
    base_rate: Float[Array, "dim output chain"]
    force: Float[Array, "row output chain"]
    force_rate: Float[Array, "row output chain"]
    noise: Float[Array, "dim output chain"]
    """Noise outside the clients' rows, as coordinates of `Rows.outside`; no entries without noise."""
    noise_rate: Float[Array, "dim output chain"]
    predictor: Float[Array, "row output chain"]
    """Xβ, for the rows of all clients."""
    predictor_rate: Float[Array, "row output chain"]
    rest: Float[Array, "other chain"]
    """The other parameters, such as an intercept, and their momentum."""
    rest_rate: Float[Array, "other chain"]


class _Round(NamedTuple):
    """What changes in a round: what all clients have in common, then each one's deviation from it."""

    step: Int[Array, ""]
    """Leapfrog steps taken since the round began."""
    trajectory: Int[Array, ""]
    k: Int[Array, ""]
    """The next step is step k of this trajectory."""
    base: Pair
    force: Pair
    noise: Pair
    predictor: Pair
    own: list[Pair]
    """γ_c and its rate, [client, column, row] for each bucket; a column is an output of a chain."""
    reached: list[Array]
    """X_c X_c′ γ_c, as of the last kick."""
    rest: list[Pair]
    """[client, chain, other] for each bucket."""
    outside: Pair
    """[dim, column]: the clients' average of this round's noise that no likelihood sees."""
    outside_cov: Float[Array, "2 2"]
    """Covariance of one client's such noise, on a coordinate."""


class _Kick(NamedTuple):
    """A change of momentum over a share of the step size."""

    share: float
    noise: float
    """Standard deviation of its gradient noise, in units of σ."""
    half: int
    """Which of the two noises of a step it names."""


# Between two drifts the last half of a step and the first of the next are one kick, with the mean of their noises.
_FIRST_HALF, _WHOLE, _LAST_HALF = _Kick(0.5, 1.0, 0), _Kick(1.0, 0.5**0.5, 0), _Kick(0.5, 1.0, 1)


class RowSpace:
    """FA-HMC of all clients and chains together; `is_possible` says where."""

    chain_axis = -1
    """Of a state's arrays: matrix products are fastest with the chains as columns."""

    def __init__(self, model: Model, sampler: FAHMC, potentials: Potentials):
        assert model.linear is not None and isinstance(sampler.step_size, float)
        self._model, self._linear = model, model.linear
        self._eta = sampler.step_size
        self._sigma = sampler.gradient.scale if isinstance(sampler.gradient, GaussianNoise) else None
        self._trajectory_steps, self._round_steps = sampler.num_leapfrog_steps, round_steps(sampler)
        self._local_steps, self._counts_leapfrog = sampler.num_local_steps, sampler.sync_unit == "leapfrog"
        prior_scale = self._linear.prior_scale
        self._lambda = 0.0 if prior_scale is None else 1 / (prior_scale**2 * model.temperature)
        longest = min(self._trajectory_steps, self._round_steps)
        self._flows, self._noise_covs = _prior_flows(self._eta, self._lambda, longest)
        self._unravel = potentials.unravel
        self._outputs = potentials.template[self._linear.parameter].shape[1:]
        self._num_outputs = int(np.prod(self._outputs))
        rest = {name: leaf for name, leaf in potentials.template.items() if name != self._linear.parameter}
        self._unravel_rest = ravel_pytree(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), rest))[1]

    def potential(self, position: Vector, client: Client) -> Float[Array, ""]:
        """f_c as the linear part tells it, to be compared with what the model says."""
        coefficients, rest = self._split(position)
        predictor = client.rows[self._linear.covariates] @ coefficients
        return self._loss(predictor.T, rest, client) + self._lambda / 2 * jnp.sum(coefficients**2)

    def init(self, positions: Float[Array, "chain dim"], num_rows: int) -> RowSpaceState:
        """Start all chains. The first round computes the predictors, as the first of every trajectory does."""
        base, rest = jax.vmap(self._split, out_axes=-1)(positions)
        zeros, rows = jnp.zeros_like(base), jnp.zeros((num_rows, *base.shape[1:]), base.dtype)
        noise = zeros if self._sigma is not None else zeros[:0]
        return RowSpaceState(base, zeros, rows, rows, noise, noise, rows, rows, rest, jnp.zeros_like(rest))

    def prepare(self, clients: list[Client]) -> Rows:
        """Compute what depends on the rows alone."""
        return prepare_rows(clients, self._linear.covariates, is_noisy=self._sigma is not None)

    def positions(self, rows: Rows, state: RowSpaceState) -> Float[Array, "chain dim"]:
        """Return the chains' positions."""
        return jax.vmap(self._join, in_axes=-1)(self._coefficients(rows, state), state.rest)

    def _coefficients(self, rows: Rows, state: RowSpaceState) -> Float[Array, "dim output chain"]:
        coefficients = columns(state.base) + product(rows.transposed, columns(state.force))
        if self._sigma is not None:
            coefficients += product(rows.outside, columns(state.noise))
        return coefficients.reshape(state.base.shape)

    def advance(self, rows: Rows, chain_keys: ChainKeys, round_index: Int[Array, ""], state: RowSpaceState):
        """Let all clients of all chains do a round, and average.

        Returns the state, [chain, client] each: |θ_c − θ|², and whether θ_c is finite; and no statistics of its own.
        """
        # Of the run's trajectories, or its leapfrog steps: whichever T counts.
        first = round_index * self._local_steps
        place = jnp.divmod(first, self._trajectory_steps) if self._counts_leapfrog else (first, jnp.zeros_like(first))
        state = lax.cond(place[1] == 0, lambda: self._rebase(rows, state), lambda: state)
        now = self._start(rows, *place, state)
        now = lax.while_loop(
            lambda now: now.step < self._round_steps, lambda now: self._segment(rows, chain_keys, now), now
        )
        return self._average(rows, state, now)

    def _rebase(self, rows: Rows, state: RowSpaceState) -> RowSpaceState:
        """Compute β and Xβ anew, so that rounding does not add up over trajectories; the momentum is drawn next."""
        base = self._coefficients(rows, state)
        predictor = product(rows.basis, columns(base)).reshape(state.predictor.shape)
        force, noise = jnp.zeros_like(state.force), jnp.zeros_like(state.noise)
        return state._replace(
            base=base, force=force, force_rate=force, noise=noise, noise_rate=noise, predictor=predictor
        )

    def _start(self, rows: Rows, trajectory: Int[Array, ""], k: Int[Array, ""], state: RowSpaceState) -> _Round:
        base, force, noise, predictor, rest = (Pair(*state[place : place + 2]) for place in range(0, 10, 2))
        base, force, noise, predictor = (Pair(*map(columns, pair)) for pair in (base, force, noise, predictor))
        dtype = base.at.dtype
        own, others = [], []
        for num_clients, num_rows in bucket_shapes(rows.clients):
            zeros = jnp.zeros((num_clients, base.at.shape[1], num_rows), dtype)
            own.append(Pair(zeros, zeros))
            others.append(Pair(*(jnp.broadcast_to(leaf.T, (num_clients, *leaf.T.shape)) for leaf in rest)))
        return _Round(
            step=jnp.zeros_like(k),
            trajectory=trajectory,
            k=k,
            base=base,
            force=force,
            noise=noise,
            predictor=predictor,
            own=own,
            reached=[pair.at for pair in own],
            rest=others,
            outside=Pair(jnp.zeros_like(noise.at), jnp.zeros_like(noise.at)),
            outside_cov=jnp.zeros((2, 2), dtype),
        )

    def _segment(self, rows: Rows, chain_keys: ChainKeys, now: _Round) -> _Round:
        """Run to the end of the trajectory or of the round, whichever comes first."""
        trajectory, k = now.trajectory, now.k
        now = lax.cond(k == 0, lambda: self._refresh(rows, chain_keys, trajectory, now), lambda: now)
        num_steps = jnp.minimum(self._trajectory_steps - k, self._round_steps - now.step)
        seen = by_client(rows.clients, now.predictor)
        moved = []
        for place, (bucket, own, rest) in enumerate(zip(rows.clients, now.own, now.rest, strict=True)):
            draw_noise = self._noise_fn(bucket, chain_keys, trajectory, own.at, rest.at)
            moved.append(self._steps(self._kick_fn(rows, place, seen[place], draw_noise), own, rest, k, num_steps))
        flow = jnp.asarray(self._flows, now.base.at.dtype)[num_steps]
        outside, outside_cov = now.outside, now.outside_cov
        if self._sigma is not None:
            noise_cov = self._sigma**2 * jnp.asarray(self._noise_covs, flow.dtype)[num_steps]
            outside = outside.flow(flow) + self._draw_outside(chain_keys, trajectory, k, noise_cov, outside.at)
            outside_cov = flow @ outside_cov @ flow.T + noise_cov
        return _Round(
            step=now.step + num_steps,
            trajectory=trajectory + (k + num_steps) // self._trajectory_steps,
            k=(k + num_steps) % self._trajectory_steps,
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

    def _refresh(self, rows: Rows, chain_keys: ChainKeys, trajectory: Int[Array, ""], now: _Round) -> _Round:
        """Draw the momentum that all clients have in common."""
        dtype = now.base.at.dtype

        def draw(chain_keys: ChainKeys) -> tuple[Array, Array]:
            size = now.base.at.shape[0] * self._num_outputs + now.rest[0].at.shape[2]
            return self._split(jax.random.normal(keys.shared_momentum(chain_keys, trajectory), (size,), dtype))

        momentum, rest_momentum = jax.vmap(draw, out_axes=(-1, 0))(chain_keys)
        momentum = columns(momentum)
        return now._replace(
            base=now.base._replace(rate=momentum),
            force=at_rest(now.force),
            noise=at_rest(now.noise),
            predictor=now.predictor._replace(rate=product(rows.basis, momentum)),
            own=[at_rest(own) for own in now.own],
            rest=[rest._replace(rate=jnp.broadcast_to(rest_momentum, rest.rate.shape)) for rest in now.rest],
            outside=at_rest(now.outside),
            outside_cov=now.outside_cov * jnp.array([[1, 0], [0, 0]], dtype),
        )

    def _steps(self, kick, own: Pair, rest: Pair, k: Int[Array, ""], num_steps: Int[Array, ""]):
        """Take leapfrog steps as kick, drift, …, drift, kick on γ and the other parameters of a bucket's clients."""

        def drift(pair: Pair) -> Pair:
            return pair._replace(at=pair.at + self._eta * pair.rate)

        def step(j: Int[Array, ""], pairs: tuple[Pair, Pair]) -> tuple[Pair, Pair]:
            return kick(*map(drift, pairs), j, k, _WHOLE)[:2]

        pairs = kick(own, rest, jnp.int32(0), k, _FIRST_HALF)[:2]
        pairs = lax.fori_loop(1, num_steps, step, pairs)
        return kick(*map(drift, pairs), num_steps, k, _LAST_HALF)

    def _kick_fn(self, rows: Rows, place: int, seen: Pair, draw_noise):
        """Return the change of a bucket's momenta by the forces after j steps of a segment that began at step k."""
        flows = jnp.asarray(self._flows[:, 0], seen.at.dtype)

        def kick(own: Pair, rest: Pair, j: Int[Array, ""], k: Int[Array, ""], kind: _Kick) -> tuple[Pair, Pair, Array]:
            reached = times(own.at, rows.grams[place])
            predictor = flows[j, 0] * seen.at + flows[j, 1] * seen.rate + reached
            force, rest_force = self._forces(rows.clients[place], rows.factors[place], predictor, rest.at)
            force += self._lambda * own.at
            if self._sigma is not None:
                noise, rest_noise = draw_noise(k + j, kind.half)
                deviation = kind.noise * self._sigma
                force, rest_force = force + deviation * noise, rest_force + deviation * rest_noise
            length = kind.share * self._eta
            return (
                own._replace(rate=own.rate - length * force),
                rest._replace(rate=rest.rate - length * rest_force),
                reached,
            )

        return kick

    def _forces(self, client: Client, factors: Any, predictor: Array, rest: Array) -> tuple[Array, Array]:
        """∇ of the clients' likelihoods in the basis' coordinates, and of their potentials in the other parameters."""
        gradient = jax.grad(self._loss, argnums=(0, 1))
        for_all = jax.vmap(jax.vmap(gradient, in_axes=(1, 0, None), out_axes=(1, 0)))
        factor, transposed = factors or (None, None)
        predictor = times(predictor, transposed)
        by_output = predictor.reshape(len(rest), self._num_outputs, -1, predictor.shape[2])
        force, rest_force = for_all(by_output, rest, client)
        return times(force.reshape(predictor.shape), factor), rest_force

    def _loss(self, predictor: Float[Array, "output row"], rest: Vector, client: Client) -> Float[Array, ""]:
        """f_c without the coefficients' prior."""
        values = predictor.T.reshape(-1, *self._outputs)
        others = self._unravel_rest(rest)
        fit = jnp.sum(client.row_weights * self._linear.loglikelihood_fn(values, others, client.rows))
        return -(client.scale * fit + self._linear.logprior_fn(others)) / self._model.temperature

    def _noise_fn(self, client: Client, chain_keys: ChainKeys, trajectory: Array, own: Array, rest: Array):
        """Return a function that draws standard normals for every client and chain, named by step and half."""
        num_clients, num_chains, num_rest = rest.shape
        per_chain = self._num_outputs * own.shape[2]

        def trajectory_key(identity: Array, chain_keys: ChainKeys) -> Key:
            return keys.gradient(chain_keys, trajectory, identity)

        over_chains = jax.vmap(trajectory_key, in_axes=(None, 0))
        trajectory_keys = jax.vmap(over_chains, in_axes=(0, None))(client.identity, chain_keys)

        def draw(step: Array, half: int) -> tuple[Array, Array]:
            def one(key: Key) -> Array:
                return jax.random.normal(keys.gradient_at(key, step, half), (per_chain + num_rest,), own.dtype)

            noise = jax.vmap(jax.vmap(one))(trajectory_keys)
            by_output = noise[..., :per_chain].reshape(num_clients, num_chains, self._num_outputs, -1)
            return by_output.swapaxes(1, 2).reshape(own.shape), noise[..., per_chain:]

        return draw

    def _draw_outside(
        self, chain_keys: ChainKeys, trajectory: Int[Array, ""], k: Int[Array, ""], noise_cov: Array, like: Array
    ) -> Pair:
        """Draw the clients' average of what a segment's noise does outside the spans of their rows."""

        def draw(chain_keys: ChainKeys) -> Array:
            key = keys.outside_noise(chain_keys, trajectory, k)
            return jax.random.normal(key, (len(like), 2, self._num_outputs), like.dtype)

        normals = jax.vmap(draw, out_axes=-1)(chain_keys).reshape(len(like), 2 * like.shape[1])
        first, second = halves(normals)
        (variance, covariance), (_, rate_variance) = noise_cov
        sd = jnp.sqrt(variance)
        slope = covariance / sd
        return Pair(sd * first, slope * first + jnp.sqrt(jnp.maximum(rate_variance - slope**2, 0)) * second)

    def _average(self, rows: Rows, state: RowSpaceState, now: _Round):
        """Σ_c w_c θ_c, with each client's distance to it."""
        weights = [bucket.weight for bucket in rows.clients]
        own = Pair(*(across_clients([pair[part] for pair in now.own]) for part in (0, 1)))
        row_weights = jnp.repeat(
            jnp.concatenate(weights),
            np.concatenate([np.full(*shape) for shape in bucket_shapes(rows.clients)]),
            total_repeat_length=len(own.at),
        )[:, None]
        mean = Pair(row_weights * own.at, row_weights * own.rate)
        rest = Pair(*(mean_rest(weights, [pair[part] for pair in now.rest]) for part in (0, 1)))
        spread = self._spread(rows, mean, now.outside)
        pairs = [now.base, now.force + mean, now.noise + now.outside, now.predictor + spread, rest]
        end = [leaf.reshape(old.shape) for leaf, old in zip(chain.from_iterable(pairs), state, strict=True)]
        squares, is_finite = self._squares(rows, now, own.at * spread.at, rest.at)
        return RowSpaceState(*end), jnp.maximum(squares, 0), is_finite, {}

    def _squares(self, rows: Rows, now: _Round, meetings: Array, rest_mean: Array) -> tuple[Array, Array]:
        """|θ_c − θ|² = |X_c′γ_c|² − 2 (X_c′γ_c)·(X′γ) + |X′γ|², of products that are there already.

        ``meetings`` holds the summands of the second, [row of all, column]; the third is their mean. What the noise
        outside adds to them has mean 0, and is left in. Also returned is whether the first is finite: the others are of
        all clients, and would not tell which one diverged. [chain, client] both.
        """
        num_chains = rest_mean.shape[1]
        sizes = [n * size for n, size in bucket_shapes(rows.clients)]
        parts = jnp.split(meetings, np.cumsum(sizes)[:-1])
        crosses = [
            part.reshape(n, size, -1, num_chains).sum(axis=(1, 2))
            for part, (n, size) in zip(parts, bucket_shapes(rows.clients), strict=True)
        ]
        mean = sum(bucket.weight @ cross for bucket, cross in zip(rows.clients, crosses, strict=True))
        squares, is_finite = [], []
        for bucket, own, reached, cross, rest in zip(
            rows.clients, now.own, now.reached, crosses, now.rest, strict=True
        ):
            length = jnp.sum(own.at * reached, axis=2).reshape(len(cross), -1, num_chains).sum(axis=1)
            is_finite.append(jnp.isfinite(length) & jnp.isfinite(rest.at).all(axis=2))
            square = length - 2 * cross + mean + jnp.sum((rest.at - rest_mean.T) ** 2, axis=2)
            squares.append(square + self._expected_outside(rows, bucket, now.outside_cov)[:, None])
        return jnp.concatenate(squares).T, jnp.concatenate(is_finite).T

    def _spread(self, rows: Rows, force: Pair, outside: Pair) -> Pair:
        """Return the predictors that forces and noise add up to."""
        force_columns, noise_columns = (jnp.concatenate(pair, axis=1) for pair in (force, outside))
        if rows.spread is not None:
            return halves(product(rows.spread, jnp.concatenate([force_columns, noise_columns])))
        coefficients = product(rows.transposed, force_columns) + product(rows.outside, noise_columns)
        return halves(product(rows.basis, coefficients))

    def _expected_outside(self, rows: Rows, bucket: Client, outside_cov: Float[Array, "2 2"]) -> Array:
        """E |θ_c − θ|² of the noise that is drawn for the clients' average only."""
        dimension = rows.basis.shape[1]
        free = [dimension - client.row_weights.shape[1] for client in rows.clients]
        mean = sum(jnp.sum(client.weight**2) * size for client, size in zip(rows.clients, free, strict=True))
        own = (1 - 2 * bucket.weight) * (dimension - bucket.row_weights.shape[1])
        return self._num_outputs * outside_cov[0, 0] * (own + mean)

    def _split(self, vector: Vector) -> tuple[Float[Array, "dim output"], Vector]:
        """Separate the coefficients, an output a column, from the other parameters."""
        position = dict(self._unravel(vector))
        coefficients = position.pop(self._linear.parameter)
        return coefficients.reshape(len(coefficients), -1), ravel_pytree(position)[0].astype(vector.dtype)

    def _join(self, coefficients: Float[Array, "dim output"], rest: Vector) -> Vector:
        parameter = coefficients.reshape(-1, *self._outputs)
        return ravel_pytree({**self._unravel_rest(rest), self._linear.parameter: parameter})[0]


def _prior_flows(eta: float, precision: float, longest: int) -> tuple[np.ndarray, np.ndarray]:
    """A^k, and the covariance V_k that gradient noise N(0, 1) on a coordinate gives to k steps, for k ≤ longest."""
    diagonal = 1 - eta**2 * precision / 2
    step = np.array([[diagonal, eta], [-eta * precision * (1 - eta**2 * precision / 4), diagonal]])
    # of ξ_k, which moves θ_{k+1} and so the prior's force there, and of ξ_{k+1/2}
    whole, half = np.array([-(eta**2) / 2, -eta / 2 * (1 - eta**2 * precision / 2)]), np.array([0, -eta / 2])
    noise = np.outer(whole, whole) + np.outer(half, half)
    flows, covs = [np.eye(2)], [np.zeros((2, 2))]
    for _ in range(longest):
        flows.append(step @ flows[-1])
        covs.append(step @ covs[-1] @ step.T + noise)
    return np.array(flows), np.array(covs)
