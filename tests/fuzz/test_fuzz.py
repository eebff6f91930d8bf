"""Some mutated inputs of every part; ``make fuzz`` tries ten thousand of each."""

import threading

import pytest

from harness import all_parts, limited, part, try_cases

# What a few seconds allow; parts that compile have fewer.
CASES = {"checkpoints": 60, "draws files": 60, "folders": 60}
USUAL = 150


@pytest.mark.parametrize("name", all_parts())
def test_nothing_unexpected(name):
    tally = try_cases(name, range(CASES.get(name, USUAL)))
    assert not tally.findings, "\n\n".join(map(str, tally.findings[:5]))
    # A part that refuses everything, or nothing, tries nothing.
    assert sum(count > 0 for count in tally.outcomes.values()) >= 2, tally.outcomes


def test_what_never_ends_is_ended():
    with pytest.raises(TimeoutError), limited(0.05):
        while True:
            pass
    with pytest.raises(TimeoutError), limited(0.001):
        threading.Event().wait()


def test_a_finding_is_found(monkeypatch):
    monkeypatch.setattr("harness._parts", dict(all_parts()))

    @part("broken")
    def try_one(rng, folder):
        return {0: "accepted", 1: "refused"}[rng.randrange(4)]

    tally = try_cases("broken", range(40))
    assert tally.outcomes["unexpected"] == len(tally.findings) > 5
    assert "KeyError" in str(tally.findings[0])
