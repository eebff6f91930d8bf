"""Write accountant_numbers.json, ε by Google's accountant, to hold `fahmc.privacy` against.

dp-accounting 0.6.0 needs attrs < 24, which other dependencies of the tests exceed, so it runs in a place of its own:

    python3 -m venv oracle && oracle/bin/pip install dp-accounting==0.6.0
    oracle/bin/python tests/privacy/make_accountant_numbers.py

A release here is a Gaussian mechanism of sensitivity 1 and standard deviation ``deviation``. The accountant is told
that neighbours differ by a row more (ADD_OR_REMOVE_ONE), which in it stands for a sensitivity of 1: with REPLACE_ONE
its PLD accountant doubles the sensitivity, while its RDP accountant does not. Numbers of that trap are written, too.
"""

import json
from importlib import import_module, metadata
from pathlib import Path

# Discretisation of the privacy loss: the ε told is above the exact one, by less than this a release.
INTERVAL = 1e-4


def rounded_up(deviations, delta, neighbours="ADD_OR_REMOVE_ONE", kind="pld"):
    """Return the ε of the releases together, as one of its accountants has it."""
    dp = import_module("dp_accounting")
    releases = dp.ComposedDpEvent([dp.GaussianDpEvent(deviation) for deviation in deviations])
    relation = getattr(dp.NeighboringRelation, neighbours)
    if kind == "pld":
        accountant = dp.pld.PLDAccountant(relation, value_discretization_interval=INTERVAL)
    else:
        accountant = dp.rdp.RdpAccountant(neighboring_relation=relation)
    return accountant.compose(releases).get_epsilon(delta)


CASES = [
    ([0.6], 1e-3), ([1.0], 1e-5), ([1.5439], 1e-6), ([4.2247], 1e-6), ([4.0], 1e-3), ([20.0], 1e-6), ([1.0], 1e-10),
    ([2.0, 2.0], 1e-5), ([3.0, 5.0, 9.0], 1e-6), ([10.0, 8.0, 5.0, 4.0, 2.5, 2.0], 1e-6), ([1.0, 30.0], 1e-8),
]  # fmt: skip

if __name__ == "__main__":
    written = {
        "by": f"dp-accounting {metadata.version('dp-accounting')}, PLD, interval {INTERVAL}",
        "cases": [
            {"deviations": deviations, "delta": delta, "epsilon": rounded_up(deviations, delta)}
            for deviations, delta in CASES
        ],
        "replace_one": {
            "deviation": 4.0,
            "delta": 1e-6,
            "pld": rounded_up([4.0], 1e-6, "REPLACE_ONE"),
            "rdp": rounded_up([4.0], 1e-6, "REPLACE_ONE", kind="rdp"),
            "rdp_add_or_remove_one": rounded_up([4.0], 1e-6, kind="rdp"),
        },
    }
    path = Path(__file__).with_name("accountant_numbers.json")
    path.write_text(json.dumps(written, indent=1) + "\n")
    print(path.read_text())
