"""Try tens of thousands of mutated inputs: ``python tests/fuzz [--cases N] [PART ...]``; one again: ``--case 123``.

Prints what came of them, and ends with 1 if anything was not as it should be.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed

# Thousands of tiny programs: compiling them well is not worth it.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

from harness import Finding, all_parts, try_cases

_CHUNK = 250
_CHUNKS_A_PROCESS = 4
_SHOWN = 5


def main() -> int:
    """Try what the command line asks for."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(all_parts())}; all by default")
    arguments.add_argument("--cases", type=int, default=10_000, help="how many of each part")
    arguments.add_argument("--case", type=int, help="this one alone")
    arguments.add_argument("--processes", type=int, default=os.cpu_count())
    asked = arguments.parse_args()
    if unknown := set(asked.parts) - set(all_parts()):
        arguments.error(f"there is no part {', '.join(sorted(unknown))}")
    first, last = (0, asked.cases) if asked.case is None else (asked.case, asked.case + 1)
    total: list[Finding] = []
    # Fresh processes: what one chunk leaves behind (compiled programs, above all) ends with it.
    workers = multiprocessing.get_context("spawn")
    print(f"{'part':<14}{'cases':>8}  {'unexpected':>10}  {'seconds':>8}  came to")
    for name in asked.parts or all_parts():
        outcomes, findings, seconds = Counter(), [], 0.0
        chunks = [range(start, min(start + _CHUNK, last)) for start in range(first, last, _CHUNK)]
        batch = _CHUNKS_A_PROCESS * asked.processes
        for start in range(0, len(chunks), batch):
            # Not by max_tasks_per_child, with which the pool of Python 3.11 may wait for ever.
            with ProcessPoolExecutor(asked.processes, mp_context=workers) as pool:
                tasks = [pool.submit(try_cases, name, chunk) for chunk in chunks[start : start + batch]]
                for tally in (done.result() for done in as_completed(tasks)):
                    outcomes += tally.outcomes
                    findings += tally.findings
                    seconds += tally.seconds
        came_to = ", ".join(f"{word} {count:,}" for word, count in sorted(outcomes.items()) if word != "unexpected")
        print(f"{name:<14}{last - first:>8,}  {len(findings):>10,}  {seconds:>8.0f}  {came_to}", flush=True)
        total += sorted(findings)
    for finding in total[: _SHOWN * len(all_parts())]:
        print(f"\n{finding}", file=sys.stderr)
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main())
