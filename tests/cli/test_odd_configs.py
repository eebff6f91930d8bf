"""Configuration files that are odd: long, deep, with numbers beyond all bounds. Each is refused in a sentence, soon."""

import os
import time

import pytest

from fahmc.cli.config import MAX_BYTES, load_config, parse_config, read_text
from fahmc.cli.toml_lines import locate_keys, parse_toml
from fahmc.errors import SettingsError

STUDY = """\
[model]
name = "logistic_regression"

[data]
file = "rows.csv"
site_column = "site"
outcome = "ill"
features = [
{features}]

[run]
seed = {seed}
"""


def test_a_list_of_many_lines_takes_time_in_proportion(tmp_path):
    """Two thousand lines took 47 s: each was read once more with every further one."""
    features = "".join(f'  "column {i}",  # [\n' for i in range(20_000))
    began = time.process_time()
    config = parse_config(STUDY.format(features=features, seed=5), tmp_path / "study.toml")
    assert time.process_time() - began < 20
    assert config.data.features is not None and len(config.data.features) == 20_000
    assert config._source.place(("run", "seed")) == "study.toml, line 20012"


def test_lines_of_keys_behind_strings_and_brackets_over_several_lines():
    text = '''a = """x
[ # " \' """
b.c = 'x#[' # [
[t."q.r"]
d = {e = "]", f = [1,
2]}
g = \'\'\'
[
\'\'\'
"h" = "\\"["
[[u]]
k = """a""\\""""
'''
    lines = locate_keys(text)
    assert {path[-1]: line for path, line in lines.items()} == {
        "a": 1, "b": 3, "c": 3, "t": 4, "q.r": 4, "d": 5, "e": 5, "f": 5, "g": 7, "h": 10, "u": 11, "k": 12
    }  # fmt: skip
    assert lines["t", "q.r", "d", "f"] == 5


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a = " + "[" * 5000, "nested in more than 32 others"),
        ("a = " + "[" * 40 + "]" * 40, "nested in more than 32 others"),
        ("a = " + "{b = " * 5000, "nested in more than 32 others"),
        ("a = " + "9" * 5000, "a number cannot be read"),
        ("a = 0x" + "f" * 5000, "a whole number is beyond"),
        ("a = [1, [18446744073709551616]]", "a whole number is beyond"),
        ("x = 1\n" + "b." * 20_000 + "c = 1", "line 2: a name of more than 32 parts"),
        ("[" + "b." * 20_000 + "c]", "line 1: a name of more than 32 parts"),
    ],
)
def test_what_no_setting_is_like_is_refused_soon(text, words):
    with pytest.raises(SettingsError, match=rf"^study.toml(, line \d)?: .*{words}|^study.toml, {words}"):
        parse_toml(text, "study.toml")


def test_largest_integers_are_read():
    assert parse_toml("a = 18446744073709551615\nb = -9223372036854775808", "f") == {"a": 2**64 - 1, "b": -(2**63)}


def test_a_refusal_is_short_however_long_the_value(tmp_path):
    wrong = STUDY.format(features="", seed='"' + "x" * 10**6 + '"')
    with pytest.raises(SettingsError) as caught:
        parse_config(wrong, tmp_path / "study.toml")
    assert "study.toml, line 12: run.seed = 'xxx" in str(caught.value) and len(str(caught.value)) < 500
    many = STUDY.format(features="", seed=1) + "".join(f"unknown{i} = 1\n" for i in range(1000))
    with pytest.raises(SettingsError) as caught:
        parse_config(many, tmp_path / "study.toml")
    assert len(str(caught.value).splitlines()) == 5


def test_paths_start_at_the_home_folder_or_are_refused(tmp_path, monkeypatch):
    """A folder that is called ~ is hard to remove without the other one."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    text = STUDY.format(features="", seed=1)
    config = parse_config(text.replace("rows.csv", "~/rows.csv") + 'output = "~/out"\n', tmp_path / "study.toml")
    assert (config.data.file, config.run.output) == (f"{tmp_path}/home/rows.csv", f"{tmp_path}/home/out")
    for wrong in (text.replace("rows.csv", r"a\u0000b"), text + r'output = "a\u0000b"'):
        with pytest.raises(SettingsError, match=r"line (5|13): (data.file|run.output) = .*no file can have NUL"):
            parse_config(wrong, tmp_path / "study.toml")


def test_what_is_no_file_of_settings(tmp_path):
    os.mkfifo(tmp_path / "pipe.toml")
    for path in (tmp_path, tmp_path / "pipe.toml"):
        with pytest.raises(SettingsError, match="is not a file; give the configuration as a TOML file"):
            load_config(path)
    with pytest.raises(SettingsError, match=r"absent.toml cannot be read"):
        load_config(tmp_path / "absent.toml")
    with open(tmp_path / "large.toml", "wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(SettingsError, match=r"large.toml has 16.0 MB; settings take 16.0 MB at most"):
        load_config(tmp_path / "large.toml")
    (tmp_path / "marked.toml").write_bytes(b"\xef\xbb\xbfa = 1\r\n")
    assert read_text(tmp_path / "marked.toml") == "a = 1\n"
