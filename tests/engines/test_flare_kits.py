"""Kits hold their owner's key, the study's policy and nothing that runs; what cannot be a study is refused."""

import json
import stat
import tomllib

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import NameOID

import fahmc
from fahmc.engines import Flare
from fahmc.engines.flare.connection import Connection
from fahmc.engines.flare.job import SAMPLING, write_job
from fahmc.engines.flare.kits import Kit, clear_workplace, make_kits
from fahmc.engines.flare.processes import Participant
from fahmc.engines.flare.proposed_rules import proposed_rules
from fahmc.engines.flare.rules import Rules
from fahmc.errors import SettingsError

STUDY = {"study": "trial", "server": "localhost:8002", "sites": ["north", "south"], "analyst": "ann@example.org"}
WITH_POLICY = ("server", "north", "south")


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    return make_kits(
        tmp_path_factory.mktemp("study") / "kits", columns=["age", 'a "quoted" name'], missing_values=["?", -9], **STUDY
    )


def kit_text(**changes: object) -> str:
    """Write the file in which site north's kit says what it is."""
    entries = {"role": "site", "name": "north", "study": "trial", "server": "localhost:8002", "sites": ["north"]}
    return json.dumps({**entries, "job": SAMPLING._asdict(), **changes})


def files_of(kit: Kit) -> list[str]:
    return sorted(str(path.relative_to(kit.path)) for path in kit.path.rglob("*") if path.is_file())


def test_each_participant_gets_a_kit_that_says_who_it_is(kits):
    assert list(kits) == ["server", "analyst", "north", "south"]
    for name, kit in kits.items():
        assert Kit.load(kit.path) == Kit.load(str(kit.path)) == kit
        assert (kit.study, kit.server, kit.sites) == ("trial", "localhost:8002", ("north", "south"))
        assert kit.path.name == name and kit.local == kit.path / "local"
    assert [kit.role for kit in kits.values()] == ["server", "analyst", "site", "site"]
    assert [kit.name for kit in kits.values()] == ["server", "ann@example.org", "north", "south"]


@pytest.mark.parametrize("name", ["server", "analyst", "north", "south"])
def test_nothing_in_a_kit_runs(kits, name):
    files = files_of(kits[name])
    assert [file for file in files if file.endswith((".sh", ".py", ".sample"))] == []
    assert [file for file in files if stat.S_IMODE((kits[name].path / file).stat().st_mode) & 0o111] == []


@pytest.mark.parametrize("name", ["server", "analyst", "north", "south"])
def test_a_kit_holds_the_key_of_its_owner_and_no_other(kits, name):
    """The authority's own key would let whoever has it make kits for anybody."""
    kit = kits[name]
    (key_file,) = [file for file in files_of(kit) if b"PRIVATE KEY" in (kit.path / file).read_bytes()]
    key_path = kit.path / key_file
    assert key_path.name == ("server.key" if name == "server" else "client.key")
    assert stat.S_IMODE(key_path.stat().st_mode) == 0o600
    key = serialization.load_pem_private_key(key_path.read_bytes(), password=None)
    certificate = x509.load_pem_x509_certificate(key_path.with_suffix(".crt").read_bytes())
    authority = x509.load_pem_x509_certificate((key_path.parent / "rootCA.pem").read_bytes())
    (owner,) = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    assert owner.value == {"server": "localhost", "analyst": "ann@example.org"}.get(name, name)
    assert key.public_key() == certificate.public_key() != authority.public_key()
    certificate.verify_directly_issued_by(authority)


def test_all_kits_trust_one_authority_and_other_studies_have_another(kits, tmp_path):
    def authority(kit: Kit) -> bytes:
        return (kit.path / "startup" / "rootCA.pem").read_bytes()

    assert len({authority(kit) for kit in kits.values()}) == 1
    other = make_kits(tmp_path, **STUDY)  # a folder that is there but empty will do
    assert authority(other["server"]) != authority(kits["server"])
    assert tomllib.loads((other["north"].path / "site.toml").read_text())["columns"] == "all"


