"""What a round between processes costs: a provisioned federation of four sites on loopback, over mutual TLS.

A round of fahmc, with a secure sum and without, is timed next to a bare call through FLARE's Collab API that carries
the broadcast there and back and does nothing with it, turn by turn in the same job. Then a run of many rounds, with the
server's memory after each part of it.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

from fahmc.bench import messages
from fahmc.data.sites import Sites
from fahmc.density.model import Model
from fahmc.durable import write_atomically
from fahmc.dynamics.fa_hmc import FALD
from fahmc.engines.flare.arrays import arrays_to_text
from fahmc.engines.flare.engine import Flare, FlareRun
from fahmc.engines.flare.kits import Kit, require_flare
from fahmc.engines.flare.loopback import Loopback
from fahmc.engines.flare.processes import find_processes
from fahmc.engines.flare.rules import Rules
from fahmc.engines.run import Run, begin
from fahmc.experiments.machine import machine_facts
from fahmc.runs.plan import make_run

NUM_SITES = 4
_MODELS = {"8 KB": "small", "1 MB": "medium", "10 MB": "large"}
_ROUNDS = {"8 KB": 300, "1 MB": 100, "10 MB": 30}
_MEMORY_PARTS, _PART_ROUNDS = 10, 500
_CALL_SECONDS, _ALL_SECONDS = 60.0, 3600.0
# What was aimed at: the ratio of a plain round of 8 KB to a bare one, the growth of the server's memory after its first
# fifth of the rounds, and the ratio of a masked round to a plain one.
RATIO_AIM, GROWTH_AIM = 1.3, 0.1
MASK_AIMS = {"8 KB": 1.05, "10 MB": 1.5}


class Ratio(NamedTuple):
    """Of the seconds of neighbours: quartiles."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, above: np.ndarray, below: np.ndarray) -> Ratio:
        """Compare pair by pair."""
        return cls(*map(float, np.quantile(above / below, [0.25, 0.5, 0.75])))

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True)
class RoundTimes:
    """Seconds of rounds and of bare calls, by turns."""

    size: str
    num_rounds: int
    bare: float
    """Median."""
    plain: float
    """Median."""
    masked: float
    """Median, of rounds with a secure sum."""
    ratio: Ratio
    """Of plain rounds to bare calls."""
    mask_ratio: Ratio
    """Of masked rounds to plain ones."""


