"""A site's ledger counts what it answers: too much after a crash, never too little, and never anew without a word."""

import json
import multiprocessing
import os
import stat
from pathlib import Path

import pytest

from fahmc.engines.flare import ledger as ledgers
from fahmc.engines.flare.ledger import LEDGER_FILE, MARK_BYTES, Ledger, LedgerFault, begin_ledger
from fahmc.engines.flare.refusals import Refusal, Refused

CONTENT = "a content"


@pytest.fixture
def kit(tmp_path):
    (tmp_path / "local").mkdir()
    begin_ledger(tmp_path, site="north", study="trial")
    return tmp_path


def run(ledger: Ledger, key: str, maximum: int = 2) -> None:
    with ledger.admitting("run", key, CONTENT, maximum, Refusal.RUNS, model="mlp"):
        pass


def mark(number: int) -> bytes:
    return number.to_bytes(MARK_BYTES, "big")


def count(ledger: Ledger, numbers, maximum: int = 1000, key: str = "a run") -> None:
    for number in numbers:
        ledger.count_round(key, mark(number), maximum)


def lines(kit: Path) -> list[dict]:
    return [json.loads(line) for line in (kit / LEDGER_FILE).read_text().splitlines()]


def test_entries_say_who_asked_what_and_when(kit):
    ledger = Ledger(kit, who="ann@example.org", job="5c1")
    run(ledger, "first")
    began, ran = lines(kit)
    assert (began["what"], began["site"], began["study"]) == ("begun", "north", "trial")
    assert {name: ran[name] for name in ("who", "job", "what", "run", "model")} == {
        "who": "ann@example.org", "job": "5c1", "what": "run", "run": "first", "model": "mlp"
    }  # fmt: skip
    assert ran["at"].endswith("Z") and len(ran["check"]) == 16
    assert stat.S_IMODE((kit / LEDGER_FILE).stat().st_mode) == 0o600


def test_an_allowance_survives_restarts_and_counts_what_is_new_alone(kit):
    run(Ledger(kit), "first")
    again = Ledger(kit)
    run(again, "first")
    run(again, "second")
    with pytest.raises(Refused, match="maximum_runs in its own file") as refusal:
        run(Ledger(kit), "third")
    assert refusal.value.refusal == Refusal.RUNS
    run(Ledger(kit), "second")
    run(Ledger(kit), "third", maximum=3)
    with pytest.raises(Refused):  # what another process wrote counts for one that is open
        run(again, "fourth", maximum=3)


def test_what_was_not_answered_does_not_count(kit):
    ledger = Ledger(kit)
    with (
        pytest.raises(Refused, match="fewer complete rows"),
        ledger.admitting("run", "first", CONTENT, 1, Refusal.RUNS),
    ):
        raise Refused(Refusal.FEW_ROWS)
    run(ledger, "second", maximum=1)


def test_rounds_count_once_and_none_beyond_the_rule_is_computed(kit):
    ledger = Ledger(kit)
    count(ledger, [*range(90), *range(90)], maximum=100)
    count(ledger, range(90, 100), maximum=100)
    with pytest.raises(Refused, match="maximum_rounds"):
        count(ledger, [100], maximum=100)
    count(ledger, range(100), maximum=100)
    count(ledger, range(100), key="another run")


def test_few_writes_for_many_rounds(kit):
    ledger = Ledger(kit)
    count(ledger, range(10 * ledgers._RESERVED))
    assert len(lines(kit)) == 11


def test_a_crash_counts_too_much_and_never_too_little(kit):
    computed = ledgers._RESERVED + 5
    count(Ledger(kit), range(computed))
    after = Ledger(kit)  # as the next process finds it, with nothing said by the first one at its end
    assert after.rounds["a run"] == 2 * ledgers._RESERVED >= computed
    # Rounds of the batch before are known: to compute them again costs nothing.
    count(after, range(ledgers._RESERVED), maximum=2 * ledgers._RESERVED)
    with pytest.raises(Refused):
        count(after, [computed], maximum=2 * ledgers._RESERVED)


def test_at_its_end_a_job_gives_back_what_it_did_not_compute(kit):
    ledger = Ledger(kit)
    count(ledger, range(5))
    ledger.settle()
    after = Ledger(kit)
    assert after.rounds["a run"] == 5
    count(after, range(5), maximum=5)
    count(ledger, [6], maximum=6)  # should one come all the same
    assert Ledger(kit).rounds["a run"] == 6


def test_a_torn_last_line_is_told_and_left_out(kit):
    run(Ledger(kit), "first")
    whole = (kit / LEDGER_FILE).read_bytes()
    (kit / LEDGER_FILE).write_bytes(whole + b'{"at":"2026-11-19T07:01:02Z","what":"run","con')
    ledger = Ledger(kit)
    assert ledger.is_torn and len(ledger.entries) == 2
    run(ledger, "second")
    assert not ledger.is_torn
    *_, torn, last = lines(kit)
    assert torn["what"] == "torn" and torn["text"].endswith('"con') and last["run"] == "second"
    assert [entry["what"] for entry in Ledger(kit).entries] == ["begun", "run", "torn", "run"]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda text: text.replace('"run":"first"', '"run":"other"'), "was changed in line 2"),
        (lambda text: text.replace("first", "fir\0st"), "was changed in line 2"),
        (lambda text: "".join(text.splitlines(keepends=True)[:2]), "has lost lines at its end"),
        (lambda text: "".join(text.splitlines(keepends=True)[::2]), "was changed in line 2"),
        (lambda text: text + "\n", "was changed in line 4"),
        (lambda text: "", "has lost lines at its end"),
        (lambda text: "{}\n" + text, "was changed in line 1"),
        (lambda text: "[" * 100_000 + "\n", "was changed in line 1"),
    ],
)
def test_a_damaged_ledger_is_refused_and_left_as_it_is(kit, damage, words):
    for key in ("first", "second"):
        run(Ledger(kit), key)
    Ledger(kit)  # which takes note of how far it reaches
    path = kit / LEDGER_FILE
    damaged = damage(path.read_text())
    path.write_text(damaged)
    expected = rf"^The site's ledger .*ledger\.jsonl {words}\. It .*--begin-anew`\.$"
    with pytest.raises(LedgerFault, match=expected) as fault:
        Ledger(kit)
    assert path.read_text() == damaged
    assert fault.value.refusal == Refusal.LEDGER, "whoever asks hears no more than that"


