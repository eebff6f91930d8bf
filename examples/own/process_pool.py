"""An engine of your own, in one file: every client's round runs in another process of this machine.

    with ProcessPool(num_processes=2) as engine:
        draws = fahmc.sample(model, federation, sampler, num_rounds=1000, engine=engine)

Code is not sent, only what to build (an `Order`: plain values), so the model needs a recipe: one of `fahmc.models`, a
family of your own, or `fahmc.Model.named`. Modules of your own must be importable in the other processes too, as for
everything that `multiprocessing` starts.

This machine's processes gain nothing over the engine that comes with fahmc. Replace the pool by whatever reaches your
machines: a client needs a place that keeps its `ClientProgram`, and one call a round.
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

from fahmc.engines.client import ClientProgram
from fahmc.engines.order import Order
from fahmc.engines.record import RoundByRound
from fahmc.engines.run import Run, Session
from fahmc.registry import references


class ProcessPool:
    """Runs clients in processes, each client always in the same one, which keeps its rows and its compiled round."""

    def __init__(self, num_processes: int = 2):
        # Not forked: JAX has threads, which a forked process would miss.
        context = multiprocessing.get_context("spawn")
        self._processes = [ProcessPoolExecutor(1, mp_context=context) for _ in range(num_processes)]

    def __enter__(self) -> ProcessPool:
        return self

    def __exit__(self, *_) -> None:
        for process in self._processes:
            process.shutdown(cancel_futures=True)

    def start(self, run: Run) -> Session:
        """Begin a run."""
        names, rows = run.federation.names, run.federation.rows
        homes = [self._processes[place % len(self._processes)] for place in range(len(names))]
        ready = ""

        def make_ready(phase):
            nonlocal ready
            order = Order.of(run, phase)
            if order.text != ready:
                clients = zip(homes, names, rows, strict=True)
                done = [home.submit(prepare, order.text, name, own, run.private_seed) for home, name, own in clients]
                for future in done:
                    future.result()
                ready = order.text

            def ask(round_index, broadcast):
                clients = zip(homes, names, strict=True)
                replies = [home.submit(reply, order.identity, name, round_index, broadcast) for home, name in clients]
                return [future.result() for future in replies]

            return ask

        return RoundByRound(run, make_ready)


# What follows runs in the other processes.

programs: dict[str, ClientProgram] = {}


def prepare(text, name, rows, private_seed):
    """Build and compile a client's round, or keep the compiled one where no more than numbers have changed."""
    order = Order.read(text)
    programs[name] = ClientProgram(
        order,
        name,
        rows,
        private_seed=private_seed,
        # Whoever may start this process may choose its code. Between organisations every client keeps its own lists.
        own_models=references(order.model),
        own_samplers=references(order.sampler),
        before=programs.get(name),
    )


def reply(identity, name, round_index, broadcast):
    """Run a client's part of one round."""
    assert programs[name].order.identity == identity
    return programs[name].reply(round_index, broadcast)
