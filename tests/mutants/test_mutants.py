"""The table of mutants is about this tree; ``make mutants`` tries them."""

import ast
import functools
import importlib.util
from pathlib import Path

import pytest

from mutant_table import MUTANTS

TESTS = Path(__file__).parents[1]
PACKAGE = TESTS.parent / "src" / "fahmc"


@functools.cache
def names_in(file: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)}


def test_there_are_enough_of_every_kind():
    assert len(MUTANTS) >= 40 and len(set(MUTANTS)) == len(MUTANTS)
    areas = {mutant.area for mutant in MUTANTS}
    assert {"dynamics", "gradients", "averaging", "keys", "checkpoints", "wire", "rules", "encoding"} <= areas


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.file}: {mutant.after.strip()}"[:60])
def test_the_line_is_there_once_and_its_tests_exist(mutant):
    content = (PACKAGE / mutant.file).read_text(encoding="utf-8")
    assert content.count(mutant.before) == 1 and mutant.before != mutant.after
    ast.parse(content.replace(mutant.before, mutant.after))
    for test in mutant.tests.split():
        file, _, name = test.partition("::")
        assert (TESTS / file).is_file() and (not name or name.partition("[")[0] in names_in(TESTS / file)), test


def test_an_overlay_is_the_package_with_one_change(tmp_path):
    spec = importlib.util.spec_from_file_location("mutants_main", Path(__file__).with_name("__main__.py"))
    assert spec is not None and spec.loader is not None
    main = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(main)
    mutant = next(mutant for mutant in MUTANTS if mutant.file.count("/") == 2)
    main.overlay(mutant, tmp_path / "source")
    changed = tmp_path / "source" / "fahmc" / mutant.file
    assert mutant.after in changed.read_text() and not changed.is_symlink()
    for file in PACKAGE.rglob("*.py"):
        other = tmp_path / "source" / "fahmc" / file.relative_to(PACKAGE)
        assert other == changed or other.read_bytes() == file.read_bytes()
