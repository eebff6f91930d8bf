"""`fahmc federation` without a federation: kits, and what is refused before anything starts."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fahmc.cli.app import app
from fahmc.cli.config import build, load_config
from fahmc.engines.flare.counts import content_of
from fahmc.engines.flare.ledger import Ledger
from fahmc.engines.flare.loopback import free_port
from fahmc.engines.flare.refusals import Refusal
from fahmc.engines.flare.rules import site_secret

STUDY = """\
[federation]
server = "localhost:8002"
sites = ["north", "south"]

[data]
outcome = "ill"
outcome_positive = "yes"
features = ["age", "group"]

[model]
name = "logistic_regression"

[sampler]
name = "FAHMC"
step_size = 0.2

[run]
num_rounds = 10
"""


@pytest.fixture
def study(tmp_path):
    file = tmp_path / "study.toml"
    file.write_text(STUDY)
    return file


@pytest.fixture(scope="session")
def made_kits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    (folder / "study.toml").write_text(STUDY)
    done = run("federation", "init", folder / "study.toml", "--output", folder / "kits", "--json")
    assert done.exit_code == 0, done.stderr
    return {name: Path(path) for name, path in json.loads(done.stdout)["kits"].items()}


@pytest.fixture
def kits(made_kits, tmp_path):
    """Kits that a test may damage."""
    return {name: Path(shutil.copytree(path, tmp_path / "kits" / name)) for name, path in made_kits.items()}


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def refusal(*arguments) -> str:
    done = run(*arguments)
    assert done.exit_code in (2, 6), (done.exit_code, done.stderr)
    return done.stderr.replace("\nfahmc: error: ", " ")


def test_init_makes_a_kit_for_everybody_and_says_who_gets_it(study, tmp_path):
    done = run("federation", "init", study, "--output", tmp_path / "kits")
    assert done.exit_code == 0
    for words in ("site north", "site south", "analyst@fahmc.local", "fahmc federation start KIT --data north.csv"):
        assert words in done.stdout
    rules = (tmp_path / "kits" / "north" / "site.toml").read_text()
    assert 'columns = ["ill", "age", "group"]' in rules
    assert "is not an empty folder" in refusal("federation", "init", study, "--output", tmp_path / "kits")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("[federation]\n", "[federaton]\n", "federaton is not known, did you mean 'federation'"),
        ('server = "localhost:8002"', 'server = "localhost"', "it should read host:port"),
        ('sites = ["north", "south"]', 'sites = ["north", "north"]', "name at least one, each once"),
        ('sites = ["north", "south"]', 'sites = ["nord west"]', "'nord west' cannot name a study or site"),
        ('sites = ["north", "south"]', 'sites = "north"', r"federation.sites = 'north': input should be a valid list"),
        ('outcome = "ill"', 'outcome = "ill"\nfile = "a.csv"\nsite_column = "site"', "[data] cannot name files"),
        ('sites = ["north"', 'patience = 0\nsites = ["north"', "federation.patience = 0: input should be greater"),
    ],
)
def test_a_study_that_cannot_be_is_refused(study, tmp_path, old, new, words):
    study.write_text(STUDY.replace(old, new))
    assert words in refusal("federation", "init", study, "--output", tmp_path / "kits")
    assert not (tmp_path / "kits").exists()


def test_rows_have_to_be_somewhere(study):
    study.write_text(STUDY.partition("\n\n")[2])
    assert "nothing says where the rows lie" in refusal("sample", study)


def test_sample_asks_for_the_kit_that_it_needs(study, kits):
    assert "reach them with --federation and the analyst's kit" in refusal("sample", study)
    assert "is the kit of 'north'; sampling takes the analyst's kit" in refusal(
        "sample", study, "--federation", kits["north"]
    )
    assert "holds no start-up kit" in refusal("sample", study, "--federation", study.parent)


def test_start_refuses_what_is_not_a_site_or_has_no_rows(kits, tmp_path):
    assert "is the analyst's kit; start the server's and the sites' kits" in refusal(
        "federation", "start", kits["analyst"]
    )
    assert "there is no such file. Name the site's table" in refusal("federation", "start", kits["north"])
    table = tmp_path / "north.csv"
    table.write_text("ill,age,group\nyes,1,A\n")
    assert "is the kit of the server, which holds no rows" in refusal(
        "federation", "start", kits["server"], "--data", table
    )
    rules = tmp_path / "rules.toml"
    rules.write_text("colums = []\n")
    said = refusal("federation", "start", kits["north"], "--data", table, "--rules", rules)
    assert "columns is missing" in said and "colums is not known" in said


def test_status_and_stop_of_what_does_not_run(kits):
    done = run("federation", "status", kits["north"])
    assert done.exit_code == 0 and "Site north does not run on this machine." in done.stdout
    done = run("federation", "stop", kits["server"], "--json")
    assert done.exit_code == 0 and json.loads(done.stdout)["was_running"] is False
    assert "is the analyst's kit, of which nothing runs" in refusal("federation", "stop", kits["analyst"])


def test_doctor_prints_a_line_a_check_and_its_exit_code_tells(kits, tmp_path):
    table = tmp_path / "north.csv"
    table.write_text("ill,age,group\n" + "yes,1,A\n" * 12)
    for kit in (kits["north"], kits["server"]):
        file = kit / "fahmc.json"
        file.write_text(file.read_text().replace(":8002", f":{free_port()}"))
    done = run("federation", "doctor", kits["north"], "--data", table)
    assert done.exit_code == 6
    assert "ok      data " in done.stdout and "problem port " in done.stdout and "unknown TLS " in done.stdout
    assert "1 problem. 2 could not be checked." in done.stdout
    done = run("federation", "doctor", kits["server"], "--json")
    told = json.loads(done.stdout)
    assert done.exit_code == told["exit_code"] == 0
    assert {finding["check"] for finding in told["findings"]} >= {"certificate", "port", "participant"}
    assert "holds no start-up kit" in refusal("federation", "doctor", tmp_path)


def test_logs_are_the_owner_s(kits):
    done = run("federation", "logs", kits["north"])
    assert done.exit_code == 0 and "holds no logs yet" in done.stdout.replace("\n", " ")
    lines = [f"2026-11-18 10:00:{second:02} - line {second}\n" for second in range(20)]
    (kits["north"] / "output.txt").write_text("".join(lines))
    done = run("federation", "logs", kits["north"], "--lines", 3)
    assert done.stdout.splitlines() == [f"2026-11-18 10:00:{n} north        line {n}" for n in (17, 18, 19)]
    told = json.loads(run("federation", "logs", kits["north"], "--json").stdout)["lines"]
    assert len(told) == 20 and told[0] == {"time": "2026-11-18 10:00:00", "source": "north", "text": "line 0"}
    assert "is the analyst's kit, which has no logs" in refusal("federation", "logs", kits["analyst"])
    assert "leave out one of the two" in refusal("federation", "logs", kits["north"], "--follow", "--json")


def test_a_site_s_ledger_says_who_asked_what_and_what_is_left(kits, tmp_path):
    kit, table = kits["north"], kits["north"] / "north.csv"
    table.write_text("ill,age,group\n" + "yes,1,A\n" * 12)
    content = content_of(str(table), site_secret(kit / "local"))
    ledger = Ledger(kit, who="ann@example.org", job="5c1")
    facts = {"model": "logistic_regression", "sampler": "Auto", "columns": ["ill", "age"]}
    for _ in range(2):
        with ledger.admitting("run", "a run", content, 10, Refusal.RUNS, **facts):
            ledger.count_round("a run", b"round1", 20_000)
    ledger.refuse("summarize", Refusal.RARE_LEVEL, ("group",))
    ledger.settle()
    done = run("federation", "ledger", kit)
    assert done.exit_code == 0
    for words in ("Ledger of site north, study study", "ann@example.org", "logistic_regression", "Auto", " 1 │"):
        assert words in done.stdout
    said = " ".join(done.stdout.split())
    assert "Left of the file as it is now: 10 of 10 choices of columns, 9 of 10 runs of up to 20,000 rounds" in said
    told = json.loads(run("federation", "ledger", kit, "--json").stdout)
    assert told["left"] == {"survey": 10, "run": 9, "question": 100}
    assert [item["what"] for item in told["items"]] == ["begun", "run", "refused: minimum_rows_per_level (group)"]
    assert told["items"][1]["rounds"] == 1 and told["items"][1]["columns"] == ["ill", "age"]


def test_a_ledger_is_begun_anew_only_when_somebody_says_so(kits):
    kit = kits["north"]
    (kit / "ledger.jsonl").write_text("")
    assert "has lost lines at its end" in refusal("federation", "ledger", kit)
    (kit / "north.csv").write_text("ill,age,group\n")
    assert "has lost lines at its end" in refusal("federation", "start", kit)
    done = run("federation", "ledger", kit, "--begin-anew")
    assert done.exit_code == 0 and "is begun anew: everything that it allows may be asked again" in done.stderr
    assert len(list(kit.glob("ledger-until-*.jsonl"))) == 1
    assert run("federation", "ledger", kit).exit_code == 0
    assert "is the kit of the server; a ledger is kept by each site" in refusal("federation", "ledger", kits["server"])


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("localhost:8002", "localhost:8003", "line 2: federation.server is 'localhost:8003', but the kit"),
        ("localhost:8002", "other.example.org:8002", "was made for 'localhost:8002'"),
        ('["north", "south"]', '["north"]', "line 3: federation.sites is ['north'], but the kit"),
        ('["north", "south"]', '["south", "north"]', "was made for ['north', 'south']"),
        ('"south"]\n', '"south"]\nstudy = "other"\n', "line 4: federation.study is 'other', but the kit"),
        ('"south"]\n', '"south"]\nanalyst = "eve@example.org"\n', "was made for 'analyst@fahmc.local'"),
    ],
)
@pytest.mark.parametrize("command", ["sample", "tune"])
def test_a_file_and_a_kit_of_different_studies_are_refused_at_once(study, kits, command, old, new, words):
    """With both values, and not when nobody answered for ten minutes."""
    study.write_text(STUDY.replace(old, new))
    assert words in refusal(command, study, "--federation", kits["analyst"])
    assert not (study.parent / "fahmc-run").exists()


def test_another_file_of_the_study_says_so(study, kits):
    other = study.with_name("sensitivity.toml")
    other.write_text(STUDY)
    said = refusal("sample", other, "--federation", kits["analyst"])
    assert "federation.study is 'sensitivity', but the kit" in said and 'set study = "study"' in said
    other.write_text(STUDY.replace("[federation]\n", '[federation]\nstudy = "study"\n'))
    assert build(load_config(other), kits["analyst"]).federation.outcome == "ill"


def test_resume_refuses_a_kit_that_was_made_anew_for_others(study, kits, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.toml").write_text(STUDY.replace("localhost:8002", "localhost:8003"))
    job = {"format": 1, "config_folder": str(tmp_path), "config_name": "study.toml", "kit": str(kits["analyst"])}
    (folder / "job.json").write_text(json.dumps(job))
    assert "federation.server is 'localhost:8003', but the kit" in refusal("resume", folder)
