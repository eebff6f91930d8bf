"""A start-up kit that went through many hands: files missing, mixed up, cut short, and texts of wrong kinds."""

from __future__ import annotations

import atexit
import functools
import json
import random
import shutil
import ssl
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fahmc.engines.flare.credentials import authority_file, certificate_file, check_credentials, key_file, valid_window
from fahmc.engines.flare.kits import Kit, make_kits
from fahmc.engines.flare.ledger import Ledger
from fahmc.engines.flare.logs import Logs
from fahmc.engines.flare.processes import running_pid
from fahmc.engines.flare.state import State, read_state, write_state
from fahmc.engines.flare.statement import items
from harness import part
from kit_forge import Authority

_JUNK: list[Any] = [
    None,
    True,
    0,
    -1,
    1e300,
    2**70,
    "",
    "x",
    "../up",
    "a\0b",
    "ß",
    [],
    ["north"],
    {},
    {"server": 1},
    [[]],
]
_JUNK += ["localhost:8002", "localhost:99999", "south", "server", "eve@example.org", "n" * 5000, ["north", "north"]]


@functools.cache
def _made() -> dict[str, Kit]:
    names = {"study": "trial", "server": "localhost:8002", "sites": ["north", "south"], "analyst": "ann@example.org"}
    folder = tempfile.mkdtemp(prefix="fahmc-fuzz-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    kits = make_kits(Path(folder) / "kits", **names)
    authority = Authority("trial")
    for kit in kits.values():
        authority.certify(kit)  # keys that are quicker to read than FLARE's
    return kits


@part("kits")
def try_one(rng: random.Random, folder: Path) -> str:
    """Open a kit that was damaged once or twice, and look into all that a command would."""
    source = rng.choice(list(_made().values()))
    path = Path(shutil.copytree(source.path, folder / "kit"))
    for _ in range(rng.choice([0, 1, 1, 1, 2])):
        rng.choice(_DAMAGES)(rng, path)
    kit = Kit.load(path)
    _look(kit)
    if kit.role == "site":
        assert [item.what for item in items(Ledger(kit.path))] == ["begun"]
    check_credentials(kit)
    # What is accepted is what OpenSSL takes, too: a certificate of the authority, with its own key, in its time.
    context = ssl.create_default_context(cafile=str(authority_file(kit)))
    context.load_cert_chain(certificate_file(kit), key_file(kit))
    assert context.cert_store_stats()["x509_ca"] == 1 and valid_window(kit).begins < valid_window(kit).ends
    assert kit.name in {"server": ["server"], "site": kit.sites, "analyst": [kit.name]}[kit.role]
    return "accepted"


def _look(kit: Kit) -> None:
    """Read what the kit's own processes leave in it: never refused, whatever it holds."""
    state = read_state(kit)
    assert state is None or state.silence >= 0.0
    assert running_pid(kit) is None or (kit.path / "fahmc.pid").exists()
    assert all("\n" not in line.text for line in Logs(kit).read())
    write_state(kit, State("starting", "why", ("north",), 7, 1.0, 2.0, 0.5))
    assert read_state(kit) == State("starting", "why", ("north",), 7, 1.0, 2.0, 0.5)


def _change_json(rng: random.Random, path: Path) -> None:
    file = path / "fahmc.json"
    try:
        entries = dict(json.loads(file.read_text()))
    except Exception:
        return  # damaged before
    key = rng.choice([*entries, "more"])
    if rng.random() < 0.2:
        entries.pop(key, None)
    elif isinstance(entries.get(key), dict) and rng.random() < 0.5:
        entries[key][rng.choice([*entries[key], "more"])] = rng.choice(_JUNK)
    else:
        entries[key] = rng.choice(_JUNK)
    file.write_text(json.dumps(entries))


def _garble(rng: random.Random, path: Path) -> None:
    """Cut a file short, flip bytes in it, put text of another kind in its place, or a folder, or nothing."""
    file = rng.choice(sorted(each for each in path.rglob("*") if each.is_file()))
    content = bytearray(file.read_bytes())
    how = rng.randrange(6)
    if not content:
        return
    if how == 0:
        file.write_bytes(content[: rng.randrange(len(content) + 1)])
    elif how == 1:
        for _ in range(rng.randrange(1, 8)):
            content[rng.randrange(len(content))] = rng.randrange(256)
        file.write_bytes(content)
    elif how == 2:
        file.write_text(rng.choice(["", "{", "[]", "7", "[" * 50_000, "9" * 5000, "null", "\ufeff{}"]))
    else:
        file.unlink()
        if how == 3:
            file.mkdir()


def _swap(rng: random.Random, path: Path) -> None:
    """Take a file from another kit of the study."""
    other = rng.choice(list(_made().values())).startup
    own = rng.choice(sorted(path.glob("startup/*")))
    if (other / own.name).exists() and not own.is_dir():
        shutil.copy(other / own.name, own)


def _certify(rng: random.Random, path: Path) -> None:
    try:
        kit = Kit.load(path)
    except Exception:
        return  # damaged before
    for file in (certificate_file(kit), authority_file(kit), key_file(kit)):
        if file.is_dir():
            return
    owner = rng.choice([None, None, "west", "localhost"])
    Authority("trial").certify(kit, rng.choice([-9.0, -1.0, 1.0]), rng.choice([2.0, 300.0, 900.0]), owner=owner)


def _leave(rng: random.Random, path: Path) -> None:
    """Leave something where the kit's processes write."""
    texts = ["", "\0", "1", "1 2", "-5 x", "abc def", f"{'9' * 5000} 1.0", "1e9 2", "{}", '{"word": [], "sites": []}']
    texts += [json.dumps(State("connected")._asdict() | {rng.choice(["word", "sites", "at"]): rng.choice(_JUNK)})]
    for name in ("fahmc.pid", "fahmc-state.json", "output.txt", "log.txt"):
        if rng.random() < 0.5:
            (path / name).write_text(rng.choice(texts))


_DAMAGES: list[Callable[[random.Random, Path], None]] = [_change_json, _change_json, _garble, _swap, _certify, _leave]