def test_a_ledger_in_the_place_of_another_is_refused(kit, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    (other / "local").mkdir()
    begin_ledger(other, site="north", study="other")
    for number in range(3):
        run(Ledger(other), f"{number}", maximum=3)
    os.replace(other / LEDGER_FILE, kit / LEDGER_FILE)
    with pytest.raises(LedgerFault, match="is not the one that was here before"):
        Ledger(kit)


@pytest.mark.parametrize("file", [LEDGER_FILE, f"local/{ledgers._ANCHOR_FILE}"])
def test_a_ledger_that_is_gone_is_not_begun_without_a_word(kit, file):
    (kit / file).unlink()
    with pytest.raises(LedgerFault, match=r"is missing|which is missing or damaged"):
        Ledger(kit)
    begin_ledger(kit, site="north")
    run(Ledger(kit), "first")


def test_a_ledger_that_is_begun_anew_names_the_one_before(kit):
    run(Ledger(kit), "first")
    before = (kit / LEDGER_FILE).read_bytes()
    begin_ledger(kit, site="north")
    [began] = Ledger(kit).entries
    assert (kit / began["before"]).read_bytes() == before
    run(Ledger(kit), "second", maximum=1)


def test_a_full_disk_is_a_refusal_and_loses_nothing(kit, monkeypatch):
    ledger, write = Ledger(kit), os.write
    monkeypatch.setattr(os, "write", lambda file, content: write(file, content[:20]))
    with pytest.raises(LedgerFault, match="cannot be added to: no space is left"):
        run(ledger, "first")
    monkeypatch.undo()
    run(ledger, "first")
    assert [entry["what"] for entry in Ledger(kit).entries] == ["begun", "torn", "run"]


def _add_runs(kit: Path, name: str) -> None:
    ledger = Ledger(kit)
    for number in range(25):
        run(ledger, f"{name}{number}", maximum=40)


def test_two_processes_add_lines_one_at_a_time_to_one_allowance(kit):
    # Not forked from this one, which has JAX's threads.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fahmc.engines.flare.ledger", "pytest"])
    processes = [context.Process(target=_add_runs, args=(kit, name)) for name in "ab"]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    after = Ledger(kit)
    assert len(after.accounts[CONTENT].asked["run"]) == 40
    assert sorted(process.exitcode or 0 for process in processes) != [0, 0], "one of the two was refused its last ones"


def test_refusals_are_written_and_do_not_fill_the_disk(kit):
    ledger = Ledger(kit)
    for _ in range(1000):
        ledger.refuse("summarize", Refusal.COLUMNS, ("income",))
    told = [entry["times"] for entry in Ledger(kit).entries if entry["what"] == "refusal"]
    assert told == [2**power for power in range(10)]
    for number in range(1000):
        ledger.refuse("summarize", Refusal.COLUMNS, (f"column{number}",))
    entries = Ledger(kit).entries
    assert len(entries) < ledgers._MOST_REFUSALS + 30
    assert entries[2]["rule"] == "COLUMNS" and entries[2]["named"] == ["income"]


def test_a_release_is_paid_for_once_and_refused_when_the_budget_is_used_up(kit):
    def check(spent):
        if sum(cost.epsilon for cost in spent) > 1.0:
            raise Refused(Refusal.FEW_ROWS)

    for release in ("one", "two", "one"):
        Ledger(kit).spend(release, CONTENT, 0.5, 1e-6, check, what_for="scores")
    with pytest.raises(Refused):
        Ledger(kit).spend("three", CONTENT, 0.1, 1e-6, check)
    Ledger(kit).spend("three", "another content", 0.1, 1e-6, check)
    assert [tuple(cost) for cost in Ledger(kit).accounts[CONTENT].spent] == [("one", 0.5, 1e-6), ("two", 0.5, 1e-6)]


@pytest.mark.parametrize("name", ["größe", "half \udc80 of a pair", 'with "quotes"\n', "\u2028"])
def test_any_name_can_be_written_and_read(kit, name):
    Ledger(kit).note("refusal", named=[name])
    assert Ledger(kit).entries[-1]["named"] == [name]
    assert len((kit / LEDGER_FILE).read_bytes().split(b"\n")) == 3


def test_what_a_newer_fahmc_wrote_is_not_guessed_at(kit):
    lines = ledgers.ChainedLines(kit / LEDGER_FILE, kit / "local" / ledgers._ANCHOR_FILE, lambda entry: None)
    with lines.locked() as add:
        add({"what": "rounds", "run": "x"})
    with pytest.raises(LedgerFault, match="has in line 2 what this fahmc cannot read"):
        Ledger(kit)


def test_without_a_kit_entries_end_with_the_process():
    ledger = Ledger()
    run(ledger, "first", maximum=1)
    count(ledger, range(100))
    with pytest.raises(Refused):
        run(ledger, "second", maximum=1)
    assert not ledger.is_torn and ledger.rounds["a run"] == 2 * ledgers._RESERVED