@pytest.mark.parametrize("name", WITH_POLICY)
def test_only_four_classes_run_and_the_analyst_may_do_no_more_than_sample(kits, name):
    local = kits[name].local
    resources = json.loads((local / "resources.json").read_text())
    assert resources["class_list_enforcement_mode"] == "enforce"
    assert resources["class_allow_list"] == list(SAMPLING.classes)
    assert resources["class_allow_list"] == [
        "nvflare.collab.runtime.controller.CollabController",
        "nvflare.collab.runtime.executor.CollabExecutor",
        "fahmc.engines.flare.server.Server",
        "fahmc.engines.flare.site.Site",
    ]
    assert resources["allow_log_streaming"] is False
    assert not {"site_log_streamer", "log_receiver"} & {part["id"] for part in resources["components"]}
    permissions = json.loads((local / "authorization.json").read_text())["permissions"]
    assert list(permissions) == ["lead"], "no other role may do anything"
    allowed = {right: who for right, who in permissions["lead"].items() if who != "none"}
    assert allowed == {"submit_job": "any", "manage_job": "n:submitter", "app_command": "n:submitter", "view": "any"}
    assert permissions["lead"]["byoc"] == permissions["lead"]["shell_commands"] == "none"
    assert json.loads((local / "comm_config.json").read_text())["allow_adhoc_conns"] is False
    # FLARE would read its defaults beside these.
    assert [file for file in files_of(kits[name]) if file.endswith(".default")] == []


def test_sites_find_rules_that_propose_the_columns(kits):
    for name in ("north", "south"):
        told = tomllib.loads((kits[name].path / "site.toml").read_text())
        assert told["columns"] == ["age", 'a "quoted" name'] and told["file"] == f"{name}.csv"
        assert told["missing_values"] == ["?", -9]
    assert not (kits["server"].path / "site.toml").exists() and not (kits["analyst"].path / "site.toml").exists()


def test_the_rules_that_are_proposed_are_the_defaults_from_three_sites():
    told = tomllib.loads(proposed_rules("north", 3, ["age"]))
    unnamed = {"models", "samplers", "own_models", "own_samplers", "own_checks", "private_seed", "privacy"}
    assert set(told) | unnamed == set(Rules.model_fields)
    assert Rules.model_validate(told) == Rules(file="north.csv", columns=["age"])
    fewer = tomllib.loads(proposed_rules("north", 2, ["age"]))
    assert {key: value for key, value in fewer.items() if value != told[key]} == {
        "secure_sum": "allowed", "minimum_sites": 2
    }  # fmt: skip
    assert "whoever runs the server may see each answer of this site" in proposed_rules("north", 2, None)
    assert max(map(len, proposed_rules("north", 2, None).splitlines())) <= 120


def test_a_job_names_only_classes_that_kits_allow(tmp_path):
    def paths(value):
        if isinstance(value, dict):
            own = [value["path"]] if "path" in value else []
            return own + [path for part in value.values() for path in paths(part)]
        return [path for part in value for path in paths(part)] if isinstance(value, list) else []

    folder = write_job(tmp_path / "job", "trial", ["north", "south"])
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    assert [path.name for path in files] == ["config_fed_client.json", "config_fed_server.json", "meta.json"]
    named = [path for file in files for path in paths(json.loads(file.read_text()))]
    assert sorted(named) == sorted(SAMPLING.classes)
    meta = json.loads((folder / "meta.json").read_text())
    assert meta["mandatory_clients"] == ["north", "south"] and meta["min_clients"] == 2


def test_what_earlier_jobs_left_is_removed_and_nothing_else(tmp_path):
    kit = make_kits(tmp_path / "kits", **STUDY)["server"]
    before = files_of(kit)
    left = kit.path / "12345678-1234-1234-1234-123456789012"
    for folder in (left, kit.path / "jobs" / "old"):
        folder.mkdir(parents=True)
        (folder / "state.bin").write_bytes(b"positions")
    clear_workplace(kit)
    assert files_of(kit) == before and not left.exists()
    # Jobs are stored in the kit, not where every user of the machine could read them.
    assert "/tmp/nvflare" not in (kit.local / "resources.json").read_text()
    assert str(kit.path / "jobs") in (kit.local / "resources.json").read_text()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"server": "localhost"}, "server is 'localhost'; it should read host:port"),
        ({"server": "localhost:"}, "server is 'localhost:'"),
        ({"server": ":8002"}, "server is ':8002'"),
        ({"server": "local host:8002"}, "server is 'local host:8002'"),
        ({"server": "../up:8002"}, "server is '../up:8002'"),
        ({"server": "localhost:0"}, "server is 'localhost:0'"),
        ({"server": "localhost:65536"}, "server is 'localhost:65536'"),
        ({"server": "localhost:80b"}, "server is 'localhost:80b'"),
        ({"sites": []}, r"sites is \[\]; name at least one, each once"),
        ({"sites": ["north", "north"]}, r"sites is \['north', 'north'\]; name at least one, each once"),
        ({"sites": ["north", "server"]}, "'server' cannot name a study or site"),
        ({"sites": ["analyst"]}, "'analyst' cannot name a study or site"),
        ({"sites": ["localhost"]}, "'localhost' cannot name a study or site"),
        ({"sites": ["../north"]}, "'../north' cannot name a study or site: use letters, digits, - and _"),
        ({"sites": ["north pole"]}, "'north pole' cannot name a study or site"),
        ({"sites": ["1st"]}, "'1st' cannot name a study or site"),
        ({"sites": ["n" * 64]}, "'n{64}' cannot name a study or site"),
        ({"sites": ["north\n"]}, r"'north\\n' cannot name a study or site"),
        ({"study": ""}, "'' cannot name a study or site"),
        ({"analyst": "ann"}, "analyst is 'ann'; it should read like an e-mail address"),
        ({"analyst": "a/b@example.org"}, "analyst is 'a/b@example.org'"),
    ],
)
def test_what_cannot_be_a_study_is_refused(tmp_path, changes, words):
    with pytest.raises(SettingsError, match=words):
        make_kits(tmp_path / "kits", **STUDY | changes)
    assert not (tmp_path / "kits").exists()


