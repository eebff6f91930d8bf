"""`fahmc federation` without a federation: kits, and what is refused before anything starts."""

import json

import pytest
from typer.testing import CliRunner

from fahmc.cli.app import app

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


@pytest.fixture
def kits(study, tmp_path):
    done = run("federation", "init", study, "--output", tmp_path / "kits", "--json")
    assert done.exit_code == 0, done.stderr
    return {name: path for name, path in json.loads(done.stdout)["kits"].items()}


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
