"""The problem, samplers and engines of the contract suite; other processes import it to make its model and sampler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

import fahmc
from clipped import Clipped
from fahmc import keys
from fahmc.engines.run import Engine, Run, Session
from fahmc.runs.plan import make_run
from laplace import NewtonStart
from underdamped import Underdamped

PRECISIONS = "float64", "float32"
NUM_CHAINS, NUM_ROUNDS, NUM_WARMUP_ROUNDS, SEED = 4, 6, 2, 1
# Rows of the second client are a trap for positions beyond it, where no chain goes by itself.
WALL = 50.0


def _loglikelihood(position, batch):
    residual = batch["y"] - batch["x"] @ position["slopes"] - position["level"]
    is_trapped = batch["trap"] * position["level"] > WALL
    return -(residual**2) / 2 * jnp.where(is_trapped, jnp.nan, 1.0)


def _logprior(position):
    return -jnp.sum(position["slopes"] ** 2) / 2


def _init(key):
    return {"slopes": jax.random.normal(key, (2,)), "level": jnp.zeros(())}


def linear() -> fahmc.Model:
    """A Gaussian posterior of a pytree; functions without a name of their own could not be sent."""
    return fahmc.Model(_loglikelihood, _logprior, _init)


@cache
def model() -> fahmc.Model:
    return fahmc.Model.named("contract_cases:linear")


@cache
def federation() -> fahmc.Federation:
    rng = np.random.default_rng(3)
    rows = {
        name: {"x": rng.normal(size=(5, 2)), "y": rng.normal(size=5), "trap": np.full(5, float(name == "south"))}
        for name in ("north", "south")
    }
    return fahmc.Federation.from_clients(rows, weights={"north": 0.6, "south": 0.4})


@fahmc.register("sampler")
@dataclass(frozen=True)
class Gathered(fahmc.Sampler):
    """Langevin steps at the server, to have what no other sampler has: every way to combine replies, replies without a
    position, a reply that all chains share, and state that clients do not see.
    """

    NUMBERS: ClassVar = ("step_size",)

    step_size: float

    def exchange(self, dimension: int) -> fahmc.Exchange:
        vector, number = fahmc.Field((dimension,)), fahmc.Field(())

        def merge(chain_keys, round_index, state, combined):
            noise = jax.random.normal(keys.shared_noise(chain_keys, round_index), (dimension,), combined["force"].dtype)
            step = 0.1 * (0.1 * combined["force"] + 2**0.5 * noise)
            return {"position": state["position"] + step, "length": state["length"] + jnp.linalg.norm(step)}

        def watch(numbers, round_index, before, combined, after):
            return {
                "spread": jnp.ptp(combined["values"]),
                "length": after["length"],
                "num_rows": combined["num_rows"],
                "step_size": numbers["step_size"],
            }

        return fahmc.Exchange(
            state={"position": vector, "length": number._replace(is_sent=False)},
            reply={
                "force": vector._replace(combine="sum"),
                "values": number._replace(combine="each"),
                "num_rows": fahmc.Field((), "int32", combine="sum", per_chain=False),
            },
            begin=lambda carried: {"position": carried["position"], "length": 0 * carried["position"][0]},
            merge=merge,
            watch=watch,
        )

    def build(self, target):
        def client_round(chain_keys, round_index, state, numbers, client):
            value, gradient = target.value_and_gradient(state["position"], client)
            return {"force": -client.weight * gradient, "values": value, "num_rows": client.num_rows}

        return client_round


FEDERATED: dict[str, fahmc.Sampler] = {
    "trajectory": fahmc.FAHMC(0.1, 3, 2),
    "leapfrog": fahmc.FAHMC(0.1, 3, 2, sync_unit="leapfrog", inverse_mass_matrix=(1.0, 0.5, 2.0)),
    "langevin": fahmc.FALD(0.1, num_local_steps=2, with_gradients=True),
    "debiased": fahmc.DebiasedFAHMC(0.1, 3, 2),
    "corrected": fahmc.FAHMC(0.1, 3, 2, correction="curvature", jitter=0.2),
    "underdamped": Underdamped(0.1, 0.7, 2, gradient=Clipped(0.5)),
    "newton": NewtonStart(0.1, 3, 2, num_newton_rounds=3),
    "gathered": Gathered(0.1),
    "split": fahmc.SplitHMC(2, center=(0.1, 0.2, 0.3), inverse_mass_matrix=(0.2, 0.3, 0.4)),
}
POOLED = {"hmc": fahmc.HMC(0.1, 3), "mhmc": fahmc.HMC(0.1, 3, metropolis=True)}
# Randomness that clients keep to themselves. Exact gradients are above: ours, and a stranger's in a stranger's sampler.
PRIVATE = fahmc.FAHMC(
    0.1, 3, 2, momentum_correlation=0.5, gradient=fahmc.GaussianNoise(0.5, of=fahmc.Minibatch(3)), reuse_gradient=True,
)  # fmt: skip
SAMPLERS = FEDERATED | POOLED | {"private": PRIVATE}
# In single precision as well: FAHMC, replies and states of every kind, and a course with arithmetic of its own.
IN_SINGLE = "trajectory", "gathered", "split", "newton"
CASES = [(name, dtype) for name in SAMPLERS for dtype in PRECISIONS if dtype == "float64" or name in IN_SINGLE]


class Warm:
    """An engine whose programs outlive a run: without it the suite would do little but compile."""

    def __init__(self, engine: Engine):
        self._engine = engine
        self._sessions: dict[Any, Session] = {}

    def start(self, run: Run) -> Session:
        key = run.program_key(run.phases[-1]), run.dtype
        if key not in self._sessions:
            # With buffers that hold the draws of any run here.
            self._sessions[key] = self._engine.start(replace(run, num_rounds=16, thin=1))
        return self._sessions[key]


IN_PROCESS = Warm(fahmc.engines.InProcess(threads=2))


class Killed(Exception):
    pass


@dataclass
class Mortal:
    """An engine that does so many blocks and no more."""

    engine: Engine
    num_blocks: int

    def start(self, run: Run) -> Session:
        session = self.engine.start(run)
        mortal: Any = type("MortalSession", (), {"path": session.path, "advance": self._counted(session.advance)})
        return mortal()

    def _counted(self, advance: Callable) -> Callable:
        def counted(_, *arguments):
            if self.num_blocks == 0:
                raise Killed
            self.num_blocks -= 1
            return advance(*arguments)

        return counted


def run_of(name: str, dtype: str) -> Run:
    return make_run(
        model(), federation(), SAMPLERS[name], NUM_ROUNDS, num_warmup_rounds=NUM_WARMUP_ROUNDS, seed=SEED,
        num_chains=NUM_CHAINS, dtype=np.dtype(dtype),
    )  # fmt: skip


def sample(name: str, dtype: Any, engine: Engine, **options: Any) -> fahmc.Draws:
    options = {"block_rounds": 8, "num_warmup_rounds": NUM_WARMUP_ROUNDS, "thin": 1, **options}
    return fahmc.sample(
        model(), federation(), SAMPLERS[name], NUM_ROUNDS, num_chains=NUM_CHAINS, seed=SEED, dtype=dtype, engine=engine,
        progress=False, **options,
    )  # fmt: skip