def test_kits_are_not_made_over_others(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(
        SettingsError, match=r"is not an empty folder; kits made anew would not fit what is in it\. Choose another"
    ):
        make_kits(tmp_path, **STUDY)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        "[" * 100_000,
        "1" * 5000,
        "null",
        '{"sites": ["north"]}',
        '{"sites": ["north"], "more": 1}',
        kit_text(role="king"),
        kit_text(name=7),
        kit_text(name="west"),
        kit_text(role="server"),
        kit_text(role="analyst"),
        kit_text(study="../trial"),
        kit_text(server="localhost:99999"),
        kit_text(server=8002),
        kit_text(sites="north"),
        kit_text(sites=["north", ["south"]]),
        kit_text(sites={"north": 1}),
        kit_text(job={"server": "a.B"}),
        kit_text(job={"server": "a.B", "site": None}),
        kit_text(job=[]),
        kit_text(more=1),
    ],
)
def test_a_damaged_kit_is_refused(tmp_path, text):
    (tmp_path / "fahmc.json").write_text(text)
    with pytest.raises(SettingsError, match=r"fahmc\.json cannot be read: .* Get the kit anew"):
        Kit.load(tmp_path)


def test_the_kit_that_the_damaged_ones_come_from_is_none_of_them(tmp_path):
    (tmp_path / "fahmc.json").write_text(kit_text())
    assert Kit.load(tmp_path).address == ("localhost", 8002)


def test_a_folder_without_a_kit_is_refused(tmp_path):
    with pytest.raises(SettingsError, match=r"absent does not exist; give a folder that `fahmc federation init` made"):
        Kit.load(tmp_path / "absent")
    with pytest.raises(SettingsError, match="holds no start-up kit; give a folder that"):
        Kit.load(tmp_path)


def test_sampling_takes_the_analyst_s_kit_and_starting_the_others(kits):
    Connection(kits["analyst"])
    for name in WITH_POLICY:
        with pytest.raises(SettingsError, match=f"{name} is the kit of '{name}'; sampling takes the analyst's kit"):
            Connection(kits[name])
    # The engine says so too, before it connects to anybody.
    for kit, words in ((kits["north"].path, "is the kit of 'north'"), ("no/such/kit", "no/such/kit does not exist")):
        with pytest.raises(SettingsError, match=words):
            fahmc.sample(
                fahmc.models.logistic_regression(), fahmc.Sites(outcome="y"), fahmc.FAHMC(0.1), 3, engine=Flare(kit)
            )
    with pytest.raises(SettingsError, match="is the analyst's kit; start the server's and the sites' kits"):
        Participant(kits["analyst"])


@pytest.mark.parametrize("name", ["round_timeout", "patience", "setup_timeout"])
@pytest.mark.parametrize("value", [0, -1.0, float("inf"), float("nan"), True, "60", None])
def test_seconds_must_be_some(name, value):
    with pytest.raises(SettingsError, match=f"{name} is {value!r}; it must be a positive number of seconds"):
        Flare("kit", **{name: value})


@pytest.mark.parametrize("odd", [" ", "'", '"', "\\", "\t"])
def test_paths_that_a_worker_s_command_would_be_torn_at_are_refused(kits, odd):
    kit = kits["north"]
    with pytest.raises(SettingsError, match="in its path; FLARE cannot start workers there"):
        Participant(kit._replace(path=kit.path / f"o{odd}neil"))
    Participant(kit._replace(path=kit.path / "$HOME;é"))
