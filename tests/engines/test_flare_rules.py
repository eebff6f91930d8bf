"""A site's own file is read strictly, refuses in sentences, and its secret is made once and stays."""

import hashlib
import hmac
import re
import stat
from typing import Any

import pytest

from fahmc.engines.flare import rules
from fahmc.engines.flare.refusals import Refused
from fahmc.engines.flare.rules import (
    Rules,
    private_seed,
    read_rules,
    read_settled_rules,
    row_mark,
    site_secret,
    write_settled_rules,
)
from fahmc.engines.flare.server_rules import ServerRules, read_server_rules
from fahmc.engines.order import Order
from fahmc.errors import FederationError, SettingsError
from fahmc.registry import choices


@pytest.fixture
def site(tmp_path):
    """Return a function that writes a site's own file, beside its table."""
    (tmp_path / "north.csv").write_text("age,ill\n1,yes\n")

    def write(*lines: str):
        path = tmp_path / "site.toml"
        path.write_text("\n".join(lines))
        return path

    return write


def test_a_site_s_file_is_read(site, tmp_path):
    found = read_rules(site('file = "north.csv"', 'columns = ["age", "ill"]', "private_seed = 3"))
    assert found.file == str((tmp_path / "north.csv").resolve())
    assert found.columns == ["age", "ill"] and found.private_seed == 3
    # What is not said is the cautious choice: enough rows, no code of anybody.
    assert (found.minimum_rows, found.models) == (10, list(choices("model")))
    assert (found.own_models, found.own_samplers) == ([], [])
    assert found.limits == (4096 * 2**20, 3600)
    byte_order_mark = "\ufeff"  # with which some editors begin a file
    assert read_rules(site(byte_order_mark + 'file = "north.csv"', 'columns = "all"')).private_seed is None


def test_another_table_may_be_named_at_the_start(site, tmp_path):
    (tmp_path / "newer.csv").write_text("age\n1\n")
    path = site('file = "absent.csv"', 'columns = "all"')
    assert read_rules(path, tmp_path / "newer.csv").file == str((tmp_path / "newer.csv").resolve())
    with pytest.raises(SettingsError, match=r"^--data is .*none\.csv, but there is no such file\. Name the site's"):
        read_rules(path, tmp_path / "none.csv")


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (['file = "north.csv"'], r"site\.toml: columns is missing\. Add it: what may others use"),
        (['columns = "all"'], r"site\.toml: file is missing\. Add it: where is this site's table"),
        (['file = "south.csv"', 'columns = "all"'], r"site\.toml is .*south\.csv, but there is no such file"),
        (['file = "."', 'columns = "all"'], "but there is no such file"),
        (['file = "north.csv"', 'columns = "all"', "rows = 3"], r"rows is not known\. Known here: file, columns, secu"),
        (['file = "north.csv"', 'columns = "age"'], "columns.* = 'age': input should be"),
        (['file = "north.csv"', "columns = [1]"], "columns.* = 1: input should be a valid string"),
        (['file = "north.csv"', 'columns = "all"', "minimum_rows = 0"], "minimum_rows = 0: input should be greater"),
        (['file = "north.csv"', 'columns = "all"', 'minimum_rows = "5"'], "minimum_rows = '5': input should be a val"),
        (
            ['file = "north.csv"', 'columns = "all"', "maximum_megabytes = 0"],
            "maximum_megabytes = 0: input should be",
        ),
        (
            ['file = "north.csv"', 'columns = "all"', "maximum_minutes = inf"],
            "maximum_minutes = inf: input should be",
        ),
        (['file = "north.csv"', 'columns = "all"', "private_seed = -1"], "private_seed = -1: input should be greater"),
        (
            ['file = "north.csv"', 'columns = "all"', 'own_samplers = "a:B"'],
            "own_samplers = 'a:B': input should be a val",
        ),
        (['file = "north.csv"', 'columns = "all"', 'models = ["forest"]'], "models names 'forest'; ready-made are lin"),
        (['file = "north.csv"', 'columns = "all"', 'samplers = ["NUTS"]'], "samplers names 'NUTS'; ready-made are F"),
        (['file = "north.csv"', 'columns = "all"', 'secure_sum = "no"'], "secure_sum = 'no': input should be"),
        (['file = "north.csv"', 'columns = "all"', "maximum_weight = 1.5"], "maximum_weight = 1.5: input should be"),
        (["file = north.csv"], r"site\.toml is not TOML"),
        (['file = "north.csv"', "columns"], r"site\.toml is not TOML"),
        ([r'file = "a\u0000b"', 'columns = "all"'], r"site\.toml is not TOML: embedded null byte"),
        (["columns = " + "[" * 9000], r"site\.toml is not TOML: maximum recursion"),
    ],
)
def test_a_file_that_says_something_else_is_refused(site, lines, words):
    with pytest.raises(SettingsError, match=words):
        read_rules(site(*lines))


