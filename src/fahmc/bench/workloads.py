"""The workloads W1 to W7 and their aims.

The unit of all rates is one leapfrog step of one chain at all clients. Where gradients are random, such a step counts
for two of them, as in Algorithm 1, and peers evaluate two. fahmc is timed as users get it: in row space
(`fahmc.engines.in_process.row_space`) it reaches the same law with fewer draws and smaller products.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain

from fahmc.bench import problems
from fahmc.bench.cases import (
    BLACKJAX,
    CEILING,
    FAHMC_ITSELF,
    NUMPY_PRODUCTS,
    NUMPYRO,
    TORCH,
    XLA_PRODUCTS,
    Aim,
    Case,
    Comparison,
    Entrant,
    FreshRun,
    Race,
    Workload,
    at_least,
    at_most,
)
from fahmc.bench.problems import Problem
from fahmc.density.gradient import GaussianNoise, Minibatch
from fahmc.dynamics.fa_hmc import FAHMC


@dataclass(frozen=True)
class Sizes:
    """How large the workloads are."""

    figure_one: Callable[[], Problem] = problems.figure_one
    chains: tuple[int, ...] = (1, 8, 32)
    images: Callable[..., Problem] = problems.fashion
    image_chains: tuple[int, ...] = (1, 4)
    minibatch: int = 1000
    hidden: tuple[int, ...] = (512, 512)
    clients: tuple[int, ...] = (10, 100, 1000, 10_000)
    rows_of_many: int = 20_000
    long_run: int = 1_000_000


FULL = Sizes()
QUICK = Sizes(
    figure_one=partial(problems.figure_one, num_clients=3, client_rows=10, dim=20),
    chains=(2,),
    images=partial(problems.fashion, num_clients=2, client_rows=100),
    image_chains=(2,),
    minibatch=50,
    hidden=(16, 16),
    clients=(3, 20),
    rows_of_many=200,
    long_run=20_000,
)
"""Small, to see that everything runs; the numbers mean nothing."""


def all_workloads(sizes: Sizes = FULL) -> tuple[Workload, ...]:
    """Return W1 to W7."""
    exact = FAHMC(0.01, num_leapfrog_steps=100, num_local_steps=10, sync_unit="leapfrog")
    whole = FAHMC(0.01, num_leapfrog_steps=100, num_local_steps=10)
    noisy = FAHMC(0.01, 100, 10, gradient=GaussianNoise(10.0), sync_unit="leapfrog")
    both = {TORCH: at_least(20), BLACKJAX: at_least(8)}
    logistic = partial(_by_chains, sizes.chains, sizes.figure_one)
    softmax, network = _images(sizes)
    return (
        Workload(
            "W1",
            "Figure 1's logistic regression, averaged every 10 leapfrog steps",
            # thin: of the ten averages inside a trajectory one draw is kept.
            logistic(exact, {**both, NUMPYRO: None, CEILING: None}, thin=10),
        ),
        Workload("W1t", "The same, averaged every 10 trajectories of 100 leapfrog steps", logistic(whole, both)),
        Workload("W2", "W1 with N(0, 100) noise on every gradient", logistic(noisy, both, thin=10)),
        softmax,
        _small(),
        network,
        _many_clients(sizes),
        _long_run(sizes),
    )


def _images(sizes: Sizes) -> tuple[Workload, ...]:
    gradient = Minibatch(sizes.minibatch)
    softmax = FAHMC(1e-4, num_leapfrog_steps=10, num_local_steps=50, sync_unit="leapfrog", gradient=gradient)
    # Two leapfrog steps a round: one takes the network half a second and more.
    network = FAHMC(1e-5, num_leapfrog_steps=10, num_local_steps=2, sync_unit="leapfrog", gradient=gradient)
    of_softmax, of_network = partial(sizes.images, "softmax"), partial(sizes.images, "mlp", hidden=sizes.hidden)
    layers = "-".join(map(str, (problems.NUM_PIXELS, *sizes.hidden, problems.NUM_CLASSES)))
    return (
        Workload(
            "W3",
            f"Fashion-MNIST, softmax regression, minibatches of {sizes.minibatch}",
            _by_chains(sizes.image_chains, of_softmax, softmax, {CEILING: at_least(0.6)}),
        ),
        Workload(
            "W5",
            f"Fashion-MNIST, network {layers}, minibatches of {sizes.minibatch}",
            _by_chains((1,), of_network, network, {CEILING: at_least(0.5)}),
        ),
    )


def _small() -> Workload:
    first_draw = FreshRun("first draw", "from the call to the first draw", "s", at_most(3), "first_draw", 1)
    races = _by_chains((4,), problems.small, FAHMC(0.1, num_leapfrog_steps=10), {BLACKJAX: at_least(3)})
    return Workload("W4", "Small: 10 parameters, 4 clients, 200 rows", races, (first_draw,))


def _many_clients(sizes: Sizes) -> Workload:
    sampler = FAHMC(0.01, num_leapfrog_steps=10)

    def race(num_chains: int) -> Race:
        def entrant(num_clients: int, is_zipf: bool) -> Entrant:
            problem = partial(problems.many_clients, num_clients, is_zipf=is_zipf, num_rows=sizes.rows_of_many)
            label = f"{num_clients:,} {'Zipf' if is_zipf else 'equal'} clients"
            return Entrant(label, FAHMC_ITSELF, lambda: Case(problem(), sampler, num_chains))

        first, *others = (entrant(num_clients, is_zipf) for num_clients in sizes.clients for is_zipf in (False, True))
        comparisons = tuple(
            # Rates the other way round are times.
            Comparison(f"time of {other.label} / {first.label}", first.label, (other.label,), at_most(1.5))
            for other in others
        )
        return Race(f"{num_chains} chain{'s' * (num_chains > 1)}", (first, *others), comparisons)

    return Workload("W6", f"The same {sizes.rows_of_many:,} rows at few and many clients", (race(1), race(4)))


def _long_run(sizes: Sizes) -> Workload:
    memory = FreshRun(
        title="4 chains",
        words="resident memory, largest later / after 2 s",
        unit="x",
        aim=at_most(1.05),
        measure="memory_growth",
        num_rounds=sizes.long_run,
        repeats=1,
    )
    return Workload("W7", f"{sizes.long_run:,} rounds of 100 parameters", fresh_runs=(memory,))


def _by_chains(
    chains: tuple[int, ...],
    problem: Callable[[], Problem],
    sampler: FAHMC,
    peers: Mapping[str, Aim | None],
    thin: int = 1,
) -> tuple[Race, ...]:
    """Return a race of fahmc against its peers for every number of chains."""

    def race(num_chains: int) -> Race:
        def case() -> Case:
            return Case(problem(), sampler, num_chains, thin)

        contenders = {peer: (NUMPY_PRODUCTS, XLA_PRODUCTS) if peer == CEILING else (peer,) for peer in peers}
        return Race(
            f"{num_chains} chain{'s' * (num_chains > 1)}",
            tuple(Entrant(name, name, case) for name in (FAHMC_ITSELF, *chain.from_iterable(contenders.values()))),
            tuple(Comparison(f"fahmc / {peer}", FAHMC_ITSELF, contenders[peer], aim) for peer, aim in peers.items()),
        )

    return tuple(race(num_chains) for num_chains in chains)
