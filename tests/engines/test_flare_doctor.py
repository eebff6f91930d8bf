"""The doctor finds what is wrong, says what to do, and does not wait for ever."""

import os
import time

import pytest

from fahmc.engines.flare.doctor import Case, _within, examine
from fahmc.engines.flare.kits import Kit
from fahmc.engines.flare.loopback import free_port
from fahmc.engines.flare.processes import _started_at
from fahmc.engines.flare.state import State, write_state
from kit_forge import Authority, copy_kit, listening

ROWS = "ill,age\n" + "".join(f"{'yes' if row % 3 else 'no'},{row + 20}\n" for row in range(12))


@pytest.fixture
def table(tmp_path):
    file = tmp_path / "north.csv"
    file.write_text(ROWS)
    return file


@pytest.fixture
def kits(made_kits, tmp_path):
    server = f"localhost:{free_port()}"
    return {name: copy_kit(kit, tmp_path / "kits" / name, server) for name, kit in made_kits.items()}


def found(kit: Kit, *status: str, **how) -> dict[str, str]:
    """Return what the doctor found to be so, by the name of the check."""
    return {finding.check: finding.words for finding in examine(Case(kit, **how), 30.0) if finding.status in status}


def pretend_to_run(kit: Kit, state: State) -> None:
    """Have this process pass for the one that looks after a participant."""
    (kit.path / "fahmc.pid").write_text(f"{os.getpid()} {_started_at(os.getpid())}")
    write_state(kit, state)


def test_a_site_that_is_well(kits, table):
    kit = kits["north"]
    with listening(kits["server"]) as port:
        kit = kit._replace(server=f"localhost:{port}")
        assert found(kit, "problem", data=table) == {}
        assert list(found(kit, "unknown", data=table)) == ["clock"]
        well = found(kit, "ok", data=table)
    assert list(well) == [
        "kit", "certificate", "dates", "private key", "versions", "server's name", "port", "TLS", "rules", "data",
        "ledger", "folder", "participant",
    ]  # fmt: skip
    assert well["data"] == f"{table} has 12 rows, 12 of them complete; 10 are needed"
    assert well["ledger"] == "whole, 0 entries since it was begun"
    assert "nvflare 2.9" in well["versions"] and "fahmc " in well["versions"]


def test_a_ledger_that_lost_a_line(kits, table):
    (kits["north"].path / "ledger.jsonl").write_text("")
    said = found(kits["north"], "problem", data=table)["ledger"]
    assert "has lost lines at its end" in said and said.endswith("`fahmc federation ledger KIT --begin-anew`.")


def test_a_server_that_is_not_started(kits):
    kit = kits["server"]
    assert found(kit, "problem") == {}
    assert found(kit, "unknown")["TLS"] == "the server does not run."
    assert found(kit, "ok")["port"] == f"{kit.address[1]} is free"
    far = found(kit._replace(server=f"192.0.2.1:{kit.address[1]}"), "unknown")
    assert far["server's name"] == (
        "192.0.2.1 is 192.0.2.1, which is no address of this machine. That is right only if a router passes it on."
    )


def test_an_analyst_without_a_server(kits):
    kit = kits["analyst"]
    (words,) = found(kit, "problem").values()
    assert words.startswith(f"nobody listens at {kit.server} (connection refused). Is the server started?")
    assert found(kit, "unknown")["TLS"] == "not tried, see above."
    assert not {"rules", "data", "participant"} & set(found(kit, "ok", "problem", "unknown"))


def test_certificates(kits, table):
    kit = kits["north"]
    Authority("study").certify(kit, ends=9.5)
    said = found(kit, "problem", data=table)["dates"]
    assert "9 days from now. Plan new kits for everybody" in said
    Authority("study").certify(kit, ends=-0.5)
    assert "has expired" in found(kit, "problem", data=table)["dates"]
    key = kit.startup / "client.key"
    key.chmod(0o644)
    assert (
        found(kit, "problem")["private key"] == f"Others on this machine may use {key} (mode 644). Run: chmod 600 {key}"
    )
    key.unlink()
    said = found(kit, "problem")
    assert "startup/client.key is missing" in said["kit"] and "client.key cannot be read" in said["private key"]