def test_a_file_that_is_not_there_or_not_text_is_refused(tmp_path):
    with pytest.raises(SettingsError, match=r"site\.toml cannot be read: No such file or directory\. A site needs"):
        read_rules(tmp_path / "site.toml")
    (tmp_path / "site.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match=r"site\.toml is not TOML"):
        read_rules(tmp_path / "site.toml")


def made(**settings) -> Rules:
    return Rules(**{"file": "north.csv", "columns": ["age", "x", "z[1]"]} | settings)


def test_columns_are_allowed_by_name_or_by_their_array():
    allowed = made()
    assert [name for name in ("age", "x", "x[0]", "x[12]", "z[1]") if not allowed.allows(name)] == []
    assert [name for name in ("z", "z[0]", "z[12]", "xx", "xx[0]", "ag", "income", "") if allowed.allows(name)] == []
    assert made(columns="all").allows("income") and not made(columns=[]).allows("income")


def ordered(model: Any, sampler: Any = None, **order: Any) -> Order:
    sampler, weights = sampler or {"name": "FAHMC"}, {"north": 0.5, "south": 0.3, "east": 0.2}
    settings = {"sampler": sampler, "leader": sampler, "weights": weights, "leaf_shapes": {"x": [4]}} | order
    return Order(
        model, phase="", stream="", seed=1, num_chains=1, dtype="float32", template=None, num_rows=90, **settings
    )


def test_refusals_of_a_site_name_what_and_why():
    allowed = made(minimum_rows=30, models=["mlp", "linear_regression"], own_models=["a:model"], own_samplers=["a:B"])
    allowed.check_rows(30)
    with pytest.raises(Refused, match=r"fewer complete rows .* than it takes part with") as refusal:
        allowed.check_rows(29)
    assert not re.search(r"\d", str(refusal.value)), "how many there are is the site's own business"
    allowed.check_order(ordered({"name": "mlp"}, {"name": "FAHMC", "gradient": {"object": "a:B"}}), "north", 40)
    allowed.check_order(ordered({"object": "a:model"}), "north", 40)
    for model in ({"name": "logistic_regression"}, {"name": None}, {"name": ["mlp"]}, {}):
        with pytest.raises(Refused, match=r"^the model .* may not run here"):
            allowed.check_order(ordered(model), "north", 40)
    with pytest.raises(Refused, match=r"^the model 'a:B' is not ready-made and not listed here"):
        allowed.check_order(ordered({"object": "a:B"}), "north", 40)
    for sampler in ({"object": "a:model"}, {"name": "FAHMC", "gradient": {"of": [{"object": "a:model"}]}}):
        with pytest.raises(Refused, match=r"^'a:model' is not part of fahmc and not listed here"):
            allowed.check_order(ordered({"name": "mlp"}, sampler), "north", 40)


def test_rules_reach_the_site_s_workers_unchanged(tmp_path):
    with pytest.raises(FederationError, match="was not started with `fahmc federation start`"):
        read_settled_rules(tmp_path)
    settled = made(minimum_rows=7, own_models=["study:model"], own_samplers=["study:Own"], private_seed=2**64 - 1)
    write_settled_rules(tmp_path, settled)
    assert read_settled_rules(tmp_path) == settled
    for damaged in ("{", '{"file": "north.csv"}', '{"file": "a", "columns": "all", "more": 1}'):
        (tmp_path / rules._SETTLED_FILE).write_text(damaged)
        with pytest.raises(FederationError, match="so it has no rules"):
            read_settled_rules(tmp_path)


def test_the_server_has_a_file_of_its_own(tmp_path):
    """It need not be there; what it lists may be imported to combine replies."""
    local, file = tmp_path / "local", tmp_path / "server.toml"
    assert read_server_rules(local) == ServerRules()
    file.write_text("")
    assert read_server_rules(local) == ServerRules()
    file.write_text('own_samplers = ["study:Own"]')
    assert read_server_rules(local).own_samplers == ["study:Own"]
    for damaged, words in {
        "own_samplers": r"^the server's server\.toml cannot be read: ",
        'own_samplers = "study:Own"': r"refused\. server\.toml: own_samplers = 'study:Own': input should be a",
        'samplers = ["study:Own"]': r"samplers is not known\. Known here: own_samplers, maximum_megabytes\.",
    }.items():
        file.write_text(damaged)
        with pytest.raises(FederationError, match=words):
            read_server_rules(local)


def test_a_secret_is_made_once_for_its_owner_alone(tmp_path):
    secret = site_secret(tmp_path)
    (path,) = tmp_path.iterdir()  # no draft is left
    assert len(secret) == 32 and path.read_bytes() == secret
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert site_secret(tmp_path) == secret
    other = tmp_path / "other"
    other.mkdir()
    assert site_secret(other) != secret


def test_of_two_processes_that_make_a_secret_the_first_counts(tmp_path, monkeypatch):
    """The other one has looked, and found none, before the first was done."""
    (tmp_path / rules._SECRET_FILE).write_bytes(bytes(32))
    monkeypatch.setattr(rules.Path, "exists", lambda path: False)
    assert site_secret(tmp_path) == bytes(32)
    assert [path.name for path in tmp_path.iterdir()] == [rules._SECRET_FILE]


@pytest.mark.parametrize("content", [b"", bytes(31), bytes(33)])
def test_a_damaged_secret_is_refused_and_not_replaced(tmp_path, content):
    (tmp_path / rules._SECRET_FILE).write_bytes(content)
    with pytest.raises(FederationError, match="secret is damaged; remove fahmc-secret in its kit to have a new one"):
        site_secret(tmp_path)
    assert (tmp_path / rules._SECRET_FILE).read_bytes() == content


def test_private_seeds_differ_by_order_and_by_secret():
    mine, yours = bytes(32), bytes([1] * 32)
    seeds = [private_seed(secret, order) for secret in (mine, yours) for order in ("one", "another")]
    assert len(set(seeds)) == 4 and all(0 <= seed < 2**64 for seed in seeds)
    assert private_seed(mine, "one") == seeds[0]
    assert max(seeds) >= 2**32, "all 64 bits are used"


def test_marks_of_rows_cannot_be_had_without_the_secret():
    secret = bytes(32)
    mark = row_mark(secret, "checksum")
    assert mark == hmac.new(secret, b"checksum", hashlib.sha256).hexdigest()[:16]
    assert len({mark, row_mark(secret, "of other rows"), row_mark(bytes([1] * 32), "checksum")}) == 3
