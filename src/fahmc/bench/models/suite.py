"""`fahmc bench models` from end to end: one run without settings a case, held against NumPyro's posterior."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from fahmc.bench.models import by_site  # noqa: F401  # adds its cases
from fahmc.bench.models.cases import build, names
from fahmc.bench.models.peer import posterior_of
from fahmc.bench.models.results import Compared, Results
from fahmc.bench.rounds.measure import least_ess
from fahmc.data.federation import Federation
from fahmc.errors import FahmcError
from fahmc.report import judge, parameter_table
from fahmc.sample import sample

_QUICK = ("exponential_survival",)
# Of each of NumPyro's four chains: the Monte Carlo error of a mean is then about a fiftieth of its sd at most.
_NUM_DRAWS, _QUICK_DRAWS = 1_500, 100


def run_cases(chosen: Sequence[str], *, is_quick: bool, log: Callable[[str], None]) -> Results:
    """Sample each case, and compare; all of them if none is chosen."""
    wanted = chosen or (_QUICK if is_quick else names())
    results, began = Results(is_quick=is_quick), time.perf_counter()
    for name in wanted:
        try:
            case = build(name)
            federation = Federation.from_clients(case.clients)
            draws = sample(case.model, federation, seed=0, progress=False)
        except FahmcError as error:
            results.compared.append(Compared(name, error=str(error)))
            log(f"{name}: {error}")
            continue
        positions = case.compared or tuple(draws.positions)
        against = posterior_of(case.peer, federation, positions, _QUICK_DRAWS if is_quick else _NUM_DRAWS)
        flat = np.concatenate(
            [np.asarray(draws.positions[key], float).reshape(-1, _size(draws.positions[key])) for key in positions],
            axis=1,
        )
        ratios = flat.std(axis=0) / against.sd
        results.compared.append(
            Compared(
                name,
                rounds=float(draws.cost["rounds"]),
                ess=least_ess(draws),
                mean_error=float(np.max(np.abs(flat.mean(axis=0) - against.mean) / against.sd)),
                sd_ratio=float(ratios[np.argmax(np.abs(np.log(ratios)))]),
                verdict=judge(draws, parameter_table(draws)).status,
                reference_error=against.error,
                reference_faults=against.faults,
            )
        )
        log(f"{name}: {results.compared[-1].words}")
    results.seconds = time.perf_counter() - began
    return results


def _size(values: np.ndarray) -> int:
    """Return how many numbers a parameter has, of draws [chain, draw, ...]."""
    return int(np.prod(values.shape[2:]))