@dataclass(frozen=True)
class FederationResults:
    """Everything that was measured."""

    times: list[RoundTimes]
    memory: list[tuple[int, int]]
    """(rounds done, bytes that the server's worker holds)"""
    machine: dict[str, Any]

    @property
    def growth(self) -> float:
        """Growth of the server's memory from the first fifth of the rounds to the last."""
        early = self.memory[max(0, len(self.memory) // 5 - 1)][1]
        return self.memory[-1][1] / early - 1

    def as_markdown(self) -> str:
        """Write the tables."""
        lines = ["| message | bare call | plain round | to bare (quartiles) | masked round | to plain (quartiles) |"]
        lines.append("|---|---|---|---|---|---|")
        for row in self.times:
            bare, plain, masked = (f"{1e3 * seconds:.1f} ms" for seconds in (row.bare, row.plain, row.masked))
            lines.append(f"| {row.size} | {bare} | {plain} | {row.ratio} | {masked} | {row.mask_ratio} |")
        lines += ["", "| rounds | server's memory |", "|---|---|"]
        lines += [f"| {rounds:,} | {size / 1e6:.0f} MB |" for rounds, size in self.memory]
        return "\n".join(lines) + "\n"

    def conclusion(self) -> str:
        """Hold the numbers against the aims."""
        ratio = self.times[0].ratio.median
        masks = {row.size: row.mask_ratio.median for row in self.times}
        costs = "; ".join(
            f"{size}: {masks[size]:.2f} (aim: at most {aim}; {'met' if masks[size] <= aim else 'MISSED'})"
            for size, aim in MASK_AIMS.items()
        )
        return (
            f"A plain round of 8 KB takes {ratio:.2f} times a bare one (aim: at most {RATIO_AIM}; "
            f"{'met' if ratio <= RATIO_AIM else 'MISSED'}). With a secure sum it takes, next to a plain one, {costs}. "
            f"The server's memory grows by {100 * self.growth:.1f} % "
            f"after its first fifth of {self.memory[-1][0]:,} rounds (aim: at most {100 * GROWTH_AIM:.0f} %; "
            f"{'met' if self.growth <= GROWTH_AIM else 'MISSED'})."
        )

    def write(self, folder: Path) -> dict[str, str]:
        """Write results.json and table.md."""
        folder.mkdir(parents=True, exist_ok=True)
        files = {name: folder / name for name in ("results.json", "table.md")}
        write_atomically(files["results.json"], json.dumps(asdict(self), indent=1).encode())
        write_atomically(files["table.md"], f"{self.as_markdown()}\n{self.conclusion()}\n".encode())
        return {name: str(path) for name, path in files.items()}


def measure_federation(log: Callable[[str], None], *, is_quick: bool = False) -> FederationResults:
    """Start a federation, time its rounds, and stop it."""
    require_flare()
    from fahmc.bench.flare_job import JOB

    shrink = 20 if is_quick else 1
    with tempfile.TemporaryDirectory(prefix="fahmc-bench-") as name:
        folder = Path(name)
        np.savez(folder / "rows.npz", y=np.zeros(20, np.float32))
        own_models = [f"{messages.__name__}:{attribute}" for attribute in _MODELS.values()]
        rules = Rules(
            file=str(folder / "rows.npz"),
            columns="all",
            own_models=own_models,
            rows_per_parameter=0,
            maximum_rounds=10**9,
            maximum_runs=10**6,
        )
        log(f"Starting a server and {NUM_SITES} sites")
        sites = {f"site{number}": rules for number in range(NUM_SITES)}
        with (
            Loopback(folder / "kits", sites, study="bench", job=JOB) as federation,
            Flare(federation.kits["analyst"].path) as engine,
        ):
            # First, as large messages leave a process larger.
            part_rounds = max(5, _PART_ROUNDS // shrink)
            memory = _watch_memory(engine, federation.kits["server"], _MEMORY_PARTS, part_rounds, log)
            times = []
            for size, attribute in _MODELS.items():
                num_rounds = max(2, _ROUNDS[size] // shrink)
                log(f"{size}: {num_rounds} plain rounds, masked rounds and bare calls, by turns")
                times.append(_round_times(size, _time(engine, attribute, num_rounds)))
    return FederationResults(times, memory, machine_facts())


def _start(engine: Flare, attribute: str, num_rounds: int) -> tuple[FlareRun, Run]:
    """Have the sites open for a run of one chain that keeps its last draw."""
    named, sampler = Model.named(f"{messages.__name__}:{attribute}"), FALD(0.01)
    model, federation = engine.open(named, Sites(), sampler)
    run = make_run(model, federation, sampler, num_rounds, thin=num_rounds, dtype=np.dtype(np.float32))
    return engine.start(run), run


def _time(engine: Flare, attribute: str, num_rounds: int) -> dict[str, list[float]]:
    """Return the seconds of bare calls and of both kinds of rounds, timed at the server."""
    from fahmc.bench.flare_job import Time

    at_sites, run = _start(engine, attribute, num_rounds=1)
    [phase] = run.phases
    # One round by way of the engine, which has the sites make ready.
    state = at_sites.advance(phase, begin(run, phase), 0, 1).state
    request = Time(list(run.federation.names), num_rounds, arrays_to_text(state), _CALL_SECONDS)
    return at_sites.session.ask(request, _ALL_SECONDS)["seconds"]


def _round_times(size: str, seconds: dict[str, list[float]]) -> RoundTimes:
    # The first calls of a size find cold caches and connections.
    bare, plain, masked = (np.array(seconds[kind][len(seconds[kind]) // 10 :]) for kind in ("bare", "plain", "masked"))
    bare_s, plain_s, masked_s = (float(np.median(times)) for times in (bare, plain, masked))
    return RoundTimes(size, len(bare), bare_s, plain_s, masked_s, Ratio.of(plain, bare), Ratio.of(masked, plain))


def _watch_memory(
    engine: Flare, server: Kit, num_parts: int, part_rounds: int, log: Callable[[str], None]
) -> list[tuple[int, int]]:
    log(f"Memory over {num_parts * part_rounds:,} rounds of 8 KB")
    at_sites, run = _start(engine, _MODELS["8 KB"], num_parts * part_rounds)
    [phase] = run.phases
    state, memory = begin(run, phase), []
    for part in range(num_parts):
        state = at_sites.advance(phase, state, part * part_rounds, part_rounds).state
        memory.append(((part + 1) * part_rounds, _worker_bytes(server)))
    return memory


def _worker_bytes(kit: Kit) -> int:
    """Return the memory that a participant's workers hold."""
    return sum(psutil.Process(pid).memory_info().rss for pid in find_processes(kit, only_workers=True))