def test_another_study_s_server(kits, table, tmp_path):
    stranger = copy_kit(kits["server"], tmp_path / "stranger")
    Authority("other").certify(stranger)
    with listening(stranger) as port:
        said = found(kits["north"]._replace(server=f"localhost:{port}"), "problem", data=table)
    assert list(said) == ["TLS"] and "is of another authority, of study 'other'" in said["TLS"]


@pytest.mark.parametrize(
    ("rows", "rules", "check", "words"),
    [
        (ROWS, 'columns = ["ill", "weight"]', "data", "The rules name 'weight', but "),
        (ROWS[:30], 'columns = "all"', "data", "10 are needed. Fill the gaps"),
        (ROWS.replace("yes,2", "yes,"), 'columns = ["ill", "age"]', "data", None),
        ("ill,age\n" + "yes,\n" * 12, 'columns = ["ill", "age"]', "data", "has 12 rows, 0 of them complete; 10 are"),
        ("ill,age\n1,2\n3\n4,5,6\n", 'columns = "all"', "data", "north.csv"),
        (ROWS, 'columns = ["sex"]\nminimum = 3', "rules", "minimum is not known"),
    ],
)
def test_the_table_against_the_rules(kits, tmp_path, table, rows, rules, check, words):
    table.write_text(rows)
    file = tmp_path / "rules.toml"
    file.write_text(rules + "\n")
    said = found(kits["north"], "problem", data=table, rules=file)
    assert words in said[check] if words else check not in said


def test_a_table_that_may_still_do(kits, table):
    """With every column allowed, nobody knows which a study takes."""
    table.write_text("ill,age\n" + "yes,\n" * 12)
    assert (
        "0 of them complete; 10 are needed. Enough may be complete"
        in found(kits["north"], "unknown", data=table)["data"]
    )
    assert "there is no such file" in found(kits["north"], "problem")["rules"]
    assert found(kits["north"], "unknown")["data"] == "not tried, see above."


@pytest.mark.parametrize(
    ("state", "status", "words"),
    [
        (State("connected", process=7, clock=-0.4), "ok", "connected"),
        (
            State("refused", "the server is of another study.", process=7),
            "problem",
            "It runs, but is refused: the server",
        ),
        (State("unreached", "nobody listens.", process=7), "problem", "It runs, but is cut off: nobody listens."),
        (State("starting", process=7), "unknown", "it is starting"),
    ],
)
def test_a_running_participant(kits, table, state, status, words):
    pretend_to_run(kits["north"], state._replace(at=time.time()))
    assert words in found(kits["north"], status, data=table)["participant"]


def test_a_participant_that_hangs(kits, table):
    pretend_to_run(kits["north"], State("connected", process=7, at=time.time() - 60))
    assert "Process 7 has said nothing for 60 s: it hangs" in found(kits["north"], "problem", data=table)["participant"]


@pytest.mark.parametrize(("ahead", "words"), [(90.0, "90 s ahead of this one"), (-300.0, "300 s behind this one")])
def test_clocks_that_differ(kits, table, ahead, words):
    pretend_to_run(kits["north"], State("connected", process=7, at=time.time(), clock=ahead))
    assert words in found(kits["north"], "problem", data=table)["clock"]
    pretend_to_run(kits["north"], State("connected", process=7, at=time.time(), clock=0.2))
    assert found(kits["north"], "ok", data=table)["clock"] == "within 1 s of the server's"


def test_a_check_that_does_not_end_is_left_behind():
    began = time.monotonic()
    finding = _within(0.1, "name", lambda: str(time.sleep(5.0)))
    assert finding.status == "unknown" and finding.words == "it took longer than 0 s" and time.monotonic() - began < 4.0


def test_all_checks_together_keep_to_their_time(kits):
    """A server that takes connections and says nothing would hold up each attempt for seconds."""
    with listening(None, greeting=b"") as port:
        kit = kits["analyst"]._replace(server=f"localhost:{port}")
        began = time.monotonic()
        findings = list(examine(Case(kit), 2.0))
        assert time.monotonic() - began < 4.5  # one attempt alone takes 5 s
    assert findings[-1].check == "folder"
